//! The time since the start of the run, and its compact form ([`Ticks`]), which each request in
//! flight stores.

use std::time::{Duration, Instant};

use crate::protocol::Ticks;

/// The clock of a run.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// The start of the count of ticks, as a time since the start of the run.
    base: Duration,
}

/// The age in ticks, half of their range and about six hours, from which [`Clock::rebase`] restarts
/// the count.
const REBASE_AT: u32 = u32::MAX / 2;
/// The ticks, one hour, that a rebase keeps: no request in flight is older.
const KEPT_TICKS: u32 = 360_000_000;

impl Clock {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), base: Duration::ZERO }
    }

    /// Returns the time since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Converts a time since the start of the run to ticks.
    pub(crate) fn ticks(&self, time: Duration) -> Ticks {
        Ticks::from_duration(time.saturating_sub(self.base))
    }

    /// Moves the start of the count of ticks before they overflow. Returns by how much.
    pub(crate) fn rebase(&mut self, now: Duration) -> Option<Ticks> {
        let by =
            Ticks(self.ticks(now).0.checked_sub(REBASE_AT)?.saturating_add(REBASE_AT - KEPT_TICKS));
        self.base += by.elapsed();
        Some(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_rebased_before_they_overflow_and_keep_an_hour() {
        let mut clock = Clock::start();
        let hour = Duration::from_secs(3600);
        assert_eq!(clock.rebase(hour * 5), None);
        let by = clock.rebase(hour * 7).unwrap();
        assert_eq!(by.elapsed(), hour * 6);
        assert_eq!(clock.ticks(hour * 7).elapsed(), hour);
        assert_eq!(clock.rebase(hour * 7), None);
        assert_eq!(clock.ticks(hour), Ticks(0));
    }
}
