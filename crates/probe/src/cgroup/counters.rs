//! Cheap readings of memory cgroups by open files, a few microseconds each.
//!
//! Not the charge itself is compared with a limit: with page cache, it stands at the limit for as
//! long as the kernel has cache to drop.

use std::fs::File;
use std::io;
use std::path::Path;

use lowtide_model::counters::GroupBytes;
use lowtide_model::inspection::ContainerUse;

use super::directory::MemoryHierarchy;
use super::stat::stat_values;
use crate::pressure::{MemoryPressure, NO_LIMIT, field};
use crate::proc::reread;

/// Maximum number of groups above a process that are read.
const MAX_DEPTH: usize = 16;

/// One memory cgroup, by its open files.
#[derive(Debug)]
pub struct GroupCounters {
    /// Its path below the mount point.
    pub path: String,
    processes: Option<File>,
    /// Version of its hierarchy: 1 or 2.
    pub version: u32,
    charge: File,
    limit: Option<File>,
    stat: File,
    kernel: Option<File>,
    /// The file with the number of kills, and the one with the number of times that the limit was
    /// reached; the same file in version 2.
    kills: Option<File>,
    hits: Option<File>,
}

/// Opens the memory cgroups of a process, from its own to the topmost that has an account. Empty if
/// it is in none, or in none that is visible here.
pub fn counters_of(pid: u32) -> Vec<GroupCounters> {
    let own = MemoryHierarchy::read().and_then(|memory| memory.find_of_process(pid));
    let Ok(own) = own else { return Vec::new() };
    let chain = own.ancestors().take(MAX_DEPTH);
    chain
        .filter_map(|group| GroupCounters::open(&group, own.name(&group), own.version).ok())
        .collect()
}

/// Reads the use of the memory limit that a process reaches first: of the limits of its cgroup and
/// of those above it that are below the memory of the machine, the one with least left.
/// `own_bytes` is the size of its anonymous memory. Returns `None` without such a limit, or if none
/// can be read.
pub fn container_of(pid: u32, own_bytes: u64) -> Option<ContainerUse> {
    let machine_bytes = MemoryPressure::of_this_machine().limit_bytes.unwrap_or(NO_LIMIT);
    let mut buffer = Vec::new();
    let limited = counters_of(pid).into_iter().filter_map(|group| {
        let bytes = group.read(&mut buffer).ok()?;
        let limit = bytes.limit.filter(|limit| *limit < machine_bytes)?;
        Some((group.path, limit, bytes))
    });
    let left = |(_, limit, bytes): &(String, u64, GroupBytes)| limit.saturating_sub(bytes.kept());
    let (path, limit_bytes, bytes) = limited.min_by_key(left)?;
    let own_bytes = own_bytes.min(bytes.anon);
    Some(ContainerUse {
        path,
        limit_bytes,
        charged_bytes: bytes.charged,
        own_bytes,
        others_bytes: bytes.anon - own_bytes,
        cache_bytes: bytes.cache,
        shared_bytes: bytes.shared,
        kernel_bytes: bytes.kernel,
    })
}

impl GroupCounters {
    fn open(group: &Path, path: String, version: u32) -> io::Result<Self> {
        let open = |name: &str| File::open(group.join(name));
        let is_v1 = version == 1;
        Ok(Self {
            path,
            version,
            processes: open("cgroup.procs").ok(),
            charge: open(if is_v1 { "memory.usage_in_bytes" } else { "memory.current" })?,
            limit: open(if is_v1 { "memory.limit_in_bytes" } else { "memory.max" }).ok(),
            stat: open("memory.stat")?,
            kernel: open("memory.kmem.usage_in_bytes").ok().filter(|_| is_v1),
            // The counters of the group itself, without those of groups below it. The kernel has
            // `memory.events.local` since 5.2.
            kills: match is_v1 {
                true => open("memory.oom_control").ok(),
                false => open("memory.events.local").ok(),
            },
            hits: match is_v1 {
                true => open("memory.failcnt").ok(),
                false => open("memory.events.local").ok(),
            },
        })
    }

    /// Reads charge, limit, parts and counters. Without a limit, the parts are not read.
    ///
    /// # Errors
    /// Fails if the group was removed.
    pub fn read(&self, buffer: &mut Vec<u8>) -> io::Result<GroupBytes> {
        let charged = number(&self.charge, buffer)?.unwrap_or(0);
        let limit = self.limit.as_ref().and_then(|file| number(file, buffer).ok().flatten());
        let mut bytes = GroupBytes {
            charged,
            limit: limit.filter(|limit| *limit < NO_LIMIT),
            ..GroupBytes::default()
        };
        if bytes.limit.is_some() {
            self.read_parts(&mut bytes, buffer)?;
        }
        (bytes.kills, bytes.hits) = self.counters(buffer);
        Ok(bytes)
    }

    /// Reads the numbers of kills in this group, and of times that its own limit was reached.
    pub fn counters(&self, buffer: &mut Vec<u8>) -> (Option<u64>, Option<u64>) {
        let kills = self.kills.as_ref().and_then(|file| {
            let text = reread(file, buffer).ok()?;
            field(&text, "oom_kill")
        });
        let hits = self.hits.as_ref().and_then(|file| match self.version {
            1 => number(file, buffer).ok().flatten(),
            _ => field(&reread(file, buffer).ok()?, "max"),
        });
        (kills, hits)
    }

    /// Returns the PIDs of its processes, at most this many.
    pub fn processes(&self, most: usize, buffer: &mut Vec<u8>) -> Vec<u32> {
        let text = self.processes.as_ref().and_then(|file| reread(file, buffer).ok());
        let text = text.unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).take(most).collect()
    }

    fn read_parts(&self, bytes: &mut GroupBytes, buffer: &mut Vec<u8>) -> io::Result<()> {
        let text = reread(&self.stat, buffer)?;
        let parts = ChargeParts::parse(self.version, &text);
        drop(text);
        (bytes.anon, bytes.shared, bytes.cache) = (parts.anon, parts.shared, parts.cache);
        let kernel = self.kernel.as_ref().and_then(|file| number(file, buffer).ok().flatten());
        bytes.kernel = kernel.unwrap_or(parts.kernel).saturating_sub(parts.slab_reclaimable);
        Ok(())
    }
}

/// The used values of `memory.stat`, in bytes, with those of the groups below.
#[derive(Debug, Default, PartialEq, Eq)]
struct ChargeParts {
    anon: u64,
    shared: u64,
    cache: u64,
    kernel: u64,
    slab_reclaimable: u64,
}

impl ChargeParts {
    /// Parses the text in one pass: it is read up to a thousand times a second.
    fn parse(version: u32, text: &str) -> Self {
        let mut parts = Self::default();
        for (key, value) in stat_values(version, text) {
            let part = match (version, key) {
                (1, "rss") | (2, "anon") => &mut parts.anon,
                (_, "shmem") => &mut parts.shared,
                (_, "inactive_file" | "active_file") => &mut parts.cache,
                (2, "kernel" | "sock") => &mut parts.kernel,
                (2, "slab_reclaimable") => &mut parts.slab_reclaimable,
                _ => continue,
            };
            *part = part.saturating_add(value);
        }
        parts
    }
}

fn number(file: &File, buffer: &mut Vec<u8>) -> io::Result<Option<u64>> {
    Ok(reread(file, buffer)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn group(files: &[(&str, &str)], version: u32) -> GroupBytes {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(home.path().join(name), text).unwrap();
        }
        let reader = GroupCounters::open(home.path(), "/a".to_owned(), version).unwrap();
        reader.read(&mut Vec::new()).unwrap()
    }

    #[test]
    fn version_1_counts_the_groups_below_and_its_own_kills() {
        let read = group(
            &[
                ("memory.usage_in_bytes", "1000"),
                ("memory.limit_in_bytes", "4096"),
                ("memory.kmem.usage_in_bytes", "50"),
                ("memory.failcnt", "3"),
                ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
                (
                    "memory.stat",
                    "rss 1\ntotal_rss 600\ntotal_shmem 100\ntotal_inactive_file 200\ntotal_active_file 5\n",
                ),
            ],
            1,
        );
        let expected = GroupBytes {
            charged: 1000,
            limit: Some(4096),
            anon: 600,
            shared: 100,
            cache: 205,
            kernel: 50,
            kills: Some(2),
            hits: Some(3),
        };
        assert_eq!(read, expected);
        assert_eq!(read.kept(), 795);
    }

    #[test]
    fn version_2_has_its_kernel_memory_without_what_can_be_dropped() {
        let read = group(
            &[
                ("memory.current", "1000"),
                ("memory.max", "max"),
                ("memory.stat", "anon 9\n"),
                ("memory.events.local", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\n"),
            ],
            2,
        );
        assert_eq!((read.limit, read.anon, read.kills, read.hits), (None, 0, Some(1), Some(4)));
        let stat = "anon 600\nkernel 90\nsock 4\nslab_reclaimable 30\nshmem 7\nactive_file 11\n";
        let expected =
            ChargeParts { anon: 600, shared: 7, cache: 11, kernel: 94, slab_reclaimable: 30 };
        assert_eq!(ChargeParts::parse(2, stat), expected);
    }
}
