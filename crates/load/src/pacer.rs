//! Computes when the next request or connection is due. Has no clock: the caller passes the time
//! since the start of the step.

use std::time::Duration;

use crate::rate::Rate;
use crate::shape::Shape;

/// The schedule of one step of a shape.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pacer {
    pace: Pace,
    started: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Pace {
    AtOnce { count: u64 },
    Until(Duration),
    Even { rate: Rate, count: u64 },
    EvenUntil { rate: Rate, end: Duration },
}

impl Pacer {
    /// Returns the schedule of a step. In a repetition, which is not a step, nothing is due.
    pub(crate) fn new(shape: &Shape) -> Self {
        let pace = match shape {
            Shape::Burst(count) => Pace::AtOnce { count: *count },
            Shape::Sustain(time) => Pace::Until(*time),
            Shape::Ramp { rate, count } => Pace::Even { rate: *rate, count: *count },
            Shape::Idle { time, trickle: Some(rate) } => {
                Pace::EvenUntil { rate: *rate, end: *time }
            }
            Shape::Hold(_) | Shape::Idle { trickle: None, .. } | Shape::Repeat { .. } => {
                Pace::AtOnce { count: 0 }
            }
        };
        Self { pace, started: 0 }
    }

    /// Returns how many requests or connections may start now.
    pub(crate) fn due(&self, now: Duration) -> u64 {
        match self.pace {
            Pace::AtOnce { count } => count - self.started,
            Pace::Until(end) if now < end => u64::MAX,
            Pace::Until(_) => 0,
            Pace::Even { rate, count } => rate.due_by(now).min(count).saturating_sub(self.started),
            Pace::EvenUntil { rate, end } if now < end => {
                rate.due_by(now).saturating_sub(self.started)
            }
            Pace::EvenUntil { .. } => 0,
        }
    }

    /// Starts one that is due. Returns the time from which it counts: its scheduled time, or now
    /// without a schedule.
    pub(crate) fn start(&mut self, now: Duration) -> Duration {
        let number = self.started;
        self.started += 1;
        match self.pace {
            Pace::AtOnce { .. } | Pace::Until(_) => now,
            Pace::Even { rate, .. } | Pace::EvenUntil { rate, .. } => rate.at(number),
        }
    }

    /// Returns when the next one is or was due, or `None` if all have started or there is no
    /// schedule.
    pub(crate) fn next(&self) -> Option<Duration> {
        match self.pace {
            Pace::AtOnce { .. } | Pace::Until(_) => None,
            Pace::Even { rate, count } => (self.started < count).then(|| rate.at(self.started)),
            Pace::EvenUntil { rate, end } => Some(rate.at(self.started)).filter(|at| *at < end),
        }
    }

    /// Returns whether nothing is due any more, now and later.
    pub(crate) fn is_done(&self, now: Duration) -> bool {
        match self.pace {
            Pace::AtOnce { count } | Pace::Even { count, .. } => self.started >= count,
            Pace::Until(end) | Pace::EvenUntil { end, .. } => now >= end,
        }
    }

    /// Returns how many have not started, if that is known.
    pub(crate) fn left(&self) -> Option<u64> {
        match self.pace {
            Pace::AtOnce { count } | Pace::Even { count, .. } => Some(count - self.started),
            Pace::Until(_) | Pace::EvenUntil { .. } => None,
        }
    }

    /// Ends the schedule: nothing is due from now on.
    pub(crate) fn stop(&mut self) {
        self.pace = Pace::AtOnce { count: self.started };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_is_due_immediately_and_timed_from_each_actual_start() {
        let mut pacer = Pacer::new(&Shape::Burst(2));
        assert_eq!((pacer.due(ms(0)), pacer.next(), pacer.left()), (2, None, Some(2)));
        assert_eq!(pacer.start(ms(3)), ms(3));
        assert!(!pacer.is_done(ms(3)));
        assert_eq!(pacer.start(ms(4)), ms(4));
        assert!(pacer.is_done(ms(4)) && pacer.due(ms(5)) == 0);
    }

    #[test]
    fn a_ramp_keeps_its_schedule_when_requests_start_late() {
        let mut pacer = Pacer::new(&Shape::Ramp { rate: "10/s".parse().unwrap(), count: 4 });
        assert_eq!((pacer.due(ms(0)), pacer.due(ms(99)), pacer.due(ms(100))), (1, 1, 2));
        // They start late, and still count from their scheduled times.
        let started: Vec<Duration> = (0..3).map(|_| pacer.start(ms(250))).collect();
        assert_eq!(started, [ms(0), ms(100), ms(200)]);
        assert_eq!((pacer.due(ms(250)), pacer.next()), (0, Some(ms(300))));
        assert_eq!(pacer.due(ms(99_000)), 1);
        pacer.start(ms(300));
        assert_eq!((pacer.next(), pacer.is_done(ms(300))), (None, true));
    }

    #[test]
    fn a_sustained_load_ends_with_its_duration() {
        let pacer = Pacer::new(&Shape::Sustain(ms(100)));
        assert!(pacer.due(ms(99)) > 0 && !pacer.is_done(ms(99)));
        assert!(pacer.due(ms(100)) == 0 && pacer.is_done(ms(100)));
    }

    #[test]
    fn only_the_trickle_starts_during_a_pause() {
        let idle = |trickle| Pacer::new(&Shape::Idle { time: ms(250), trickle });
        assert_eq!((idle(None).due(ms(9)), idle(None).is_done(ms(0))), (0, true));
        let mut pacer = idle("10/s".parse().ok());
        while pacer.due(ms(249)) > 0 {
            pacer.start(ms(249));
        }
        assert_eq!((pacer.started, pacer.next()), (3, None));
        assert_eq!(Pacer::new(&Shape::Hold(ms(1))).due(ms(0)), 0);
    }

    #[test]
    fn a_stopped_pacer_is_done() {
        let mut pacer = Pacer::new(&Shape::Sustain(ms(100)));
        pacer.start(ms(1));
        pacer.stop();
        assert!(pacer.is_done(ms(2)) && pacer.due(ms(2)) == 0);
    }

    proptest! {
        #[test]
        fn a_ramp_starts_each_request_once_in_order_and_never_early(
            per_second in 0.01_f64..100_000.0, count in 0_u64..300, steps: Vec<u16>,
        ) {
            let rate = Rate::new(per_second).unwrap();
            let mut pacer = Pacer::new(&Shape::Ramp { rate, count });
            let (mut now, mut started) = (Duration::ZERO, Vec::new());
            for step in steps {
                now += Duration::from_micros(u64::from(step) * 100);
                for _ in 0..pacer.due(now) {
                    started.push(pacer.start(now));
                    prop_assert!(started.last() <= Some(&(now + Duration::from_micros(200))));
                }
                prop_assert_eq!(pacer.left(), Some(count - started.len() as u64));
            }
            prop_assert!(started.is_sorted() && started.len() as u64 <= count);
        }
    }
}
