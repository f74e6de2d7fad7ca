//! The thread that reads all recorded processes, and notices their ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lowtide_model::act::{Act, ActEvent};
use lowtide_model::counters::GroupBytes;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::pressure::MemoryPressure;
use lowtide_record::black_box::{
    Cause, EndLine, ExitStatus, HeadLine, KernelLine, Member, ReleaseLine, Store,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::group_kills::GroupKills;
use super::groups::RecordedCgroups;
use super::kernel_log::KernelLog;
use super::ledger_thread::{Finished, InspectionRequest, LedgerThread};
use super::members::members;
use super::recorded::RecordedProcess;
use super::verdict::{self, EndEvidence, NO_LIMIT, SIGKILL};
use super::{Command, Notice, NoticeReceiver, Shared};

/// Maximum time between two rounds.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Interval at which the machine's memory is read, in seconds.
const MACHINE_S: f64 = 0.1;
/// Time in which the end of a recorded process is expected after a kill in its group, in seconds.
const FOREIGN_S: f64 = 2.0;
/// Time to wait for ends when the recording ends.
const LAST_WAIT: Duration = Duration::from_millis(500);
/// Weight of the last round in the moving average of the CPU time.
const COST_WEIGHT: f64 = 0.05;
/// Time after which a process that could not be recorded is tried again, in seconds.
const RETRY_S: f64 = 10.0;

pub(super) struct BlackBoxRecorder {
    store: Store,
    shared: Arc<Shared>,
    report: NoticeReceiver,
    template: HeadLine,
    begin: Instant,
    recorded: BTreeMap<(u32, u64), RecordedProcess>,
    /// Processes that could not be recorded, and when they are tried again, in seconds.
    refused: BTreeMap<u32, f64>,
    groups: RecordedCgroups,
    log: KernelLog,
    ledgers: Option<LedgerThread>,
    machine: (f64, Option<u64>),
    /// CPU time of this thread until the last round of readings, and of a round on average, in
    /// seconds.
    cpu_s: f64,
    cost_s: f64,
    buffer: Vec<u8>,
    reported: BTreeSet<String>,
}

impl BlackBoxRecorder {
    pub(super) fn new(
        store: Store,
        shared: Arc<Shared>,
        report: NoticeReceiver,
        template: HeadLine,
    ) -> Self {
        Self {
            store,
            shared,
            report,
            template,
            begin: Instant::now(),
            recorded: BTreeMap::new(),
            refused: BTreeMap::new(),
            groups: RecordedCgroups::default(),
            log: KernelLog::open(),
            ledgers: LedgerThread::start().ok(),
            machine: (f64::NEG_INFINITY, None),
            cpu_s: 0.0,
            cost_s: 0.0,
            buffer: Vec::new(),
            reported: BTreeSet::new(),
        }
    }

    /// Records until the supervision ends.
    pub(super) fn run(mut self) {
        while !self.shared.end.load(Ordering::Relaxed) {
            self.obey();
            let ended = self.read_due();
            ended.into_iter().for_each(|id| self.end(id));
            self.take_ledgers();
            self.log.follow();
            let run_on = self.record_foreign_kills(FOREIGN_S);
            run_on.into_iter().for_each(|pid| self.start(pid));
            for id in self.wait() {
                self.end(id);
            }
        }
        self.end_all();
    }

    fn now_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn obey(&mut self) {
        let commands = {
            let mut queue = self.shared.commands.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *queue)
        };
        for command in commands {
            match command {
                Command::Processes(pids) => self.set_processes(&pids),
                Command::Act(act) => self.add_act(&act),
            }
        }
    }

    /// Starts to record new processes. Of more than fit, the largest are recorded.
    fn set_processes(&mut self, pids: &BTreeSet<u32>) {
        let t_s = self.now_s();
        self.refused.retain(|pid, until_s| *until_s > t_s && pids.contains(pid));
        let known: BTreeSet<u32> = self.recorded.keys().map(|(pid, _)| *pid).collect();
        let is_new = |pid: &&u32| !known.contains(pid) && !self.refused.contains_key(pid);
        let mut new: Vec<(u64, u32)> =
            pids.iter().filter(is_new).map(|pid| (rss_bytes(*pid), *pid)).collect();
        new.sort_unstable_by(|a, b| b.cmp(a));
        for (rss, pid) in new {
            if self.recorded.len() >= self.store.max_live() && !self.displace(rss) {
                break;
            }
            self.start(pid);
        }
    }

    /// Drops the smallest recorded process if another one is more than twice as large. Returns
    /// whether it did.
    fn displace(&mut self, rss: u64) -> bool {
        let smallest = self.recorded.iter().min_by_key(|(_, recorded)| recorded.bytes().rss());
        let Some((id, recorded)) = smallest else { return false };
        if recorded.bytes().rss().saturating_mul(2) >= rss {
            return false;
        }
        let id = *id;
        if let Some(recorded) = self.recorded.remove(&id) {
            self.store.discard(&recorded.ring);
        }
        true
    }

    fn start(&mut self, pid: u32) {
        let t_s = self.now_s();
        let head = self.template.clone();
        let (store, groups, buffer) = (&self.store, &mut self.groups, &mut self.buffer);
        match RecordedProcess::start(pid, head, store, groups, t_s, buffer) {
            Ok(recorded) => {
                self.recorded.insert(recorded.id(), recorded);
            }
            Err(error) => {
                self.refused.insert(pid, t_s + RETRY_S);
                // A process that has ended is no problem.
                if fs::exists(format!("/proc/{pid}")).unwrap_or(false) {
                    self.report(format!("process {pid} is not recorded: {error}"));
                }
            }
        }
    }

    /// Reports a problem once.
    fn report(&mut self, problem: String) {
        /// Maximum number of problems that are remembered.
        const MAX_REPORTED: usize = 100;
        if self.reported.len() < MAX_REPORTED && self.reported.insert(problem.clone()) {
            (self.report)(Notice::Problem(&problem));
        }
    }

    fn add_act(&mut self, act: &Act) {
        let t_s = self.now_s();
        let found = self.recorded.values_mut().find(|recorded| recorded.target.pid == act.pid);
        let Some(recorded) = found.filter(|_| act.event != ActEvent::Returned) else { return };
        recorded.add_release(ReleaseLine {
            t_s,
            returned: if act.dry_run { 0 } else { act.returned_bytes },
            reason: act.reason.clone(),
            message: act.message.clone(),
        });
    }

    /// Reads all processes that are due. Returns those that have ended.
    fn read_due(&mut self) -> Vec<(u32, u64)> {
        let t_s = self.now_s();
        let available = self.available_bytes(t_s);
        let mut ended = Vec::new();
        let mut problem = None;
        if self.recorded.values().any(|one| one.due_s <= t_s) {
            self.count_cost();
        }
        for (id, recorded) in &mut self.recorded {
            if recorded.due_s > t_s {
                continue;
            }
            if !recorded.read(&mut self.groups, available, t_s, &mut self.buffer) {
                ended.push(*id);
                continue;
            }
            recorded.due_s = t_s + recorded.pace.interval(self.cost_s).as_secs_f64();
            if let Some(alarm) = recorded.alarm(t_s) {
                self.shared.raise(id.0, alarm);
            }
            recorded.determine_need(t_s);
            if recorded.lists_members(t_s) {
                list_members(recorded, &self.groups, t_s, &mut self.buffer);
            }
            problem = problem.or(recorded.problem().map(str::to_owned));
        }
        if let Some(problem) = problem {
            self.report(format!("the black box cannot be written ({problem}): readings are lost"));
        }
        ended
    }

    /// Adds the CPU time of this thread since the last round of readings to the moving average.
    fn count_cost(&mut self) {
        let cpu_s = thread_cpu_s();
        let cost_s = cpu_s - std::mem::replace(&mut self.cpu_s, cpu_s);
        self.cost_s += COST_WEIGHT * (cost_s - self.cost_s);
    }

    /// Returns the available memory of the machine, which is read less often than cgroups.
    fn available_bytes(&mut self, t_s: f64) -> Option<u64> {
        if t_s - self.machine.0 >= MACHINE_S {
            let machine = MemoryPressure::of_this_machine();
            let available = machine.limit_bytes.zip(machine.used_bytes);
            self.machine = (t_s, available.map(|(all, used)| all.saturating_sub(used)));
        }
        self.machine.1
    }

    /// Adds the finished inspection, and starts the most urgent one.
    fn take_ledgers(&mut self) {
        let t_s = self.now_s();
        let Some(thread) = &mut self.ledgers else { return };
        while let Some(finished) = thread.finished() {
            let Some(recorded) = self.recorded.get_mut(&finished.process()) else { continue };
            match finished {
                Finished::Inspected(inspected) => recorded.add_ledger(*inspected, t_s),
                Finished::Walked { walk, cpu_s, .. } => recorded.set_walk(walk, cpu_s, t_s),
            }
        }
        if thread.is_busy() {
            return;
        }
        let urgency = |recorded: &RecordedProcess| {
            let (rss, nearness) = (recorded.bytes().rss(), recorded.pace.nearness());
            Some((nearness, recorded.plan.urgency(t_s, rss, nearness, recorded.need)?))
        };
        let urgent = self.recorded.values().filter_map(|one| Some((urgency(one)?, one)));
        let most = urgent.max_by_key(|(urgency, _)| *urgency).map(|(_, recorded)| recorded);
        if let Some(recorded) = most
            && let Ok(target) = recorded.target.try_clone()
        {
            thread.request(InspectionRequest {
                target,
                t_s,
                rss_bytes: recorded.bytes().rss(),
                min_walk_bytes: recorded.min_walk_bytes(),
                detector: Arc::clone(&recorded.detector),
            });
        }
    }

    /// Waits until a reading is due or a process ends. Returns those that have ended.
    fn wait(&self) -> Vec<(u32, u64)> {
        let due_s = self.recorded.values().map(|one| one.due_s).fold(f64::INFINITY, f64::min);
        let wait = Duration::try_from_secs_f64((due_s - self.now_s()).max(0.0));
        let wait = wait.unwrap_or(MAX_WAIT).min(MAX_WAIT);
        self.ended_within(wait)
    }

    fn ended_within(&self, time: Duration) -> Vec<(u32, u64)> {
        let with_pidfd =
            |(id, one): (&(u32, u64), &'_ RecordedProcess)| one.exit.pidfd().map(|_| *id);
        let ids: Vec<(u32, u64)> = self.recorded.iter().filter_map(with_pidfd).collect();
        let mut polled: Vec<PollFd<'_>> = self
            .recorded
            .values()
            .filter_map(|one| one.exit.pidfd())
            .map(|pidfd| PollFd::from_borrowed_fd(pidfd, PollFlags::IN))
            .collect();
        let Ok(time) = Timespec::try_from(time) else { return Vec::new() };
        if poll(&mut polled, Some(&time)).is_err() {
            return Vec::new();
        }
        let is_ended = |(_, polled): &(_, PollFd<'_>)| !polled.revents().is_empty();
        ids.into_iter().zip(polled).filter(is_ended).map(|(id, _)| id).collect()
    }

    /// Records the end of a process.
    fn end(&mut self, id: (u32, u64)) {
        let Some(recorded) = self.recorded.remove(&id) else { return };
        let t_s = self.now_s();
        let before = self.groups.before(&recorded.head.groups);
        let after = self.groups.read(&recorded.head.groups, t_s, &mut self.buffer);
        let own = recorded.head.groups.first();
        let status = recorded.exit.status(&mut self.buffer).map(ExitStatus::from_kernel);
        let may_be_killed = !matches!(status, Some(ExitStatus::Code(_)));
        let kernel = if may_be_killed { self.log.kill_of(id.0) } else { None };
        let is_empty =
            own.is_some_and(|own| self.groups.processes(own, &mut self.buffer).is_empty());
        let evidence = EndEvidence {
            status,
            kills: self.groups.unclaimed(own),
            has_counter: self.groups.has_counter(own),
            kernel: kernel.clone(),
            has_log: self.log.is_complete(),
            others: self.others_killed(&recorded),
            was_alone: recorded.is_alone() && is_empty,
        };
        let (cause, notes) = verdict::cause(&evidence);
        if cause == Cause::OomKill {
            self.groups.claim(own);
        }
        let limit = verdict::limit(&before, &after, &recorded.paths(), kernel.as_ref());
        let limit = limit.filter(|_| cause.is_oom());
        let end = EndLine {
            t_s,
            cause,
            status,
            groups: after,
            limit,
            is_machine_wide: cause.is_oom()
                && limit.is_none()
                && is_machine_wide(&before, kernel.as_ref()),
            kernel,
            oom_score_adj: recorded.oom_score_adj,
            victim: None,
            notes,
        };
        let rest = self.last_kills(&recorded, cause);
        let pid = recorded.head.pid;
        if let (Some(file), Some(kills)) = (self.finish(recorded, end), rest) {
            kills.report(&self.report, pid, &file);
        }
    }

    /// Returns the number of recorded processes of the same group that have ended too, that are not
    /// recorded yet, and that may have been killed.
    fn others_killed(&mut self, recorded: &RecordedProcess) -> usize {
        let (own, buffer) = (recorded.group(), &mut self.buffer);
        let is_same = |other: &&RecordedProcess| other.group() == own && !other.target.is_alive();
        let mut may_be_killed = |other: &&RecordedProcess| {
            let status = other.exit.status(buffer).map(ExitStatus::from_kernel);
            matches!(status, None | Some(ExitStatus::Signal(SIGKILL)))
        };
        self.recorded.values().filter(is_same).filter(|one| may_be_killed(one)).count()
    }

    /// Takes the kills that no recorded process of a group accounts for, when the last one has
    /// ended.
    fn last_kills(&mut self, recorded: &RecordedProcess, cause: Cause) -> Option<GroupKills> {
        let own = recorded.head.groups.first()?;
        if self.recorded.values().any(|one| one.group() == Some(&own.path)) {
            return None;
        }
        let kills = self.take_kills(&own.path, &recorded.members());
        // With memory.oom.group, the count of version 2 rises by one more than there are victims.
        let is_surplus = own.version == 2 && cause == Cause::OomKill && kills.count == 1;
        let is_false = kills.victims.is_empty() && (is_surplus || self.log.is_complete());
        (kills.count > 0 && !is_false).then_some(kills)
    }

    /// Takes the kills in a group that are not accounted for.
    fn take_kills(&mut self, path: &str, known: &[Member]) -> GroupKills {
        let count = self.groups.claim_all(path);
        let is_member = |pid| known.iter().any(|member| member.pid == pid);
        let victims = self.log.kills_in(path, count, is_member);
        GroupKills { path: path.to_owned(), count, victims }
    }

    /// Keeps the ring of a process. Returns its name.
    fn finish(&mut self, recorded: RecordedProcess, end: EndLine) -> Option<String> {
        let (pid, cause) = (recorded.head.pid, end.cause);
        let (command, program) = (recorded.head.command.join(" "), recorded.head.name.clone());
        let finished = recorded.finish(end, &self.store);
        match &finished {
            Ok(file) if cause == Cause::OomKill => {
                let (command, program) = (&*command, &*program);
                (self.report)(Notice::OomKill { pid, command, program, file });
            }
            Ok(_) => {}
            Err(error) => {
                self.report(format!("the record of process {pid} cannot be kept: {error}"))
            }
        }
        let recorded = &self.recorded;
        self.groups.retain(|path| {
            recorded.values().any(|one| one.head.groups.iter().any(|head| head.path == path))
        });
        finished.ok()
    }

    /// Records kills that no recorded process accounts for within a time, in seconds: in the ring
    /// of the largest process of their group.
    ///
    /// Returns the PIDs of these processes, whose records have ended.
    fn record_foreign_kills(&mut self, patience_s: f64) -> Vec<u32> {
        let mut run_on = Vec::new();
        for path in self.groups.foreign_kills(self.now_s(), patience_s) {
            let is_in = |one: &&RecordedProcess| one.group() == Some(&path);
            let largest = self.recorded.values().filter(is_in).max_by_key(|one| one.bytes().rss());
            let Some(id) = largest.map(RecordedProcess::id) else { continue };
            let mut members = self.recorded.values().filter(is_in);
            if members.any(|one| one.exit.is_ending(&mut self.buffer)) {
                // It may be the one that was killed.
                continue;
            }
            let Some(recorded) = self.recorded.remove(&id) else { continue };
            let kills = self.take_kills(&path, &recorded.members());
            let end = self.foreign_end(&recorded, &kills);
            if let Some(file) = self.finish(recorded, end) {
                kills.report(&self.report, id.0, &file);
            }
            run_on.push(id.0);
        }
        run_on
    }

    /// Returns the end of the ring of a process that runs on after kills of others.
    fn foreign_end(&self, recorded: &RecordedProcess, kills: &GroupKills) -> EndLine {
        let before = self.groups.before(&recorded.head.groups);
        let groups = recorded.last.groups.clone();
        let kernel = kills.victims.last().cloned();
        let limit = verdict::limit(&before, &groups, &recorded.paths(), kernel.as_ref());
        let is_machine_wide = limit.is_none() && is_machine_wide(&before, kernel.as_ref());
        EndLine {
            t_s: self.now_s(),
            cause: Cause::GroupOomKill,
            groups,
            limit,
            is_machine_wide,
            victim: Some(kills.victim()),
            kernel,
            notes: kills.notes(),
            ..EndLine::default()
        }
    }

    /// Keeps the rings of all processes. Those that are just ending get the time for it.
    fn end_all(&mut self) {
        let begin = Instant::now();
        self.obey();
        self.read_due();
        self.record_foreign_kills(FOREIGN_S);
        while let Some(rest) = LAST_WAIT.checked_sub(begin.elapsed()) {
            let is_ending = self.recorded.values().any(|one| {
                !one.target.is_alive() || self.groups.unclaimed(one.head.groups.first()) > Some(0)
            });
            if !is_ending {
                break;
            }
            for id in self.ended_within(rest.min(MAX_WAIT)) {
                self.end(id);
            }
        }
        self.record_foreign_kills(0.0);
        let t_s = self.now_s();
        for (_, recorded) in std::mem::take(&mut self.recorded) {
            if recorded.target.is_alive() {
                let end = recorded.unfinished(t_s);
                self.finish(recorded, end);
            } else {
                let id = recorded.id();
                self.recorded.insert(id, recorded);
                self.end(id);
            }
        }
    }
}

/// Returns whether a kill was due to the memory of the whole machine: the kernel log says so, or no
/// group has a limit.
fn is_machine_wide(before: &[GroupBytes], kernel: Option<&KernelLine>) -> bool {
    match kernel {
        Some(kernel) => kernel.limit_group.is_none() && kernel.constraint == NO_LIMIT,
        None => before.iter().all(|group| group.limit.is_none()),
    }
}

fn list_members(
    recorded: &mut RecordedProcess,
    groups: &RecordedCgroups,
    t_s: f64,
    buffer: &mut Vec<u8>,
) {
    let Some(own) = recorded.head.groups.first() else { return };
    let pids = groups.processes(own, buffer);
    let found = members(t_s, &pids, recorded.head.pid);
    recorded.set_members(found);
}

/// Returns the RSS of a process, in bytes; 0 if it has ended.
fn rss_bytes(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}
