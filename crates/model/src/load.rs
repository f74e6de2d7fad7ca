//! What a load generator says of its rounds: `lowtide.load/1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the object's `schema` says.
pub const SCHEMA: &str = "lowtide.load/1";
/// Beyond so many different bodies, they are only counted.
pub const MOST_RESPONSES: usize = 100;

/// What one run of a load generator did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The most that the generator itself had resident.
    pub client_peak_rss_bytes: u64,
    /// Its rounds, in order.
    pub rounds: Vec<LoadRound>,
    /// It was ended from outside before it was done.
    #[serde(default)]
    pub interrupted: bool,
    /// What there is to know about it, as sentences for people.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadRound {
    /// Which, from 1.
    pub round: u32,
    /// Where it went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Requests that were to be sent; where the round was interrupted, those that were sent. Of bare
    /// connections: those that were to be made.
    pub requests: u64,
    /// Requests that were answered whole, with a status below 400.
    pub succeeded: u64,
    /// All others.
    pub failed: u64,
    /// `failed / requests`; unknown without requests.
    #[serde(default)]
    pub failed_ratio: Option<f64>,
    /// Failed requests that timed out, whether they were sent or not; absent where none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_out: Option<u64>,
    /// The most that were in flight at once: counted, not computed. Of bare connections: the most that
    /// stood at once.
    pub peak_in_flight: u64,
    /// When the last was sent, in seconds since the round began.
    pub sent_s: f64,
    /// When the last was answered, in seconds since the round began.
    pub completed_s: f64,
    /// Succeeded requests in a second of the round.
    pub requests_per_s: f64,
    /// How long those that succeeded took. Of bare connections: to be made, TLS included.
    pub latency_s: Latency,
    /// How long those that succeeded or timed out took. A request that timed out counts with the time
    /// from when it was sent, or with a rate due, until it was given up; absent where none timed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_with_timeouts_s: Option<Latency>,
    /// How often each body came; empty beyond [`MOST_RESPONSES`] different ones.
    pub responses: BTreeMap<String, u64>,
    /// How many different bodies came.
    pub distinct_responses: u64,
    /// How often each kind of failure came.
    pub errors: BTreeMap<String, u64>,
    /// Bare connections that the server closed while they were to be held; of requests, absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_while_held: Option<u64>,
    /// What trickled in the pause behind the round; absent where nothing was to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_rounds: Option<Trickle>,
}

/// Requests between two rounds, which count in neither.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trickle {
    /// Requests that were sent.
    pub requests: u64,
    /// Those that were answered whole, with a status below 400.
    pub succeeded: u64,
    /// All others.
    pub failed: u64,
    /// `failed / requests`; unknown without requests.
    #[serde(default)]
    pub failed_ratio: Option<f64>,
    /// Failed requests that timed out; absent where none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_out: Option<u64>,
    /// How long those that succeeded took, from when they were due.
    pub latency_s: Latency,
    /// How long those that succeeded or timed out took, from when they were due; absent where none
    /// timed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_with_timeouts_s: Option<Latency>,
    /// How often each kind of failure came.
    pub errors: BTreeMap<String, u64>,
}

/// Latencies in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// Half took no longer.
    pub p50: f64,
    /// 90 % took no longer.
    pub p90: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// 99.9 % took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// Sums up latencies in seconds; all zero of none. Sorts them.
    pub fn from_seconds(seconds: &mut [f32]) -> Self {
        seconds.sort_unstable_by(f32::total_cmp);
        let Some(last) = seconds.last() else { return Self::default() };
        let at = |share: f64| {
            // The smallest value that at least this share does not exceed.
            let rank = (share * seconds.len() as f64).ceil() as usize;
            f64::from(seconds[rank.clamp(1, seconds.len()) - 1])
        };
        let sum: f64 = seconds.iter().map(|s| f64::from(*s)).sum();
        Self {
            mean: sum / seconds.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: f64::from(*last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut seconds: Vec<f32> = (1..=1000).rev().map(|n| n as f32).collect();
        let l = Latency::from_seconds(&mut seconds);
        assert_eq!((l.p50, l.p90, l.p99, l.p999, l.max), (500.0, 900.0, 990.0, 999.0, 1000.0));
        assert_eq!(l.mean, 500.5);
        assert_eq!(Latency::from_seconds(&mut []), Latency::default());
        assert_eq!(Latency::from_seconds(&mut [7.0]).p999, 7.0);
    }
}
