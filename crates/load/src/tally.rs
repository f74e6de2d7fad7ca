//! What is counted of a round: how many, how long they took, what was answered, why they failed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use hdrhistogram::Histogram;
use lowtide_model::load::{Latency, LoadRound, MOST_RESPONSES, Trickle};

use crate::failure::Failure;
use crate::protocol::{Body, Outcomes, Ticks};

/// A text of more characters than this is cut; what follows is told by length and hash.
const LONGEST_TEXT: usize = 1024;
/// So many different bodies are told apart.
const MOST_DISTINCT: usize = 1 << 20;
/// Answers with this status, or a higher one, have failed.
const FIRST_BAD_STATUS: u16 = 400;

/// Counts what becomes of requests, and of bare connections.
pub(crate) struct Tally {
    /// What time it is: set by the loop before it hands anything in.
    pub(crate) now: Ticks,
    /// What began before this is not the round's, but the trickle's before it.
    pub(crate) round_began: Ticks,
    /// Requests that were sent, and neither answered nor given up.
    pub(crate) in_flight: u64,
    /// Answers of any status, since the beginning of the run.
    pub(crate) answers: u64,
    pub(crate) round: Counts,
    pub(crate) trickle: Counts,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            now: Ticks(0),
            round_began: Ticks(0),
            in_flight: 0,
            answers: 0,
            round: Counts::default(),
            trickle: Counts::default(),
        }
    }
}

impl Tally {
    /// One begins that belongs to the round.
    pub(crate) fn begin(&mut self) {
        self.begin_bare();
        self.round.peak = self.round.peak.max(self.round.in_flight());
    }

    /// A bare connection begins to be made. Its peak is that of connections that stand.
    pub(crate) fn begin_bare(&mut self) {
        self.in_flight += 1;
        self.round.sent(self.now);
    }

    /// One begins that belongs to the trickle.
    pub(crate) fn begin_trickle(&mut self) {
        self.in_flight += 1;
        self.trickle.sent(self.now);
    }

    /// So many that had not been sent failed.
    pub(crate) fn failed_unsent(&mut self, count: u64, failure: Failure) {
        self.round.sent += count;
        self.round.failed(count, Kind::Failure(failure), self.now);
    }

    /// A bare connection was made, and stands.
    pub(crate) fn connected(&mut self, began: Ticks) {
        let now = self.now;
        self.in_flight -= 1;
        self.round.succeeded(began, now);
    }

    fn counts(&mut self, began: Ticks) -> &mut Counts {
        match began >= self.round_began {
            true => &mut self.round,
            false => &mut self.trickle,
        }
    }
}

impl Outcomes for Tally {
    fn answered(&mut self, began: Ticks, status: u16, body: Body<'_>) {
        let now = self.now;
        self.in_flight -= 1;
        self.answers += 1;
        let counts = self.counts(began);
        if status >= FIRST_BAD_STATUS {
            return counts.failed(1, Kind::Status(status), now);
        }
        counts.succeeded(began, now);
        counts.bodies.add(body);
    }

    fn failed(&mut self, began: Ticks, failure: Failure) {
        let now = self.now;
        self.in_flight -= 1;
        self.counts(began).failed(1, Kind::Failure(failure), now);
    }
}

/// Why a request has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Failure(Failure),
    Status(u16),
}

/// What was counted.
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// Bare connections that the server closed while they were to be held.
    pub(crate) closed_while_held: u64,
    pub(crate) peak: u64,
    last_sent: Ticks,
    last_over: Ticks,
    latencies: Histogram<u64>,
    ticks: u64,
    longest: u32,
    bodies: Bodies,
    errors: BTreeMap<Kind, u64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            sent: 0,
            succeeded: 0,
            failed: 0,
            closed_while_held: 0,
            peak: 0,
            last_sent: Ticks(0),
            last_over: Ticks(0),
            latencies: histogram(),
            ticks: 0,
            longest: 0,
            bodies: Bodies::default(),
            errors: BTreeMap::new(),
        }
    }
}

/// Three digits of every time that ticks can tell.
#[expect(clippy::expect_used, reason = "the bounds are constants, and are in order")]
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, u32::MAX as u64, 3).expect("the bounds are in order")
}

impl Counts {
    /// Those that were sent, and are not over.
    pub(crate) fn in_flight(&self) -> u64 {
        self.sent - self.succeeded - self.failed
    }

    fn sent(&mut self, now: Ticks) {
        self.sent += 1;
        self.last_sent = now;
    }

    fn succeeded(&mut self, began: Ticks, now: Ticks) {
        let ticks = now.0.saturating_sub(began.0);
        self.succeeded += 1;
        self.last_over = now;
        self.latencies.saturating_record(u64::from(ticks));
        self.ticks += u64::from(ticks);
        self.longest = self.longest.max(ticks);
    }

    fn failed(&mut self, count: u64, kind: Kind, now: Ticks) {
        self.failed += count;
        self.last_over = now;
        *self.errors.entry(kind).or_default() += count;
    }

    /// Whether more different bodies came than could be told apart.
    pub(crate) fn has_lost_bodies(&self) -> bool {
        self.bodies.hashes.len() >= MOST_DISTINCT
    }

    /// What people and scripts are told of a round that began at a time.
    pub(crate) fn round(&self, round: u32, url: String, began: Ticks) -> LoadRound {
        let since = |ticks: Ticks| seconds(ticks.0.saturating_sub(began.0).into());
        let completed_s = since(self.last_over);
        let requests_per_s = match completed_s > 0.0 {
            true => self.succeeded as f64 / completed_s,
            false => 0.0,
        };
        LoadRound {
            round,
            url: Some(url),
            requests: self.sent,
            succeeded: self.succeeded,
            failed: self.failed,
            peak_in_flight: self.peak,
            sent_s: since(self.last_sent),
            completed_s,
            requests_per_s,
            latency_s: self.latency(),
            responses: self.bodies.texts(),
            distinct_responses: self.bodies.hashes.len() as u64,
            errors: self.errors(),
            closed_while_held: None,
            between_rounds: None,
        }
    }

    /// What people and scripts are told of a trickle.
    pub(crate) fn trickle(&self) -> Trickle {
        Trickle {
            requests: self.sent,
            succeeded: self.succeeded,
            failed: self.failed,
            latency_s: self.latency(),
            errors: self.errors(),
        }
    }

    fn errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        for (kind, count) in &self.errors {
            let name = match kind {
                Kind::Failure(failure) => failure.to_string(),
                Kind::Status(status) => format!("answered with status {status}"),
            };
            // Two kinds may have the same words.
            *errors.entry(name).or_default() += count;
        }
        errors
    }

    fn latency(&self) -> Latency {
        if self.succeeded == 0 {
            return Latency::default();
        }
        // A bucket's upper end may lie beyond the longest.
        let longest = u64::from(self.longest);
        let at = |share| seconds(self.latencies.value_at_quantile(share).min(longest));
        Latency {
            mean: seconds(self.ticks) / self.succeeded as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: seconds(longest),
        }
    }
}

fn seconds(ticks: u64) -> f64 {
    Duration::from_micros(ticks * 10).as_secs_f64()
}

/// The bodies that came, told apart by their hash.
#[derive(Default)]
struct Bodies {
    kept: HashMap<u64, (String, u64)>,
    hashes: HashSet<u64>,
}

impl Bodies {
    fn add(&mut self, body: Body<'_>) {
        let hash = body.hash();
        if let Some((_, count)) = self.kept.get_mut(&hash) {
            *count += 1;
            return;
        }
        if self.hashes.len() < MOST_DISTINCT {
            self.hashes.insert(hash);
        }
        if self.kept.len() <= MOST_RESPONSES {
            self.kept.insert(hash, (text(body, hash), 1));
        }
    }

    fn texts(&self) -> BTreeMap<String, u64> {
        let mut texts = BTreeMap::new();
        if self.hashes.len() <= MOST_RESPONSES {
            for (text, count) in self.kept.values() {
                *texts.entry(text.clone()).or_default() += count;
            }
        }
        texts
    }
}

/// A body as a text that names it.
fn text(body: Body<'_>, hash: u64) -> String {
    let told = |begin: &str| format!("{begin}… ({} bytes, hash {hash:016x})", body.bytes());
    let Body::Whole(bytes) = body else { return told("") };
    // Four bytes are the most that a character takes.
    let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_TEXT * 4)]);
    match begin.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => told(&begin[..end]),
        None => begin.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(tally: &mut Tally, began: u32, status: u16, body: &[u8]) {
        tally.begin();
        tally.answered(Ticks(began), status, Body::Whole(body));
    }

    #[test]
    fn what_was_sent_has_succeeded_or_failed_and_the_peak_was_counted() {
        let mut tally =
            Tally { now: Ticks(300_000), round_began: Ticks(100_000), ..Tally::default() };
        for _ in 0..3 {
            tally.begin();
        }
        tally.answered(Ticks(200_000), 200, Body::Whole(b"a"));
        tally.answered(Ticks(100_000), 503, Body::Whole(b"busy"));
        tally.failed(Ticks(200_000), Failure::Reset);
        answered(&mut tally, 250_000, 302, b"a");
        tally.failed_unsent(1, Failure::Refused);
        let round = tally.round.round(1, "http://x".to_owned(), Ticks(100_000));
        assert_eq!((round.requests, round.succeeded, round.failed), (5, 2, 3));
        assert_eq!((round.peak_in_flight, tally.in_flight), (3, 0));
        assert_eq!((round.sent_s, round.completed_s, round.requests_per_s), (2.0, 2.0, 1.0));
        assert_eq!((round.latency_s.mean, round.latency_s.max), (0.75, 1.0));
        assert_eq!(round.responses, BTreeMap::from([("a".to_owned(), 2)]));
        let errors: Vec<&str> = round.errors.keys().map(String::as_str).collect();
        assert_eq!(
            errors,
            ["answered with status 503", "connection refused", "the connection was reset"]
        );
    }

    #[test]
    fn what_trickles_in_from_before_the_round_is_not_the_rounds() {
        let mut tally = Tally::default();
        tally.begin_trickle();
        (tally.round_began, tally.now) = (Ticks(10), Ticks(20));
        tally.begin();
        tally.answered(Ticks(9), 200, Body::Whole(b""));
        tally.failed(Ticks(10), Failure::Closed);
        assert_eq!((tally.round.succeeded, tally.round.failed), (0, 1));
        assert_eq!((tally.trickle.trickle().succeeded, tally.trickle.failed), (1, 0));
    }

    #[test]
    fn percentiles_are_right_to_three_digits_and_never_beyond_the_longest() {
        let mut counts = Counts::default();
        for ms in 1..=1000 {
            counts.sent(Ticks(0));
            counts.succeeded(Ticks(0), Ticks(ms * 100));
        }
        let latency = counts.latency();
        for (told, right) in [(latency.p50, 0.5), (latency.p90, 0.9), (latency.p99, 0.99)] {
            assert!((told - right).abs() / right < 0.002, "{told} {right}");
        }
        assert_eq!((latency.max, latency.mean), (1.0, 0.5005));
        assert!(latency.p999 <= latency.max);
        assert_eq!(Counts::default().latency(), Latency::default());
    }

    #[test]
    fn beyond_a_hundred_different_bodies_they_are_only_counted() {
        let mut tally = Tally::default();
        let mut add = |bodies: std::ops::Range<u32>| {
            for number in bodies {
                answered(&mut tally, 0, 200, number.to_string().as_bytes());
            }
            let round = tally.round.round(1, String::new(), Ticks(0));
            (round.responses.len(), round.distinct_responses)
        };
        assert_eq!(add(0..100), (100, 100));
        assert_eq!(add(0..100), (100, 100));
        assert_eq!(add(100..250), (0, 250));
    }

    #[test]
    fn a_body_that_is_long_is_named_by_its_beginning_length_and_hash() {
        let long = "é".repeat(5000);
        let named = text(Body::Whole(long.as_bytes()), 0xab);
        assert!(
            named.starts_with("éé") && named.ends_with("… (10000 bytes, hash 00000000000000ab)")
        );
        assert_eq!(text(Body::Whole(b"\xff"), 1), "\u{fffd}");
        assert!(text(Body::Pieces { hash: 1, bytes: 9 }, 1).starts_with("… (9 bytes"));
    }
}
