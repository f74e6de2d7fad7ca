//! A release that a policy has requested: the conditions that permit it, and the effect of its
//! outcome on the process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lowtide_model::act::{Act, ActEvent};
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::release::{HeapRelease, Release, ReleaseOutcome};
use lowtide_policy::{
    LEFT_ALONE_S, LastRelease, MAX_DELAY_S, ProcessState, Reason, Refaults, ReleaseRequest,
    Returned,
};
use lowtide_probe::target::TargetError;
use lowtide_release::{DroppedRanges, PreparedRelease, ReleaseError, Walk};

use super::Supervisor;
use crate::heap_brakes::BrakedHeap;
use crate::host_lock::HostLock;
use crate::subject::{Dropped, Subject};

/// Time after which a process is read again if another supervisor delayed its release, in seconds.
const LOCKED_S: f64 = 1.0;
/// Expected CPU time of a first release, in seconds.
const EXPECTED_CPU_S: f64 = 0.05;

impl Supervisor<'_> {
    /// Releases the memory of a process, if budget and brake permit it.
    pub(super) fn try_release(
        &mut self,
        subject: &mut Subject,
        state: &ProcessState,
        request: ReleaseRequest,
    ) {
        if !subject.program.brake.is_open(state.t_s) {
            subject.program.held_back_s = Some(state.t_s);
            return;
        }
        if self.is_held(subject, state, &request.reason)
            // A kill would cost more than the budget.
            || !(state.is_near_limit || self.has_budget(subject, state, &request.reason))
        {
            return;
        }
        // Count once more just before: a burst may have come and gone since the last sample.
        if !state.is_near_limit {
            self.count_returned(subject);
        }
        self.release(subject, state, &request);
    }

    /// Returns whether all releases are held. Logs each hold once, for the first release that it
    /// delays.
    fn is_held(&mut self, subject: &mut Subject, state: &ProcessState, reason: &Reason) -> bool {
        let hold = self.hold.check().err();
        let is_new = hold != self.reported_hold;
        self.reported_hold.clone_from(&hold);
        let Some(refusal) = hold else { return false };
        subject.program.held_back_s = Some(state.t_s);
        if is_new {
            let about = self.about(subject);
            let (reason, message) = (reason.to_string(), refusal.to_string());
            let line = about.line(ActEvent::HeldBack, 0, reason, message);
            self.observer.act(&subject.name, &Act { hazard: Some(refusal.hazard()), ..line });
        }
        true
    }

    /// Returns whether the budget permits a release. If not, logs this once until it does.
    fn has_budget(&mut self, subject: &mut Subject, state: &ProcessState, reason: &Reason) -> bool {
        let expected_s = subject.program.last.map_or(EXPECTED_CPU_S, |last| last.cpu_s);
        let is_free = !self.options.policy.has_budget();
        if is_free || self.budget.permits(subject.target.pid, state.t_s, expected_s) {
            subject.program.is_held_back = false;
            return true;
        }
        subject.program.held_back_s = Some(state.t_s);
        if !std::mem::replace(&mut subject.program.is_held_back, true) {
            let message = "The budget of CPU time is used up: the release waits".to_owned();
            let about = self.about(subject);
            let line = about.line(ActEvent::HeldBack, 0, reason.to_string(), message);
            self.observer.act(&subject.name, &line);
        }
        false
    }

    fn release(&mut self, subject: &mut Subject, state: &ProcessState, request: &ReleaseRequest) {
        let options = lowtide_release::Options {
            max_pause: self.options.max_pause,
            allocators: self.options.allocators.clone(),
            left_alone: subject.program.heap_brakes.left_alone(state.t_s),
            dry_run: self.options.dry_run,
            is_urgent: state.is_near_limit,
            walk: subject
                .alarm
                .take()
                .and_then(|alarm| alarm.walk)
                .map_or(Walk::Own, Walk::Earlier),
            min_release_bytes: request.min_bytes,
            keep_huge_pages: request.keep_huge_pages,
            shares_inherited_filters: self.family.contains(&subject.target.pid),
            interrupt: Arc::clone(&self.options.interrupt),
            hold: self.hold.clone(),
            detector: Arc::clone(&subject.program.detector),
            ..lowtide_release::Options::default()
        };
        // While another supervisor releases memory, not even the examination is worth its time.
        if !HostLock::is_free() {
            self.wait_for_others(subject, state);
            return;
        }
        let begin = Instant::now();
        let prepared = PreparedRelease::prepare(&subject.target, &options);
        let interrupt = || self.options.interrupt.load(Ordering::Relaxed);
        // Only now: a process can delay its examination.
        let lock = match &prepared {
            Ok(prepared) if prepared.will_act() => HostLock::acquire(interrupt),
            _ => Some(HostLock::none()),
        };
        let Some(lock) = lock else {
            self.budget.spend(prepared.map_or(0.0, |prepared| prepared.cpu_s()));
            self.wait_for_others(subject, state);
            return;
        };
        let released = prepared.and_then(PreparedRelease::run);
        let took = begin.elapsed();
        // Other supervisors need not wait until this release is logged.
        drop(lock);
        self.releases += 1;
        let id = self.releases;
        match released {
            Ok((release, ranges)) => {
                subject.set_command(&release.command);
                self.account(subject, state, id, &release, ranges);
                self.report(subject, id, &request.reason, &release, took);
            }
            Err(ReleaseError::Interrupted) => {}
            Err(error) => self.fail(subject, id, &error),
        }
    }

    /// Delays a release while another supervisor releases memory. Other processes are read in the
    /// meantime.
    fn wait_for_others(&self, subject: &mut Subject, state: &ProcessState) {
        subject.program.held_back_s = Some(state.t_s);
        subject.due_s = self.now_s() + LOCKED_S;
    }

    /// Adds a release to the accounts of the policy and the budget.
    fn account(
        &mut self,
        subject: &mut Subject,
        state: &ProcessState,
        id: u64,
        release: &Release,
        ranges: DroppedRanges,
    ) {
        self.budget.spend(release.cpu_s);
        self.releases_cpu_s += release.cpu_s;
        if is_passing(release) {
            // A release that is retried soon gives the policy no information.
            return;
        }
        let t_s = self.now_s();
        let returned_bytes = release.returned_bytes;
        // In a dry run, the policy decides as if the memory had been released.
        let would_release = release.dry_run && release.outcome == ReleaseOutcome::Released;
        let counted_bytes = if would_release { release.predicted_bytes } else { returned_bytes };
        subject.program.previous = subject.program.last.replace(LastRelease {
            id,
            t_s,
            is_refused: release.outcome == ReleaseOutcome::Refused,
            returned_bytes: counted_bytes,
            cpu_s: release.cpu_s,
            usage: state.usage(),
            back: Returned::default(),
        });
        let now = subject.read(self.options.policy, self.units, &mut self.buffer, t_s);
        // If it has executed another program meanwhile, there is no last release, and these pages
        // are gone.
        let (Ok(Some(now)), Some(last)) = (now, &mut subject.program.last) else { return };
        last.usage = now.usage();
        subject.program.dropped = (returned_bytes > 0).then(|| Dropped {
            ranges,
            refaults: Refaults::new(t_s, returned_bytes, now.minor_faults, self.units.page_bytes),
            released_bytes: returned_bytes,
            back: Returned::default(),
        });
    }

    /// Logs a release, and lets the brake count it.
    fn report(
        &mut self,
        subject: &mut Subject,
        id: u64,
        reason: &Reason,
        release: &Release,
        took: Duration,
    ) {
        let is_silent =
            release.outcome == ReleaseOutcome::NothingToRelease && self.options.policy.has_budget();
        self.report_unchosen(subject, release);
        let line = self.about(subject).release(id, reason.to_string(), release, took);
        let has_several = release.heaps.len() > 1;
        let is_refused = |heap: &HeapRelease| heap.outcome == ReleaseOutcome::Refused;
        // If only some of several heaps are refused, the others have nothing to return now.
        let is_all = release.heaps.iter().all(is_refused);
        if release.outcome == ReleaseOutcome::Refused && (is_all || is_passing(release)) {
            self.refuse(subject, id, release, &line);
            return;
        }
        if !is_silent {
            self.observer.act(&subject.name, &line);
        }
        if self.is_interrupted() || self.hold.check().is_err() {
            // This alone may be the reason why the release is partial.
            return;
        }
        if has_several {
            self.count_heaps(subject, id, release);
        }
        if has_several || release.outcome == ReleaseOutcome::NothingToRelease {
            subject.program.brake.count_walk();
            return;
        }
        let has_failed = release.outcome == ReleaseOutcome::Partial;
        let bound_s = self.options.max_pause.as_secs_f64();
        let pause_s = release.longest_pause_s;
        if subject.program.brake.count(self.now_s(), has_failed, pause_s, bound_s) {
            let reason = match &release.reason {
                Some(reason) if has_failed => {
                    format!("two releases in succession failed: {reason}")
                }
                _ => format!(
                    "two releases in succession held a thread for more than ten times the bound, the last for {}",
                    HumanSeconds(pause_s)
                ),
            };
            self.leave_alone(subject, id, reason, LEFT_ALONE_S);
        }
    }

    /// Lets the brake of each heap count its release, and logs the heaps that are left alone.
    fn count_heaps(&mut self, subject: &mut Subject, id: u64, release: &Release) {
        let (t_s, bound_s) = (self.now_s(), self.options.max_pause.as_secs_f64());
        let chosen = self.options.allocators.as_deref();
        let braked = subject.program.heap_brakes.count(t_s, &release.heaps, chosen, bound_s);
        for BrakedHeap { name, reason } in braked {
            let library = name.library.map(|library| format!(" in {library}")).unwrap_or_default();
            let time = HumanSeconds(LEFT_ALONE_S);
            let message =
                format!("The heap of {}{library} is left alone for {time}", name.allocator);
            self.log_once(subject, id, reason, message);
        }
    }

    /// Leaves a refused process alone: for an hour, or until the reason may have passed.
    fn refuse(&mut self, subject: &mut Subject, id: u64, release: &Release, line: &Act) {
        let reason = release.reason.clone().unwrap_or_default();
        if is_passing(release) {
            self.observer.act(&subject.name, line);
            self.delay(subject, id, reason);
        } else {
            subject.program.brake.close(self.now_s());
            self.leave_alone(subject, id, reason, LEFT_ALONE_S);
        }
    }

    /// Delays the next release: the cause of the failure may pass.
    fn delay(&mut self, subject: &mut Subject, id: u64, reason: String) {
        let t_s = self.now_s();
        let delay_s = subject.program.brake.delay(t_s);
        subject.program.held_back_s = Some(t_s);
        if delay_s >= MAX_DELAY_S {
            self.leave_alone(subject, id, reason, delay_s);
        }
    }

    /// Logs that a process is left alone for a time, in seconds, unless the log already has the
    /// same reason.
    pub(super) fn leave_alone(
        &mut self,
        subject: &mut Subject,
        id: u64,
        reason: String,
        time_s: f64,
    ) {
        let message = format!("The process is left alone for {}", HumanSeconds(time_s));
        self.log_once(subject, id, reason, message);
    }

    /// Logs that memory of a process is left alone, unless the log already has the same reason.
    fn log_once(&mut self, subject: &mut Subject, id: u64, reason: String, message: String) {
        if subject.program.refused.as_ref() == Some(&reason) {
            return;
        }
        let line = self.about(subject).line(ActEvent::LeftAlone, id, reason.clone(), message);
        self.observer.act(&subject.name, &line);
        subject.program.refused = Some(reason);
    }

    /// Logs, once, that the heap of the program's own allocator is left alone, because it was not
    /// selected.
    fn report_unchosen(&mut self, subject: &mut Subject, release: &Release) {
        let Some(chosen) = &self.options.allocators else { return };
        let is_unchosen = |heap: &&HeapRelease| {
            heap.library.is_none() && !chosen.contains(&AllocatorKind::parse(&heap.allocator))
        };
        // The refusal of an only heap is that of the process.
        let heap = release.heaps.iter().find(is_unchosen).filter(|_| release.heaps.len() > 1);
        if let Some(HeapRelease { allocator, reason: Some(reason), .. }) = heap {
            let message = format!("The heap of {allocator} is left alone");
            self.log_once(subject, 0, reason.clone(), message);
        }
    }

    /// Logs, once, that the freed bytes of a process are not counted.
    pub(super) fn report_uncounted(&mut self, subject: &mut Subject) {
        let reason = "the library that counts freed bytes is not loaded in it, not active, or cannot be read";
        let message = "The memory of the process is not released".to_owned();
        self.log_once(subject, 0, reason.to_owned(), message);
    }

    /// Handles a release that could not be attempted.
    fn fail(&mut self, subject: &mut Subject, id: u64, error: &ReleaseError) {
        match error {
            ReleaseError::Ended(end) if end.may_be_caused() => {
                let message = "The process has ended".to_owned();
                let line =
                    self.about(subject).line(ActEvent::LeftAlone, id, end.to_string(), message);
                self.observer.act(&subject.name, &line);
            }
            _ if !subject.target.is_alive() => {}
            // Each attempt on a process that blocks its readers would leave a blocked thread.
            ReleaseError::NotPermitted { .. }
            | ReleaseError::Target(TargetError::Blocked(_) | TargetError::Slow(_)) => {
                subject.program.brake.close(self.now_s());
                self.leave_alone(subject, id, error.to_string(), LEFT_ALONE_S);
            }
            _ => self.delay(subject, id, error.to_string()),
        }
    }
}

/// Returns whether a release was refused for a reason that may pass.
fn is_passing(release: &Release) -> bool {
    release.outcome == ReleaseOutcome::Refused && release.may_pass != Some(false)
}
