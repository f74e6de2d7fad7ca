//! A budget of CPU time: a token bucket.

/// CPU time that may be used at once, in seconds.
const CAPACITY_S: f64 = 3.0;

/// A budget of CPU time. It refills at a rate, and what is saved up is bounded.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// CPU seconds per second.
    rate: f64,
    saved_s: f64,
    /// The time of the last refill, in seconds.
    t_s: Option<f64>,
}

impl Budget {
    /// Creates a full budget. `rate` is the share of a core that may be used on average: 0.005 for half a percent.
    pub fn new(rate: f64) -> Self {
        Self { rate, saved_s: CAPACITY_S, t_s: None }
    }

    /// Returns whether an act that probably needs this CPU time, in seconds, may begin now.
    pub fn permits(&mut self, t_s: f64, expected_cpu_s: f64) -> bool {
        let passed = t_s - self.t_s.unwrap_or(t_s);
        self.t_s = Some(t_s);
        self.saved_s = (self.saved_s + passed.max(0.0) * self.rate).min(CAPACITY_S);
        self.saved_s > 0.0 && self.saved_s >= expected_cpu_s.min(CAPACITY_S)
    }

    /// Takes CPU time that was used, in seconds. An act may need more than was saved up; the next then waits.
    pub fn spend(&mut self, cpu_s: f64) {
        self.saved_s -= cpu_s.max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_average_no_more_is_used_than_the_rate() {
        let mut budget = Budget::new(0.005);
        let mut spent = 0.0;
        for tick in 0..36_000 {
            if budget.permits(f64::from(tick) * 0.1, 0.25) {
                budget.spend(0.25);
                spent += 0.25;
            }
        }
        assert!(spent <= CAPACITY_S + 3600.0 * 0.005, "{spent}");
        assert!(spent >= 3600.0 * 0.005, "{spent}");
    }

    #[test]
    fn an_act_that_costs_more_than_can_be_saved_up_waits_for_a_full_budget() {
        let mut budget = Budget::new(0.005);
        assert!(budget.permits(0.0, 10.0));
        budget.spend(10.0);
        assert!(!budget.permits(1400.0 - 1.0, 0.1));
        assert!(!budget.permits(1500.0, 10.0));
        assert!(budget.permits(2100.0, 10.0));
    }
}
