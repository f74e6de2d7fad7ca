//! The observations on which a policy bases its decisions.

use std::fmt;

use lowtide_model::bytes::{Human, Resident};

/// The state of a process at a moment. Every value is cheap to read: none requires stopping the
/// process or walking its heap.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessState {
    /// Seconds since a fixed moment, the same for all states of one process.
    pub t_s: f64,
    /// The resident bytes.
    pub rss: Resident,
    /// CPU time that the process has used, in seconds.
    pub cpu_s: f64,
    /// Minor page faults so far.
    pub minor_faults: u64,
    /// Open file descriptors, sockets included, if they may be counted.
    pub open_files: Option<u64>,
    /// Bytes that the process has freed, if the preload library counts them.
    pub freed_bytes: Option<u64>,
    /// Share of the last 10 s in which tasks of its cgroup, or else of the machine, waited for
    /// memory, in percent (PSI, `some avg10`).
    pub stall_percent: Option<f64>,
    /// Limit and use of its memory cgroup, or else of the machine.
    pub headroom: Option<Headroom>,
    /// Whether the process will soon reach its limit, as seen by the readings of a black box, which
    /// are more frequent: `headroom` is theirs.
    pub is_near_limit: bool,
    /// Whether the system uses huge pages for any memory (`transparent_hugepage/enabled` is
    /// `always`).
    pub has_huge_pages: bool,
    /// The last release that was attempted.
    pub last_release: Option<LastRelease>,
    /// The previous release, with the bytes that had come back when the last one started.
    pub previous_release: Option<LastRelease>,
    /// The time when a release was last held back, in seconds: by the budget, or for a reason that
    /// may pass.
    pub held_back_s: Option<f64>,
}

/// Memory that may be used, and memory in use that cannot be reclaimed from files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headroom {
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// The use without file pages, in bytes.
    pub used_bytes: u64,
}

/// The last release that was attempted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LastRelease {
    /// Number of the release. It differs from that of every other release of the process.
    pub id: u64,
    /// The time when it ended, in seconds, as in [`ProcessState::t_s`].
    pub t_s: f64,
    /// Whether the process was refused, for any reason.
    pub is_refused: bool,
    /// Bytes that were returned to the OS.
    pub returned_bytes: u64,
    /// CPU time of lowtide, in seconds.
    pub cpu_s: f64,
    /// Resource usage of the process when it ended.
    pub usage: Usage,
    /// The pages that have come back, by the last sample.
    pub back: Returned,
}

/// Resource usage of a process so far. The fields are those of [`ProcessState`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// The resident bytes.
    pub rss: Resident,
    /// CPU time, in seconds.
    pub cpu_s: f64,
    /// Minor page faults.
    pub minor_faults: u64,
    /// Open file descriptors, if they may be counted.
    pub open_files: Option<u64>,
}

/// The amount of released memory that has come back, and the time that it was away.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Returned {
    /// Time of the sample after the release, in seconds.
    pub after_s: f64,
    /// Released bytes that are resident again.
    pub bytes: u64,
    /// Released memory multiplied by the time that it was away, in bytes × seconds.
    pub away_byte_s: f64,
}

/// The reason why memory is short.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shortage {
    /// Tasks waited for memory in this share of the last 10 s, in percent.
    Stalls(f64),
    /// Little is left below the limit.
    Headroom(Headroom),
}

/// Minimum share of time with a stall at which memory is short, in percent.
const STALL_PERCENT: f64 = 5.0;
/// Minimum share of the limit that must be free, in percent: with less, memory is short.
const FREE_PERCENT: u64 = 10;

impl ProcessState {
    /// Returns the resource usage of the process.
    pub fn usage(&self) -> Usage {
        let Self { rss, cpu_s, minor_faults, open_files, .. } = *self;
        Usage { rss, cpu_s, minor_faults, open_files }
    }

    /// Returns the reason why memory is short; `None` if it is not.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        let stalls = self.stall_percent.filter(|percent| *percent >= STALL_PERCENT);
        let is_short = |room: &Headroom| {
            room.limit_bytes.saturating_sub(room.used_bytes) < room.limit_bytes / 100 * FREE_PERCENT
        };
        let is_short = |room: &Headroom| self.is_near_limit || is_short(room);
        let headroom = self.headroom.filter(is_short).map(Shortage::Headroom);
        headroom.or(stalls.map(Shortage::Stalls))
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stalls(percent) => {
                write!(f, "memory is short: tasks waited for it in {percent:.0} % of the last 10 s")
            }
            Self::Headroom(Headroom { limit_bytes, used_bytes }) => {
                let (used, limit) = (Human(*used_bytes), Human(*limit_bytes));
                write!(f, "memory is short: {used} of {limit} are in use")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_near_the_limit_or_when_tasks_stall() {
        let state = |stall_percent, used_bytes| ProcessState {
            stall_percent,
            headroom: Some(Headroom { limit_bytes: 1000, used_bytes }),
            ..ProcessState::default()
        };
        assert_eq!(state(Some(4.9), 900).shortage(), None);
        let near = ProcessState { is_near_limit: true, ..state(None, 810) };
        assert!(matches!(near.shortage(), Some(Shortage::Headroom(_))));
        assert_eq!(
            state(None, 1200).shortage().unwrap().to_string(),
            "memory is short: 1.17 KiB of 1000 B are in use"
        );
        assert_eq!(state(Some(7.4), 10).shortage(), Some(Shortage::Stalls(7.4)));
        assert!(matches!(state(Some(7.4), 901).shortage(), Some(Shortage::Headroom(_))));
        assert_eq!(ProcessState::default().shortage(), None);
    }
}
