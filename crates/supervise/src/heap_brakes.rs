//! Brakes for the heaps of one process: a heap whose releases go wrong hides no other.

use std::collections::BTreeMap;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::release::{HeapRelease, ReleaseOutcome};
use lowtide_policy::Brake;
use lowtide_release::HeapName;

/// The brakes of the heaps of a process with several.
#[derive(Debug, Default)]
pub(crate) struct HeapBrakes(BTreeMap<HeapName, Brake>);

/// A heap that is left alone from now on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BrakedHeap {
    pub(crate) name: HeapName,
    pub(crate) reason: String,
}

impl HeapBrakes {
    /// Returns the heaps that are left alone at a time, in seconds.
    pub(crate) fn left_alone(&mut self, t_s: f64) -> Vec<HeapName> {
        let closed = self.0.iter_mut().filter_map(|(name, brake)| {
            let is_closed = !brake.is_open(t_s);
            is_closed.then(|| name.clone())
        });
        closed.collect()
    }

    /// Counts the outcomes of the heaps of a release that ended at a time; both times are in
    /// seconds. `chosen` are the allocators that are released, if not all are. Returns the heaps
    /// that are left alone from now on.
    pub(crate) fn count(
        &mut self,
        t_s: f64,
        heaps: &[HeapRelease],
        chosen: Option<&[AllocatorKind]>,
        bound_s: f64,
    ) -> Vec<BrakedHeap> {
        let was_ended = heaps.iter().any(|heap| heap.outcome == ReleaseOutcome::Partial);
        let is_chosen = |heap: &&HeapRelease| {
            chosen.is_none_or(|all| all.contains(&AllocatorKind::parse(&heap.allocator)))
        };
        let mut braked = Vec::new();
        for heap in heaps.iter().filter(is_chosen) {
            let (allocator, library) = (heap.allocator.clone(), heap.library.clone());
            let name = HeapName { allocator, library };
            let brake = self.0.entry(name.clone()).or_default();
            if brake.is_open(t_s) && counts(brake, t_s, heap, was_ended, bound_s) {
                braked.push(BrakedHeap { name, reason: reason(heap) });
            }
        }
        braked
    }
}

/// Counts the outcome of a heap. Returns whether it is left alone from now on.
fn counts(brake: &mut Brake, t_s: f64, heap: &HeapRelease, was_ended: bool, bound_s: f64) -> bool {
    let has_failed = heap.outcome == ReleaseOutcome::Partial;
    match heap.outcome {
        ReleaseOutcome::Released | ReleaseOutcome::Partial => {
            brake.count(t_s, has_failed, heap.longest_pause_s, bound_s)
        }
        ReleaseOutcome::NothingToRelease => {
            brake.count_walk();
            false
        }
        // The end of another heap's release may be the reason, and other reasons may pass.
        ReleaseOutcome::Refused if was_ended || heap.may_pass != Some(false) => false,
        ReleaseOutcome::Refused => {
            brake.close(t_s);
            true
        }
    }
}

fn reason(heap: &HeapRelease) -> String {
    match (heap.outcome, &heap.reason) {
        (ReleaseOutcome::Refused, Some(reason)) => reason.clone(),
        (ReleaseOutcome::Partial, Some(reason)) => {
            format!("two releases in succession failed: {reason}")
        }
        _ => format!(
            "two releases in succession held a thread for more than ten times the bound, the last for {}",
            HumanSeconds(heap.longest_pause_s)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_policy::LEFT_ALONE_S;

    const BOUND_S: f64 = 0.001;

    fn heap(allocator: &str, outcome: ReleaseOutcome, pause_s: f64) -> HeapRelease {
        let reason = (outcome != ReleaseOutcome::Released).then(|| "it is so".to_owned());
        HeapRelease {
            allocator: allocator.to_owned(),
            allocator_version: None,
            library: None,
            predicted_bytes: 0,
            returned_bytes: 0,
            outcome,
            reason,
            may_pass: (outcome == ReleaseOutcome::Refused).then_some(false),
            longest_pause_s: pause_s,
        }
    }

    fn names(heaps: Vec<HeapName>) -> Vec<String> {
        heaps.into_iter().map(|heap| heap.allocator).collect()
    }

    #[test]
    fn a_heap_that_goes_wrong_twice_is_left_alone_and_no_other_is() {
        let mut brakes = HeapBrakes::default();
        let failed = [
            heap("jemalloc", ReleaseOutcome::Partial, 0.0),
            heap("glibc", ReleaseOutcome::Refused, 0.0),
        ];
        assert!(brakes.count(1.0, &failed, None, BOUND_S).is_empty());
        let [braked] = &brakes.count(2.0, &failed, None, BOUND_S)[..] else { panic!("one heap") };
        assert_eq!(braked.reason, "two releases in succession failed: it is so");
        assert_eq!(names(brakes.left_alone(3.0)), ["jemalloc"]);
        let rest = [
            heap("jemalloc", ReleaseOutcome::Refused, 0.0),
            heap("glibc", ReleaseOutcome::Released, 0.0),
        ];
        assert!(brakes.count(4.0, &rest, None, BOUND_S).is_empty());
        assert!(brakes.left_alone(2.0 + LEFT_ALONE_S).is_empty());
    }

    #[test]
    fn a_long_pause_counts_for_the_heap_that_made_it() {
        let mut brakes = HeapBrakes::default();
        let slow = [
            heap("jemalloc", ReleaseOutcome::Released, 0.0),
            heap("glibc", ReleaseOutcome::Released, 0.1),
        ];
        assert!(brakes.count(1.0, &slow, None, BOUND_S).is_empty());
        let braked = brakes.count(2.0, &slow, None, BOUND_S);
        assert_eq!(braked.len(), 1);
        assert!(braked[0].reason.contains("more than ten times the bound"), "{braked:?}");
        assert_eq!(names(brakes.left_alone(3.0)), ["glibc"]);
    }

    #[test]
    fn only_a_refusal_that_will_not_pass_leaves_a_selected_heap_alone() {
        let refused =
            |may_pass| HeapRelease { may_pass, ..heap("mimalloc", ReleaseOutcome::Refused, 0.0) };
        let count = |may_pass, chosen: Option<&[AllocatorKind]>| {
            let nothing = heap("glibc", ReleaseOutcome::NothingToRelease, 0.0);
            let mut brakes = HeapBrakes::default();
            brakes.count(1.0, &[refused(may_pass), nothing], chosen, BOUND_S).len()
        };
        assert_eq!(count(Some(false), None), 1);
        assert_eq!(count(Some(true), None), 0);
        assert_eq!(count(None, None), 0);
        assert_eq!(count(Some(false), Some(&[AllocatorKind::Glibc])), 0);
    }
}
