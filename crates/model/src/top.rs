//! The processes of a host and their memory: the object of `lowtide top`.

use std::collections::HashSet;

use serde::Serialize;

use crate::cgroup::CgroupCharge;
use crate::ledger::Coverage;
use crate::verdict::VerdictKind;

/// Value of the object's `schema`.
pub const SCHEMA: &str = "lowtide.top/1";

/// The processes of a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Top {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// Time since the survey started, in seconds.
    pub elapsed_s: f64,
    /// The processes, in the requested order.
    pub processes: Vec<TopProcess>,
    /// The totals of groups of processes, in the same order; empty unless groups were requested.
    pub groups: Vec<TopGroup>,
    /// Number of processes whose memory could not be read.
    pub unreadable: u64,
    /// Number of processes that were not inspected yet.
    pub uninspected: u64,
    /// What the kernel requires to read the processes that may not be read, as the end of a
    /// sentence: "this requires …". Determined for the first of them.
    #[serde(skip)]
    pub required: Option<String>,
}

/// A process. Unknown values are `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopProcess {
    /// Its PID.
    pub pid: u32,
    /// Its command line, truncated after 500 characters; the short name in brackets before the
    /// first inspection.
    pub command: String,
    /// Its short name.
    pub comm: String,
    /// The path of its program.
    pub exe: Option<String>,
    /// Its memory cgroup.
    pub cgroup: String,
    /// Its allocator and version: `glibc 2.36`.
    pub allocator: Option<String>,
    /// RSS as the kernel counts it, in bytes.
    pub rss_bytes: u64,
    /// The first process with the same memory (`clone` with `CLONE_VM`), if it is another one.
    pub same_memory_as: Option<u32>,
    /// Bytes that it has allocated, in walked heaps.
    pub allocated_bytes: Option<u64>,
    /// Bytes of runtimes, and of allocators whose heap was not walked.
    pub runtime_bytes: Option<u64>,
    /// Free memory in whole pages, in bytes. An inspection says what returns it.
    pub reclaimable_bytes: Option<u64>,
    /// Free bytes on pages that also hold allocated memory.
    pub fragmented_bytes: Option<u64>,
    /// How much of RSS was walked.
    pub coverage: Option<Coverage>,
    /// Growth of RSS over the last ten minutes, in bytes an hour.
    pub rss_bytes_per_hour: Option<i64>,
    /// The verdict.
    pub verdict: Option<VerdictKind>,
    /// The verdict in a table: memory outside of any heap has the name of its largest part.
    #[serde(skip)]
    pub verdict_name: Option<&'static str>,
    /// Age of all values except RSS and its growth, in seconds.
    pub age_s: Option<f64>,
    /// The reason why its memory could not be read: `not_permitted`, `blocked` or `failed`.
    pub unread: Option<&'static str>,
}

/// The totals of several processes. Shared pages count once for each of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TopGroup {
    /// The property that they share.
    pub name: String,
    /// The name of a cgroup by which people know it (unit, container, pod), with its largest
    /// process.
    pub label: Option<String>,
    /// What the cgroup is charged for, if groups are cgroups and it has an account.
    pub charge: Option<CgroupCharge>,
    /// Number of processes.
    pub processes: u64,
    /// Number of these processes that use the memory of another one of them. All bytes count once.
    pub same_memory: u64,
    /// Sum of their RSS, in bytes.
    pub rss_bytes: u64,
    /// Allocated bytes of the processes that could be read.
    pub allocated_bytes: u64,
    /// Bytes of runtimes in these processes.
    pub runtime_bytes: u64,
    /// Free memory of these processes in whole pages, in bytes.
    pub reclaimable_bytes: u64,
    /// Fragmented bytes in these processes.
    pub fragmented_bytes: u64,
    /// Growth of RSS of the processes for which it is known, in bytes an hour; `None` if it is
    /// known for none.
    pub rss_bytes_per_hour: Option<i64>,
    /// Number of processes whose memory could not be read, or was not read yet.
    pub unread: u64,
}

impl TopGroup {
    /// Returns the totals of some processes.
    pub fn of<'p>(processes: impl IntoIterator<Item = &'p TopProcess>) -> Self {
        let (mut total, mut seen) = (Self::default(), HashSet::new());
        for process in processes {
            total.processes += 1;
            match seen.insert(process.same_memory_as.unwrap_or(process.pid)) {
                true => total.add_memory(process),
                false => total.same_memory += 1,
            }
        }
        total
    }

    fn add_memory(&mut self, process: &TopProcess) {
        self.rss_bytes += process.rss_bytes;
        self.allocated_bytes += process.allocated_bytes.unwrap_or(0);
        self.runtime_bytes += process.runtime_bytes.unwrap_or(0);
        self.reclaimable_bytes += process.reclaimable_bytes.unwrap_or(0);
        self.fragmented_bytes += process.fragmented_bytes.unwrap_or(0);
        if let Some(growth) = process.rss_bytes_per_hour {
            *self.rss_bytes_per_hour.get_or_insert(0) += growth;
        }
        self.unread += u64::from(process.allocated_bytes.is_none());
    }
}
