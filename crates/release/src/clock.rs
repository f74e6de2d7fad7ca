//! The clock of the worker thread in the target.
//!
//! The worker thread should make no system call to read the time: a process that installs a seccomp
//! filter may forbid that call, because the C library reads the time without one. So the thread
//! reads the time stamp counter (TSC) of the processor, if the kernel itself keeps time by that
//! counter.

use std::fs;
use std::time::{Duration, Instant};

use crate::arch::{counter, may_read_counter};
use crate::stub::contract::{CLOCK_KERNEL, CLOCK_TSC};

/// Minimum time over which the rate of the counter is measured: its error is then below a
/// thousandth.
const MIN_MEASUREMENT: Duration = Duration::from_millis(2);
/// Clock sources of the kernel that are based on the counter.
const TSC_SOURCES: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];

/// The start of a measurement of the counter's rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockMeasurement {
    begin: Option<(Instant, u64)>,
}

impl ClockMeasurement {
    /// Starts a measurement.
    pub(crate) fn start() -> Self {
        Self { begin: (is_source_tsc() && may_read_counter()).then(sample) }
    }

    /// Completes the measurement, and returns the clock to use. It waits until the measurement is
    /// long enough.
    pub(crate) fn finish(self) -> WorkerClock {
        let Some((begin, ticks)) = self.begin else { return WorkerClock::KERNEL };
        std::thread::sleep(MIN_MEASUREMENT.saturating_sub(begin.elapsed()));
        let (end, ticks_at_end) = sample();
        let rate = ticks_at_end.wrapping_sub(ticks) as f64 / (end - begin).as_nanos() as f64;
        // From 0.1 to 100 GHz.
        if (0.1..100.0).contains(&rate) {
            WorkerClock { rate: Some(rate) }
        } else {
            WorkerClock::KERNEL
        }
    }
}

/// The clock of the worker thread.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct WorkerClock {
    /// Ticks of the time stamp counter in a nanosecond; `None` for the clock of the kernel, whose
    /// ticks are nanoseconds.
    rate: Option<f64>,
}

impl WorkerClock {
    /// The clock of the kernel (`CLOCK_MONOTONIC`).
    pub(crate) const KERNEL: Self = Self { rate: None };

    #[cfg(test)]
    pub(crate) fn of_rate(ticks_per_ns: f64) -> Self {
        Self { rate: Some(ticks_per_ns) }
    }

    /// Returns its number in the block.
    pub(crate) fn number(self) -> u32 {
        if self.rate.is_some() { CLOCK_TSC } else { CLOCK_KERNEL }
    }

    /// Converts a time to ticks.
    pub(crate) fn ticks(self, time: Duration) -> u64 {
        (time.as_nanos() as f64 * self.rate.unwrap_or(1.0)) as u64
    }

    /// Converts ticks to a time.
    pub(crate) fn time(self, ticks: u64) -> Duration {
        Duration::from_nanos((ticks as f64 / self.rate.unwrap_or(1.0)) as u64)
    }
}

/// Returns whether the kernel keeps time by the counter: it then has found the counters of all
/// processors to agree.
fn is_source_tsc() -> bool {
    const PATH: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    fs::read_to_string(PATH).is_ok_and(|source| TSC_SOURCES.contains(&source.trim()))
}

/// Reads both clocks at the same time, up to a microsecond, or as nearly as several attempts
/// permit.
fn sample() -> (Instant, u64) {
    const MAX_ERROR: Duration = Duration::from_micros(1);
    const MAX_ATTEMPTS: usize = 20;
    let mut best: Option<(Duration, Instant, u64)> = None;
    for _ in 0..MAX_ATTEMPTS {
        let begin = Instant::now();
        let ticks = counter();
        let error = begin.elapsed();
        if best.is_none_or(|(least, ..)| error < least) {
            best = Some((error, begin, ticks));
        }
        if error < MAX_ERROR {
            break;
        }
    }
    best.map_or_else(|| (Instant::now(), 0), |(_, at, ticks)| (at, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_ticks_is_the_same_time_again() {
        let clocks =
            [WorkerClock::KERNEL, WorkerClock { rate: Some(2.4) }, WorkerClock { rate: Some(0.7) }];
        for clock in clocks {
            for time in [60, 1_000_000, 3_600_000_000_000].map(Duration::from_nanos) {
                let again = clock.time(clock.ticks(time));
                assert!(time.abs_diff(again) <= Duration::from_nanos(2), "{clock:?} {time:?}");
            }
        }
    }

    #[test]
    fn the_counter_runs_as_the_clock_of_the_kernel_does() {
        let measurement = ClockMeasurement::start();
        let clock = measurement.finish();
        let Some((begin, ticks)) = measurement.begin else {
            assert_eq!(clock, WorkerClock::KERNEL);
            return;
        };
        std::thread::sleep(Duration::from_millis(20));
        let (end, now) = sample();
        let (expected, measured) = (end - begin, clock.time(now - ticks));
        assert!(expected.abs_diff(measured) < expected / 100, "{expected:?} {measured:?}");
    }
}
