//! The page cache by file, for files that processes have open or map.
//!
//! An open file is read through a copy of the descriptor of the process, so that nothing is opened:
//! an `open` could break a lease. A mapped file is opened as `crate::mapped` does. Files on FUSE
//! and network file systems are not asked for anything.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lowtide_model::cgroup::CachedFile;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs};

use super::descriptors::{Copier, Descriptor, Descriptors};
use crate::mapped::{open_local, reopen, shared_memory_device};
use crate::memory::charged::PageOwners;
use crate::memory::page_cache::{cached_pages, owners};
use crate::mounts::FileSystem;
use crate::proc::maps::{self, FileId};

/// Maximum time to read the files.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of mappings that are read of a process.
const MAX_MAPPINGS: usize = 1 << 17;
/// Size in the page cache from which on the owner of a file's pages is read, in bytes.
const MIN_SAMPLED: u64 = 64 << 10;
/// Number of files of which the owner is read.
const MAX_SAMPLED: usize = 512;
/// Magic numbers of file systems whose pages are not in the page cache of files: tmpfs, hugetlbfs
/// (linux/magic.h).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x9584_58f6];

/// The files on disks that a set of processes has open or maps.
#[derive(Debug, Default)]
pub(super) struct CachedFiles {
    pub(super) files: Vec<CachedFile>,
    /// Whether all files were read.
    pub(super) is_complete: bool,
    /// The number of mappings of each process.
    pub(super) mappings: BTreeMap<u32, u64>,
}

struct Search<'a> {
    found: BTreeMap<FileId, CachedFile>,
    /// Files of mappings that were opened. Their device can differ from that of an open file.
    mapped: HashSet<FileId>,
    list: Option<PageOwners>,
    /// The inodes of the cgroup and of all below it.
    own: &'a HashSet<u64>,
    /// The inodes of files with a lease, which an `open` could break.
    leased: HashSet<u64>,
    sampled: usize,
    mappings: BTreeMap<u32, u64>,
    end: Instant,
}

impl CachedFiles {
    /// Reads the files of processes. `own` are the inodes of the cgroup and of all below it.
    pub(super) fn read(pids: &[u32], descriptors: &Descriptors, own: &HashSet<u64>) -> Self {
        let (list, leased) = (PageOwners::open().ok(), leased());
        let end = Instant::now() + MAX_TIME;
        let (found, mapped, mappings) = (BTreeMap::new(), HashSet::new(), BTreeMap::new());
        let mut search = Search { found, mapped, list, own, leased, sampled: 0, mappings, end };
        let mut is_complete = descriptors.is_complete && search.add_open(descriptors);
        is_complete &= pids.iter().all(|pid| search.add_mapped(*pid));
        let files = search.found.into_values().collect();
        Self { files, is_complete, mappings: search.mappings }
    }
}

impl Search<'_> {
    fn is_late(&self) -> bool {
        Instant::now() > self.end
    }

    /// Adds open files. Returns whether there was time for all.
    fn add_open(&mut self, descriptors: &Descriptors) -> bool {
        let mut copier = Copier::default();
        for descriptor in descriptors.files(FileSystem::Local) {
            if self.is_late() {
                return false;
            }
            if let Some(copy) = copier.copy(descriptor) {
                self.add_descriptor(descriptor, copy);
            }
        }
        true
    }

    fn add_descriptor(&mut self, descriptor: &Descriptor, copy: OwnedFd) {
        let Ok(flags) = fcntl_getfl(&copy) else { return };
        if flags.contains(OFlags::PATH) {
            return;
        }
        let is_readable = !flags.contains(OFlags::WRONLY);
        self.add(descriptor.pid, &descriptor.link, &File::from(copy), is_readable);
    }

    /// Adds the files that a process maps. Returns whether there was time for all.
    fn add_mapped(&mut self, pid: u32) -> bool {
        // A process that may not be inspected, or has ended.
        let Ok(file) = File::open(format!("/proc/{pid}/maps")) else { return true };
        for mapping in maps::read(BufReader::new(file)).take(MAX_MAPPINGS).flatten() {
            if self.is_late() {
                return false;
            }
            *self.mappings.entry(pid).or_default() += 1;
            let is_shared_memory = Some(mapping.file.device) == shared_memory_device();
            if !mapping.has_file() || is_shared_memory || !self.mapped.insert(mapping.file) {
                continue;
            }
            if let Ok(file) = open_local(pid, &mapping) {
                self.add(pid, &mapping.name, &file, true);
            }
        }
        true
    }

    /// Adds a file. One that is open for writing only, such as a log, can be counted, but its pages
    /// cannot be mapped.
    fn add(&mut self, pid: u32, name: &str, file: &File, is_readable: bool) {
        let (Ok(stat), Ok(system)) = (fstat(file), fstatfs(file)) else { return };
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let id = FileId::of_stat(&stat);
        if !is_regular || IN_MEMORY.contains(&system.f_type) || self.found.contains_key(&id) {
            return;
        }
        let counted = cached_pages(file).ok();
        let is_mapped = counted.is_none_or(|pages| pages.bytes >= MIN_SAMPLED);
        let reopened = match is_mapped && !is_readable && !self.leased.contains(&id.inode) {
            true => reopen(file).ok(),
            false => None,
        };
        let readable = if is_readable { Some(file) } else { reopened.as_ref() };
        let Some(pages) = counted.or_else(|| cached_pages(readable?).ok()) else { return };
        let charged_bytes = readable.and_then(|file| self.charged(file, pages.bytes));
        let path = name.strip_suffix(" (deleted)").unwrap_or(name).to_owned();
        let (cached_bytes, dirty_bytes) = (pages.bytes, pages.dirty_bytes);
        let deleted = path != name;
        let new = CachedFile { path, pid, cached_bytes, dirty_bytes, charged_bytes, deleted };
        self.found.insert(id, new);
    }

    /// Returns the bytes of a file that are charged to the cgroup, by a sample of its pages.
    fn charged(&mut self, file: &File, cached_bytes: u64) -> Option<u64> {
        let list = self.list.as_ref().filter(|_| self.sampled < MAX_SAMPLED)?;
        if cached_bytes < MIN_SAMPLED {
            return None;
        }
        self.sampled += 1;
        let sample = owners(file, cached_bytes, list).ok()?;
        let own = sample.iter().filter(|inode| self.own.contains(inode)).count() as u64;
        (!sample.is_empty()).then(|| cached_bytes / sample.len() as u64 * own)
    }
}

/// Returns the inodes of files with a lease.
fn leased() -> HashSet<u64> {
    let text = fs::read_to_string("/proc/locks").unwrap_or_default();
    // `2: LEASE  ACTIVE    WRITE 1234 fe:01:5678 0 EOF`
    let inode = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let is_lease = matches!(fields.nth(1)?, "LEASE" | "DELEG");
        let file = fields.find(|field| field.split(':').count() == 3)?;
        is_lease.then(|| file.rsplit(':').next()?.parse().ok())?
    };
    text.lines().filter_map(inode).collect()
}
