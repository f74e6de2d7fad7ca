//! What would have lowered the memory. After an OOM kill, only what bears on its cause is shown:
//! what a process frees does not help against tmpfs, pipes, or the memory of another process.

use lowtide_model::black_box::{BlackBoxReport, Dominant};
use lowtide_model::ledger::Owner;
use lowtide_model::remedy::{Remedy, RemedyKind};
use lowtide_record::black_box::Cause;

use super::dominant::OTHER_PROCESS;

/// Share of a limit from which a remedy helps, whatever held the most.
const HELPS: f64 = 0.1;

/// Keeps the remedies that fit, and adapts them: the process cannot be released any more.
pub(super) fn keep_fitting(report: &mut BlackBoxReport, cause: Cause) {
    let mut remedies = std::mem::take(&mut report.remedies);
    if cause.is_oom() {
        remedies.retain(|remedy| bears_on_kill(remedy, report));
        if remedies.is_empty() {
            report.notes.extend(report.dominant.as_ref().and_then(|held| advice(held, report)));
        }
    }
    for remedy in &mut remedies {
        if remedy.kind == RemedyKind::Release {
            "a release before the end would have returned this: lowtide attach -p adaptive"
                .clone_into(&mut remedy.how);
            remedy.brief = None;
        }
    }
    report.remedies = remedies;
}

/// Returns whether a remedy of a process bears on the kill: if the heap of the process held the
/// most memory, or else by its size.
fn bears_on_kill(remedy: &Remedy, report: &BlackBoxReport) -> bool {
    const OF_HEAPS: [Owner; 7] = [
        Owner::Allocated,
        Owner::Reclaimable,
        Owner::Locked,
        Owner::Fragmented,
        Owner::Cached,
        Owner::Metadata,
        Owner::Runtime,
    ];
    let limit = report.limit_bytes.unwrap_or(report.last.rss()) as f64;
    let is_heap = report.dominant.as_ref().is_some_and(|held| {
        let is_large = held.bytes as f64 >= limit * HELPS;
        is_large && OF_HEAPS.iter().any(|owner| owner.key() == held.owner)
    });
    is_heap || remedy.predicted_bytes.is_some_and(|bytes| bytes as f64 >= limit * HELPS)
}

/// Returns where to look for memory that is of no process, or of another one.
fn advice(held: &Dominant, report: &BlackBoxReport) -> Option<String> {
    let path = report.limit.as_ref().and_then(|limit| limit.path.as_deref())?;
    let what = match held.owner.as_str() {
        "shared_unmapped" => {
            "files in tmpfs, such as those in /dev/shm, and shared memory stay until they are deleted"
        }
        "kernel" => {
            "the kernel holds memory such as data in pipes and sockets that no process has read"
        }
        OTHER_PROCESS => "what this process could have freed was less than a tenth of the limit",
        _ => return None,
    };
    Some(format!("{what}: while it runs, lowtide inspect --cgroup {path} shows who holds what"))
}
