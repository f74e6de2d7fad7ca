//! The contents of the frames.

use lowtide_model::counters::{GroupBytes, ProcessBytes};
use lowtide_model::inspection::{ArenaDetail, Observation};
use lowtide_model::saved_observation::SavedObservation;
use miniz_oxide::{deflate, inflate};
use serde::{Deserialize, Serialize};

use crate::bounds;

/// Maximum size of an inflated payload, in bytes.
const MAX_TEXT: usize = 4 << 20;
/// Level of the compression. Higher ones take longer, and save little.
const LEVEL: u8 = 3;
/// First byte of a compressed payload. JSON does not begin with it.
const COMPRESSED: u8 = b'z';

/// The content of a frame.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BoxLine {
    /// The process and its limits.
    Head(HeadLine),
    /// The course of the process so far, in few readings.
    Course(Course),
    /// A reading of a process and its cgroups.
    Reading(ReadingLine),
    /// The other processes of its memory cgroup.
    Members(MembersLine),
    /// An inspection.
    Ledger(Box<LedgerLine>),
    /// A release of memory, or an attempt.
    Release(ReleaseLine),
    /// What happened at the end.
    End(Box<EndLine>),
    /// A line of a newer lowtide.
    #[serde(other)]
    Unknown,
}

/// The process that a ring records.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HeadLine {
    /// The version of lowtide that wrote it.
    pub lowtide: String,
    /// Time of the beginning, in seconds since 1970. All other times are relative to it.
    pub unix_s: f64,
    /// PID in the namespace of lowtide.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its short name.
    pub name: String,
    /// Its command line.
    pub command: Vec<String>,
    /// Its memory cgroups, from its own to the topmost.
    pub groups: Vec<GroupHead>,
    /// Number of programs that it has executed since the beginning of the ring.
    #[serde(default)]
    pub program: u32,
    /// Memory of the machine, in bytes.
    pub machine_bytes: Option<u64>,
    /// The policy that releases its memory.
    pub policy: String,
}

/// A memory cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHead {
    /// Its path, as in `/proc/PID/cgroup`.
    pub path: String,
    /// Version of its hierarchy: 1 or 2.
    pub version: u32,
}

/// A reading.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadingLine {
    /// Time since the beginning, in seconds.
    pub t_s: f64,
    /// The process.
    pub process: ProcessBytes,
    /// Its groups, in the order of the head. Those without a limit have counters only.
    pub groups: Vec<GroupBytes>,
    /// Available memory of the machine, in bytes, if it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
}

/// The course of a process, in few readings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// Readings, evenly spaced.
    pub readings: Vec<ReadingLine>,
    /// Peak RSS, in bytes, and its time, in seconds.
    pub peak: (u64, f64),
    /// Number of ledgers that were taken, and that failed.
    pub ledgers: (u64, u64),
    /// Bytes that releases have returned, and their number.
    pub released: (u64, u64),
}

/// The largest processes of a memory cgroup.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MembersLine {
    /// Time since the beginning, in seconds.
    pub t_s: f64,
    /// Number of processes in the group, as far as they were counted.
    pub count: u64,
    /// The largest, without the process itself.
    pub largest: Vec<Member>,
    /// Anonymous memory of all of them, and the largest amount of shared memory that one of them
    /// maps, in bytes.
    pub anon_and_shared: (u64, u64),
}

/// One of these processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its PID.
    pub pid: u32,
    /// Its short name.
    pub name: String,
    /// Its memory.
    pub bytes: ProcessBytes,
}

/// An inspection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LedgerLine {
    /// Time of its beginning, in seconds since the beginning of the ring.
    pub t_s: f64,
    /// The program that it found, as in the head.
    #[serde(default)]
    pub program: u32,
    /// What it found.
    pub observed: SavedObservation,
}

/// A release of memory by a policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReleaseLine {
    /// Time of its end, in seconds.
    pub t_s: f64,
    /// Bytes that were returned.
    pub returned: u64,
    /// Its reason.
    pub reason: String,
    /// Its outcome, as a sentence.
    pub message: String,
}

/// The end of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EndLine {
    /// Time when it was noticed, in seconds.
    pub t_s: f64,
    /// The cause.
    pub cause: Cause,
    /// Its exit status, if it could be read.
    pub status: Option<ExitStatus>,
    /// The last reading of its groups, after the end.
    pub groups: Vec<GroupBytes>,
    /// Which of its groups had reached its limit: the place in the head.
    pub limit: Option<usize>,
    /// Whether the machine had no memory left, and no group was at its limit.
    pub is_machine_wide: bool,
    /// What the kernel log says of the kill.
    pub kernel: Option<KernelLine>,
    /// Its `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// The process that was killed, if it is another one of the group; without a PID if it is not
    /// known.
    pub victim: Option<Member>,
    /// What is uncertain, as sentences.
    pub notes: Vec<String>,
}

/// The cause of an end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It has not ended, or that was not seen: the record shows its peak.
    #[default]
    Peak,
    /// It has ended by itself.
    Exit,
    /// A signal has ended it.
    Signal,
    /// The kernel has killed a process of its group for lack of memory: another one, or it is not
    /// known which.
    GroupOomKill,
    /// The kernel has killed it for lack of memory.
    OomKill,
}

impl Cause {
    /// Returns the name in JSON and in names of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peak => "peak",
            Self::Exit => "exit",
            Self::Signal => "signal",
            Self::GroupOomKill => "group_oom_kill",
            Self::OomKill => "oom_kill",
        }
    }

    /// Returns whether the kernel has killed a process for lack of memory, this one or another.
    pub fn is_oom(self) -> bool {
        matches!(self, Self::GroupOomKill | Self::OomKill)
    }
}

/// An exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It has ended by itself, with this code.
    Code(u32),
    /// A signal has ended it.
    Signal(u32),
}

impl ExitStatus {
    /// Returns the status from the number that the kernel keeps (wait(2)).
    pub fn from_kernel(status: u32) -> Self {
        match status & 0x7f {
            0 => Self::Code(status >> 8 & 0xff),
            signal => Self::Signal(signal),
        }
    }
}

/// What the kernel log says of an OOM kill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLine {
    /// The process that was killed.
    pub victim_pid: u32,
    /// `CONSTRAINT_MEMCG` for a limit, `CONSTRAINT_NONE` for the whole machine.
    pub constraint: String,
    /// The group whose limit was reached.
    pub limit_group: Option<String>,
    /// The group of the process.
    #[serde(default)]
    pub group: Option<String>,
    /// Its short name.
    #[serde(default)]
    pub name: String,
    /// Its memory when it was killed. The log has no swap.
    #[serde(default)]
    pub bytes: ProcessBytes,
}

impl BoxLine {
    /// Returns the payload of a frame.
    pub fn to_payload(&self) -> Vec<u8> {
        let Ok(text) = serde_json::to_vec(self) else { return Vec::new() };
        if !matches!(self, Self::Ledger(_) | Self::Course(_)) {
            return text;
        }
        let mut payload = vec![COMPRESSED];
        payload.extend(deflate::compress_to_vec(&text, LEVEL));
        payload
    }

    /// Reads the payload of a frame, which may come from anyone. `None` if it is not valid.
    pub(crate) fn from_payload(payload: &[u8]) -> Option<Self> {
        let value = match payload.split_first()? {
            (&COMPRESSED, rest) => {
                let text = inflate::decompress_to_vec_with_limit(rest, MAX_TEXT).ok()?;
                serde_json::from_slice(&text).ok()?
            }
            _ => serde_json::from_slice(payload).ok()?,
        };
        bounds::check(&value).ok()?;
        serde_json::from_value(value).ok()
    }
}

impl LedgerLine {
    /// Returns the line of an observation, without the addresses in it.
    pub fn new(t_s: f64, program: u32, mut observation: Observation) -> Self {
        /// Maximum number of arenas that are kept.
        const MAX_ARENAS: usize = 32;
        observation.arenas.truncate(MAX_ARENAS);
        for arena in &mut observation.arenas {
            if let ArenaDetail::Mimalloc(detail) = &mut arena.detail {
                // Whether a thread owns it is of interest, and not which.
                detail.thread = detail.thread.min(1);
            }
        }
        Self { t_s, program, observed: observation.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_exit_status_is_a_code_or_a_signal() {
        let read = [0, 3 << 8, 9, 0x8b].map(ExitStatus::from_kernel);
        use ExitStatus::{Code, Signal};
        assert_eq!(read, [Code(0), Code(3), Signal(9), Signal(11)]);
    }

    #[test]
    fn lines_are_read_back_and_those_of_a_newer_version_are_unknown() {
        let head = HeadLine { pid: 7, name: "x\u{1b}".to_owned(), ..HeadLine::default() };
        let payload = BoxLine::Head(head.clone()).to_payload();
        assert!(
            matches!(BoxLine::from_payload(&payload), Some(BoxLine::Head(read)) if read == head)
        );
        let newer = br#"{"kind":"weather","t_s":1.0}"#;
        assert!(matches!(BoxLine::from_payload(newer), Some(BoxLine::Unknown)));
        assert!(BoxLine::from_payload(b"").is_none() && BoxLine::from_payload(b"zzz").is_none());
        let line = BoxLine::Ledger(Box::new(LedgerLine::new(1.0, 0, Observation::default())));
        assert!(matches!(BoxLine::from_payload(&line.to_payload()), Some(BoxLine::Ledger(_))));
    }
}
