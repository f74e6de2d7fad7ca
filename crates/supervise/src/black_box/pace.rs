//! How often a process is read: the more often, the sooner it may reach a limit.

use std::time::Duration;

use lowtide_policy::Headroom;

/// Shares of the limit from which readings are more frequent. What was not recorded before the edge
/// cannot be recorded any more: a leak of 100 MB/s needs 0.2 s from 90 % of 200 MiB.
const NEAR: f64 = 0.8;
const AT_EDGE: f64 = 0.95;
/// Time to the limit, at the current slope, from which readings are more frequent, in seconds.
const SOON_S: f64 = 5.0;
/// Intervals at rest, near the limit and at the edge.
const INTERVALS: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(10), Duration::from_millis(1)];
/// Maximum share of a core for all readings, at rest and near a limit.
const SHARES: [f64; 3] = [0.002, 0.02, 0.1];
/// Time without a noticeable change after which a process is read less often: a service may stay
/// close to its limit for days.
const CALM_S: f64 = 10.0;
/// Change that is noticeable, as a share of the limit.
const NOTICEABLE: f64 = 0.001;

/// Share of the limit, and time to it in seconds, from which a release should be tried: the walk
/// before it, and the first pages that it returns, take 0.1 to 0.3 s.
const RESCUE: f64 = 0.8;
const RESCUE_S: f64 = 1.0;

/// How close a process is to a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Nearness {
    /// Far from it.
    #[default]
    Rest,
    /// Above 80 %, or at the limit within five seconds.
    Near,
    /// Above 95 %.
    Edge,
}

/// Follows the memory that counts against the closest limit.
#[derive(Debug, Clone, Default)]
pub(super) struct ChargePace {
    /// Time and value of the reading from which the slope is computed.
    before: Option<(f64, u64)>,
    /// Bytes per second; 0 if they fall.
    slope: f64,
    /// Time and value of the last noticeable change.
    changed: Option<(f64, u64)>,
    nearness: Nearness,
    is_calm: bool,
    /// The limit and its use at the last reading.
    headroom: Option<Headroom>,
    needs_rescue: bool,
}

impl ChargePace {
    /// Time over which a slope is computed, in seconds. The kernel charges in batches.
    const WINDOW_S: f64 = 0.09;

    /// Adds a reading: the bytes that count against the limit that is closest, and this limit.
    pub(super) fn add(&mut self, t_s: f64, used: u64, limit: Option<u64>) {
        match self.before {
            Some((before_s, before)) if t_s - before_s >= Self::WINDOW_S => {
                self.slope = used.saturating_sub(before) as f64 / (t_s - before_s);
                self.before = Some((t_s, used));
            }
            None => self.before = Some((t_s, used)),
            _ => {}
        }
        let limit = limit.filter(|limit| *limit > 0).map(|limit| limit as f64);
        let least = limit.map_or(f64::INFINITY, |limit| limit * NOTICEABLE);
        let (changed_s, changed) = *self.changed.get_or_insert((t_s, used));
        if used.abs_diff(changed) as f64 >= least {
            self.changed = Some((t_s, used));
        }
        self.is_calm = used.abs_diff(changed) as f64 <= least && t_s - changed_s >= CALM_S;
        let fullness = limit.map_or(0.0, |limit| used as f64 / limit);
        let left_s = limit.map_or(f64::INFINITY, |limit| (limit - used as f64) / self.slope);
        let needs_rescue = fullness >= RESCUE || left_s <= RESCUE_S;
        self.headroom = limit.map(|limit| Headroom { limit_bytes: limit as u64, used_bytes: used });
        self.needs_rescue = needs_rescue && !self.is_calm;
        self.nearness = match fullness {
            share if share >= AT_EDGE => Nearness::Edge,
            share if share >= NEAR || left_s <= SOON_S => Nearness::Near,
            _ => Nearness::Rest,
        };
    }

    /// Returns the limit and its use, if a release should be tried.
    pub(super) fn rescue(&self) -> Option<Headroom> {
        self.headroom.filter(|_| self.needs_rescue)
    }

    /// Returns the limit and its use.
    pub(super) fn headroom(&self) -> Option<Headroom> {
        self.headroom
    }

    /// Returns how close the process is to its limit.
    pub(super) fn nearness(&self) -> Nearness {
        self.nearness
    }

    /// Returns the time until the next reading. `cost_s` is the CPU time of a round of readings of
    /// all processes, in seconds.
    pub(super) fn interval(&self, cost_s: f64) -> Duration {
        let place = self.nearness as usize;
        let interval = INTERVALS[place.saturating_sub(usize::from(self.is_calm))];
        let affordable = Duration::try_from_secs_f64(cost_s / SHARES[place]).unwrap_or_default();
        interval.max(affordable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 200_000_000;

    /// Returns the interval in milliseconds after readings at 10 Hz of a process that grows from a
    /// share of its limit by a rate, in bytes a second.
    fn interval_ms(share: f64, rate: f64, readings: u32) -> u128 {
        let mut pace = ChargePace::default();
        for place in 0..readings {
            let t_s = f64::from(place) * 0.1;
            pace.add(t_s, (LIMIT as f64 * share + rate * t_s) as u64, Some(LIMIT));
        }
        pace.interval(0.0).as_millis()
    }

    #[test]
    fn readings_are_more_frequent_near_the_limit_or_when_it_is_soon_reached() {
        assert_eq!(interval_ms(0.5, 0.0, 3), 100);
        assert_eq!(interval_ms(0.81, 0.0, 3), 10);
        assert_eq!(interval_ms(0.96, 0.0, 3), 1);
        assert_eq!(interval_ms(0.1, 100e6, 3), 10);
        assert_eq!(interval_ms(0.1, 10e6, 3), 100);
    }

    #[test]
    fn a_service_that_stays_close_to_its_limit_is_read_less_often_until_it_moves() {
        assert_eq!(interval_ms(0.96, 0.0, 110), 10);
        assert_eq!(interval_ms(0.85, 0.0, 110), 100);
        assert_eq!(interval_ms(0.951, 5e6, 15), 1);
    }

    #[test]
    fn many_processes_are_read_less_often_than_a_few() {
        let mut pace = ChargePace::default();
        pace.add(0.0, 1, Some(LIMIT));
        assert_eq!(pace.interval(0.001), Duration::from_millis(500));
        pace.add(1.0, LIMIT, Some(LIMIT));
        assert_eq!(pace.interval(0.001), Duration::from_millis(10));
    }

    #[test]
    fn a_release_is_due_at_four_fifths_or_a_second_before_the_limit() {
        let is_due = |share: f64, rate: f64| {
            let mut pace = ChargePace::default();
            for t_s in [0.0, 0.1] {
                pace.add(t_s, (LIMIT as f64 * share + rate * t_s) as u64, Some(LIMIT));
            }
            pace.rescue().is_some()
        };
        assert!(is_due(0.81, 0.0) && is_due(0.5, 150e6));
        assert!(!is_due(0.7, 0.0) && !is_due(0.5, 20e6));
    }

    #[test]
    fn without_a_limit_there_is_no_edge() {
        let mut pace = ChargePace::default();
        pace.add(0.0, 1, None);
        pace.add(0.1, 1 << 40, None);
        assert_eq!((pace.nearness(), pace.interval(0.0).as_millis()), (Nearness::Rest, 100));
    }
}
