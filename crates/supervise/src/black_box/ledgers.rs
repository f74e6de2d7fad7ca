//! Inspections of the recorded processes, one at a time, in a thread of their own: a walk takes as
//! long as the heap is large, and readings go on meanwhile.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use lowtide_model::inspection::Observation;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::target::{Target, TargetError};

use super::pace::Nearness;

/// Share of a core for ledgers at rest, near a limit and at the edge.
const SHARES: [f64; 3] = [0.002, 0.5, 1.0];
/// Change of RSS from which a new ledger is worth it: this share of it, and these bytes.
const CHANGE: f64 = 0.03;
const MIN_CHANGE: u64 = 1 << 20;

/// Near a limit, a ledger is also worth it after a smaller change, in bytes, and this time, in
/// seconds, but for at most this share of a core.
const LITTLE: u64 = 256 << 10;
const RENEW_S: f64 = 5.0;
const RENEW_SHARE: f64 = 0.02;

/// When a process is inspected again.
#[derive(Debug, Clone, Default)]
pub(super) struct LedgerPlan {
    /// RSS at the last ledger; `None` before the first.
    rss_bytes: Option<u64>,
    /// End of the last attempt and its CPU time, in seconds.
    last: Option<(f64, f64)>,
}

impl LedgerPlan {
    /// Returns how urgent a ledger is: the bytes that have changed; `None` if none is due.
    pub(super) fn urgency(&self, t_s: f64, rss_bytes: u64, nearness: Nearness) -> Option<u64> {
        let changed = self.rss_bytes.map_or(rss_bytes, |before| before.abs_diff(rss_bytes));
        let least = MIN_CHANGE.max((rss_bytes as f64 * CHANGE) as u64);
        let Some((end_s, cpu_s)) = self.last else { return Some(changed) };
        let is_changed = self.rss_bytes.is_none() || changed >= least;
        let wait_s = match (is_changed, nearness) {
            (true, _) => cpu_s / SHARES[nearness as usize],
            // At its limit, a process can change its memory without a change of RSS.
            (false, Nearness::Near | Nearness::Edge) if changed >= LITTLE => {
                RENEW_S.max(cpu_s / RENEW_SHARE)
            }
            (false, _) => return None,
        };
        (t_s - end_s >= wait_s).then_some(changed)
    }

    /// Counts an attempt. `rss_bytes` is what it found, if it succeeded.
    pub(super) fn count(&mut self, t_s: f64, cpu_s: f64, rss_bytes: Option<u64>) {
        self.last = Some((t_s, cpu_s));
        self.rss_bytes = rss_bytes.or(self.rss_bytes);
    }
}

/// A finished inspection.
#[derive(Debug)]
pub(super) struct Inspected {
    pub(super) process: (u32, u64),
    /// When it began, in seconds.
    pub(super) t_s: f64,
    /// RSS when it was requested, in bytes.
    pub(super) rss_bytes: u64,
    pub(super) cpu_s: f64,
    pub(super) observed: Result<Observation, TargetError>,
}

/// The thread that inspects.
#[derive(Debug)]
pub(super) struct LedgerThread {
    requests: Sender<(Target, f64, u64)>,
    results: Receiver<Inspected>,
    is_busy: bool,
    _thread: JoinHandle<()>,
}

impl LedgerThread {
    pub(super) fn start() -> io::Result<Self> {
        let (requests, inbox) = channel::<(Target, f64, u64)>();
        let (outbox, results) = channel();
        let thread = thread::Builder::new().name("ledgers".to_owned()).spawn(move || {
            let mut inspector = Inspector::default().without_connections().without_open_memory();
            while let Ok((target, t_s, rss_bytes)) = inbox.recv() {
                let begin_s = thread_cpu_s();
                let observed = inspector.inspect(&target);
                // The inspection runs in a thread of its own, whose CPU time it reports.
                let own_s = thread_cpu_s() - begin_s;
                let cpu_s = own_s + observed.as_ref().map_or(0.0, |observed| observed.cpu_s);
                let process = (target.pid, target.start_ticks);
                if outbox.send(Inspected { process, t_s, rss_bytes, cpu_s, observed }).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { requests, results, is_busy: false, _thread: thread })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Starts an inspection. Must not be called while the thread is busy.
    pub(super) fn request(&mut self, target: Target, t_s: f64, rss_bytes: u64) {
        self.is_busy = self.requests.send((target, t_s, rss_bytes)).is_ok();
    }

    /// Returns the inspection that has finished, if there is one.
    pub(super) fn finished(&mut self) -> Option<Inspected> {
        match self.results.try_recv() {
            Ok(inspected) => {
                self.is_busy = false;
                Some(inspected)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_process_that_has_not_changed_needs_no_second_ledger() {
        let mut plan = LedgerPlan::default();
        assert_eq!(plan.urgency(0.0, 100 * MIB, Nearness::Rest), Some(100 * MIB));
        plan.count(0.1, 0.05, Some(100 * MIB));
        assert_eq!(plan.urgency(1000.0, 101 * MIB, Nearness::Rest), None);
        assert_eq!(plan.urgency(1000.0, 100 * MIB, Nearness::Edge), None);
        assert_eq!(plan.urgency(5.0, 101 * MIB, Nearness::Edge), None);
        assert_eq!(plan.urgency(6.0, 101 * MIB, Nearness::Edge), Some(MIB));
        assert_eq!(plan.urgency(1000.0, 110 * MIB, Nearness::Rest), Some(10 * MIB));
    }

    #[test]
    fn ledgers_are_frequent_near_a_limit_and_rare_at_rest() {
        let mut plan = LedgerPlan::default();
        plan.count(0.0, 0.05, Some(100 * MIB));
        let due = |t_s, nearness| plan.urgency(t_s, 150 * MIB, nearness).is_some();
        assert!(!due(20.0, Nearness::Rest) && due(26.0, Nearness::Rest));
        assert!(!due(0.04, Nearness::Edge) && due(0.06, Nearness::Edge));
        assert!(due(0.11, Nearness::Near));
    }
}
