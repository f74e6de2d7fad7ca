//! The anonymous memory of a cgroup's processes, by process and owner.

use serde::Serialize;

use crate::ledger::{Ledger, Owner, Row};

/// Maximum number of processes that are listed.
const MAX_LISTED: usize = 50;

/// The row `anon` by owner and by process. The rows of `owners` and `other_bytes` add up to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CgroupAnon {
    /// The anonymous memory of the processes that were inspected, by owner. Empty rows are left
    /// out.
    pub owners: Vec<Row>,
    /// The rest of the row: of processes that could not be inspected, that have ended, or that
    /// changed meanwhile. Below 0 if pages of the processes are charged to another cgroup.
    pub other_bytes: i64,
    /// Bytes that `lowtide release` would return, as far as a release is predicted.
    pub releasable_bytes: u64,
    /// The processes, the largest first; at most 50.
    pub processes: Vec<AnonProcess>,
}

/// The anonymous memory of a process. Pages that it shares with others after a `fork` count
/// proportionally.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AnonProcess {
    /// Its PID.
    pub pid: u32,
    /// Its command, shortened.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Whether they are an estimate: all of it counts as its own, since its threads would have to
    /// wait while the kernel counts.
    pub estimated: bool,
    /// Its bytes by owner; empty if it could not be inspected.
    pub owners: Vec<Row>,
    /// The bytes of it that `lowtide release` would return.
    pub releasable_bytes: u64,
    /// Why it could not be inspected.
    pub unread: Option<String>,
}

/// The anonymous memory of a process as the kernel counts it, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnonCount {
    /// Resident (`RssAnon`).
    pub resident_bytes: u64,
    /// Proportional (`Pss_Anon`); `None` if it is not known.
    pub proportional_bytes: Option<u64>,
}

impl AnonCount {
    fn bytes(self) -> u64 {
        self.proportional_bytes.unwrap_or(self.resident_bytes)
    }
}

impl AnonProcess {
    /// Divides the anonymous memory of a process by the rows of its ledger. `releasable_bytes` is
    /// the prediction for a release.
    pub fn new(
        pid: u32,
        name: String,
        ledger: &Ledger,
        count: AnonCount,
        releasable_bytes: u64,
    ) -> Self {
        let bytes = count.bytes();
        let rows = anonymous(ledger, count.resident_bytes);
        let sum = rows.iter().map(|row| row.bytes).sum::<u64>();
        let owners = in_proportion(rows, bytes);
        let releasable_bytes = part(releasable_bytes, bytes, sum);
        let estimated = count.proportional_bytes.is_none();
        Self { pid, name, bytes, estimated, owners, releasable_bytes, unread: None }
    }

    /// Returns a process that could not be inspected.
    pub fn unread(pid: u32, name: String, count: AnonCount, reason: String) -> Self {
        let estimated = count.proportional_bytes.is_none();
        let unread = Some(reason);
        Self { pid, name, bytes: count.bytes(), estimated, unread, ..Self::default() }
    }
}

impl CgroupAnon {
    /// Adds up processes. `charged_bytes` is the row `anon`.
    pub fn new(mut processes: Vec<AnonProcess>, charged_bytes: i64) -> Self {
        let mut ledger = Ledger::default();
        processes.iter().for_each(|process| ledger.extend(&process.owners));
        let sum = i64::try_from(ledger.total()).unwrap_or(i64::MAX);
        let releasable: u64 = processes.iter().map(|process| process.releasable_bytes).sum();
        // What is charged to another cgroup is returned to that one.
        let releasable_bytes = releasable.min(u64::try_from(charged_bytes).unwrap_or(0));
        processes.sort_by_key(|process| std::cmp::Reverse(process.bytes));
        processes.truncate(MAX_LISTED);
        Self {
            owners: ledger.rows().iter().filter(|row| row.bytes > 0).copied().collect(),
            other_bytes: charged_bytes.saturating_sub(sum),
            releasable_bytes,
            processes,
        }
    }
}

/// Returns the rows of anonymous memory. The heap of a runtime can be in shared memory (ZGC): the
/// rows of runtimes hold at most what the kernel counts as anonymous beside the others.
fn anonymous(ledger: &Ledger, resident_bytes: u64) -> Vec<Row> {
    let is_file = |owner| matches!(owner, Owner::File | Owner::Shared | Owner::Device);
    let is_anonymous = |row: &&Row| row.bytes > 0 && !is_file(row.owner);
    let mut rows: Vec<Row> = ledger.rows().iter().filter(is_anonymous).copied().collect();
    let sum = rows.iter().map(|row| row.bytes).sum::<u64>();
    let mut excess = sum.saturating_sub(resident_bytes);
    // The kernel's count may lag by some pages.
    if excess > resident_bytes / 50 {
        for row in rows.iter_mut().filter(|row| row.owner == Owner::Runtime) {
            let dropped = excess.min(row.bytes);
            (row.bytes, row.estimated, excess) = (row.bytes - dropped, true, excess - dropped);
        }
    }
    rows
}

/// Scales rows to a sum. Pages that are shared after a `fork` are assumed to be of all owners
/// alike, which makes the rows estimates.
fn in_proportion(mut rows: Vec<Row>, bytes: u64) -> Vec<Row> {
    let sum = rows.iter().map(|row| row.bytes).sum::<u64>();
    let is_close = sum.abs_diff(bytes) <= sum / 50;
    for row in &mut rows {
        row.bytes = part(row.bytes, bytes, sum);
        row.estimated |= !is_close;
    }
    let left = bytes.saturating_sub(rows.iter().map(|row| row.bytes).sum());
    if let Some(largest) = rows.iter_mut().max_by_key(|row| row.bytes) {
        largest.bytes += left;
    }
    rows.retain(|row| row.bytes > 0);
    rows
}

fn part(bytes: u64, of: u64, sum: u64) -> u64 {
    let scaled = u128::from(bytes) * u128::from(of) / u128::from(sum.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX).min(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn process(allocated: u64, reclaimable: u64, proportional: Option<u64>) -> AnonProcess {
        let mut ledger = Ledger::default();
        ledger.add(Owner::Allocated, allocated * MIB);
        ledger.add(Owner::Reclaimable, reclaimable * MIB);
        ledger.add(Owner::File, 900 * MIB);
        let count = AnonCount {
            resident_bytes: (allocated + reclaimable) * MIB,
            proportional_bytes: proportional.map(|mib| mib * MIB),
        };
        AnonProcess::new(7, "server".to_owned(), &ledger, count, reclaimable * MIB)
    }

    #[test]
    fn owners_of_all_processes_and_the_rest_add_up_to_the_charge() {
        let own = AnonCount { resident_bytes: 30 * MIB, proportional_bytes: None };
        let slow = AnonProcess::unread(8, "slow".to_owned(), own, "slow".to_owned());
        let processes = vec![process(60, 40, Some(100)), slow];
        let anon = CgroupAnon::new(processes, 131 * MIB as i64);
        let sum: u64 = anon.owners.iter().map(|row| row.bytes).sum();
        assert_eq!((sum, anon.other_bytes), (100 * MIB, 31 * MIB as i64));
        assert_eq!(anon.releasable_bytes, 40 * MIB);
        assert_eq!(anon.processes[1].unread.as_deref(), Some("slow"));
        assert!(anon.owners.iter().all(|row| !row.estimated), "{anon:?}");
    }

    #[test]
    fn pages_that_workers_share_count_once_and_make_estimates() {
        let workers: Vec<AnonProcess> = (0..4).map(|_| process(48, 16, Some(16))).collect();
        let anon = CgroupAnon::new(workers, 64 * MIB as i64);
        assert_eq!((anon.other_bytes, anon.releasable_bytes), (0, 16 * MIB));
        assert!(anon.owners.iter().all(|row| row.estimated), "{anon:?}");
    }

    #[test]
    fn memory_that_is_charged_elsewhere_is_below_zero() {
        let anon = CgroupAnon::new(vec![process(60, 40, Some(100))], 10 * MIB as i64);
        assert_eq!(anon.other_bytes, -90 * MIB as i64);
    }

    #[test]
    fn the_heap_of_a_runtime_in_shared_memory_is_not_anonymous() {
        let mut ledger = Ledger::default();
        ledger.add(Owner::Runtime, 500 * MIB);
        ledger.add(Owner::Allocated, 20 * MIB);
        let count = AnonCount { resident_bytes: 60 * MIB, proportional_bytes: Some(60 * MIB) };
        let found = AnonProcess::new(7, "java".to_owned(), &ledger, count, 0);
        let bytes = |owner| found.owners.iter().find(|row| row.owner == owner).unwrap().bytes;
        assert_eq!((bytes(Owner::Allocated), bytes(Owner::Runtime)), (20 * MIB, 40 * MIB));
    }
}
