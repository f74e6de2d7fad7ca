//! One sample of a process, or of a process and all of its descendants.

use serde::{Deserialize, Serialize};

use crate::bytes::{Mapped, Proportional, Resident, Swapped};

/// The metrics that are read at every tick. For a tree, the sums over its processes.
///
/// Faults and CPU time never decrease: the usage of a process that has ended stays in the sums of
/// its tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Resident set size.
    pub rss_bytes: Resident,
    /// The anonymous part of it: heap, stacks, private pages that were written to.
    pub anon_bytes: Resident,
    /// The part that is backed by files: program text, libraries, mapped data.
    pub file_bytes: Resident,
    /// The part in shared memory (tmpfs, shared anonymous mappings).
    pub shared_bytes: Resident,
    /// Size of the address space.
    pub vsz_bytes: Mapped,
    /// Anonymous memory that was moved out to swap.
    pub swap_bytes: Swapped,
    /// Page faults without I/O, since the start of the process.
    pub minor_faults: u64,
    /// Page faults with I/O, since the start of the process.
    pub major_faults: u64,
    /// CPU time in user and kernel mode since the start of the process, in seconds.
    pub cpu_s: f64,
    /// Threads.
    pub threads: u64,
    /// Open file descriptors; absent if counting them is not permitted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub open_files: Option<u64>,
}

impl Reading {
    /// Adds the sample of another process. If a count is unknown for one of them, the count of the
    /// others is used.
    pub fn add(&mut self, other: &Self) {
        self.rss_bytes += other.rss_bytes;
        self.anon_bytes += other.anon_bytes;
        self.file_bytes += other.file_bytes;
        self.shared_bytes += other.shared_bytes;
        self.vsz_bytes += other.vsz_bytes;
        self.swap_bytes += other.swap_bytes;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.cpu_s += other.cpu_s;
        self.threads += other.threads;
        self.open_files = match (self.open_files, other.open_files) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

/// The metrics that are read less often, because the kernel walks every page table for them: 10 to
/// 50 ms per GB of 4 KiB pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SlowReading {
    /// Proportional set size.
    pub pss_bytes: Proportional,
    /// Pages that were released with `MADV_FREE`: part of RSS until the kernel reclaims them.
    pub lazyfree_bytes: Resident,
    /// Anonymous memory in huge pages.
    pub anon_huge_bytes: Resident,
}

impl SlowReading {
    /// Adds the sample of another process.
    pub fn add(&mut self, other: &Self) {
        self.pss_bytes += other.pss_bytes;
        self.lazyfree_bytes += other.lazyfree_bytes;
        self.anon_huge_bytes += other.anon_huge_bytes;
    }
}

/// One sample of a whole tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start of the record.
    pub t_s: f64,
    /// Processes alive.
    pub processes: u64,
    /// TCP connections in the state ESTABLISHED that belong to the tree; absent where unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sockets_established: Option<u64>,
    /// The sums over the tree.
    #[serde(flatten)]
    pub total: Reading,
    /// The slow metrics, at the ticks that have them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub slow: Option<SlowReading>,
}

/// One sample of one process of a tree, taken at the ticks with slow metrics: enough to derive the
/// output of `pidstat -r` for each process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// Seconds since the start of the record.
    pub t_s: f64,
    /// PID in lowtide's namespace.
    pub pid: u32,
    /// The metrics.
    #[serde(flatten)]
    pub reading: Reading,
    /// The slow metrics; absent if the process may not be inspected, or has ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub slow: Option<SlowReading>,
}
