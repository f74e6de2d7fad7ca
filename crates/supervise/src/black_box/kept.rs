//! What a ring keeps for as long as its process lives, whatever is overwritten: a course of few
//! readings, and the ledgers that show the growth and the peak.

use lowtide_model::stats::thin;
use lowtide_record::black_box::{BoxLine, Course, HeadLine, ReadingLine};

/// Maximum number of readings of a course.
const MAX_READINGS: usize = 120;
/// First distance of these readings, in seconds.
const FIRST_SPACING_S: f64 = 0.5;
/// Maximum number of ledgers that are kept. Others stay in the ring until they are overwritten.
const MAX_LEDGERS: usize = 8;
/// Maximum size of a ledger that is kept, in bytes.
const MAX_LEDGER: usize = 32 << 10;

/// The state of one ring.
#[derive(Debug)]
pub(super) struct RingState {
    head: Vec<u8>,
    course_payload: Vec<u8>,
    pub(super) course: Course,
    spacing_s: f64,
    /// RSS and payload, in order of time.
    ledgers: Vec<(u64, Vec<u8>)>,
    /// Whether every second of the older ledgers is dropped next.
    drops_even: bool,
}

impl RingState {
    pub(super) fn new(head: &HeadLine) -> Self {
        Self {
            head: BoxLine::Head(head.clone()).to_payload(),
            course_payload: Vec::new(),
            course: Course::default(),
            spacing_s: FIRST_SPACING_S,
            ledgers: Vec::new(),
            drops_even: false,
        }
    }

    /// Starts over with another program.
    pub(super) fn replace(&mut self, head: &HeadLine) {
        *self = Self { course: std::mem::take(&mut self.course), ..Self::new(head) };
    }

    /// Replaces the head, as when the process was moved to another cgroup.
    pub(super) fn set_head(&mut self, head: &HeadLine) {
        self.head = BoxLine::Head(head.clone()).to_payload();
    }

    /// Adds a reading to the course if it is far enough from the last one.
    pub(super) fn add(&mut self, reading: &ReadingLine) {
        let rss = reading.process.rss();
        if rss >= self.course.peak.0 {
            self.course.peak = (rss, reading.t_s);
        }
        let readings = &mut self.course.readings;
        if readings.last().is_some_and(|last| reading.t_s - last.t_s < self.spacing_s) {
            return;
        }
        if readings.len() >= MAX_READINGS {
            thin(readings);
            self.spacing_s *= 2.0;
        }
        readings.push(reading.clone());
    }

    /// Adds a ledger. Of many, evenly spaced ones stay, with the first, the last and the largest.
    pub(super) fn add_ledger(&mut self, rss_bytes: u64, payload: Vec<u8>) {
        if payload.len() > MAX_LEDGER {
            return;
        }
        if self.ledgers.len() >= MAX_LEDGERS {
            let largest = self.ledgers.iter().map(|(rss, _)| *rss).max().unwrap_or(0);
            let last = self.ledgers.len() - 1;
            let offset = usize::from(self.drops_even);
            let mut place = 0;
            self.ledgers.retain(|(rss, _)| {
                let is_kept = place == 0
                    || place == last
                    || *rss == largest
                    || (place + offset).is_multiple_of(2);
                place += 1;
                is_kept
            });
            self.drops_even = !self.drops_even;
            if self.ledgers.len() >= MAX_LEDGERS {
                self.ledgers.remove(1);
            }
        }
        self.ledgers.push((rss_bytes, payload));
    }

    /// Returns the payloads with which a half of the ring begins, the most important first.
    pub(super) fn state(&mut self) -> Vec<&[u8]> {
        self.course_payload = BoxLine::Course(self.course.clone()).to_payload();
        let ledgers = self.ledgers.iter().rev().map(|(_, payload)| payload.as_slice());
        [self.head.as_slice(), self.course_payload.as_slice()].into_iter().chain(ledgers).collect()
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::counters::ProcessBytes;

    use super::*;

    #[test]
    fn a_course_stays_short_and_even() {
        let mut kept = RingState::new(&HeadLine::default());
        for second in 0..100_000_u32 {
            let process = ProcessBytes { anon: u64::from(second % 7), ..ProcessBytes::default() };
            kept.add(&ReadingLine { t_s: f64::from(second), process, ..ReadingLine::default() });
        }
        let times: Vec<f64> = kept.course.readings.iter().map(|reading| reading.t_s).collect();
        assert!((60..=MAX_READINGS).contains(&times.len()), "{}", times.len());
        assert!(times[0] == 0.0 && *times.last().unwrap() > 98_000.0);
        assert_eq!(kept.course.peak.0, 6);
    }

    #[test]
    fn the_first_the_last_and_the_largest_ledgers_are_kept() {
        let mut kept = RingState::new(&HeadLine::default());
        for place in 0..200_u64 {
            let rss = if place == 77 { 1000 } else { place };
            kept.add_ledger(rss, vec![u8::try_from(place).unwrap()]);
        }
        let sizes: Vec<u64> = kept.ledgers.iter().map(|(rss, _)| *rss).collect();
        assert!(
            sizes.len() <= MAX_LEDGERS && sizes.contains(&0) && sizes.contains(&1000),
            "{sizes:?}"
        );
        assert_eq!(sizes.last(), Some(&199));
    }
}
