//! The memory use of a process as two metrics that are cheap to read, for comparisons over time.

use std::io;

use lowtide_heap::ranges::bytes;
use lowtide_model::cgroup::AnonCount;

use super::{Target, TargetError, huge, rollup};
use crate::memory::ProcessMemory;
use crate::proc::maps::Mapping;

/// The memory use of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Resident bytes, as the kernel counts them.
    pub rss_bytes: u64,
    /// Anonymous memory in huge pages, in bytes. Absent if it may not be read, or if the process's
    /// threads would have to wait while the kernel counts.
    pub huge_bytes: Option<u64>,
    /// Identity of the program image, since a process can execute several programs in turn.
    pub image: (u64, u64),
}

impl Footprint {
    /// Reads both. The kernel maintains RSS as a sum. For huge pages, it scans the page tables a
    /// few MiB at a time, since `smaps_rollup` would hold the lock of the process's mappings for a
    /// whole heap: see `LARGEST_WALKED`.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn read(target: &Target) -> Result<Self, TargetError> {
        let image = target.stat()?.image;
        let rss_bytes = target.status()?.rss_bytes();
        let huge_bytes = match target.maps() {
            Ok(maps) => huge_bytes(target, &maps, rss_bytes),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(target.failed(error)),
        };
        Ok(Self { rss_bytes, huge_bytes, image })
    }
}

/// Proportional memory of a process: pages that several processes share count proportionally for
/// each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proportion {
    /// PSS in bytes.
    pub pss_bytes: u64,
    /// Whether it is an estimate from its anonymous memory, because its threads would have to wait
    /// for the kernel.
    pub is_estimate: bool,
    /// Its anonymous memory.
    pub anon: AnonCount,
}

impl Proportion {
    /// Reads the proportional memory.
    ///
    /// # Errors
    /// Fails if the process has ended, or may not be inspected.
    pub fn read(target: &Target) -> Result<Self, TargetError> {
        let status = target.status()?;
        let maps = target.maps().map_err(|error| target.failed(error))?;
        let rollup = rollup(target, &maps, status.rss_bytes());
        let proportional_bytes = rollup.and_then(|rollup| rollup.anon_pss_bytes);
        Ok(Self {
            pss_bytes: rollup.map_or(status.anon_bytes, |rollup| rollup.pss_bytes),
            is_estimate: rollup.is_none(),
            anon: AnonCount { resident_bytes: status.anon_bytes, proportional_bytes },
        })
    }
}

fn huge_bytes(target: &Target, maps: &[Mapping], rss_bytes: u64) -> Option<u64> {
    let memory = ProcessMemory::pages_only(target.pid).ok()?;
    let scanned = huge::runs(&memory, maps).map(|runs| bytes(&runs));
    // Kernels before 6.7 do not scan.
    scanned.or_else(|| Some(rollup(target, maps, rss_bytes)?.anon_huge_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::rollup::Rollup;

    #[test]
    fn the_footprint_of_a_sleeping_process_matches_smaps_rollup() {
        let (mut child, target) = huge::tests::with_block_of_zeros();
        let found = Footprint::read(&target).unwrap();
        let text = std::fs::read_to_string(target.path("smaps_rollup")).unwrap();
        let rollup = Rollup::parse(&text).unwrap();
        assert_eq!(found.huge_bytes, Some(rollup.anon_huge_bytes));
        assert!(found.rss_bytes >= 40 << 20, "{found:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(Footprint::read(&target), Err(TargetError::Gone(_))));
    }
}
