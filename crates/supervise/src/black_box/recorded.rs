//! One process that is recorded: its files, its ring, and what is due next.

use std::io;
use std::sync::{Arc, Mutex};

use lowtide_model::counters::ProcessBytes;
use lowtide_model::treatment::NO_POLICY;
use lowtide_policy::Headroom;
use lowtide_probe::detect::Detector;
use lowtide_probe::exit::ExitReader;
use lowtide_probe::proc::oom_score_adj;
use lowtide_probe::process::ProcReader;
use lowtide_probe::target::Target;
use lowtide_record::black_box::{
    BoxLine, Cause, EndLine, HeadLine, LedgerLine, LiveRing, Member, MembersLine, ReadingLine,
    ReleaseLine, Store,
};
use lowtide_release::KeptWalk;

use super::Alarm;
use super::groups::RecordedCgroups;
use super::kept::RingState;
use super::ledger_thread::{FinishedInspection, reclaimable_bytes};
use super::ledgers::{LedgerNeed, LedgerPlan};
use super::members::members_due_s;
use super::pace::{ChargePace, Nearness};

/// Change of a value from which a reading is written, as a share of its limit or of itself.
const WRITTEN_CHANGE: f64 = 0.002;
/// Time after which a reading is written even without a change, in seconds.
const WRITTEN_S: f64 = 1.0;
/// Maximum length of a command line, in characters, and number of its words.
const MAX_WORD: usize = 200;
const MAX_WORDS: usize = 50;

/// A process that is recorded.
#[derive(Debug)]
pub(super) struct RecordedProcess {
    pub(super) target: Target,
    pub(super) exit: ExitReader,
    pub(super) ring: LiveRing,
    pub(super) head: HeadLine,
    pub(super) kept: RingState,
    pub(super) pace: ChargePace,
    pub(super) plan: LedgerPlan,
    /// What may make a ledger worth it beside a change of RSS, and when this is determined again,
    /// in seconds.
    pub(super) need: LedgerNeed,
    need_due_s: f64,
    /// CPU time that the process had used at the last ledger, and since, in clock ticks.
    cpu_ticks: [Option<u64>; 2],
    /// Time of the next reading, in seconds.
    pub(super) due_s: f64,
    /// Time of the last list of the other processes, in seconds.
    members_s: f64,
    /// Time when its cgroups are determined again, in seconds: it may be moved.
    pub(super) groups_due_s: f64,
    pub(super) last: ReadingLine,
    written: Option<ReadingLine>,
    /// Its program, by the addresses of its code.
    image: (u64, u64),
    pub(super) oom_score_adj: Option<i32>,
    /// What a release could return, at the last ledger, in bytes, and the ranges that are free.
    releasable: u64,
    walk: Option<Arc<KeptWalk>>,
    /// Whether a walk followed the last ledger, also if it failed.
    has_walked: bool,
    /// Recognises its allocator for the walk.
    pub(super) detector: Arc<Mutex<Detector>>,
    /// Time of the next alarm, in seconds.
    alarm_s: f64,
    /// The other processes of its group at the last list.
    members: Vec<Member>,
    /// Whether its group had no other process at the last list.
    is_alone: bool,
    /// Why nothing could be written since the last success.
    problem: Option<String>,
}

/// Minimum memory that a rescue can return, in bytes, and time between two alarms, in seconds.
const MIN_RESCUE: u64 = 1 << 20;
const ALARM_S: f64 = 0.5;
/// Maximum number of ended processes of a group that are remembered.
const MAX_GONE: usize = 16;
/// Interval at which the need of a ledger is determined, in seconds.
const NEED_S: f64 = 1.0;
/// Interval at which the cgroups of a process are determined again, in seconds.
const GROUPS_S: f64 = 10.0;

impl RecordedProcess {
    /// Starts to record a process.
    ///
    /// # Errors
    /// Fails if it has ended, or if its ring cannot be created.
    pub(super) fn start(
        pid: u32,
        head: HeadLine,
        store: &Store,
        groups: &mut RecordedCgroups,
        t_s: f64,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Self> {
        let target = Target::open(pid).map_err(io::Error::other)?;
        let exit = ExitReader::open(&target)?;
        let mut head = HeadLine { pid, start_ticks: target.start_ticks, ..head };
        name(&mut head);
        head.groups = groups.open(pid, t_s, buffer);
        let ring = store.start(pid, target.start_ticks)?;
        let kept = RingState::new(&head);
        let mut recorded = Self {
            target,
            exit,
            ring,
            kept,
            head,
            pace: ChargePace::default(),
            plan: LedgerPlan::default(),
            need: LedgerNeed::None,
            need_due_s: t_s,
            cpu_ticks: [None; 2],
            due_s: t_s,
            members_s: f64::NEG_INFINITY,
            groups_due_s: t_s + GROUPS_S,
            last: ReadingLine::default(),
            written: None,
            image: (0, 0),
            oom_score_adj: oom_score_adj(pid),
            releasable: 0,
            walk: None,
            has_walked: false,
            detector: Arc::default(),
            alarm_s: t_s,
            members: Vec::new(),
            is_alone: false,
            problem: None,
        };
        let head = BoxLine::Head(recorded.head.clone());
        recorded.write(&head);
        Ok(recorded)
    }

    pub(super) fn id(&self) -> (u32, u64) {
        (self.target.pid, self.target.start_ticks)
    }

    /// Reads the process and its groups. Returns `false` if it has ended.
    pub(super) fn read(
        &mut self,
        groups: &mut RecordedCgroups,
        available_bytes: Option<u64>,
        t_s: f64,
        buffer: &mut Vec<u8>,
    ) -> bool {
        if t_s >= self.groups_due_s {
            self.groups_due_s = t_s + GROUPS_S;
            self.oom_score_adj = oom_score_adj(self.target.pid);
            let now = groups.open(self.target.pid, t_s, buffer);
            if now != self.head.groups && !now.is_empty() {
                self.head.groups = now;
                self.write_head();
            }
        }
        let process = match self.exit.bytes(buffer) {
            Ok(Some(process)) => process,
            Ok(None) => return self.target.is_alive(),
            Err(_) => return true,
        };
        let groups = groups.read(&self.head.groups, t_s, buffer);
        self.add(ReadingLine { t_s, process, groups, available_bytes });
        true
    }

    fn add(&mut self, reading: ReadingLine) {
        let (used, limit) = closest(&reading, self.head.machine_bytes);
        self.pace.add(reading.t_s, used, limit);
        self.kept.add(&reading);
        if self.is_worth_writing(&reading) {
            self.write(&BoxLine::Reading(reading.clone()));
            self.written = Some(reading.clone());
        }
        self.last = reading;
    }

    fn is_worth_writing(&self, reading: &ReadingLine) -> bool {
        let Some(written) = &self.written else { return true };
        if reading.t_s - written.t_s >= WRITTEN_S || written.groups.len() != reading.groups.len() {
            return true;
        }
        let differs = |a: u64, b: u64, whole: u64| {
            a.abs_diff(b) as f64 >= (whole as f64 * WRITTEN_CHANGE).max(65_536.0)
        };
        let rss = reading.process.rss();
        let mut groups = reading.groups.iter().zip(&written.groups);
        differs(rss, written.process.rss(), rss)
            || groups.any(|(now, then)| {
                let limit = now.limit.unwrap_or(u64::MAX);
                now.kills != then.kills || differs(now.kept(), then.kept(), limit)
            })
    }

    /// Returns the limit that it will soon reach and its use, if the last ledger shows memory that
    /// a release can return: a walk that finds none would cost the time that is left.
    pub(super) fn alarm(&mut self, t_s: f64) -> Option<Alarm> {
        let headroom = self.pace.rescue()?;
        let is_worth_it = self.releasable >= min_rescue_bytes(headroom);
        if t_s < self.alarm_s || !is_worth_it {
            return None;
        }
        self.alarm_s = t_s + ALARM_S;
        Some(Alarm { headroom, walk: self.walk.clone() })
    }

    /// Returns the free memory from which its ranges are kept, in bytes; `None` if the process is
    /// far from any limit, or its memory is not released.
    fn min_rescue_bytes(&self) -> Option<u64> {
        let headroom = self.pace.headroom().filter(|_| self.head.policy != NO_POLICY)?;
        // The closest limit now, such as the machine's, need not be the first that is reached.
        let least = MIN_RESCUE.max(self.last.process.rss() / 50);
        (headroom.used_bytes >= headroom.limit_bytes / 2).then_some(least)
    }

    /// Returns the free memory from which an inspection is followed by a walk. Near the limit, the
    /// last walk suffices.
    pub(super) fn min_walk_bytes(&self) -> Option<u64> {
        let is_far = self.pace.nearness() == Nearness::Rest || self.walk.is_none();
        self.min_rescue_bytes().filter(|_| is_far)
    }

    /// Determines what may make a ledger worth it beside a change of RSS.
    pub(super) fn determine_need(&mut self, t_s: f64) {
        if t_s < self.need_due_s {
            return;
        }
        self.need_due_s = t_s + NEED_S;
        let least = self.min_rescue_bytes();
        self.need = match least {
            None => LedgerNeed::None,
            Some(least) if self.releasable >= least && !self.has_walked && self.walk.is_none() => {
                LedgerNeed::Walk
            }
            Some(_) => {
                self.cpu_ticks[1] = self.target.stat().ok().map(|stat| stat.cpu_ticks);
                if self.cpu_ticks[0] == self.cpu_ticks[1] {
                    LedgerNeed::None
                } else {
                    LedgerNeed::Unseen
                }
            }
        };
    }

    /// Keeps the free ranges of a walk.
    pub(super) fn set_walk(&mut self, walk: Option<Arc<KeptWalk>>, cpu_s: f64, t_s: f64) {
        self.plan.count_walk(t_s, cpu_s);
        self.has_walked = true;
        self.walk = walk;
    }

    /// Adds an inspection.
    pub(super) fn add_ledger(&mut self, inspected: FinishedInspection, t_s: f64) {
        let found = inspected.observed.is_ok().then_some(inspected.rss_bytes);
        self.plan.count(t_s, inspected.cpu_s, found);
        self.cpu_ticks[0] = self.cpu_ticks[1];
        self.has_walked = false;
        (self.need, self.need_due_s) = (LedgerNeed::None, t_s);
        match inspected.observed {
            Ok(observation) => {
                self.kept.course.ledgers.0 += 1;
                if observation.image != self.image && observation.image != (0, 0) {
                    self.change_program(observation.image);
                }
                let rss_bytes = observation.rss_bytes;
                self.releasable = reclaimable_bytes(&observation);
                let line = LedgerLine::new(inspected.t_s, self.head.program, observation);
                let payload = BoxLine::Ledger(Box::new(line)).to_payload();
                self.write_payload(&payload);
                self.kept.add_ledger(rss_bytes, payload);
            }
            Err(_) => self.kept.course.ledgers.1 += 1,
        }
    }

    /// Starts over if the process has executed another program: its growth begins there.
    fn change_program(&mut self, image: (u64, u64)) {
        let is_first = std::mem::replace(&mut self.image, image) == (0, 0);
        if is_first {
            return;
        }
        self.head.program += 1;
        (self.walk, self.detector) = (None, Arc::default());
        name(&mut self.head);
        self.kept.replace(&self.head);
        self.write_head();
    }

    fn write_head(&mut self) {
        let head = self.head.clone();
        self.kept.set_head(&head);
        self.write(&BoxLine::Head(head));
    }

    /// Adds a release, or an attempt.
    pub(super) fn add_release(&mut self, line: ReleaseLine) {
        let (bytes, count) = &mut self.kept.course.released;
        *bytes = bytes.saturating_add(line.returned);
        *count += u64::from(line.returned > 0);
        self.write(&BoxLine::Release(line));
    }

    /// Writes a line.
    pub(super) fn write(&mut self, line: &BoxLine) {
        self.write_payload(&line.to_payload());
    }

    fn write_payload(&mut self, payload: &[u8]) {
        let kept = &mut self.kept;
        let written = self.ring.writer.write(payload, || kept.state());
        self.problem = written.err().map(|error| error.to_string());
    }

    /// Returns whether the processes of its group are due to be listed, and counts them as listed
    /// then. As soon as a limit is near, the interval is short.
    pub(super) fn lists_members(&mut self, t_s: f64) -> bool {
        let is_due = t_s >= members_due_s(self.members_s, self.pace.nearness());
        if is_due {
            self.members_s = t_s;
        }
        is_due
    }

    /// Remembers the other processes of its group, and writes them. Those that have ended meanwhile
    /// come last: one of them may be the one that was killed.
    pub(super) fn set_members(&mut self, found: MembersLine) {
        self.is_alone = found.largest.is_empty() && found.count <= 1;
        let is_gone = |old: &&Member| !found.largest.iter().any(|new| new.pid == old.pid);
        let gone: Vec<Member> =
            self.members.iter().filter(is_gone).take(MAX_GONE).cloned().collect();
        self.members = found.largest.iter().cloned().chain(gone).collect();
        if !self.is_alone {
            self.write(&BoxLine::Members(found));
        }
    }

    /// Returns whether its group had no other process at the last list.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Returns the path of its own group.
    pub(super) fn group(&self) -> Option<&str> {
        self.head.groups.first().map(|head| head.path.as_str())
    }

    /// Returns the paths of its groups, from its own to the topmost.
    pub(super) fn paths(&self) -> Vec<String> {
        self.head.groups.iter().map(|head| head.path.clone()).collect()
    }

    /// Returns the other processes of its group.
    pub(super) fn members(&self) -> Vec<Member> {
        self.members.clone()
    }

    /// Returns why the last line could not be written.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Writes the end and keeps the ring under its name.
    ///
    /// # Errors
    /// Fails if the ring cannot be renamed.
    pub(super) fn finish(mut self, end: EndLine, store: &Store) -> io::Result<String> {
        let (cause, unix_s) = (end.cause, self.head.unix_s + end.t_s);
        let course = self.kept.course.clone();
        self.write(&BoxLine::Course(course));
        self.write(&BoxLine::End(Box::new(end)));
        store.finish(self.ring, unix_s, self.head.pid, cause)
    }

    /// Returns the end of a process that runs on, or whose end is not recorded.
    pub(super) fn unfinished(&self, t_s: f64) -> EndLine {
        EndLine { t_s, cause: Cause::Peak, groups: self.last.groups.clone(), ..EndLine::default() }
    }

    /// Returns its memory at the last reading.
    pub(super) fn bytes(&self) -> ProcessBytes {
        self.last.process
    }
}

/// Returns the least memory that a rescue is worth, in bytes.
fn min_rescue_bytes(headroom: Headroom) -> u64 {
    MIN_RESCUE.max(headroom.limit_bytes / 50)
}

/// Sets the name and the command line.
fn name(head: &mut HeadLine) {
    let Some((process, stat)) = ProcReader::open(head.pid).ok().flatten() else { return };
    let words = process.command_or(&stat.name).into_iter().take(MAX_WORDS);
    head.command = words.map(|word| word.chars().take(MAX_WORD).collect()).collect();
    head.name = stat.name;
}

/// Returns the bytes that count against the limit that is closest, and this limit.
fn closest(reading: &ReadingLine, machine_bytes: Option<u64>) -> (u64, Option<u64>) {
    let groups = reading.groups.iter().filter_map(|group| Some((group.kept(), group.limit?)));
    let machine = machine_bytes.zip(reading.available_bytes);
    let machine = machine.map(|(all, available)| (all.saturating_sub(available), all));
    let share = |(used, limit): &(u64, u64)| *used as f64 / (*limit).max(1) as f64;
    let fullest = groups.chain(machine).max_by(|a, b| share(a).total_cmp(&share(b)));
    fullest.map_or((reading.process.rss(), None), |(used, limit)| (used, Some(limit)))
}
