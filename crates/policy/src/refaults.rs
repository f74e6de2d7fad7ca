//! Decides when released memory is sampled for pages that have come back, and computes the time
//! that it was away. A page that khugepaged has filled is back as well: the system no longer has
//! the memory.

use crate::{ProcessState, Returned};

/// Times of the fixed samples after a release, in seconds.
const FIXED_S: [f64; 3] = [1.0, 10.0, 60.0];
/// Divisor of the released pages: a sample is taken when the process has had that share of them in
/// faults since the last sample.
const FAULTS_DIVISOR: u64 = 8;
/// Minimum time between two samples that faults cause, in seconds. It grows with their number.
const MIN_GAP_S: f64 = 0.2;
/// Size of a page that a minor fault may make resident if the system uses huge pages for any
/// memory, in bytes.
const HUGE_FAULT_BYTES: u64 = 2 << 20;

/// The reason for a sample of released memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleReason {
    /// A fixed time after the release has passed.
    Fixed,
    /// The process has had enough page faults that much of the memory may have come back.
    Faults,
}

/// The pages of one release that have come back.
#[derive(Debug, Clone, PartialEq)]
pub struct Refaults {
    begin_s: f64,
    released_bytes: u64,
    /// Size of a page, which a minor fault makes resident, in bytes.
    page_bytes: u64,
    /// Number of fixed samples taken.
    fixed: usize,
    /// Number of samples that were caused by faults.
    caused: u32,
    /// Time and faults of the last sample.
    sampled: (f64, u64),
    /// Time of the last state before a sample: the pages came back after it.
    seen_s: f64,
    returned: Returned,
}

impl Refaults {
    /// Starts at the end of a release: its time in seconds, the released bytes, the faults of the
    /// process so far, and the size of a page in bytes.
    pub fn new(t_s: f64, released_bytes: u64, minor_faults: u64, page_bytes: u64) -> Self {
        Self {
            begin_s: t_s,
            released_bytes,
            page_bytes,
            fixed: 0,
            caused: 0,
            sampled: (t_s, minor_faults),
            seen_s: t_s,
            returned: Returned::default(),
        }
    }

    /// Returns the reason for a sample; `None` if no sample is due.
    pub fn due(&mut self, state: &ProcessState) -> Option<SampleReason> {
        let fixed = FIXED_S.get(self.fixed).is_some_and(|after| state.t_s >= self.begin_s + after);
        if fixed {
            return Some(SampleReason::Fixed);
        }
        let faults = state.minor_faults.saturating_sub(self.sampled.1);
        let bytes = if state.has_huge_pages { HUGE_FAULT_BYTES } else { self.page_bytes };
        let is_much = faults.saturating_mul(bytes) > self.released_bytes / FAULTS_DIVISOR;
        let gap_s = MIN_GAP_S * f64::from(self.caused + 1);
        if is_much && state.t_s - self.sampled.0 >= gap_s {
            return Some(SampleReason::Faults);
        }
        self.seen_s = state.t_s;
        None
    }

    /// Records a sample: the released bytes that are resident again at the time of the state.
    pub fn sample(&mut self, state: &ProcessState, bytes: u64, reason: SampleReason) -> Returned {
        match reason {
            SampleReason::Faults => self.caused += 1,
            SampleReason::Fixed => {
                let passed = |after: &&f64| state.t_s >= self.begin_s + **after;
                self.fixed = FIXED_S.iter().take_while(passed).count();
            }
        }
        // Memory that came back and was dropped by the process itself is not away because of this
        // release.
        let bytes = bytes.min(self.released_bytes).max(self.returned.bytes);
        let away = |back: u64| (self.released_bytes - back) as f64;
        let (from, to) = (self.sampled.0, state.t_s);
        // After a jump of the faults, the pages are known to have come back since the last state.
        let jump = match reason {
            SampleReason::Faults => self.seen_s.clamp(from, to.max(from)),
            SampleReason::Fixed => from,
        };
        let before = away(self.returned.bytes);
        let area = before * (jump - from) + (before + away(bytes)) / 2.0 * (to - jump).max(0.0);
        self.sampled = (to, state.minor_faults);
        self.seen_s = to;
        self.returned = Returned {
            after_s: to - self.begin_s,
            bytes,
            away_byte_s: self.returned.away_byte_s + area,
        };
        self.returned
    }

    /// Returns whether all fixed samples were taken.
    pub fn is_known(&self) -> bool {
        self.fixed == FIXED_S.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4 << 10;

    fn state(t_s: f64, minor_faults: u64) -> ProcessState {
        ProcessState { t_s, minor_faults, ..ProcessState::default() }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_sampled_after_1_10_and_60_seconds() {
        let mut refaults = Refaults::new(100.0, 8 * MIB, 0, PAGE);
        let mut times = Vec::new();
        for tick in 0..700 {
            let state = state(100.0 + f64::from(tick) / 10.0, 0);
            if let Some(reason) = refaults.due(&state) {
                assert_eq!(reason, SampleReason::Fixed);
                refaults.sample(&state, 0, reason);
                times.push(tick / 10);
            }
        }
        assert_eq!(times, [1, 10, 60]);
        assert!(refaults.is_known());
    }

    #[test]
    fn a_burst_of_faults_triggers_a_sample_that_dates_the_refaults() {
        let mut refaults = Refaults::new(0.0, 8 * MIB, 50, PAGE);
        let mut returned = Returned::default();
        for tick in 1..100 {
            let t_s = f64::from(tick) / 5.0;
            let is_back = t_s >= 3.0;
            let state = state(t_s, if is_back { 50 + 2048 } else { 50 });
            if let Some(reason) = refaults.due(&state) {
                returned = refaults.sample(&state, if is_back { 8 * MIB } else { 0 }, reason);
            }
        }
        assert_eq!(returned.bytes, 8 * MIB);
        let away_s = returned.away_byte_s / (8 * MIB) as f64;
        assert!((2.7..=3.1).contains(&away_s), "{away_s}");
    }

    #[test]
    fn refaulted_pages_still_count_after_the_process_drops_them() {
        let mut refaults = Refaults::new(0.0, 8 * MIB, 0, PAGE);
        let back = refaults.sample(&state(1.0, 0), 8 * MIB, SampleReason::Fixed);
        let later = refaults.sample(&state(100.0, 0), 2 * MIB, SampleReason::Fixed);
        assert_eq!((later.bytes, later.away_byte_s), (back.bytes, back.away_byte_s));
    }

    #[test]
    fn a_few_faults_trigger_a_sample_of_a_process_with_huge_pages() {
        let mut refaults = Refaults::new(0.0, 80 * MIB, 0, PAGE);
        let few = state(0.5, 10);
        assert_eq!(refaults.due(&few), None);
        let few = ProcessState { has_huge_pages: true, ..few };
        assert_eq!(refaults.due(&few), Some(SampleReason::Faults));
    }

    #[test]
    fn refaulted_bytes_are_capped_at_the_released_bytes() {
        let mut refaults = Refaults::new(0.0, MIB, 0, PAGE);
        let returned = refaults.sample(&state(1.0, 0), u64::MAX, SampleReason::Fixed);
        assert_eq!(returned.bytes, MIB);
        assert!(returned.away_byte_s >= 0.0);
    }
}
