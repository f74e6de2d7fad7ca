//! The counts of a round: requests, latencies, distinct responses, causes of failure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use lowtide_model::load::{Latency, LoadRound, MOST_RESPONSES, Trickle};

use crate::failure::RequestFailure;
use crate::protocol::{Body, Outcomes, Ticks};

/// Maximum number of characters of a body in a report. A longer one is shortened, with its length
/// and hash appended.
const MAX_TEXT_CHARS: usize = 1024;
/// Maximum number of distinct bodies that are counted.
const MAX_DISTINCT_BODIES: usize = 1 << 20;
/// Lowest status that counts as a failure.
const MIN_FAILED_STATUS: u16 = 400;

/// Counts the outcomes of requests and bare connections.
pub(crate) struct LoadTally {
    /// The current time. The loop sets it before it reports outcomes.
    pub(crate) now: Ticks,
    /// The start of the round. Requests that started earlier are background requests of the pause
    /// before it.
    pub(crate) round_started: Ticks,
    /// Requests that were sent and have no outcome yet.
    pub(crate) in_flight: u64,
    /// Responses with any status since the start of the run.
    pub(crate) answers: u64,
    pub(crate) round: RoundCounts,
    pub(crate) trickle: RoundCounts,
}

impl Default for LoadTally {
    fn default() -> Self {
        Self {
            now: Ticks(0),
            round_started: Ticks(0),
            in_flight: 0,
            answers: 0,
            round: RoundCounts::default(),
            trickle: RoundCounts::default(),
        }
    }
}

impl LoadTally {
    /// Counts the start of a request of the round.
    pub(crate) fn start(&mut self) {
        self.start_bare();
        self.round.peak = self.round.peak.max(self.round.in_flight());
    }

    /// Counts the start of a bare connection. Its peak counts open connections, and is kept by the
    /// pool.
    pub(crate) fn start_bare(&mut self) {
        self.in_flight += 1;
        self.round.sent(self.now);
    }

    /// Counts the start of a background request.
    pub(crate) fn start_trickle(&mut self) {
        self.in_flight += 1;
        self.trickle.sent(self.now);
    }

    /// Counts requests that were never sent, because all connections were given up for a reason.
    pub(crate) fn failed_unsent(&mut self, count: u64, failure: RequestFailure) {
        self.round.sent += count;
        self.round.failed(count, FailureCause::NeverSent(failure), self.now);
    }

    /// Counts a request that was due at a time and found no room on a connection within the
    /// timeout.
    pub(crate) fn timed_out_unsent(&mut self, due: Ticks) {
        self.round.sent += 1;
        self.round.timed_out(due, FailureCause::NeverSent(RequestFailure::TimedOut), self.now);
    }

    /// Counts a bare connection that is open.
    pub(crate) fn connected(&mut self, started: Ticks) {
        let now = self.now;
        self.in_flight -= 1;
        self.round.succeeded(started, now);
    }

    fn counts(&mut self, started: Ticks) -> &mut RoundCounts {
        match started >= self.round_started {
            true => &mut self.round,
            false => &mut self.trickle,
        }
    }
}

impl Outcomes for LoadTally {
    fn answered(&mut self, started: Ticks, status: u16, body: Body<'_>) {
        let now = self.now;
        self.in_flight -= 1;
        self.answers += 1;
        let counts = self.counts(started);
        if status >= MIN_FAILED_STATUS {
            return counts.failed(1, FailureCause::Status(status), now);
        }
        counts.succeeded(started, now);
        counts.bodies.add(body);
    }

    fn failed(&mut self, started: Ticks, failure: RequestFailure) {
        let now = self.now;
        self.in_flight -= 1;
        let counts = self.counts(started);
        match failure.is_timeout() {
            true => counts.timed_out(started, FailureCause::RequestFailure(failure), now),
            false => counts.failed(1, FailureCause::RequestFailure(failure), now),
        }
    }
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FailureCause {
    RequestFailure(RequestFailure),
    Status(u16),
    /// It was never sent, because of this failure of the connections.
    NeverSent(RequestFailure),
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RequestFailure(failure) => failure.fmt(f),
            Self::Status(status) => write!(f, "answered with status {status}"),
            Self::NeverSent(RequestFailure::TimedOut) => {
                f.write_str("never sent: no connection was free within the timeout")
            }
            Self::NeverSent(failure) => {
                write!(f, "never sent: all connections were given up ({failure})")
            }
        }
    }
}

/// The counts of a round or of the background requests in a pause.
pub(crate) struct RoundCounts {
    pub(crate) sent: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// Bare connections that the server closed before the end of the hold.
    pub(crate) closed_while_held: u64,
    pub(crate) peak: u64,
    last_sent: Ticks,
    last_over: Ticks,
    latencies: Latencies,
    /// For requests that timed out, the time from when they were due until they were given up.
    timeouts: Latencies,
    bodies: Bodies,
    errors: BTreeMap<FailureCause, u64>,
}

impl Default for RoundCounts {
    fn default() -> Self {
        Self {
            sent: 0,
            succeeded: 0,
            failed: 0,
            closed_while_held: 0,
            peak: 0,
            last_sent: Ticks(0),
            last_over: Ticks(0),
            latencies: Latencies::default(),
            timeouts: Latencies::default(),
            bodies: Bodies::default(),
            errors: BTreeMap::new(),
        }
    }
}

impl RoundCounts {
    /// Returns the number of requests that were sent and have no outcome yet.
    pub(crate) fn in_flight(&self) -> u64 {
        self.sent - self.succeeded - self.failed
    }

    fn sent(&mut self, now: Ticks) {
        self.sent += 1;
        self.last_sent = now;
    }

    fn succeeded(&mut self, started: Ticks, now: Ticks) {
        self.succeeded += 1;
        self.last_over = now;
        self.latencies.record(started, now);
    }

    fn timed_out(&mut self, started: Ticks, cause: FailureCause, now: Ticks) {
        self.timeouts.record(started, now);
        self.failed(1, cause, now);
    }

    fn failed(&mut self, count: u64, cause: FailureCause, now: Ticks) {
        self.failed += count;
        self.last_over = now;
        *self.errors.entry(cause).or_default() += count;
    }

    /// Returns whether there were more distinct bodies than are counted.
    pub(crate) fn has_lost_bodies(&self) -> bool {
        self.bodies.hashes.len() >= MAX_DISTINCT_BODIES
    }

    /// Returns the report of a round that started at this time.
    pub(crate) fn round(&self, round: u32, url: String, started: Ticks) -> LoadRound {
        let since = |ticks: Ticks| seconds(ticks.0.saturating_sub(started.0).into());
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
            failed_ratio: ratio(self.failed, self.sent),
            timed_out: self.timed_out_count(),
            peak_in_flight: self.peak,
            sent_s: since(self.last_sent),
            completed_s,
            requests_per_s,
            latency_s: self.latencies.summary(),
            latency_with_timeouts_s: self.latency_with_timeouts(),
            responses: self.bodies.texts(),
            distinct_responses: self.bodies.hashes.len() as u64,
            errors: self.errors(),
            closed_while_held: None,
            between_rounds: None,
        }
    }

    /// Returns the report of the background requests.
    pub(crate) fn trickle(&self) -> Trickle {
        Trickle {
            requests: self.sent,
            succeeded: self.succeeded,
            failed: self.failed,
            failed_ratio: ratio(self.failed, self.sent),
            timed_out: self.timed_out_count(),
            latency_s: self.latencies.summary(),
            latency_with_timeouts_s: self.latency_with_timeouts(),
            errors: self.errors(),
        }
    }

    fn errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        for (cause, count) in &self.errors {
            // Two causes may have the same text.
            *errors.entry(cause.to_string()).or_default() += count;
        }
        errors
    }

    fn timed_out_count(&self) -> Option<u64> {
        Some(self.timeouts.count()).filter(|count| *count > 0)
    }

    fn latency_with_timeouts(&self) -> Option<Latency> {
        self.timed_out_count().map(|_| self.latencies.with(&self.timeouts).summary())
    }
}

/// Returns the ratio, or `None` if the whole is zero.
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The latencies of requests, in ticks.
#[derive(Clone)]
struct Latencies {
    histogram: Histogram<u64>,
    sum: u64,
    longest: u64,
}

/// With a precision of three digits over the range of ticks.
impl Default for Latencies {
    #[expect(clippy::expect_used, reason = "the bounds are constants, and are in order")]
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, u32::MAX as u64, 3);
        Self { histogram: histogram.expect("the bounds are in order"), sum: 0, longest: 0 }
    }
}

impl Latencies {
    fn record(&mut self, started: Ticks, now: Ticks) {
        let ticks = u64::from(now.0.saturating_sub(started.0));
        self.histogram.saturating_record(ticks);
        self.sum += ticks;
        self.longest = self.longest.max(ticks);
    }

    fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the sum of both.
    #[expect(clippy::expect_used, reason = "all have the same bounds")]
    fn with(&self, others: &Self) -> Self {
        let mut all = self.clone();
        all.histogram.add(&others.histogram).expect("the bounds are the same");
        all.sum += others.sum;
        all.longest = all.longest.max(others.longest);
        all
    }

    fn summary(&self) -> Latency {
        if self.count() == 0 {
            return Latency::default();
        }
        // The upper end of a bucket may exceed the longest latency.
        let at = |share| seconds(self.histogram.value_at_quantile(share).min(self.longest));
        Latency {
            mean: seconds(self.sum) / self.count() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: seconds(self.longest),
        }
    }
}

fn seconds(ticks: u64) -> f64 {
    Duration::from_micros(ticks * 10).as_secs_f64()
}

/// The distinct response bodies, identified by their hash.
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
        if self.hashes.len() < MAX_DISTINCT_BODIES {
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

/// Returns a body as text, shortened if it is long.
fn text(body: Body<'_>, hash: u64) -> String {
    let shortened = |start: &str| format!("{start}… ({} bytes, hash {hash:016x})", body.bytes());
    let Body::Whole(bytes) = body else { return shortened("") };
    // A character has at most four bytes.
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT_CHARS * 4)]);
    match start.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => shortened(&start[..end]),
        None => start.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(tally: &mut LoadTally, started: u32, status: u16, body: &[u8]) {
        tally.start();
        tally.answered(Ticks(started), status, Body::Whole(body));
    }

    #[test]
    fn every_request_counts_as_succeeded_or_failed_and_the_peak_is_tracked() {
        let mut tally = LoadTally {
            now: Ticks(300_000),
            round_started: Ticks(100_000),
            ..LoadTally::default()
        };
        for _ in 0..3 {
            tally.start();
        }
        tally.answered(Ticks(200_000), 200, Body::Whole(b"a"));
        tally.answered(Ticks(100_000), 503, Body::Whole(b"busy"));
        tally.failed(Ticks(200_000), RequestFailure::Reset);
        answered(&mut tally, 250_000, 302, b"a");
        tally.failed_unsent(1, RequestFailure::Refused);
        let round = tally.round.round(1, "http://x".to_owned(), Ticks(100_000));
        assert_eq!((round.requests, round.succeeded, round.failed), (5, 2, 3));
        assert_eq!((round.peak_in_flight, tally.in_flight), (3, 0));
        assert_eq!((round.sent_s, round.completed_s, round.requests_per_s), (2.0, 2.0, 1.0));
        assert_eq!((round.latency_s.mean, round.latency_s.max), (0.75, 1.0));
        assert_eq!(round.responses, BTreeMap::from([("a".to_owned(), 2)]));
        let errors: Vec<&str> = round.errors.keys().map(String::as_str).collect();
        assert_eq!(
            errors,
            [
                "answered with status 503",
                "never sent: all connections were given up (connection refused)",
                "the connection was reset"
            ]
        );
    }

    #[test]
    fn a_timed_out_request_counts_with_its_due_time_in_separate_latencies() {
        let mut tally = LoadTally { now: Ticks(100_000), ..LoadTally::default() };
        for _ in 0..3 {
            tally.start();
        }
        tally.answered(Ticks(50_000), 200, Body::Whole(b""));
        assert_eq!(tally.round.latency_with_timeouts(), None);
        tally.now = Ticks(400_000);
        tally.failed(Ticks(100_000), RequestFailure::TimedOut);
        tally.failed(Ticks(0), RequestFailure::Reset);
        tally.timed_out_unsent(Ticks(200_000));
        let round = tally.round.round(1, String::new(), Ticks(0));
        assert_eq!((round.requests, round.failed, round.timed_out), (4, 3, Some(2)));
        assert_eq!(round.failed_ratio, Some(0.75));
        assert_eq!((round.latency_s.p50, round.latency_s.max), (0.5, 0.5));
        let all = round.latency_with_timeouts_s.unwrap();
        assert!((all.p50 - 2.0).abs() < 0.004, "{all:?}");
        assert_eq!((all.max, (all.mean * 100.0).round()), (3.0, 183.0));
        let cause = "never sent: no connection was free within the timeout";
        assert_eq!((round.errors.get(cause), round.errors.get("timed out")), (Some(&1), Some(&1)));
    }

    #[test]
    fn the_failed_ratio_of_no_requests_is_unknown() {
        let round = RoundCounts::default().round(1, String::new(), Ticks(0));
        assert_eq!((round.failed_ratio, round.timed_out), (None, None));
    }

    #[test]
    fn requests_started_before_the_round_count_towards_the_trickle() {
        let mut tally = LoadTally::default();
        tally.start_trickle();
        (tally.round_started, tally.now) = (Ticks(10), Ticks(20));
        tally.start();
        tally.answered(Ticks(9), 200, Body::Whole(b""));
        tally.failed(Ticks(10), RequestFailure::Closed);
        assert_eq!((tally.round.succeeded, tally.round.failed), (0, 1));
        assert_eq!((tally.trickle.trickle().succeeded, tally.trickle.failed), (1, 0));
    }

    #[test]
    fn percentiles_are_accurate_to_three_digits_and_never_exceed_the_maximum() {
        let mut counts = RoundCounts::default();
        for ms in 1..=1000 {
            counts.sent(Ticks(0));
            counts.succeeded(Ticks(0), Ticks(ms * 100));
        }
        let latency = counts.latencies.summary();
        for (measured, right) in [(latency.p50, 0.5), (latency.p90, 0.9), (latency.p99, 0.99)] {
            assert!((measured - right).abs() / right < 0.002, "{measured} {right}");
        }
        assert_eq!((latency.max, latency.mean), (1.0, 0.5005));
        assert!(latency.p999 <= latency.max);
        assert_eq!(RoundCounts::default().latencies.summary(), Latency::default());
    }

    #[test]
    fn more_than_a_hundred_distinct_bodies_are_only_counted() {
        let mut tally = LoadTally::default();
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
    fn a_long_body_is_shown_as_its_beginning_length_and_hash() {
        let long = "é".repeat(5000);
        let named = text(Body::Whole(long.as_bytes()), 0xab);
        assert!(
            named.starts_with("éé") && named.ends_with("… (10000 bytes, hash 00000000000000ab)")
        );
        assert_eq!(text(Body::Whole(b"\xff"), 1), "\u{fffd}");
        assert!(text(Body::Hashed { hash: 1, bytes: 9 }, 1).starts_with("… (9 bytes"));
    }
}
