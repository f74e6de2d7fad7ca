//! The time since the run started, and the short count of it that requests are marked with.

use std::time::{Duration, Instant};

use crate::protocol::Ticks;

/// The clock of a run.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// Where the count of ticks starts, since the run started.
    base: Duration,
}

/// Half of what ticks can count: some six hours.
const HALF: u32 = u32::MAX / 2;
/// What lies farther back than this is of no request any more.
const HOUR: u32 = 360_000_000;

impl Clock {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), base: Duration::ZERO }
    }

    /// The time since the run started.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// A time of the run in ticks.
    pub(crate) fn ticks(&self, time: Duration) -> Ticks {
        Ticks::of(time.saturating_sub(self.base))
    }

    /// Begins the count of ticks anew where it comes to its end, and says by how much.
    pub(crate) fn rebase(&mut self, now: Duration) -> Option<Ticks> {
        let by = Ticks(self.ticks(now).0.checked_sub(HALF)?.saturating_add(HALF - HOUR));
        self.base += by.elapsed();
        Some(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_start_anew_before_they_end_and_keep_an_hour() {
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
