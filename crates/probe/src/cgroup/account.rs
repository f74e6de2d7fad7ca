//! The kernel's account of a cgroup: its charge, and `memory.stat`.

use std::collections::BTreeMap;

use super::directory::{CgroupDirectory, CgroupError};
use super::stat::stat_values;

/// Number of attempts to read the charge and its parts at the same moment.
const ATTEMPTS: usize = 5;

/// The charge and its parts.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    pub(super) version: u32,
    pub(super) charged_bytes: u64,
    /// The values of `memory.stat`.
    stat: BTreeMap<String, u64>,
    /// Kernel memory; `None` if the kernel does not report its sum (version 2 before Linux 5.18).
    kernel_bytes: Option<u64>,
}

impl Account {
    pub(super) fn read(group: &CgroupDirectory) -> Result<Self, CgroupError> {
        let mut account = Self::default();
        for _ in 0..ATTEMPTS {
            let before = group.charged_bytes()?;
            let stat = group.text("memory.stat")?;
            let kernel = group.number("memory.kmem.usage_in_bytes");
            let charged = group.charged_bytes()?;
            account = Self::parse(group.version, charged, &stat, kernel);
            if before == charged {
                break;
            }
        }
        Ok(account)
    }

    pub(super) fn parse(version: u32, charged_bytes: u64, stat: &str, kmem: Option<u64>) -> Self {
        let values = stat_values(version, stat).map(|(key, value)| (key.to_owned(), value));
        let stat: BTreeMap<String, u64> = values.collect();
        let kernel_bytes = if version == 1 { kmem } else { stat.get("kernel").copied() };
        Self { version, charged_bytes, stat, kernel_bytes }
    }

    pub(super) fn known(&self, key: &str) -> Option<u64> {
        self.stat.get(key).copied()
    }

    pub(super) fn value(&self, key: &str) -> u64 {
        self.known(key).unwrap_or(0)
    }

    pub(super) fn anon(&self) -> u64 {
        self.value(if self.version == 1 { "rss" } else { "anon" })
    }

    /// Returns the memory of a group in swap space.
    pub(super) fn swap_bytes(&self, group: &CgroupDirectory) -> Option<u64> {
        if self.version == 1 { self.known("swap") } else { group.number("memory.swap.current") }
    }

    /// Returns the page cache with shared memory.
    pub(super) fn file(&self) -> u64 {
        self.value(if self.version == 1 { "cache" } else { "file" })
    }

    pub(super) fn shmem(&self) -> u64 {
        self.value("shmem").min(self.file())
    }

    /// Returns the page cache without shared memory.
    pub(super) fn cache(&self) -> u64 {
        self.file() - self.shmem()
    }

    /// Returns the mapped pages of files and shared memory.
    pub(super) fn mapped(&self) -> u64 {
        self.value(if self.version == 1 { "mapped_file" } else { "file_mapped" })
    }

    pub(super) fn kernel(&self) -> Option<u64> {
        self.kernel_bytes
    }

    pub(super) fn dirty_bytes(&self) -> u64 {
        match self.version {
            1 => self.value("dirty").saturating_add(self.value("writeback")),
            _ => self.value("file_dirty").saturating_add(self.value("file_writeback")),
        }
    }

    /// Returns the charge without inactive file pages, as kubelet and cAdvisor compute it.
    pub(super) fn working_set_bytes(&self) -> u64 {
        self.charged_bytes.saturating_sub(self.value("inactive_file"))
    }

    /// Returns what the kernel can reclaim before it kills: the pages on its lists of files, which
    /// hold anonymous pages that the program gave back lazily (`MADV_FREE`), too, and slab. Version
    /// 1 does not tell how much of its kernel memory is such slab.
    pub(super) fn reclaimable_bytes(&self) -> u64 {
        let lists = self.value("active_file").saturating_add(self.value("inactive_file"));
        let slab = self.value("slab_reclaimable");
        lists.saturating_add(slab).min(self.charged_bytes)
    }

    /// Returns the page cache that the kernel cannot reclaim, at least: locked pages (`mlock`),
    /// files of a ramfs, secret memory. The rest of what is unevictable can be anonymous memory and
    /// shared memory that is on no list.
    pub(super) fn locked_cache_bytes(&self) -> u64 {
        let lists = self.value("active_anon").saturating_add(self.value("inactive_anon"));
        let off_lists = self.anon().saturating_add(self.shmem()).saturating_sub(lists);
        let in_swap_cache = self.value("swapcached");
        let others = off_lists.saturating_add(in_swap_cache);
        self.value("unevictable").saturating_sub(others).min(self.cache())
    }

    /// Returns the sum of the parts that do not overlap.
    pub(super) fn sum(&self) -> u64 {
        let kernel = || ["kernel_stack", "percpu", "slab"].iter().map(|key| self.value(key)).sum();
        let kernel = self.kernel_bytes.unwrap_or_else(kernel);
        let others = match self.version {
            1 => 0,
            _ => self.value("sock").saturating_add(self.value("hugetlb")),
        };
        [self.file(), kernel, others].into_iter().fold(self.anon(), u64::saturating_add)
    }

    /// Returns whether its parts are above the charge.
    pub(super) fn lags(&self) -> bool {
        self.sum() > self.charged_bytes
    }
}
