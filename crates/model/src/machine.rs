//! The machine of a measurement.

use serde::{Deserialize, Serialize};

/// The properties of the machine that matter for memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system, as it names itself: `Debian GNU/Linux 12 (bookworm)`.
    pub os: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Instruction set: `x86_64`.
    pub architecture: Option<String>,
    /// Processor model.
    pub cpu: Option<String>,
    /// Number of available processors.
    pub cpus: Option<u64>,
    /// Memory of the machine, in bytes.
    pub memory_bytes: Option<u64>,
    /// Available memory at the start of the record, in bytes.
    pub memory_available_bytes: Option<u64>,
    /// Swap space of the machine, in bytes.
    pub swap_bytes: Option<u64>,
    /// Memory limit of the cgroup that lowtide runs in, in bytes.
    pub cgroup_limit_bytes: Option<u64>,
    /// Page size, in bytes.
    pub page_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// When the kernel compacts memory to make a huge page: `defer`, `madvise`, ….
    pub thp_defrag: Option<String>,
    /// `vm.overcommit_memory`: 0, 1 or 2.
    pub overcommit: Option<u64>,
    /// `vm.max_map_count`.
    pub max_map_count: Option<u64>,
    /// Version of the system's C library.
    pub libc: Option<String>,
}
