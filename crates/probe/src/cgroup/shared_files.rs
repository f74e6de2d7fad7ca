//! Files in shared memory: of each tmpfs, of open descriptors, and of mappings.

use std::collections::{BTreeMap, BTreeSet, HashSet};
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
use super::tmpfs::{FileSystem, Mounts, SearchLimits, bytes_of, file_in_memory, find_file, walk};
use crate::mapped::{reopen, shared_memory_device};
use crate::memory::charged::PageOwners;
use crate::memory::{LiveMemory, PageKind};
use crate::proc::maps::{self, FileId, Mapping};
use crate::proc::status::Status;
use crate::proc::{is_gone, pids};

/// Maximum time to walk over file systems, and then to read mappings.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of mappings that are read of a process.
const MAX_MAPPINGS: usize = 1 << 17;
/// Number of files that are listed.
const LISTED: usize = 20;
/// Number of files of which the owner is read.
const SAMPLED: usize = 256;
/// Size below which files are listed by directory, in bytes.
const SMALL: u64 = 1 << 20;

/// The notes for mappings that were not read.
const NO_MAPPINGS: &str = "the shared memory that some processes map cannot be read: as much as possible counts as mapped";
const NO_TIME: &str =
    "not all mappings were read in time: as much shared memory as possible counts as mapped";

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
                if walk(*pid, &mounts, mount, &mut limits, each).is_ok() && mount.root == "/" {
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
            self.add_link(found.path(), &found.link);
        }
    }

    /// Adds the file that a link in `/proc` leads to, which must be in shared memory.
    fn add_link(&mut self, link: PathBuf, name: &str) {
        if let Some(stat) = file_in_memory(&link) {
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
                self.add_link(link, &mapping.name);
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

    /// Returns the largest files, those of a directory together if they are small.
    pub(super) fn list(&self) -> Vec<CgroupFile> {
        let mut listed: Vec<CgroupFile> = Vec::new();
        let mut small: BTreeMap<&Path, (u64, CgroupFile)> = BTreeMap::new();
        for file in self.files.values() {
            let directory = Path::new(&file.name).parent().filter(|_| file.bytes < SMALL);
            let Some(directory) = directory else {
                listed.push(file.listed());
                continue;
            };
            let (count, sum) = small.entry(directory).or_insert((0, file.listed()));
            *count += 1;
            if *count > 1 {
                sum.bytes += file.bytes;
                sum.mapped_bytes += file.mapped_bytes().min(file.bytes);
                sum.path = format!("{} ({} files)", directory.display(), HumanCount(*count));
                sum.charged = sum.charged.and(file.charged);
            }
        }
        listed.extend(small.into_values().map(|(_, file)| file));
        listed.sort_by_key(|file| std::cmp::Reverse(file.bytes));
        listed.truncate(LISTED);
        listed
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

    fn listed(&self) -> CgroupFile {
        let mapped_bytes = self.mapped_bytes().min(self.bytes);
        let is_mapped = mapped_bytes * 2 > self.bytes;
        CgroupFile {
            path: self.name.clone(),
            kind: if is_mapped { CgroupKind::ShmemMapped } else { CgroupKind::ShmemUnmapped },
            bytes: self.bytes,
            mapped_bytes,
            deleted: self.is_deleted,
            charged: self.charged,
        }
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
}
