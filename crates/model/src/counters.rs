//! What a process and its memory cgroups hold, by the kernel's own counters.

use serde::{Deserialize, Serialize};

/// The memory of a process, in resident bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessBytes {
    /// Anonymous memory.
    pub anon: u64,
    /// Pages of files.
    pub file: u64,
    /// Shared memory.
    pub shared: u64,
    /// Swapped memory.
    pub swap: u64,
    /// Page tables, which RSS does not count.
    pub tables: u64,
}

impl ProcessBytes {
    /// Returns RSS.
    pub fn rss(&self) -> u64 {
        self.anon.saturating_add(self.file).saturating_add(self.shared)
    }
}

/// What a memory cgroup is charged for, in bytes, and its counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupBytes {
    /// Its charge.
    pub charged: u64,
    /// Its limit.
    pub limit: Option<u64>,
    /// Anonymous memory.
    pub anon: u64,
    /// Shared memory, with tmpfs.
    pub shared: u64,
    /// Page cache that the kernel can drop.
    pub cache: u64,
    /// Kernel memory.
    pub kernel: u64,
    /// Number of its processes that were killed for lack of memory.
    pub kills: Option<u64>,
    /// How often its own limit was reached.
    pub hits: Option<u64>,
}

impl GroupBytes {
    /// Returns the part of the charge that the kernel cannot drop. The kernel's count of page cache
    /// may be older than that of the charge, so the larger of two answers counts.
    pub fn kept(&self) -> u64 {
        let sum = self.anon.saturating_add(self.shared).saturating_add(self.kernel);
        self.charged.saturating_sub(self.cache).max(sum)
    }

    /// Returns the share of its limit that cannot be dropped.
    pub fn fullness(&self) -> Option<f64> {
        let limit = self.limit.filter(|limit| *limit > 0)?;
        Some(self.kept() as f64 / limit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_can_drop_is_not_kept_unless_its_counts_lag() {
        let group = GroupBytes { charged: 100, cache: 60, anon: 30, ..GroupBytes::default() };
        assert_eq!(group.kept(), 40);
        // The cache was dropped, and its count is old.
        assert_eq!(GroupBytes { anon: 90, ..group }.kept(), 90);
    }
}
