//! Files in shared memory: of each tmpfs, of open descriptors, and of mappings.

use std::collections::{BTreeMap, BTreeSet, HashSet, btree_map};
use std::fs::{self, File};
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
use crate::mapped::{reopen, shared_memory_device};
use crate::memory::charged::PageOwners;
use crate::memory::{LiveMemory, PageKind};
use crate::mounts::{FileSystem, Mounts, kernels_mount};
use crate::proc::maps::{self, FileId, Mapping};
use crate::proc::status::Status;
use crate::proc::{is_gone, pids};

/// Maximum time to walk over file systems, and then to read mappings.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of mappings that are read of a process.
const MAX_MAPPINGS: usize = 1 << 17;
/// Maximum number of entries in the list of files.
const LISTED: usize = 20;
/// Number of files of which the owner is read.
const SAMPLED: usize = 256;
/// Size below which files are always listed by directory, in bytes.
const SMALL: u64 = 1 << 20;

/// The notes for mappings that were not read.
const NO_MAPPINGS: &str = "some mappings cannot be read: shmem_unmapped may be too small";
const NO_TIME: &str = "not all mappings were read in time: shmem_unmapped may be too small";

/// The files in shared memory that a set of processes sees, opens or maps.
#[derive(Debug, Default)]
pub(super) struct SharedFiles {
    files: BTreeMap<FileId, SharedFile>,
    /// Whether the search has ended.
    is_searched: bool,
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
    /// Searches the files of processes, and which of their pages any process maps. `owners` are the
    /// inodes of the cgroup and of all below it; files of other cgroups are left out.
    pub(super) fn search(pids: &[u32], descriptors: &Descriptors, owners: &HashSet<u64>) -> Self {
        let mut found = Self { is_searched: true, ..Self::default() };
        let all = visible_processes();
        let devices = found.walk_all(pids, &all);
        found.add_descriptors(descriptors);
        let end = Instant::now() + MAX_TIME;
        let others = all.iter().filter(|pid| !pids.contains(pid));
        for (pid, is_own) in pids.iter().map(|p| (p, true)).chain(others.map(|p| (p, false))) {
            if Instant::now() > end {
                found.omitted.insert(NO_TIME);
                break;
            }
            let shared_bytes = Status::read(*pid).map_or(0, |status| status.shared_bytes);
            let read = match shared_bytes {
                0 => Ok(()),
                _ => found.add_mappings(*pid, is_own, &devices),
            };
            // A process that has ended maps nothing any more.
            let fails = read.is_err_and(|error| !is_gone(&error));
            if fails && (is_own || shared_bytes >= SMALL) {
                found.omitted.insert(NO_MAPPINGS);
            }
        }
        found.drop_foreign(owners);
        found
    }

    /// Removes the files that are charged to other cgroups, as far as that can be read.
    fn drop_foreign(&mut self, owners: &HashSet<u64>) {
        let Ok(list) = PageOwners::open() else { return };
        let mut largest: Vec<(&FileId, &mut SharedFile)> = self.files.iter_mut().collect();
        largest.sort_by_key(|(_, file)| std::cmp::Reverse(file.bytes));
        for (id, file) in largest.into_iter().take(SAMPLED) {
            let Ok(sample) = file.open(id).and_then(|opened| list.sample(opened)) else { continue };
            let own = sample.iter().filter(|inode| owners.contains(*inode)).count();
            file.charged = (!sample.is_empty()).then_some(own * 2 >= sample.len());
        }
        self.files.retain(|_, file| file.charged != Some(false));
    }

    /// Returns what was left out, as sentences.
    pub(super) fn notes(&self) -> Vec<String> {
        self.omitted.iter().map(|note| (*note).to_owned()).collect()
    }

    /// Walks over each tmpfs of each mount namespace once. Returns their devices.
    fn walk_all(&mut self, own: &[u32], all: &BTreeSet<u32>) -> HashSet<(u32, u32)> {
        let mut limits = SearchLimits { entries: 0, end: Instant::now() + MAX_TIME };
        let (mut namespaces, mut devices, mut walked) =
            (HashSet::new(), HashSet::new(), HashSet::new());
        devices.extend(shared_memory_device());
        for pid in own.iter().chain(all) {
            let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
            if limits.is_reached() || !namespaces.insert(namespace) {
                continue;
            }
            let mounts = Mounts::read(*pid);
            for mount in mounts.tmpfs() {
                devices.insert(mount.device);
                if walked.contains(&mount.device) {
                    continue;
                }
                let each = |path: PathBuf, stat: &Stat| {
                    let name = path.to_string_lossy().into_owned();
                    self.add(stat, name, false, Place::Path(*pid, path));
                };
                if walk(*pid, mount, &mut limits, each).is_ok() && mount.root == "/" {
                    walked.insert(mount.device);
                }
            }
        }
        if limits.is_reached() {
            self.omitted.insert("there are too many files in tmpfs to read all of them");
        }
        devices
    }

    fn add(&mut self, stat: &Stat, name: String, is_deleted: bool, place: Place) {
        let bytes = bytes_of(stat);
        let new = SharedFile { name, bytes, is_deleted, mapped: Vec::new(), place, charged: None };
        self.files.entry(FileId::of_stat(stat)).or_insert(new);
    }

    /// Adds open files that have no name in a tmpfs: removed ones, and memfd.
    fn add_descriptors(&mut self, descriptors: &Descriptors) {
        if !descriptors.is_complete {
            self.omitted.insert("there are too many open files to read all of them");
        }
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
    ) -> io::Result<()> {
        let text = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
        let mut memory = None;
        for mapping in maps::read(text).take(MAX_MAPPINGS) {
            let mapping = mapping?;
            if !mapping.has_file() || !devices.contains(&mapping.file.device) {
                continue;
            }
            if !self.files.contains_key(&mapping.file) && is_own {
                let (start, end) = (mapping.start, mapping.end);
                let link = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
                self.add_link(link, &mapping.name, |mount| {
                    Mounts::read(pid).file_system(mount) == Some(FileSystem::SharedMemory)
                        || kernels_mount() == Some(mount)
                });
            }
            let Some(file) = self.files.get_mut(&mapping.file) else { continue };
            if file.mapped_bytes() >= file.bytes {
                continue;
            }
            let memory = match &mut memory {
                Some(memory) => memory,
                none => none.insert(LiveMemory::pages_only(pid)?),
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

    /// Returns all files in at most [`LISTED`] entries, the largest first: large ones by name,
    /// those of a directory together, and what is left over as one.
    pub(super) fn list(&self) -> Vec<CgroupFile> {
        let all: u64 = self.files.values().map(|file| file.bytes).sum();
        let small = SMALL.max(all / LISTED as u64);
        let mut entries: Vec<Entry> = Vec::new();
        let mut joined: BTreeMap<(&str, bool), Entry> = BTreeMap::new();
        for file in self.files.values() {
            if file.bytes >= small {
                entries.push(Entry::new(file));
                continue;
            }
            let key = (file.directory(), file.is_deleted);
            match joined.entry(key) {
                btree_map::Entry::Vacant(vacant) => drop(vacant.insert(Entry::new(file))),
                btree_map::Entry::Occupied(mut entry) => {
                    entry.get_mut().add(&Entry::new(file), key.0);
                }
            }
        }
        entries.extend(joined.into_values());
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.file.bytes));
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

    fn add_mapped(&mut self, mapping: &Mapping, memory: &LiveMemory) -> io::Result<()> {
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
        let list = found.list();
        assert_eq!(list.len(), 1, "{list:?}");
        assert_eq!((list[0].path.as_str(), list[0].bytes), ("/dev/shm (125 files)", 125 * SMALL));
    }

    #[test]
    fn removed_files_are_apart_from_those_of_their_directory() {
        let named = (0..30).map(|index| (format!("/run/x/{index}"), SMALL, false));
        let removed = (0..30).map(|index| (format!("/run/x/old_{index}"), SMALL, true));
        let memfds = (0..30).map(|index| (format!("/memfd:frame{index}"), SMALL, true));
        let list = files(named.chain(removed).chain(memfds)).list();
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
        let list = found.list();
        let sum: u64 = list.iter().map(|file| file.bytes).sum();
        assert_eq!(list.len(), LISTED);
        assert_eq!(sum, found.files.values().map(|file| file.bytes).sum::<u64>());
        assert!(list.iter().any(|file| file.path == "elsewhere (981 files)"), "{list:?}");
    }

    #[test]
    fn a_large_file_keeps_its_name_among_small_ones() {
        let large = ("/dev/shm/large".to_owned(), 64 * SMALL, false);
        let small = (0..50).map(|index| (format!("/dev/shm/{index}"), SMALL / 2, false));
        let list = files(small.chain([large])).list();
        let names: Vec<_> = list.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["/dev/shm/large", "/dev/shm (50 files)"]);
    }
}
