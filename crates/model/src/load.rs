//! The report of a load generator on its rounds: `lowtide.load/1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Value of the object's `schema`.
pub const SCHEMA: &str = "lowtide.load/1";
/// Maximum number of different bodies that are kept; further ones are only counted.
pub const MOST_RESPONSES: usize = 100;

/// The report on one run of a load generator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Peak RSS of the generator itself, in bytes.
    pub client_peak_rss_bytes: u64,
    /// Its rounds, in order.
    pub rounds: Vec<LoadRound>,
    /// Whether it was stopped from outside before it was done.
    #[serde(default)]
    pub interrupted: bool,
    /// Notes, as sentences for people.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadRound {
    /// Its number, from 1.
    pub round: u32,
    /// The target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Requests to be sent; if the round was interrupted, those that were sent. For bare
    /// connections: the connections to be opened.
    pub requests: u64,
    /// Requests that were answered completely, with a status below 400.
    pub succeeded: u64,
    /// All others.
    pub failed: u64,
    /// `failed / requests`; unknown without requests.
    #[serde(default)]
    pub failed_ratio: Option<f64>,
    /// Failed requests that timed out, whether they were sent or not; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_out: Option<u64>,
    /// Maximum number of requests in flight at once, as counted. For bare connections: the maximum
    /// number that were open at once.
    pub peak_in_flight: u64,
    /// Time of the last request, in seconds since the start of the round.
    pub sent_s: f64,
    /// Time of the last response, in seconds since the start of the round.
    pub completed_s: f64,
    /// Succeeded requests per second of the round.
    pub requests_per_s: f64,
    /// Latency of the succeeded requests. For bare connections: time to open them, including TLS.
    pub latency_s: Latency,
    /// Latency of the requests that succeeded or timed out. For a request that timed out, it is the
    /// time from when it was sent, or due in case of a rate, until it was abandoned. Absent if none
    /// timed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_with_timeouts_s: Option<Latency>,
    /// Number of times that each body was received; empty beyond [`MOST_RESPONSES`] different ones.
    pub responses: BTreeMap<String, u64>,
    /// Number of different bodies.
    pub distinct_responses: u64,
    /// Number of failures of each kind.
    pub errors: BTreeMap<String, u64>,
    /// Bare connections that the server closed while they were to stay open; absent for requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_while_held: Option<u64>,
    /// Requests that trickled in the pause after the round; absent if none were planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_rounds: Option<Trickle>,
}

/// Requests between two rounds, which count towards neither.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trickle {
    /// Requests that were sent.
    pub requests: u64,
    /// Requests that were answered completely, with a status below 400.
    pub succeeded: u64,
    /// All others.
    pub failed: u64,
    /// `failed / requests`; unknown without requests.
    #[serde(default)]
    pub failed_ratio: Option<f64>,
    /// Failed requests that timed out; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_out: Option<u64>,
    /// Latency of the succeeded requests, from when they were due.
    pub latency_s: Latency,
    /// Latency of the requests that succeeded or timed out, from when they were due; absent if none
    /// timed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_with_timeouts_s: Option<Latency>,
    /// Number of failures of each kind.
    pub errors: BTreeMap<String, u64>,
}

/// Latencies in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The maximum.
    pub max: f64,
}
