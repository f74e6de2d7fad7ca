//! The state of one process.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lowtide_analysis::growth::Follower;
use lowtide_model::inspection::{Allocator, Arena, CLibrary, Inspection, Observation};
use lowtide_model::ledger::Ledger;
use lowtide_model::verdict::{Verdict, VerdictKind};
use lowtide_probe::proc::cgroup::Groups;
use lowtide_probe::proc::stat::Stat;

use crate::schedule::Need;

/// Time between two kept readings of RSS, in seconds.
const BETWEEN_READINGS_S: f64 = 30.0;
/// Number of kept readings: they span ten minutes.
const MAX_READINGS: usize = 20;
/// Minimum time over which growth is computed, in seconds.
const MIN_GROWTH_S: f64 = 10.0;
/// Time between two inspections of a process that took too long to read.
const BETWEEN_SLOW_READS: Duration = Duration::from_secs(600);
/// Maximum length of a command, in characters: a process chooses it.
const MAX_COMMAND: usize = 500;

/// The reason why the memory of a process was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unread {
    /// Reading it is not permitted.
    NotPermitted,
    /// Reading it made no progress. It is not read again until it executes another program.
    Blocked,
    /// Reading it took too long. It is read again after ten minutes.
    Slow,
    /// Another reason.
    Failed,
}

impl Unread {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::NotPermitted, Self::Blocked, Self::Slow, Self::Failed];

    /// Returns the name in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotPermitted => "not_permitted",
            Self::Blocked => "blocked",
            Self::Slow => "slow",
            Self::Failed => "failed",
        }
    }
}

/// The start time of a process in ticks, the addresses of its program, and its name.
pub(crate) type Identity = (u64, (u64, u64), String);

/// A process of the host.
#[derive(Debug, Clone)]
pub struct HostProcess {
    /// Its PID.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// The PID of its parent.
    pub parent: u32,
    /// Its short name.
    pub comm: String,
    /// The path of its program; `None` if the path is not readable.
    pub exe: Option<String>,
    /// Its cgroups.
    pub groups: Groups,
    /// RSS by the kernel's count, in bytes.
    pub rss_bytes: u64,
    /// The first selected process with the same memory (`CLONE_VM`), if it is another one. In sums,
    /// the memory counts once.
    pub same_memory_as: Option<u32>,
    /// The last inspection.
    pub inspected: Option<InspectionResult>,
    /// The reason why the last attempt to read its memory failed.
    pub unread: Option<Unread>,
    /// Whether the filter selects it.
    pub(crate) is_selected: bool,
    /// Whether a worker is inspecting it.
    pub(crate) is_in_work: bool,
    /// The program that it executes.
    pub(crate) image: (u64, u64),
    /// Times in seconds, and RSS in bytes.
    readings: VecDeque<(f64, u64)>,
    follower: Follower,
    /// Time when the last attempt to inspect it ended.
    tried: Option<Instant>,
}

/// The result of an inspection.
#[derive(Debug, Clone)]
pub struct InspectionResult {
    /// Time of the inspection.
    pub at: Instant,
    /// RSS at that time by the kernel's count, in bytes.
    pub rss_bytes: u64,
    /// The command line; a long one is cut off.
    pub command: String,
    /// Resident bytes by owner.
    pub ledger: Ledger,
    /// Bytes in swap.
    pub swap_bytes: u64,
    /// Bytes that were freed lazily.
    pub lazyfree_bytes: Option<u64>,
    /// Number of glibc's arenas.
    pub arenas: u64,
    /// Number of free blocks in arenas.
    pub free_blocks: u64,
    /// The largest of them, in bytes.
    pub largest_free_bytes: u64,
    /// Its allocator.
    pub allocator: Option<Allocator>,
    /// Its C library.
    pub c_library: Option<CLibrary>,
    /// The verdict.
    pub verdict: Verdict,
}

impl HostProcess {
    /// Returns a process that was found at a time.
    pub(crate) fn new(pid: u32, stat: &Stat, exe: Option<String>, groups: Groups) -> Self {
        Self {
            pid,
            start_ticks: stat.start_ticks,
            parent: stat.parent,
            comm: stat.name.clone(),
            exe,
            groups,
            rss_bytes: 0,
            same_memory_as: None,
            inspected: None,
            unread: None,
            is_selected: false,
            is_in_work: false,
            image: stat.image,
            readings: VecDeque::new(),
            follower: Follower::default().brief(),
            tried: None,
        }
    }

    /// Returns whether it is still the same process, executing the same program.
    pub(crate) fn is(&self, stat: &Stat) -> bool {
        (self.start_ticks, self.image) == (stat.start_ticks, stat.image) && self.comm == stat.name
    }

    /// Returns the identity of the process and of its program.
    pub(crate) fn identity(&self) -> Identity {
        (self.start_ticks, self.image, self.comm.clone())
    }

    /// Adds a reading of RSS, at a time in seconds.
    pub(crate) fn read(&mut self, t_s: f64, stat: &Stat, page_bytes: u64) {
        self.parent = stat.parent;
        self.rss_bytes = stat.rss_pages.saturating_mul(page_bytes);
        let is_due = self.readings.back().is_none_or(|(last, _)| t_s - last >= BETWEEN_READINGS_S);
        if is_due {
            self.readings.push_back((t_s, self.rss_bytes));
            if self.readings.len() > MAX_READINGS {
                self.readings.pop_front();
            }
        }
    }

    /// Returns the growth of RSS over the last ten minutes, in bytes per hour; `None` until it is
    /// known for ten seconds.
    pub fn rss_bytes_per_hour(&self, t_s: f64) -> Option<f64> {
        let (first_s, first) = *self.readings.front()?;
        let time_s = t_s - first_s;
        (time_s >= MIN_GROWTH_S).then(|| (self.rss_bytes as f64 - first as f64) / time_s * 3600.0)
    }

    /// Returns the values that determine the urgency of an inspection; `None` if it is not to be
    /// inspected.
    pub(crate) fn need(&self, now: Instant) -> Option<Need> {
        let is_slow_since = |at: Instant| now.saturating_duration_since(at) < BETWEEN_SLOW_READS;
        let is_left = match self.unread {
            Some(Unread::Blocked) => true,
            Some(Unread::Slow) => self.tried.is_some_and(is_slow_since),
            _ => false,
        };
        if !self.is_selected || self.is_in_work || is_left {
            return None;
        }
        let then = self.inspected.as_ref().map_or(self.rss_bytes, |found| found.rss_bytes);
        let age = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        Some(Need { rss_bytes: self.rss_bytes, last: self.tried.map(|at| (age(at), then)) })
    }

    /// Returns whether no attempt to inspect it has ended yet.
    pub fn is_waiting(&self) -> bool {
        self.tried.is_none()
    }

    /// Stores the result of an attempt to inspect it, `t_s` seconds after the survey started.
    pub(crate) fn add(&mut self, at: Instant, t_s: f64, result: Result<Observation, Unread>) {
        self.is_in_work = false;
        self.tried = Some(at);
        let observation = match result {
            Ok(observation) => observation,
            Err(reason) => {
                self.unread = Some(reason);
                return;
            }
        };
        self.unread = observation.unreadable.map(|_| Unread::NotPermitted);
        let inspection = self.follower.observe(t_s, observation);
        self.inspected = Some(InspectionResult::new(at, self.rss_bytes, inspection));
    }

    /// Forgets what it was followed by, after an inspection whose result could not be used.
    pub(crate) fn give_up(&mut self, at: Instant) {
        self.follower = Follower::default().brief();
        self.add(at, 0.0, Err(Unread::Failed));
    }

    /// Returns the verdict of the last inspection.
    pub fn verdict(&self) -> Option<VerdictKind> {
        self.inspected.as_ref().map(|found| found.verdict.kind)
    }

    /// Returns the command line, or the short name in brackets if the command line is unknown.
    pub fn command(&self) -> String {
        let known = self.inspected.as_ref().map(|found| found.command.clone());
        known.unwrap_or_else(|| format!("[{}]", self.comm))
    }

    /// Returns its memory cgroup: the path in the hierarchy of version 1 that limits memory,
    /// otherwise the path in version 2.
    pub fn cgroup(&self) -> &str {
        self.groups.memory_path().unwrap_or("/")
    }
}

impl InspectionResult {
    fn new(at: Instant, rss_bytes: u64, inspection: Inspection) -> Self {
        let Inspection { observation, verdict, .. } = inspection;
        let glibc = || observation.arenas.iter().filter(|arena| arena.is_of_glibc());
        let command = observation.command.join(" ");
        Self {
            at,
            rss_bytes,
            command: command.chars().take(MAX_COMMAND).collect(),
            swap_bytes: observation.swap_bytes,
            lazyfree_bytes: observation.lazyfree_bytes,
            arenas: glibc().count() as u64,
            free_blocks: glibc().map(Arena::all_free_count).sum(),
            largest_free_bytes: glibc().map(|arena| arena.largest_free_bytes).max().unwrap_or(0),
            allocator: observation.allocator,
            c_library: observation.c_library,
            ledger: observation.ledger,
            verdict,
        }
    }

    /// Returns its allocator with its version: `glibc 2.36`; `-` if it is unknown.
    pub fn allocator_name(&self) -> String {
        match &self.allocator {
            Some(Allocator { kind, version: Some(version), .. }) => format!("{kind} {version}"),
            Some(Allocator { kind, version: None, .. }) => kind.to_string(),
            None => "-".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn stat(rss_mib: u64) -> Stat {
        let line = format!(
            "7 (server) S 1 7 7 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 55 0 {} 0 1 0 2 0 0 0 0 0",
            rss_mib * 256
        );
        Stat::parse(&line).unwrap()
    }

    fn process() -> HostProcess {
        HostProcess::new(7, &stat(0), None, Groups::default())
    }

    #[test]
    fn the_growth_rate_covers_the_last_ten_minutes() {
        let mut process = process();
        process.read(0.0, &stat(100), 4096);
        assert_eq!(process.rss_bytes_per_hour(1.0), None);
        for second in 1..=3600 {
            let rss = if second < 1800 { 100 } else { 100 + (second - 1800) / 6 };
            process.read(f64::from(second), &stat(rss as u64), 4096);
        }
        let rate = process.rss_bytes_per_hour(3600.0).unwrap() / MIB as f64;
        assert!((590.0..610.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_process_whose_inspection_blocked_is_not_inspected_again() {
        let mut process = process();
        process.is_selected = true;
        let now = Instant::now();
        assert!(process.need(now).is_some());
        process.add(now, 0.0, Err(Unread::Failed));
        assert!(process.need(now).is_some());
        process.add(now, 1.0, Err(Unread::Blocked));
        assert_eq!(process.need(now), None);
    }

    #[test]
    fn a_long_command_line_is_truncated() {
        let mut process = process();
        let command = vec!["x".repeat(100_000)];
        process.add(Instant::now(), 0.0, Ok(Observation { command, ..Observation::default() }));
        assert_eq!(process.command().len(), MAX_COMMAND);
    }

    #[test]
    fn a_process_that_grows_at_each_inspection_has_the_verdict_growing() {
        let mut process = process();
        for minute in 0..10_u64 {
            let mut observation = Observation::default();
            observation
                .ledger
                .add(lowtide_model::ledger::Owner::Runtime, (100 + 10 * minute) * MIB);
            process.add(Instant::now(), 60.0 * minute as f64, Ok(observation));
        }
        assert_eq!(process.verdict(), Some(VerdictKind::Growing));
    }
}
