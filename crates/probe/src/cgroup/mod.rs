//! What a memory cgroup is charged for, by kind.
//!
//! The rows come from the kernel's account (`account`). What it does not divide is estimated from
//! the processes (`holdings`): shared memory that is mapped, and in version 1 page tables and
//! kernel stacks. Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
//!
//! A cgroup is hostile input: its names, its number of groups, processes and files are bounded, and
//! nothing of a network or FUSE file system is asked for.

pub(crate) mod account;
mod cached_files;
mod counters;
pub(crate) mod descriptors;
pub(crate) mod directory;
mod holdings;
mod kinds;
mod rows;
mod shared_files;
mod socket_buffers;
pub(crate) mod stat;
pub(crate) mod tmpfs;
mod tree;

use std::thread;
use std::time::Duration;

use lowtide_model::cgroup::{CgroupKind, CgroupLedger, CgroupPageCache};

pub use counters::{GroupCounters, container_of, counters_of};
pub use directory::{CgroupDirectory, CgroupError, CgroupNameError, MemoryHierarchy, path_of};
pub use kinds::read_charge;

use account::Account;
use holdings::CgroupHoldings;
use rows::{rows, stock_bound};
use tree::CgroupTree;

/// Time after which the kernel has added up its counts (`FLUSH_TIME` in mm/memcontrol.c is 2 s).
const FLUSH_TIME: Duration = Duration::from_millis(2200);
/// Part of the charge by which it may move between two readings.
const TOLERANCE: f64 = 0.01;

/// Reads the ledger of a cgroup. The account is read before and after the processes; if it moved,
/// once more.
///
/// # Errors
/// Fails if the account cannot be read, or the cgroup was removed.
pub fn read(group: &CgroupDirectory) -> Result<CgroupLedger, CgroupError> {
    let mut last = None;
    for _ in 0..2 {
        let before = Account::read(group)?;
        let tree = CgroupTree::read(&group.directory);
        let holdings = CgroupHoldings::read(&tree, before.shmem());
        let (account, has_lag) = settled(group)?;
        let tolerance =
            stock_bound(tree.groups) + (account.charged_bytes as f64 * TOLERANCE) as u64;
        let has_moved = before.charged_bytes.abs_diff(account.charged_bytes) > tolerance;
        last = Some((account, tree, holdings, has_moved || has_lag));
        if !has_moved {
            break;
        }
    }
    let (account, tree, holdings, moved) = last.ok_or_else(|| group.removed())?;
    Ok(ledger(group, &account, &tree, &holdings, moved))
}

/// Reads the account. If the sum of its parts is above the charge, the kernel has not added them up
/// yet, and the account is read once more after that. Returns whether the sum is still above it.
fn settled(group: &CgroupDirectory) -> Result<(Account, bool), CgroupError> {
    let account = Account::read(group)?;
    if !account.lags() {
        return Ok((account, false));
    }
    thread::sleep(FLUSH_TIME);
    let account = Account::read(group)?;
    let lags = account.lags();
    Ok((account, lags))
}

fn ledger(
    group: &CgroupDirectory,
    account: &Account,
    tree: &CgroupTree,
    holdings: &CgroupHoldings,
    moved: bool,
) -> CgroupLedger {
    let limits = group.limits();
    let mut notes = Vec::new();
    if !tree.is_complete {
        notes.push(format!(
            "there are more than {} cgroups below it, or processes in them: the parts of processes are too small",
            tree::MAX_GROUPS
        ));
    }
    notes.extend(holdings.notes.iter().cloned());
    let mut ledger = CgroupLedger {
        path: group.path.clone(),
        version: account.version,
        charged_bytes: account.charged_bytes,
        moved,
        limit_bytes: limits.iter().filter_map(|limit| limit.limit_bytes).min(),
        limits,
        working_set_bytes: account.working_set_bytes(),
        reclaimable_bytes: account.reclaimable_bytes(),
        locked_cache_bytes: account.locked_cache_bytes(),
        dirty_bytes: account.dirty_bytes(),
        holders: holdings.holders(),
        objects: holdings.objects(),
        processes: tree.processes.len() as u64,
        groups: tree.is_complete.then_some(tree.groups),
        removed_groups: group.removed_groups(),
        swap_bytes: account.swap_bytes(group),
        events: group.events(),
        stall_percent: group.stall_percent(),
        notes,
        ..CgroupLedger::default()
    };
    ledger.set_rows(rows(account, holdings, tree.groups));
    // Without shared memory, they say nothing.
    let shared = ledger.bytes(CgroupKind::ShmemMapped) + ledger.bytes(CgroupKind::ShmemUnmapped);
    if shared.unsigned_abs() > ledger.charged_bytes / 100 {
        ledger.notes.extend(holdings.shared_notes());
    }
    // Version 1 has no row for the buffers of TCP, which it does not charge.
    let has_sockets = ledger.bytes(CgroupKind::Sockets) > 0;
    ledger.holders.retain(|holder| has_sockets || holder.kind != CgroupKind::Sockets);
    // What the processes also map is in other rows.
    let has_rest = ledger.incomplete && ledger.bytes(CgroupKind::Rest) > 0;
    ledger.holders.retain(|holder| has_rest || holder.kind != CgroupKind::Rest);
    let has_locked = ledger.locked_cache_bytes > 0;
    ledger.holders.retain(|holder| has_locked || holder.kind != CgroupKind::FileOther);
    if moved {
        ledger.rows.iter_mut().for_each(|row| row.estimated = true);
    }
    ledger.files = holdings.files.list(account.shmem());
    ledger.files_complete = holdings.files.is_whole();
    let (cached, is_complete) = (holdings.cached.files.clone(), holdings.cached.is_complete);
    ledger.page_cache = CgroupPageCache::new(account.cache(), cached, is_complete);
    ledger
}
