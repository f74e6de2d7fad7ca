//! A limit on CPU time, as a share of one core.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time for which unused CPU time is kept, in seconds.
const KEPT_S: f64 = 300.0;

/// CPU time that may be used: a credit that grows with time and shrinks with use.
#[derive(Debug, Clone)]
pub struct CpuBudget {
    /// Share of a core.
    share: f64,
    /// CPU time that may be used at once, in seconds; negative after an inspection that used more.
    credit_s: f64,
    /// Time and CPU time at the last update, in seconds.
    last: (f64, f64),
}

impl CpuBudget {
    /// Returns a budget of a share of a core. It starts with the credit of `KEPT_S`, so that the
    /// first round is quick.
    pub fn new(share: f64, t_s: f64, cpu_s: f64) -> Self {
        Self { share, credit_s: share * KEPT_S, last: (t_s, cpu_s) }
    }

    /// Returns the time during which no work may be started, in seconds; 0 if it may be started
    /// now. `t_s` is the time, and `cpu_s` the CPU time used so far, both in seconds.
    pub fn wait_s(&mut self, t_s: f64, cpu_s: f64) -> f64 {
        let (since_s, used_s) = (t_s - self.last.0, cpu_s - self.last.1);
        self.last = (t_s, cpu_s);
        self.credit_s = (self.credit_s + self.share * since_s - used_s).min(self.share * KEPT_S);
        (-self.credit_s / self.share).max(0.0)
    }
}

/// CPU time of this process that is not charged to the survey, such as that of a server.
#[derive(Debug, Clone, Default)]
pub struct UncountedCpu(Arc<AtomicU64>);

impl UncountedCpu {
    /// Adds CPU time, in seconds.
    pub fn add(&self, cpu_s: f64) {
        let time = Duration::try_from_secs_f64(cpu_s).unwrap_or_default();
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns the sum, in seconds.
    pub fn total_s(&self) -> f64 {
        Duration::from_nanos(self.0.load(Ordering::Relaxed)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_exceeds_its_share_waits_until_the_average_is_within_it() {
        let mut budget = CpuBudget::new(0.01, 0.0, 0.0);
        // The first round may use the credit of five minutes.
        assert_eq!(budget.wait_s(1.0, 2.9), 0.0);
        assert!((budget.wait_s(2.0, 4.0) - 98.0).abs() < 1e-6);
        assert!((budget.wait_s(50.0, 4.0) - 50.0).abs() < 1e-6);
        assert_eq!(budget.wait_s(101.0, 4.0), 0.0);
    }

    #[test]
    fn at_most_five_minutes_of_unused_time_are_credited() {
        let mut budget = CpuBudget::new(0.01, 0.0, 0.0);
        assert_eq!(budget.wait_s(100_000.0, 0.0), 0.0);
        // 13 s of CPU time against a credit of 3 s.
        assert!((budget.wait_s(100_000.0, 13.0) - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn the_average_stays_within_the_share() {
        let mut budget = CpuBudget::new(0.02, 0.0, 0.0);
        let (mut t_s, mut cpu_s) = (0.0, 0.0);
        while t_s < 100_000.0 {
            t_s += budget.wait_s(t_s, cpu_s);
            t_s += 0.7;
            cpu_s += 0.7;
        }
        assert!(cpu_s <= 0.02 * (t_s + KEPT_S) + 0.7, "{cpu_s} in {t_s}");
    }
}
