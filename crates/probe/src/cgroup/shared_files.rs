//! Files in shared memory: of each tmpfs, of open descriptors, and of mappings.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lowtide_heap::ranges::{bytes, union};
use lowtide_model::cgroup::{CgroupFile, CgroupKind};
use lowtide_model::number::HumanCount;
use rustix::fs::{Mode, OFlags, Stat, fstat, open};

use super::descriptors::Descriptors;
use super::tmpfs::{SearchLimits, bytes_of, file_in_memory, find_file, walk};
use crate::machine::thread_cpu_s;
use crate::mapped::{reopen, shared_memory_device};
use crate::memory::charged::PageOwners;
use crate::memory::{PageKind, ProcessMemory};
use crate::mounts::{FileSystem, Mounts, kernels_mount};
use crate::proc::links;
use crate::proc::maps::{self, FileId, Mapping};
use crate::proc::status::Status;
use crate::proc::{is_gone, pids};

/// Maximum time to walk over file systems, and then to read mappings.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of mappings that are read of a process.
const MAX_MAPPINGS: usize = 1 << 17;
/// Maximum number of entries in the list of files.
const LISTED: usize = 20;
/// Number of the largest files of which the owner is read first.
const LARGEST: usize = 256;
/// Number of files of a directory that tell whose its other files are: of another group, if each
/// of these is.
const TELLING: usize = 16;
/// Maximum CPU time to read the owners of files, in seconds.
const MAX_OWNERS_CPU_S: f64 = 0.5;
/// Part of the shared memory that known files have if no others are needed to explain it.
const EXPLAINED: f64 = 0.95;
/// Maximum number of descriptors of other processes that are searched for files of the group.
const MAX_OTHERS: usize = 50_000;
/// Size below which files are always listed by directory, in bytes.
const SMALL: u64 = 1 << 20;

/// The notes for mappings that were not read.
const NO_MAPPINGS: &str = "some mappings cannot be read: shmem_unmapped may be too small";
const NO_TIME: &str = "not all mappings were read in time: shmem_unmapped may be too small";
/// The note for a walk that was not finished.
const TOO_MANY_FILES: &str = "there are too many files in tmpfs to read all of them";

/// The files in shared memory that a set of processes sees, opens or maps.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedFiles {
    files: BTreeMap<FileId, SharedFile>,
    /// The files of other cgroups.
    foreign: HashSet<FileId>,
    /// Whether the search has ended.
    is_searched: bool,
    /// Whether some place was not searched where files of the group can be.
    has_gap: bool,
    /// What was left out.
    omitted: BTreeSet<&'static str>,
}

#[derive(Debug, Clone)]
struct SharedFile {
    name: String,
    bytes: u64,
    is_deleted: bool,
    /// The mapped offsets, in order and disjoint.
    mapped: Vec<Range<u64>>,
    place: Place,
    /// Whether most of it is charged to the cgroup; `None` if that cannot be read.
    charged: Option<bool>,
}

/// How a file can be opened.
#[derive(Debug, Clone)]
enum Place {
    /// By its path in the mount namespace of a process.
    Path(u32, PathBuf),
    /// By a link in `/proc`.
    Link(PathBuf),
}

impl SharedFiles {
    /// Returns the files that the processes of a cgroup have open. `owners` are the inodes of the
    /// cgroup and of all below it; files of other cgroups are left out.
    pub(super) fn open(descriptors: &Descriptors, owners: &HashSet<u64>) -> Self {
        let mut found = Self::default();
        found.add_descriptors(descriptors);
        if !descriptors.is_complete {
            found.omitted.insert("there are too many open files to read all of them");
        }
        found.drop_foreign(owners);
        found
    }

    /// Searches all places where files of the cgroup can be, and which of their pages any process
    /// maps. `shmem_bytes` is the shared memory that the cgroup is charged for.
    pub(super) fn search(&mut self, pids: &[u32], owners: &HashSet<u64>, shmem_bytes: u64) {
        let all = visible_processes();
        let devices = self.walk_all(pids, &all);
        let end = Instant::now() + MAX_TIME;
        self.add_all_mappings(pids.iter().copied(), true, &devices, end);
        self.drop_foreign(owners);
        let others: Vec<u32> = all.iter().filter(|pid| !pids.contains(pid)).copied().collect();
        if self.charged_bytes() * 2 < shmem_bytes {
            self.add_others(&others, owners);
        }
        self.add_all_mappings(others.into_iter(), false, &devices, end);
        self.is_searched = true;
    }

    /// Adds the files of the cgroup that the processes of others have open, such as those of a
    /// process that has moved.
    fn add_others(&mut self, others: &[u32], owners: &HashSet<u64>) {
        // Without the owners, these would be files of others.
        if PageOwners::open().is_err() {
            self.has_gap = true;
            return;
        }
        let descriptors = Descriptors::read_most(others, MAX_OTHERS);
        self.has_gap |= !descriptors.is_complete;
        let known: HashSet<FileId> = self.files.keys().copied().collect();
        self.add_descriptors(&descriptors);
        self.drop_foreign(owners);
        self.files.retain(|id, file| known.contains(id) || file.charged == Some(true));
    }

    /// Adds the mapped pages of processes.
    fn add_all_mappings(
        &mut self,
        pids: impl Iterator<Item = u32>,
        is_own: bool,
        devices: &HashSet<(u32, u32)>,
        end: Instant,
    ) {
        for pid in pids {
            if Instant::now() > end {
                self.omitted.insert(NO_TIME);
                break;
            }
            let shared_bytes = Status::read(pid).map_or(0, |status| status.shared_bytes);
            let read = match shared_bytes {
                0 => Ok(()),
                _ => self.add_mappings(pid, is_own, devices, end),
            };
            // A process that has ended maps nothing any more.
            let fails = read.is_err_and(|error| !is_gone(&error));
            if fails && (is_own || shared_bytes >= SMALL) {
                self.omitted.insert(NO_MAPPINGS);
            }
        }
    }

    /// Reads whose files these are, as far as that can be read, and removes those of other
    /// cgroups: the largest files, then any, until the time is used up.
    fn drop_foreign(&mut self, owners: &HashSet<u64>) {
        let Ok(list) = PageOwners::open() else { return };
        let unknown = |(_, file): &(&FileId, &mut SharedFile)| file.charged.is_none();
        let mut files: Vec<_> = self.files.iter_mut().filter(unknown).collect();
        files.sort_by_key(|(_, file)| std::cmp::Reverse(file.bytes));
        if files.len() > LARGEST {
            // Some of each directory, whatever the order of their inodes.
            let order = RandomState::new();
            files[LARGEST..].sort_by_cached_key(|(id, _)| order.hash_one(id));
        }
        let end_s = thread_cpu_s() + MAX_OWNERS_CPU_S;
        for (id, file) in files {
            if thread_cpu_s() > end_s {
                break;
            }
            let Ok(sample) = file.open(id).and_then(|opened| list.sample(opened)) else { continue };
            let own = sample.iter().filter(|inode| owners.contains(*inode)).count();
            file.charged = (!sample.is_empty()).then_some(own * 2 >= sample.len());
        }
        self.remove_foreign();
    }

    /// Removes the files of other cgroups, and those beside them of which the owner was not read.
    fn remove_foreign(&mut self) {
        let mut known: HashMap<String, (usize, usize)> = HashMap::new();
        let read = |file: &&SharedFile| file.charged.is_some();
        for file in self.files.values().filter(read) {
            let counts = known.entry(file.directory().to_owned()).or_default();
            *if file.charged == Some(true) { &mut counts.0 } else { &mut counts.1 } += 1;
        }
        let is_foreign = |directory: &str| {
            known.get(directory).is_some_and(|(own, foreign)| *own == 0 && *foreign >= TELLING)
        };
        let (foreign, has_gap) = (&mut self.foreign, &mut self.has_gap);
        self.files.retain(|id, file| {
            let is_likely = file.charged.is_none() && is_foreign(file.directory());
            *has_gap |= is_likely;
            let is_kept = file.charged != Some(false) && !is_likely;
            if !is_kept {
                foreign.insert(*id);
            }
            is_kept
        });
    }

    /// Returns the bytes of files that are charged to the cgroup.
    fn charged_bytes(&self) -> u64 {
        let charged = self.files.values().filter(|file| file.charged == Some(true));
        charged.map(|file| file.bytes).sum()
    }

    /// Returns whether all places were searched where files of the cgroup can be.
    pub(super) fn is_whole(&self) -> bool {
        self.is_searched && !self.has_gap && self.omitted.is_empty()
    }

    /// Returns what was left out, as sentences.
    pub(super) fn notes(&self) -> Vec<String> {
        self.omitted.iter().map(|note| (*note).to_owned()).collect()
    }

    /// Walks over each tmpfs of each mount namespace once. Returns their devices.
    fn walk_all(&mut self, own: &[u32], all: &BTreeSet<u32>) -> HashSet<(u32, u32)> {
        let mut limits = SearchLimits { entries: 0, end: Instant::now() + MAX_TIME };
        let (mut namespaces, mut tmpfs, mut walked) =
            (HashSet::new(), HashSet::new(), HashSet::new());
        let mut devices: HashSet<(u32, u32)> = shared_memory_device().into_iter().collect();
        for pid in own.iter().chain(all) {
            let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
            if limits.is_reached() || !namespaces.insert(namespace) {
                continue;
            }
            let is_elsewhere = links::has_other_mounts(*pid);
            let mounts = Mounts::read(*pid);
            for mount in mounts.tmpfs() {
                if walked.contains(&mount.device) {
                    continue;
                }
                tmpfs.insert(mount.device);
                let each = |path: PathBuf, stat: &Stat| {
                    // The same path can be another file in the namespace of lowtide.
                    let name = match is_elsewhere {
                        true => format!("/proc/{pid}/root{}", path.display()),
                        false => path.to_string_lossy().into_owned(),
                    };
                    self.add(stat, name, false, Place::Path(*pid, path));
                };
                if walk(*pid, mount, &mut limits, each).is_ok() && mount.root == "/" {
                    walked.insert(mount.device);
                }
            }
        }
        if limits.is_reached() {
            self.omitted.insert(TOO_MANY_FILES);
        }
        self.has_gap |= !tmpfs.is_subset(&walked);
        devices.extend(tmpfs);
        devices
    }

    fn add(&mut self, stat: &Stat, name: String, is_deleted: bool, place: Place) {
        let (id, bytes) = (FileId::of_stat(stat), bytes_of(stat));
        if self.foreign.contains(&id) {
            return;
        }
        let new = SharedFile { name, bytes, is_deleted, mapped: Vec::new(), place, charged: None };
        self.files.entry(id).or_insert(new);
    }

    /// Adds open files that have no name in a tmpfs: removed ones, and memfd.
    fn add_descriptors(&mut self, descriptors: &Descriptors) {
        self.has_gap |= !descriptors.is_permitted;
        for found in descriptors.files(FileSystem::SharedMemory) {
            self.add_link(found.path(), &found.link, |mount| found.is_on(mount));
        }
    }

    /// Adds the file that a link in `/proc` leads to, which must be in shared memory.
    fn add_link(&mut self, link: PathBuf, name: &str, is_there: impl Fn(u64) -> bool) {
        if let Some(stat) = file_in_memory(&link, is_there) {
            let short = name.strip_suffix(" (deleted)").unwrap_or(name);
            self.add(&stat, short.to_owned(), short != name, Place::Link(link));
        }
    }

    /// Adds the mapped pages of a process. Of another process than those of the group, only
    /// mappings of known files count.
    fn add_mappings(
        &mut self,
        pid: u32,
        is_own: bool,
        devices: &HashSet<(u32, u32)>,
        end: Instant,
    ) -> io::Result<()> {
        let text = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
        let mut memory = None;
        for mapping in maps::read(text).take(MAX_MAPPINGS) {
            let mapping = mapping?;
            if Instant::now() > end {
                self.omitted.insert(NO_TIME);
                break;
            }
            if !mapping.has_file() || !devices.contains(&mapping.file.device) {
                continue;
            }
            let is_known =
                self.files.contains_key(&mapping.file) || self.foreign.contains(&mapping.file);
            if is_own && !is_known {
                let (start, end) = (mapping.start, mapping.end);
                let link = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
                self.add_link(link, &mapping.name, |mount| {
                    kernels_mount() == Some(mount)
                        || Mounts::read(pid).file_system(mount) == Some(FileSystem::SharedMemory)
                });
            }
            let Some(file) = self.files.get_mut(&mapping.file) else { continue };
            if file.mapped_bytes() >= file.bytes {
                continue;
            }
            let memory = match &mut memory {
                Some(memory) => memory,
                none => none.insert(ProcessMemory::pages_only(pid)?),
            };
            file.add_mapped(&mapping, memory)?;
        }
        Ok(())
    }

    /// Returns whether the search has ended.
    pub(super) fn is_searched(&self) -> bool {
        self.is_searched
    }

    /// Returns whether all mappings were read.
    pub(super) fn has_all_mappings(&self) -> bool {
        self.is_searched && !self.omitted.contains(NO_MAPPINGS) && !self.omitted.contains(NO_TIME)
    }

    /// Returns the bytes that some process maps.
    pub(super) fn mapped_bytes(&self) -> u64 {
        self.files.values().map(SharedFile::mapped_bytes).sum()
    }

    /// Returns the files in at most [`LISTED`] entries, those first that are known to be charged
    /// to the cgroup, and then the largest: large ones by name, those of a directory together, and
    /// what is left over as one. If the known ones are the shared memory that the cgroup is charged
    /// for, `shmem_bytes`, the others are left out.
    pub(super) fn list(&self, shmem_bytes: u64) -> Vec<CgroupFile> {
        let is_explained = self.charged_bytes() as f64 >= shmem_bytes as f64 * EXPLAINED;
        let listed = |file: &&SharedFile| !is_explained || file.charged == Some(true);
        let all: u64 = self.files.values().filter(listed).map(|file| file.bytes).sum();
        let small = SMALL.max(all / LISTED as u64);
        let mut entries: Vec<Entry> = Vec::new();
        let mut joined: BTreeMap<(&str, bool, Option<bool>), Entry> = BTreeMap::new();
        for file in self.files.values().filter(listed) {
            if file.bytes >= small {
                entries.push(Entry::new(file));
                continue;
            }
            let key = (file.directory(), file.is_deleted, file.charged);
            match joined.entry(key) {
                btree_map::Entry::Vacant(vacant) => drop(vacant.insert(Entry::new(file))),
                btree_map::Entry::Occupied(mut entry) => {
                    entry.get_mut().add(&Entry::new(file), key.0);
                }
            }
        }
        entries.extend(joined.into_values());
        entries.sort_by_key(|entry| {
            (entry.file.charged != Some(true), std::cmp::Reverse(entry.file.bytes))
        });
        if entries.len() > LISTED {
            let rest = entries.split_off(LISTED - 1);
            let sum = rest.into_iter().reduce(|mut sum, entry| {
                sum.add(&entry, "elsewhere");
                sum
            });
            entries.extend(sum);
        }
        entries.into_iter().map(|entry| entry.file).collect()
    }
}

/// One file that is listed, or several of a place together.
struct Entry {
    count: u64,
    file: CgroupFile,
}

impl Entry {
    fn new(file: &SharedFile) -> Self {
        Self { count: 1, file: file.listed() }
    }

    /// Adds files, and names all by their place.
    fn add(&mut self, other: &Self, place: &str) {
        self.count += other.count;
        let (sum, file) = (&mut self.file, &other.file);
        sum.bytes += file.bytes;
        sum.mapped_bytes += file.mapped_bytes;
        sum.deleted &= file.deleted;
        sum.charged = sum.charged.and(file.charged);
        sum.kind = row_of(sum.bytes, sum.mapped_bytes);
        sum.path = format!("{place} ({} files)", HumanCount(self.count));
    }
}

impl SharedFile {
    fn mapped_bytes(&self) -> u64 {
        bytes(&self.mapped)
    }

    fn add_mapped(&mut self, mapping: &Mapping, memory: &ProcessMemory) -> io::Result<()> {
        let pages = memory.pages(mapping.start..mapping.end)?;
        // A private mapping can have anonymous copies.
        let of_file = pages.into_iter().filter(|pages| pages.kind == PageKind::File);
        let offset = |address: u64| (address - mapping.start).saturating_add(mapping.offset);
        self.mapped.extend(of_file.map(|p| offset(p.range.start)..offset(p.range.end)));
        self.mapped = union(std::mem::take(&mut self.mapped));
        Ok(())
    }

    /// Opens it for reading, if it is still the same file.
    fn open(&self, id: &FileId) -> io::Result<File> {
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let found = match &self.place {
            Place::Path(pid, path) => find_file(*pid, path)?,
            Place::Link(link) => open(link, path, Mode::empty())?,
        };
        match FileId::of_stat(&fstat(&found)?) == *id {
            true => reopen(&found),
            false => Err(io::Error::other("it was replaced")),
        }
    }

    /// Returns where it is: its directory, or the part of its name that files without one share.
    fn directory(&self) -> &str {
        let nameless =
            ["/memfd:", "/SYSV"].into_iter().find(|prefix| self.name.starts_with(prefix));
        let parent = || Path::new(&self.name).parent().and_then(Path::to_str);
        nameless.or_else(parent).unwrap_or("/")
    }

    fn listed(&self) -> CgroupFile {
        let mapped_bytes = self.mapped_bytes().min(self.bytes);
        CgroupFile {
            path: self.name.clone(),
            kind: row_of(self.bytes, mapped_bytes),
            bytes: self.bytes,
            mapped_bytes,
            deleted: self.is_deleted,
            charged: self.charged,
        }
    }
}

/// Returns the row that most of a file belongs to.
fn row_of(bytes: u64, mapped_bytes: u64) -> CgroupKind {
    match mapped_bytes * 2 > bytes {
        true => CgroupKind::ShmemMapped,
        false => CgroupKind::ShmemUnmapped,
    }
}

fn visible_processes() -> BTreeSet<u32> {
    let own = std::process::id();
    pids().into_iter().flatten().flatten().filter(|pid| *pid != own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_several_mappings_contain_count_once() {
        let ranges = vec![8..12, 0..4, 2..6, 12..13];
        assert_eq!(union(ranges), [0..6, 8..13]);
    }

    fn files(found: impl IntoIterator<Item = (String, u64, bool)>) -> SharedFiles {
        let place = || Place::Link(PathBuf::new());
        let files = found.into_iter().zip(1..).map(|((name, bytes, is_deleted), inode)| {
            let place = place();
            let file =
                SharedFile { name, bytes, is_deleted, mapped: Vec::new(), place, charged: None };
            (FileId { device: (0, 1), inode }, file)
        });
        SharedFiles { files: files.collect(), ..SharedFiles::default() }
    }

    #[test]
    fn many_equal_files_of_a_directory_are_one_entry_with_all_of_their_bytes() {
        let found = files((0..125).map(|index| (format!("/dev/shm/part_{index}"), SMALL, false)));
        let list = found.list(u64::MAX);
        assert_eq!(list.len(), 1, "{list:?}");
        assert_eq!((list[0].path.as_str(), list[0].bytes), ("/dev/shm (125 files)", 125 * SMALL));
    }

    #[test]
    fn removed_files_are_apart_from_those_of_their_directory() {
        let named = (0..30).map(|index| (format!("/run/x/{index}"), SMALL, false));
        let removed = (0..30).map(|index| (format!("/run/x/old_{index}"), SMALL, true));
        let memfds = (0..30).map(|index| (format!("/memfd:frame{index}"), SMALL, true));
        let list = files(named.chain(removed).chain(memfds)).list(u64::MAX);
        let found: Vec<_> = list.iter().map(|file| (file.path.as_str(), file.deleted)).collect();
        assert_eq!(list.len(), 3, "{list:?}");
        assert!(found.contains(&("/run/x (30 files)", false)), "{found:?}");
        assert!(found.contains(&("/run/x (30 files)", true)), "{found:?}");
        assert!(found.contains(&("/memfd: (30 files)", true)), "{found:?}");
    }

    #[test]
    fn the_entries_have_all_bytes_that_were_found() {
        let found = files(
            (0..1000).map(|index| (format!("/run/{index}/file"), SMALL + index, index % 2 == 0)),
        );
        let list = found.list(u64::MAX);
        let sum: u64 = list.iter().map(|file| file.bytes).sum();
        assert_eq!(list.len(), LISTED);
        assert_eq!(sum, found.files.values().map(|file| file.bytes).sum::<u64>());
        assert!(list.iter().any(|file| file.path == "elsewhere (981 files)"), "{list:?}");
    }

    /// Marks files as charged to the cgroup, to another, or to an unknown one.
    fn charged(mut found: SharedFiles, charged: impl Fn(&str) -> Option<bool>) -> SharedFiles {
        found.files.values_mut().for_each(|file| file.charged = charged(&file.name));
        found
    }

    #[test]
    fn files_beside_those_of_another_group_are_not_taken_for_files_of_this_one() {
        let others = (0..2600).map(|index| (format!("/dev/shm/other/{index}"), SMALL / 64, false));
        let memfds = (0..30).map(|index| (format!("/memfd:frame{index}"), SMALL, true));
        // The owner of most of the small files was not read.
        let mut found = charged(files(others.chain(memfds)), |name| match name.len() {
            _ if name.starts_with("/memfd:") => Some(true),
            ..=17 => Some(false),
            _ => None,
        });
        found.is_searched = true;
        found.remove_foreign();
        let list = found.list(30 * SMALL);
        assert_eq!(list.len(), 1, "{list:?}");
        assert_eq!((list[0].path.as_str(), list[0].charged), ("/memfd: (30 files)", Some(true)));
        assert!(!found.is_whole(), "the owner of some is an inference");
    }

    #[test]
    fn files_that_are_known_to_be_of_the_group_come_before_larger_ones_of_unknown_groups() {
        let found = || {
            let own = (0..30).map(|index| (format!("/memfd:frame{index}"), SMALL, true));
            let large = ("/dev/shm/large".to_owned(), 64 * SMALL, false);
            charged(files(own.chain([large])), |name| name.starts_with("/memfd:").then_some(true))
        };
        let paths = |shmem: u64| -> Vec<String> {
            found().list(shmem).into_iter().map(|file| file.path).collect()
        };
        assert_eq!(paths(90 * SMALL), ["/memfd: (30 files)", "/dev/shm/large"]);
        assert_eq!(paths(30 * SMALL), ["/memfd: (30 files)"]);
    }

    #[test]
    fn a_few_files_of_another_group_do_not_tell_whose_the_others_are() {
        let few = (0..TELLING - 1).map(|index| (format!("/dev/shm/other{index}"), SMALL, false));
        let unknown = (0..3).map(|index| (format!("/dev/shm/unknown{index}"), SMALL, false));
        let mut found = charged(files(few.chain(unknown)), |name| {
            name.starts_with("/dev/shm/other").then_some(false)
        });
        found.remove_foreign();
        let list = found.list(u64::MAX);
        assert!(list.len() == 3 && list.iter().all(|file| file.charged.is_none()), "{list:?}");
    }

    #[test]
    fn a_large_file_keeps_its_name_among_small_ones() {
        let large = ("/dev/shm/large".to_owned(), 64 * SMALL, false);
        let small = (0..50).map(|index| (format!("/dev/shm/{index}"), SMALL / 2, false));
        let list = files(small.chain([large])).list(u64::MAX);
        let names: Vec<_> = list.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["/dev/shm/large", "/dev/shm (50 files)"]);
    }
}
