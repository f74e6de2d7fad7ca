//! The totals of several processes: the object that ends the stream of a verb with a selector.

use serde::Serialize;

use crate::cgroup::CgroupLedger;

/// Value of the object's `schema`.
pub const SCHEMA: &str = "lowtide.whole/1";

/// Several processes together. Unknown values are `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupTotals {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// Number of processes that were inspected.
    pub processes: u64,
    /// Number of these processes that use the memory of another one of them (`clone` with
    /// `CLONE_VM`). All bytes count once.
    pub same_memory: u64,
    /// Number of selected processes that could not be inspected.
    pub unreadable: u64,
    /// Their proportional memory in bytes. Pages that several of them share count once in the
    /// total.
    pub pss_bytes: Option<u64>,
    /// The same before a release; absent for an inspection.
    pub pss_before_bytes: Option<u64>,
    /// Whether PSS of some is estimated: all anonymous memory of a process with a large heap counts
    /// as its own, but for what it shares after a fork, since its threads would have to wait while
    /// the kernel counts.
    pub pss_is_estimate: bool,
    /// The sum of their resident bytes, in which pages that several of them share count several
    /// times.
    pub rss_bytes: u64,
    /// Resident anonymous pages of forked processes that only one of them maps, in bytes; absent
    /// without forked processes.
    pub private_bytes: Option<u64>,
    /// Bytes that they have allocated, in walked heaps; absent for a release.
    pub allocated_bytes: Option<u64>,
    /// Bytes that a release from all of them would return; absent for a release. Of free pages that
    /// forked processes share, each counts an equal part.
    pub reclaimable_bytes: Option<u64>,
    /// Bytes that were returned, without pages that a forked process still maps; absent for an
    /// inspection.
    pub returned_bytes: Option<u64>,
    /// Number of processes that were refused; absent for an inspection.
    pub refused: Option<u64>,
    /// What the cgroup is charged for, if `inspect` was given one that has an account.
    pub cgroup: Option<CgroupLedger>,
}

impl Default for GroupTotals {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            processes: 0,
            same_memory: 0,
            unreadable: 0,
            pss_bytes: None,
            pss_before_bytes: None,
            pss_is_estimate: false,
            rss_bytes: 0,
            private_bytes: None,
            allocated_bytes: None,
            reclaimable_bytes: None,
            returned_bytes: None,
            refused: None,
            cgroup: None,
        }
    }
}
