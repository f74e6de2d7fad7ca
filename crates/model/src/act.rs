//! One act of a policy: a line of the log of `lowtide run` and `lowtide attach`.

use serde::{Deserialize, Serialize};

use crate::release::{Hazard, ReleaseOutcome};

/// The value of `schema`.
pub const SCHEMA: &str = "lowtide.act/1";

/// The event of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActEvent {
    /// A release was attempted.
    Act,
    /// The refaulted pages of a release were counted: after a minute, or before the next release.
    Returned,
    /// The budget of CPU time delayed a release.
    HeldBack,
    /// The process is left alone from now on; the line has the reason.
    LeftAlone,
}

/// One line of the log. Values that do not apply to the event are `null`.
///
/// The keys `message`, `periodMs`, `elapsedMs`, `rss.before`, `rss.after` and `rss.diff` are those
/// of the purge thread whose log Algolia published in 2021 ("When AWS allocators turn greedy").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Act {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The event.
    pub event: ActEvent,
    /// Number of the release. Lines about the same release have the same number; 0 if there was
    /// none.
    pub id: u64,
    /// Wall clock time at the end of the act, in UTC by RFC 3339.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// The policy with its parameters.
    pub policy: String,
    /// The reason for the release, or for not releasing the process.
    pub reason: String,
    /// Whether the release was only simulated (`--dry-run`).
    pub dry_run: bool,
    /// The outcome of the release.
    pub outcome: Option<ReleaseOutcome>,
    /// The reason for a refusal, in a form for programs.
    pub hazard: Option<Hazard>,
    /// The outcome as a sentence.
    pub message: String,
    /// The period of the policy, in milliseconds.
    #[serde(rename = "periodMs")]
    pub period_ms: Option<u64>,
    /// Duration of the act, in milliseconds.
    #[serde(rename = "elapsedMs")]
    pub elapsed_ms: f64,
    /// Resident bytes before the release.
    #[serde(rename = "rss.before")]
    pub rss_before: u64,
    /// Resident bytes after the release.
    #[serde(rename = "rss.after")]
    pub rss_after: u64,
    /// Change of the resident bytes; negative if they fell.
    #[serde(rename = "rss.diff")]
    pub rss_diff: i64,
    /// Predicted gain, in bytes.
    pub predicted_bytes: u64,
    /// Bytes that were returned to the OS: the dropped pages.
    pub returned_bytes: u64,
    /// Longest pause of a thread of the process, in seconds.
    pub longest_pause_s: f64,
    /// Number of pauses longer than the bound.
    #[serde(default)]
    pub pauses_over_bound: u64,
    /// Total time that threads of the process or of lowtide waited for a processor during these
    /// pauses, in seconds.
    #[serde(default)]
    pub waited_over_bound_s: f64,
    /// CPU time of lowtide for the release, in seconds.
    pub cpu_s: f64,
    /// Bytes of the released pages that were faulted in again; `null` until they were counted.
    pub refaulted_bytes: Option<u64>,
    /// Time between the release and that count, in seconds.
    pub refaulted_after_s: Option<f64>,
}
