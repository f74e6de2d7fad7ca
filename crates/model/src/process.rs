//! Processes as a record describes them.

use serde::{Deserialize, Serialize};

/// A process of the subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Time of this observation, in seconds since the record began.
    pub t_s: f64,
    /// PID.
    pub pid: u32,
    /// Start time, in clock ticks since boot. Together with the PID, it identifies the process.
    pub start_ticks: u64,
    /// PID of the parent.
    pub parent: u32,
    /// User ID of the owner.
    pub uid: u32,
    /// Its short name, as `ps` shows it.
    pub name: String,
    /// Its command line.
    pub command: Vec<String>,
    /// The allocator that serves its `malloc`. Absent until it has been checked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub allocator: Option<AllocatorCheck>,
}

/// A process has ended, or its sampling has stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// Time of the last check for it, in seconds since the record began.
    pub t_s: f64,
    /// PID.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// Maximum RSS that was sampled, in bytes.
    pub peak_rss_bytes: u64,
}

/// The effect of the treatment in a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorCheck {
    /// Whether the treatment is in force; `null` if that could not be determined.
    pub active: Option<bool>,
    /// The file that provides `malloc`.
    pub provider: Option<String>,
    /// The reason why it is not in force, or why that could not be determined.
    pub because: Option<String>,
}
