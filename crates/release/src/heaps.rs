//! One account for the releases of all heaps of a process.

use lowtide_model::release::{Hazard, HeapRelease, Release, ReleaseOutcome};
use lowtide_model::stats;

use crate::dropped::DroppedRanges;
use crate::passes::MIN_GAIN_BYTES;

/// The account of the release of one heap.
#[derive(Debug)]
pub(crate) struct HeapAccount {
    /// The library that contains the allocator; `None` for an allocator of the program.
    pub(crate) library: Option<String>,
    /// Whether the caller selected the allocator.
    pub(crate) is_chosen: bool,
    pub(crate) release: Release,
    /// The length of each pause, in seconds.
    pub(crate) pauses_s: Vec<f64>,
    pub(crate) dropped: DroppedRanges,
    /// Whether the release went further than the examination of the heap.
    pub(crate) was_tried: bool,
}

/// The reason why the release of one heap ended, and with it that of all others.
#[derive(Debug, Clone)]
pub(crate) struct End {
    reason: Option<String>,
    hazard: Option<Hazard>,
    may_pass: Option<bool>,
}

/// Returns whether a reason to leave a heap alone concerns the whole process.
fn is_of_process(hazard: Hazard) -> bool {
    match hazard {
        Hazard::Held
        | Hazard::Traced
        | Hazard::AnotherRelease
        | Hazard::Stopped
        | Hazard::Frozen
        | Hazard::Machine
        | Hazard::Sanitizer
        | Hazard::Seccomp
        | Hazard::SeccompUnread
        | Hazard::ShadowStack
        | Hazard::WriteExecuteDenied
        | Hazard::CodeDenied
        | Hazard::NoHeadroom
        | Hazard::UserDispatch
        | Hazard::PrivilegesChanged
        | Hazard::Pinned
        | Hazard::SharedMemory
        | Hazard::NoCollection => true,
        Hazard::Allocator
        | Hazard::NoHeap
        | Hazard::Untested
        | Hazard::HeapNotWhole
        | Hazard::Locked
        | Hazard::Hugetlb
        | Hazard::NoThread
        | Hazard::LockTaken
        | Hazard::Gadget
        | Hazard::NoPurge
        | Hazard::NoTrim => false,
    }
}

impl HeapAccount {
    /// Returns whether it has touched the process. For a dry run: whether it would.
    pub(crate) fn has_acted(&self) -> bool {
        matches!(self.release.outcome, ReleaseOutcome::Released | ReleaseOutcome::Partial)
    }

    /// Returns the reason why no other heap may be released after this one, if there is one.
    pub(crate) fn end(&self) -> Option<End> {
        let Release { outcome, hazard, may_pass, reason, .. } = &self.release;
        let ends = match outcome {
            ReleaseOutcome::Partial => true,
            ReleaseOutcome::Refused => hazard.is_some_and(is_of_process),
            ReleaseOutcome::Released | ReleaseOutcome::NothingToRelease => false,
        };
        let end = || End { reason: reason.clone(), hazard: *hazard, may_pass: *may_pass };
        ends.then(end)
    }

    /// Returns the account of a heap that is not released, because of the end of another one.
    pub(crate) fn left_alone(mut self, end: End) -> Self {
        let End { reason, hazard, may_pass } = end;
        self.release =
            Release { outcome: ReleaseOutcome::Refused, reason, hazard, may_pass, ..self.release };
        self
    }

    /// Keeps the names and the prediction of an earlier examination, if a later one found a reason
    /// to leave the whole process alone.
    pub(crate) fn keep_name_of(&mut self, earlier: &Self) {
        if self.release.allocator.is_some() {
            return;
        }
        self.library.clone_from(&earlier.library);
        self.release.allocator.clone_from(&earlier.release.allocator);
        self.release.allocator_version.clone_from(&earlier.release.allocator_version);
        self.release.predicted_bytes = earlier.release.predicted_bytes;
    }

    fn heap(&self) -> Option<HeapRelease> {
        let release = &self.release;
        Some(HeapRelease {
            allocator: release.allocator.clone()?,
            allocator_version: release.allocator_version.clone(),
            library: self.library.clone(),
            predicted_bytes: release.predicted_bytes,
            returned_bytes: release.returned_bytes,
            outcome: release.outcome,
            reason: release.reason.clone(),
            may_pass: release.may_pass,
            longest_pause_s: self.pauses_s.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// Joins the accounts of a process's heaps, in the order of their releases. A heap that was left
/// alone hides no other: the outcome is that of the heaps that were released. If none was, it is
/// the outcome of the first heap, or the refusal of a heap that has memory to return, or that
/// another attempt may release.
pub(crate) fn join(accounts: Vec<HeapAccount>) -> Option<(Release, DroppedRanges)> {
    let heaps: Vec<HeapRelease> = accounts.iter().filter_map(HeapAccount::heap).collect();
    let place = decisive(&accounts);
    let mut release = accounts.get(place)?.release.clone();
    release.heaps = heaps;
    let has_acted = accounts[place].has_acted();
    if has_acted && let Some(end) = accounts.iter().find_map(HeapAccount::end) {
        release.outcome = ReleaseOutcome::Partial;
        release.reason = end.reason;
    }
    if has_acted {
        // A heap that was left alone is no part of what was predicted.
        let acted = accounts.iter().filter(|account| account.has_acted());
        release.predicted_bytes = acted.map(|account| account.release.predicted_bytes).sum();
    }
    let others = accounts.iter().enumerate().filter(|(other, _)| *other != place);
    for (_, HeapAccount { release: other, .. }) in others.clone() {
        release.predicted_bytes += if has_acted { 0 } else { other.predicted_bytes };
        release.returned_bytes += other.returned_bytes;
        release.elapsed_s += other.elapsed_s;
        release.cpu_s += other.cpu_s;
        release.pauses_over_bound += other.pauses_over_bound;
        release.waited_over_bound_s += other.waited_over_bound_s;
        release.lock_holds += other.lock_holds;
        release.longest_lock_s = release.longest_lock_s.max(other.longest_lock_s);
        release.p99_lock_s = release.p99_lock_s.max(other.p99_lock_s);
        release.passes += other.passes;
        release.skipped_ranges += other.skipped_ranges;
        release.joined_blocks += other.joined_blocks;
        release.huge_gone_bytes += other.huge_gone_bytes;
        release.split_bytes += other.split_bytes;
        release.cleaned_bytes += other.cleaned_bytes;
        let new = other.notes.iter().filter(|note| !release.notes.contains(note));
        let new: Vec<String> = new.cloned().collect();
        release.notes.extend(new);
    }
    let left_alone = others.filter_map(|(_, other)| other.heap());
    for heap in left_alone.filter(|heap| heap.outcome == ReleaseOutcome::Refused) {
        let library = heap.library.map(|name| format!(" in {name}")).unwrap_or_default();
        let (allocator, reason) = (heap.allocator, heap.reason.unwrap_or_default());
        release.notes.push(format!("the heap of {allocator}{library} was left alone: {reason}"));
    }
    let mut pauses_s: Vec<f64> =
        accounts.iter().flat_map(|account| account.pauses_s.iter().copied()).collect();
    pauses_s.sort_by(f64::total_cmp);
    release.pauses = pauses_s.len() as u64;
    release.longest_pause_s = pauses_s.last().copied().unwrap_or(0.0);
    release.median_pause_s = stats::median(&pauses_s).unwrap_or(0.0);
    release.rss_before_bytes = accounts.first()?.release.rss_before_bytes;
    release.rss_after_bytes = accounts.last()?.release.rss_after_bytes;
    let dropped = accounts.into_iter().map(|account| account.dropped).reduce(|mut all, other| {
        all.join(other);
        all
    });
    Some((release, dropped?))
}

/// Returns the place of the heap whose outcome is that of the process.
fn decisive(accounts: &[HeapAccount]) -> usize {
    let acted = accounts.iter().enumerate().rev().filter(|(_, account)| account.has_acted());
    let bytes =
        |account: &HeapAccount| (account.release.returned_bytes, account.release.predicted_bytes);
    let most = acted.max_by_key(|(_, account)| bytes(account));
    let is_of_refused = |account: &HeapAccount| {
        let Release { outcome, predicted_bytes, may_pass, .. } = account.release;
        let may_pass = account.library.is_none() && may_pass == Some(true);
        outcome == ReleaseOutcome::Refused && (predicted_bytes >= MIN_GAIN_BYTES || may_pass)
    };
    let refused = || accounts.iter().position(is_of_refused);
    // That the caller did not select a heap is no news if there is another one.
    let chosen = || accounts.iter().position(|account| account.is_chosen);
    most.map(|(place, _)| place).or_else(refused).or_else(chosen).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(allocator: &str, outcome: ReleaseOutcome, returned_bytes: u64) -> HeapAccount {
        let reason = (outcome == ReleaseOutcome::Refused).then(|| format!("{allocator} is new"));
        let release = Release {
            allocator: Some(allocator.to_owned()),
            hazard: reason.as_ref().map(|_| Hazard::Untested),
            reason,
            outcome,
            returned_bytes,
            predicted_bytes: returned_bytes,
            rss_before_bytes: 100,
            ..Release::of(7, 1, vec!["server".to_owned()])
        };
        let pauses_s = if returned_bytes > 0 { vec![0.2, 0.1] } else { Vec::new() };
        HeapAccount {
            library: None,
            is_chosen: true,
            release,
            pauses_s,
            dropped: DroppedRanges::new(4096),
            was_tried: true,
        }
    }

    fn joined(accounts: Vec<HeapAccount>) -> Release {
        join(accounts).unwrap().0
    }

    #[test]
    fn the_figures_of_two_heaps_are_added() {
        let [one, mut other] = [("jemalloc", 1 << 20), ("glibc", 5 << 20)]
            .map(|(name, bytes)| account(name, ReleaseOutcome::Released, bytes));
        other.pauses_s = vec![0.5];
        other.release.rss_after_bytes = 3;
        let release = joined(vec![one, other]);
        assert_eq!(release.outcome, ReleaseOutcome::Released);
        assert_eq!(release.allocator.as_deref(), Some("glibc"));
        assert_eq!((release.returned_bytes, release.predicted_bytes), (6 << 20, 6 << 20));
        assert_eq!(
            (release.pauses, release.longest_pause_s, release.median_pause_s),
            (3, 0.5, 0.2)
        );
        assert_eq!((release.rss_before_bytes, release.rss_after_bytes), (100, 3));
        let heaps: Vec<_> =
            release.heaps.iter().map(|h| (&*h.allocator, h.returned_bytes)).collect();
        assert_eq!(heaps, [("jemalloc", 1 << 20), ("glibc", 5 << 20)]);
    }

    #[test]
    fn a_refused_heap_hides_no_other() {
        let refused = || account("jemalloc", ReleaseOutcome::Refused, 0);
        let released = account("glibc", ReleaseOutcome::Released, 1 << 20);
        let release = joined(vec![refused(), released]);
        assert_eq!((release.outcome, release.hazard), (ReleaseOutcome::Released, None));
        assert_eq!(release.notes, ["the heap of jemalloc was left alone: jemalloc is new"]);
        assert_eq!(release.heaps[0].reason.as_deref(), Some("jemalloc is new"));

        // The program's own heap could not be examined, and the other one holds nothing.
        let nothing = || account("glibc", ReleaseOutcome::NothingToRelease, 0);
        let release = joined(vec![refused(), nothing()]);
        assert_eq!(release.outcome, ReleaseOutcome::Refused);
        assert_eq!(release.hazard, Some(Hazard::Untested));

        let mut large = refused();
        large.release.predicted_bytes = 1 << 30;
        assert_eq!(joined(vec![nothing(), large]).outcome, ReleaseOutcome::Refused);
        assert_eq!(joined(vec![nothing(), refused()]).outcome, ReleaseOutcome::NothingToRelease);
    }

    #[test]
    fn what_concerns_the_process_ends_the_release_of_all_heaps() {
        let mut held = account("glibc", ReleaseOutcome::Refused, 0);
        held.release.hazard = Some(Hazard::Held);
        held.release.predicted_bytes = 7 << 20;
        let next = account("jemalloc", ReleaseOutcome::Refused, 0);
        let next = next.left_alone(held.end().unwrap());
        assert_eq!(next.release.hazard, Some(Hazard::Held));
        assert_eq!(next.release.reason, held.release.reason);
        // The file appeared between the two.
        let release = joined(vec![account("mimalloc", ReleaseOutcome::Released, 1 << 20), held]);
        assert_eq!(release.outcome, ReleaseOutcome::Partial);
        assert_eq!(release.reason.as_deref(), Some("glibc is new"));
        assert_eq!((release.predicted_bytes, release.returned_bytes), (1 << 20, 1 << 20));
        assert_eq!(release.heaps[1].predicted_bytes, 7 << 20);
        assert!(account("glibc", ReleaseOutcome::Refused, 0).end().is_none());
    }

    #[test]
    fn a_heap_that_another_attempt_may_release_decides_beside_an_empty_one() {
        let mut busy = account("glibc", ReleaseOutcome::Refused, 0);
        busy.release.may_pass = Some(true);
        let nothing = account("jemalloc", ReleaseOutcome::NothingToRelease, 0);
        let release = joined(vec![nothing, busy]);
        assert_eq!((release.outcome, release.may_pass), (ReleaseOutcome::Refused, Some(true)));
    }

    #[test]
    fn a_heap_that_was_not_selected_does_not_decide() {
        let mut other = account("jemalloc", ReleaseOutcome::Refused, 0);
        other.is_chosen = false;
        let release = joined(vec![other, account("glibc", ReleaseOutcome::NothingToRelease, 0)]);
        assert_eq!(release.outcome, ReleaseOutcome::NothingToRelease);
        assert_eq!(release.heaps[0].reason.as_deref(), Some("jemalloc is new"));
    }

    #[test]
    fn a_heap_that_was_released_in_part_makes_the_release_partial() {
        let mut part = account("glibc", ReleaseOutcome::Partial, 1 << 20);
        part.release.reason = Some("it was interrupted".to_owned());
        let release = joined(vec![account("jemalloc", ReleaseOutcome::Released, 2 << 20), part]);
        assert_eq!(release.outcome, ReleaseOutcome::Partial);
        assert_eq!(release.reason.as_deref(), Some("it was interrupted"));
        assert_eq!(release.returned_bytes, 3 << 20);
    }
}
