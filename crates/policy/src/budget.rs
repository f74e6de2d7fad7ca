//! A budget of CPU time: a token bucket.

/// Maximum CPU time that may be used at once, in seconds.
const CAPACITY_S: f64 = 3.0;
/// Time after which a waiting act is forgotten, unless it is requested again, in seconds.
const WAITING_S: f64 = 15.0;

/// A budget of CPU time for acts on several processes. It refills at a rate, and its savings are
/// bounded.
///
/// Acts that have to wait form a queue. Without it, cheap acts would repeatedly use up the CPU time
/// that a costly one waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// CPU seconds per second.
    rate: f64,
    saved_s: f64,
    /// The time of the last refill, in seconds.
    t_s: Option<f64>,
    /// Acts that wait, the longest first.
    waiting: Vec<WaitingAct>,
}

/// An act that waits.
#[derive(Debug, Clone, Copy, PartialEq)]
struct WaitingAct {
    pid: u32,
    /// CPU time that it probably needs, in seconds.
    expected_cpu_s: f64,
    /// Time of the last request, in seconds.
    asked_s: f64,
}

impl Budget {
    /// Creates a full budget. `rate` is the share of a core that may be used on average: 0.005 is
    /// half a percent.
    pub fn new(rate: f64) -> Self {
        Self { rate, saved_s: CAPACITY_S, t_s: None, waiting: Vec::new() }
    }

    /// Returns whether an act on a process may start now. `expected_cpu_s` is the CPU time that it
    /// probably needs, in seconds.
    pub fn permits(&mut self, pid: u32, t_s: f64, expected_cpu_s: f64) -> bool {
        let is_used_up = !self.has_any(t_s);
        self.waiting.retain(|waiting| waiting.pid == pid || t_s - waiting.asked_s < WAITING_S);
        let place = self.waiting.iter().position(|waiting| waiting.pid == pid);
        let before = self.waiting.iter().take(place.unwrap_or(self.waiting.len()));
        let reserved_s: f64 = before.map(|waiting| waiting.expected_cpu_s).sum();
        // An act may need more than the maximum savings: it starts when the budget is full.
        let needed_s = expected_cpu_s.min(CAPACITY_S) + reserved_s;
        let permits = !is_used_up && self.saved_s >= needed_s;
        let own = WaitingAct { pid, expected_cpu_s, asked_s: t_s };
        match place.and_then(|place| self.waiting.get_mut(place)) {
            _ if permits => self.waiting.retain(|waiting| waiting.pid != pid),
            Some(known) => *known = own,
            None => self.waiting.push(own),
        }
        permits
    }

    /// Returns whether there is CPU time now for which no act waits.
    pub fn has_spare(&mut self, t_s: f64) -> bool {
        self.has_any(t_s) && self.waiting.iter().all(|waiting| t_s - waiting.asked_s >= WAITING_S)
    }

    /// Returns whether there is any CPU time left now.
    fn has_any(&mut self, t_s: f64) -> bool {
        let passed = t_s - self.t_s.unwrap_or(t_s);
        self.t_s = Some(t_s);
        self.saved_s = (self.saved_s + passed.max(0.0) * self.rate).min(CAPACITY_S);
        self.saved_s > 0.0
    }

    /// Subtracts CPU time that was used, in seconds. An act may use more than was saved up. The
    /// next one then waits.
    pub fn spend(&mut self, cpu_s: f64) {
        self.saved_s -= cpu_s.max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_spending_stays_within_the_rate() {
        let mut budget = Budget::new(0.005);
        let mut spent = 0.0;
        for tick in 0..36_000 {
            if budget.permits(1, f64::from(tick) * 0.1, 0.25) {
                budget.spend(0.25);
                spent += 0.25;
            }
        }
        assert!(spent <= CAPACITY_S + 3600.0 * 0.005, "{spent}");
        assert!(spent >= 3600.0 * 0.005, "{spent}");
    }

    #[test]
    fn an_action_that_costs_more_than_the_capacity_waits_for_a_full_budget() {
        let mut budget = Budget::new(0.005);
        assert!(budget.permits(1, 0.0, 10.0));
        budget.spend(10.0);
        assert!(!budget.permits(1, 1400.0 - 1.0, 0.1));
        assert!(!budget.permits(1, 1500.0, 10.0));
        assert!(budget.permits(1, 2100.0, 10.0));
    }

    #[test]
    fn cheap_actions_do_not_starve_a_costly_one() {
        for cost_s in [1.0, 5.0] {
            let mut budget = Budget::new(0.005);
            budget.spend(CAPACITY_S);
            let (mut costly, mut cheap) = (0, 0);
            for second in 0..8000 {
                let t_s = f64::from(second);
                if budget.permits(2, t_s, 0.05) {
                    budget.spend(0.05);
                    cheap += 1;
                }
                if second % 5 == 0 && budget.permits(1, t_s, cost_s) {
                    budget.spend(cost_s);
                    costly += 1;
                }
            }
            assert!(costly >= 4 && cheap >= 4, "{cost_s}: {costly} {cheap}");
        }
    }

    #[test]
    fn an_action_that_is_no_longer_requested_does_not_block_others() {
        let mut budget = Budget::new(0.005);
        budget.spend(CAPACITY_S - 0.1);
        assert!(!budget.permits(1, 0.0, 2.0));
        assert!(!budget.permits(2, 1.0, 0.05));
        assert!(budget.permits(2, WAITING_S + 1.0, 0.05));
    }
}
