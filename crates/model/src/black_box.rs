//! What a black box shows about a process after its end: the object that `lowtide report DIR`
//! prints.

use serde::{Deserialize, Serialize};

use crate::counters::{GroupBytes, ProcessBytes};
use crate::growth::Growth;
use crate::ledger::Ledger;
use crate::pins::Pins;
use crate::remedy::Remedy;
use crate::verdict::Verdict;

/// Value of the object's `schema`.
pub const SCHEMA: &str = "lowtide.blackbox/1";

/// A process with its last minutes. Unknown values are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BlackBoxReport {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// The file from which it was read.
    pub file: String,
    /// `oom_kill`, `group_oom_kill` if the kernel has killed a process of its cgroup (another one,
    /// or it is not known which), `signal`, `exit`, or `peak` if it runs or its end was not seen.
    pub cause: &'static str,
    /// The conclusion in a sentence, such as for an alert.
    pub summary: String,
    /// The time of its end, or of the last reading, in UTC.
    pub time: String,
    /// PID in the namespace of the lowtide that recorded it.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// Its exit code, if it has ended by itself.
    pub exit_code: Option<u32>,
    /// The signal that has ended it.
    pub signal: Option<u32>,
    /// Its memory cgroup.
    pub cgroup: Option<String>,
    /// The limit that was reached; without an OOM kill, the one that was closest.
    pub limit: Option<BoxLimit>,
    /// The same limit, in bytes.
    pub limit_bytes: Option<u64>,
    /// What held most of the memory below this limit.
    pub dominant: Option<Dominant>,
    /// The growth of the process, by owner, over the recorded time.
    pub growth: Option<Growth>,
    /// The blocks that pin its fragmented memory; always `null` in this version.
    pub pins: Option<Pins>,
    /// Its memory by owner, at the last inspection.
    pub ledger: Option<Ledger>,
    /// Age of this inspection at the end, in seconds.
    pub last_full_ledger_age_s: Option<f64>,
    /// RSS at this inspection, in bytes.
    pub last_full_ledger_bytes: Option<u64>,
    /// The change of the process after this inspection, in bytes, by kind: the owner of this memory
    /// is not known.
    pub after_ledger: Option<Change>,
    /// Its last reading.
    pub last: ProcessBytes,
    /// The last reading of the group of the limit.
    pub group: Option<GroupBytes>,
    /// The peak of RSS.
    pub peak: Option<Peak>,
    /// Free memory that a release could have returned, at the last inspection, in bytes.
    pub reclaimable_bytes: Option<u64>,
    /// Bytes that releases had returned before.
    pub released_before_bytes: u64,
    /// What the kernel says of a kill.
    pub kernel: Option<KernelKill>,
    /// The process that was killed, if it is another one of the group.
    pub victim: Option<OtherProcess>,
    /// How much more the group of the limit held at the last reading than at the first one of the
    /// last five minutes.
    pub group_growth: Option<GroupGrowth>,
    /// The largest other processes of its group.
    pub others: Vec<OtherProcess>,
    /// Time from their list to the end, in seconds; `None` if there is no list.
    pub others_before_s: Option<f64>,
    /// The cause of its memory use, at the last inspection.
    pub verdict: Option<Verdict>,
    /// Measures that would have lowered it.
    #[serde(rename = "cures")]
    pub remedies: Vec<Remedy>,
    /// Its last minutes, and before them its whole time in few readings.
    pub course: Vec<CoursePoint>,
    /// The releases of its memory, the last ones.
    pub releases: Vec<BoxRelease>,
    /// Time that the record covers, in seconds, and numbers of its readings and inspections.
    pub recorded: Recorded,
    /// What is uncertain, as sentences.
    pub notes: Vec<String>,
    /// Other records of the directory.
    pub other_records: Vec<OtherRecord>,
}

/// A limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BoxLimit {
    /// The path of its cgroup; `None` for the memory of the machine.
    pub path: Option<String>,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// What counted against it and cannot be dropped, at the last reading, in bytes.
    pub used_bytes: u64,
    /// Whether it is the limit of the process's own cgroup.
    pub is_own: bool,
}

/// What held most of the memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Dominant {
    /// An owner of the ledger; `other_process`; `shared_unmapped` for shared memory and tmpfs that
    /// no process maps; `kernel`; or `unknown` for memory that no inspection has seen.
    pub owner: String,
    /// The runtime, allocator, file or process; `None` if it has no name.
    pub name: Option<String>,
    /// Its bytes.
    pub bytes: u64,
    /// Whether the owner is concluded from the growth before, or the bytes are an estimate.
    pub estimated: bool,
}

/// The growth of a cgroup between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct GroupGrowth {
    /// Time between the readings, in seconds.
    pub elapsed_s: f64,
    /// The change of what could not be dropped, in bytes.
    pub bytes: i64,
    /// The change of anonymous and shared memory of the process in the same time, in bytes.
    pub own_bytes: i64,
}

/// A change of a process, in bytes; negative if it shrank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Anonymous memory.
    pub anon_bytes: i64,
    /// Pages of files.
    pub file_bytes: i64,
    /// Shared memory.
    pub shared_bytes: i64,
}

/// The peak of RSS.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Peak {
    /// RSS, in bytes.
    pub rss_bytes: u64,
    /// Its time before the end, in seconds.
    pub before_s: f64,
    /// The ledger with the highest RSS.
    pub ledger: Option<Ledger>,
}

/// What the kernel says of a kill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KernelKill {
    /// The process that was killed.
    pub victim_pid: u32,
    /// Its `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// `CONSTRAINT_MEMCG` for a limit, `CONSTRAINT_NONE` for the machine.
    pub constraint: String,
}

/// Another process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OtherProcess {
    /// Its PID; `None` if it is not known.
    pub pid: Option<u32>,
    /// Its short name.
    pub name: Option<String>,
    /// Its memory at the last reading.
    #[serde(flatten)]
    pub bytes: ProcessBytes,
}

/// A reading of the course.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CoursePoint {
    /// Time before the end, in seconds.
    pub before_s: f64,
    /// Anonymous memory, pages of files, and shared memory of the process, in bytes.
    pub anon_bytes: u64,
    /// Pages of files.
    pub file_bytes: u64,
    /// Shared memory.
    pub shared_bytes: u64,
    /// What counts against the limit, in bytes.
    pub used_bytes: Option<u64>,
}

/// A release.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct BoxRelease {
    /// Time before the end, in seconds.
    pub before_s: f64,
    /// Bytes that were returned.
    pub returned_bytes: u64,
    /// Its reason.
    pub reason: String,
    /// Its outcome.
    pub message: String,
}

/// The size of a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Recorded {
    /// Time from the first reading of the process to the end, in seconds.
    pub elapsed_s: f64,
    /// Readings that are left.
    pub readings: u64,
    /// Inspections that were made, and that failed.
    pub ledgers: u64,
    /// Inspections that failed.
    pub failed_ledgers: u64,
}

/// Another record of the same directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OtherRecord {
    /// Its file.
    pub file: String,
    /// The cause of the end.
    pub cause: &'static str,
    /// Its time.
    pub time: String,
    /// Its PID.
    pub pid: u32,
    /// The short name of its program.
    pub name: String,
}
