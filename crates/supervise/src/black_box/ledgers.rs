//! When a recorded process is inspected.

use super::pace::Nearness;

/// Share of a core for ledgers at rest. What they do not use of it is saved, for this number of
/// ledgers: a process that has just started changes all the time.
const REST_SHARE: f64 = 0.002;
const MAX_SAVED: f64 = 8.0;
/// Maximum share of a core for ledgers in succession, at rest, near a limit and at the edge.
const SHARES: [f64; 3] = [0.2, 0.5, 1.0];
/// Change of RSS from which a new ledger is worth it: this share of it, and these bytes.
const CHANGE: f64 = 0.03;
const MIN_CHANGE: u64 = 1 << 20;

/// A process can free memory without a change of RSS. Where this matters, a ledger is also worth it
/// after this time, in seconds, if the process has run since.
const UNSEEN_S: f64 = 2.0;
/// Near a limit, a ledger is also worth it after a smaller change, in bytes, and this time, in
/// seconds, but for at most this share of a core.
const LITTLE: u64 = 256 << 10;
const RENEW_S: f64 = 5.0;
const RENEW_SHARE: f64 = 0.02;

/// What else than a change of RSS may make a ledger worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LedgerNeed {
    /// Nothing.
    None,
    /// Its free memory matters, and the process has run.
    Unseen,
    /// Its free memory is needed for a release, and was not kept.
    Walk,
}

/// When a process is inspected again.
#[derive(Debug, Clone, Default)]
pub(super) struct LedgerPlan {
    /// RSS at the last ledger; `None` before the first.
    rss_bytes: Option<u64>,
    /// End of the last attempt and its CPU time, in seconds.
    last: Option<(f64, f64)>,
    /// CPU time that ledgers have used of what was saved, in seconds, at the last attempt.
    owed_s: f64,
}

impl LedgerPlan {
    /// Returns how urgent a ledger is: the bytes that have changed; `None` if none is due.
    pub(super) fn urgency(
        &self,
        t_s: f64,
        rss_bytes: u64,
        nearness: Nearness,
        need: LedgerNeed,
    ) -> Option<u64> {
        let changed = self.rss_bytes.map_or(rss_bytes, |before| before.abs_diff(rss_bytes));
        let least = MIN_CHANGE.max((rss_bytes as f64 * CHANGE) as u64);
        let Some((end_s, cpu_s)) = self.last else { return Some(changed) };
        let is_changed = self.rss_bytes.is_none() || changed >= least || need == LedgerNeed::Walk;
        if nearness == Nearness::Rest && self.owed_s(t_s) > cpu_s * MAX_SAVED {
            return None;
        }
        let wait_s = match (is_changed, nearness) {
            (true, _) => cpu_s / SHARES[nearness as usize],
            // At its limit, a process can change its memory without a change of RSS.
            (false, Nearness::Near | Nearness::Edge) if changed >= LITTLE => {
                RENEW_S.max(cpu_s / RENEW_SHARE)
            }
            (false, _) if need == LedgerNeed::Unseen => UNSEEN_S.max(cpu_s / RENEW_SHARE),
            (false, _) => return None,
        };
        (t_s - end_s >= wait_s).then_some(changed)
    }

    /// Counts an attempt. `rss_bytes` is what it found, if it succeeded.
    pub(super) fn count(&mut self, t_s: f64, cpu_s: f64, rss_bytes: Option<u64>) {
        self.owed_s = self.owed_s(t_s) + cpu_s;
        self.last = Some((t_s, cpu_s));
        self.rss_bytes = rss_bytes.or(self.rss_bytes);
    }

    /// Counts the CPU time of a walk after an inspection, in seconds.
    pub(super) fn count_walk(&mut self, t_s: f64, cpu_s: f64) {
        self.owed_s = self.owed_s(t_s) + cpu_s;
        let before_s = self.last.map_or(0.0, |(_, cpu_s)| cpu_s);
        self.last = Some((t_s, before_s + cpu_s));
    }

    fn owed_s(&self, t_s: f64) -> f64 {
        let since_s = self.last.map_or(0.0, |(end_s, _)| t_s - end_s);
        (self.owed_s - since_s * REST_SHARE).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_process_that_has_not_changed_needs_no_second_ledger() {
        let mut plan = LedgerPlan::default();
        assert_eq!(plan.urgency(0.0, 100 * MIB, Nearness::Rest, LedgerNeed::None), Some(100 * MIB));
        plan.count(0.1, 0.05, Some(100 * MIB));
        assert_eq!(plan.urgency(1000.0, 101 * MIB, Nearness::Rest, LedgerNeed::None), None);
        assert_eq!(plan.urgency(1000.0, 100 * MIB, Nearness::Edge, LedgerNeed::None), None);
        assert_eq!(plan.urgency(5.0, 101 * MIB, Nearness::Edge, LedgerNeed::None), None);
        assert_eq!(plan.urgency(6.0, 101 * MIB, Nearness::Edge, LedgerNeed::None), Some(MIB));
        assert_eq!(
            plan.urgency(1000.0, 110 * MIB, Nearness::Rest, LedgerNeed::None),
            Some(10 * MIB)
        );
    }

    #[test]
    fn ledgers_are_frequent_near_a_limit_and_rare_at_rest() {
        let mut plan = LedgerPlan::default();
        plan.count(0.0, 0.05, Some(100 * MIB));
        let due =
            |t_s, nearness| plan.urgency(t_s, 150 * MIB, nearness, LedgerNeed::None).is_some();
        assert!(!due(0.2, Nearness::Rest) && due(0.3, Nearness::Rest));
        assert!(!due(0.04, Nearness::Edge) && due(0.06, Nearness::Edge));
        assert!(due(0.11, Nearness::Near));
    }

    #[test]
    fn a_change_after_the_start_is_seen_at_once_and_later_ones_keep_to_the_share_at_rest() {
        let mut plan = LedgerPlan::default();
        let (mut spent_s, mut times) = (0.0, Vec::new());
        for tenth in 0..20_000_u64 {
            let (t_s, rss) = (tenth as f64 * 0.1, (100 + tenth * 10) * MIB);
            if plan.urgency(t_s, rss, Nearness::Rest, LedgerNeed::None).is_some() {
                plan.count(t_s, 0.05, Some(rss));
                spent_s += 0.05;
                times.push(t_s);
            }
        }
        assert!(times[1] < 1.0, "{times:?}");
        assert!(spent_s <= 0.05 * (MAX_SAVED + 1.0) + 2000.0 * REST_SHARE, "{spent_s}");
    }

    #[test]
    fn freed_memory_that_a_release_may_need_is_seen_without_a_change_of_rss() {
        let mut plan = LedgerPlan::default();
        plan.count(0.0, 0.02, Some(100 * MIB));
        let due = |t_s, need| plan.urgency(t_s, 100 * MIB, Nearness::Rest, need).is_some();
        assert!(!due(1000.0, LedgerNeed::None));
        assert!(!due(1.9, LedgerNeed::Unseen) && due(2.1, LedgerNeed::Unseen));
        assert!(!due(0.05, LedgerNeed::Walk) && due(0.2, LedgerNeed::Walk));
    }
}
