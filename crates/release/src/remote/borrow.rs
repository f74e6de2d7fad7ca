//! Stopping a thread at a safe point, and having it go on with other registers.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lowtide_probe::proc::task::{Doing, Thread};

use super::candidates::{Candidate, Candidates};
use super::frame::{ResumeState, set_argument};
use super::priority::RealtimeGuard;
use super::stopped_thread::StoppedThread;
use super::tracee::{Registers, Stop, Tracee};
use super::wait::{self, Resume, Timeout};
use super::{
    JOB_STOP_TIMEOUT, Pause, Remote, SEARCH_TIMEOUT, STOP_TIMEOUT, Step, failed, seccomp, vectors,
};
use crate::checks::Abort;
use crate::refusal::Refusal;
use crate::release::ReleaseError;
use crate::stub::{NAME, SYSCALL_BYTES};

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

impl Remote<'_> {
    /// Stops a thread at a safe point, has it prepared, and lets it go with the registers that it is given.
    /// One that makes so many calls is escorted where a handler may run in it.
    pub(super) fn borrow(
        &mut self,
        calls: &[(&'static str, seccomp::Call)],
        escorted: Option<usize>,
        mut prepare: impl FnMut(&mut Self, &StoppedThread) -> Result<Option<Registers>, Abort>,
    ) -> Result<Candidate, Abort> {
        let (candidate, (fs_base, gone)) = self.hold_one(|remote, candidate, stopped| {
            seccomp::permits(candidate.thread.tid.cast_signed(), candidate.seccomp, calls)?;
            let Some(registers) = prepare(remote, &stopped)? else { return Ok(None) };
            (remote.observe)(Step::Set);
            let set = stopped.tracee.set_registers(&registers);
            (remote.observe)(Step::Detach);
            let fs_base = stopped.registers.fs_base;
            let gone = match escorted {
                Some(calls) if set.is_ok() && candidate.may_handle => {
                    stopped.escort(calls, remote.observe)
                }
                _ => stopped.tracee.detach(0),
            };
            Ok(Some((fs_base, set.and(gone))))
        })?;
        if escorted.is_none() {
            self.inside.retain(|(other, _)| *other != candidate.thread);
            self.inside.push((candidate.thread, candidate.thread.ran()));
        }
        gone.map_err(|error| self.failed(error))?;
        let thread = (candidate.thread.tid, candidate.wait.name);
        self.borrowed.get_or_insert(thread);
        self.fs_base = fs_base;
        (self.observe)(Step::Await);
        Ok(candidate)
    }

    /// Has a thread stand still for as long as it takes to read the filters of its system calls, and goes no
    /// further.
    ///
    /// # Errors
    /// When the filters do not let a release through, or cannot be read; or no thread can be borrowed.
    pub(crate) fn ask_filters(&mut self) -> Result<(), Abort> {
        let calls = self.all_planned();
        let (_, permitted) = self.hold_one(|remote, candidate, _held| {
            let tid = candidate.thread.tid.cast_signed();
            let permitted = seccomp::permits(tid, candidate.seccomp, &calls);
            (remote.observe)(Step::Detach);
            Ok(Some(permitted))
        })?;
        Ok(permitted?)
    }

    /// Stops a thread and calls `act`, which lets it go; records the pause. Where `act` does nothing, the next
    /// thread is tried.
    fn hold_one<T>(
        &mut self,
        mut act: impl FnMut(&mut Self, &Candidate, StoppedThread) -> Result<Option<T>, Abort>,
    ) -> Result<(Candidate, T), Abort> {
        let begin = Instant::now();
        loop {
            // Read before the look: nothing comes between that and the stop, for a thread may go on to
            // another wait.
            let waited = waits(&[]);
            let candidates = self.candidates();
            for candidate in &candidates.found {
                let realtime = RealtimeGuard::new();
                let Some(stopped) = self.hold(candidate)? else { continue };
                let since = stopped.since;
                let Some(done) = act(self, candidate, stopped)? else { continue };
                let length = since.elapsed();
                drop(realtime);
                let waited = waits(&[]).saturating_sub(waited);
                self.pauses.push(Pause { length, waited: waited.min(length) });
                return Ok((candidate.clone(), done));
            }
            self.go_on_searching(begin, &candidates)?;
        }
    }

    /// Waits a little where no thread could be borrowed.
    fn go_on_searching(&self, begin: Instant, candidates: &Candidates) -> Result<(), Abort> {
        if let Some(error) = self.lost() {
            return Err(error.into());
        }
        if self.interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed)) {
            return Err(ReleaseError::Interrupted.into());
        }
        if begin.elapsed() > JOB_STOP_TIMEOUT && self.is_stopped() {
            return Err(Refusal::Stopped { pid: self.target.pid }.into());
        }
        if begin.elapsed() > SEARCH_TIMEOUT {
            let (threads, why) = (candidates.threads, candidates.why());
            return Err(Refusal::NoThread { threads, why }.into());
        }
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }

    /// Stops a thread and reads what is to be known of it, unless it has gone on meanwhile.
    fn hold(&mut self, candidate: &Candidate) -> Result<Option<StoppedThread>, Abort> {
        if let (Timeout::Milliseconds(_, ms), Some(asleep)) =
            (candidate.wait.timeout, &candidate.asleep)
            && self.last_timeout.is_unchanged(candidate.thread, asleep, ms)
        {
            return Ok(None);
        }
        let Some((mut tracee, since)) = self.stop(candidate)? else { return Ok(None) };
        (self.observe)(Step::Read);
        let looked = |error| self.failed(error);
        let registers = tracee.registers().map_err(looked)?;
        if let Some(registers) = registers_if_untouched(&registers) {
            tracee.restore_on_drop(registers);
        }
        let mask = tracee.signal_mask().map_err(looked)?;
        let is_same_wait =
            candidate.asleep.is_none_or(|asleep| asleep.is_same_wait(candidate.thread));
        if !is_same(&registers, candidate) || !self.is_ours(&registers, candidate) || !is_same_wait
        {
            return Ok(None);
        }
        let result = registers.rax as i64;
        let resume = Resume::from_result(&candidate.wait, result);
        let (mut back, mut interrupted) = (registers, registers);
        interrupted.rax = resume.interrupted_result(result) as u64;
        let mut left = None;
        if resume.again {
            back.rip -= SYSCALL_BYTES;
            back.rax = registers.orig_rax;
            left = self.left(candidate);
            if let (true, Some((Timeout::Milliseconds(place, _), left, _))) =
                (candidate.wait.gives_up, left)
            {
                let mut again = Registers { rax: wait::ERESTARTNOHAND as u64, ..registers };
                set_argument(&mut again, place, wait::in_ms(left));
                tracee.restore_on_drop(again);
            }
        }
        back.orig_rax = u64::MAX;
        interrupted.orig_rax = u64::MAX;
        let wait_mask = candidate.wait_mask;
        Ok(Some(StoppedThread {
            tracee,
            thread: candidate.thread,
            registers,
            resume,
            back,
            interrupted,
            left,
            mask,
            wait_mask,
            since,
        }))
    }

    /// What is left of the time-out of a thread that has just been stopped, and since when so much.
    fn left(&mut self, candidate: &Candidate) -> Option<(Timeout, Duration, Instant)> {
        let now = Instant::now();
        let timeout = candidate.wait.timeout;
        if let (Timeout::Milliseconds(_, ms), Some(asleep)) = (timeout, &candidate.asleep) {
            // Rewritten in whole ms again and again, it would grow by a fraction of one each time.
            let left = self.last_timeout.remaining(candidate.thread, asleep, ms, now);
            return Some((timeout, left, now));
        }
        let given = match timeout {
            Timeout::Kept => None,
            Timeout::Milliseconds(_, ms) => Some(Duration::from_millis(ms)),
            Timeout::Timespec(..) => candidate.timespec.and_then(wait::duration),
            // The kernel has just left there what remains, and so may we.
            Timeout::Updated(_, at) => {
                let words = self.word(at).zip(self.word(at.wrapping_add(8)));
                words.and_then(|(seconds, rest)| wait::duration([seconds, rest]))
            }
        }?;
        let asleep = candidate.asleep.map(|asleep| asleep.at(now)).unwrap_or_default();
        Some((timeout, given.saturating_sub(asleep), now))
    }

    /// Stops a thread, unless it has gone on meanwhile. Says since when it stands still.
    fn stop(&mut self, candidate: &Candidate) -> Result<Option<(Tracee, Instant)>, Abort> {
        // A call that it is not known in could be broken off for nothing: looked at a last time, it has only
        // a few microseconds left to go on.
        if candidate.thread.doing().ok() != Some(Doing::In(candidate.call)) {
            return Ok(None);
        }
        let tid = candidate.thread.tid;
        (self.observe)(Step::Seize);
        let mut tracee = match Tracee::seize(tid) {
            Ok(tracee) => tracee,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // So it is, too, with a thread that is ending.
                if let Some(error) = self.lost() {
                    return Err(error.into());
                }
                return match candidate.thread.stat() {
                    Ok(stat) if !stat.has_ended() => Err(self.not_traced(candidate)),
                    _ => Ok(None),
                };
            }
            Err(error) => return Err(self.target.failed(error).into()),
        };
        (self.observe)(Step::Interrupt);
        let since = Instant::now();
        if tracee.interrupt().is_err() {
            return Ok(None);
        }
        (self.observe)(Step::Wait);
        match tracee.wait(STOP_TIMEOUT).map_err(|error| self.failed(error))? {
            Stop::Requested => Ok(Some((tracee, since))),
            Stop::Signal(signal) => {
                if let Some(registers) =
                    tracee.registers().ok().and_then(|r| registers_if_untouched(&r))
                {
                    let _ = tracee.set_registers(&registers);
                }
                let _ = tracee.detach(signal);
                Ok(None)
            }
            Stop::Group => {
                let _ = tracee.detach(0);
                Err(Refusal::Stopped { pid: self.target.pid }.into())
            }
            Stop::Ended | Stop::Call => Ok(None),
            Stop::TimedOut => {
                crate::checks::check_frozen(self.target)?;
                Err(failed("a thread could not be stopped: the kernel holds it"))
            }
        }
    }

    /// How a thread goes back; `None` where its extended state cannot be put into a frame.
    pub(super) fn back(&self, stopped: &StoppedThread) -> Result<Option<ResumeState>, Abort> {
        let state = stopped.tracee.extended_state().map_err(|error| self.failed(error))?;
        let Ok(vectors) = vectors::to_frame(&state) else { return Ok(None) };
        let (registers, interrupted, mask) = (stopped.back, stopped.interrupted, stopped.mask);
        Ok(Some(ResumeState { registers, interrupted, mask, vectors, timespec: None }))
    }

    /// Whether a thread that was stopped still is one of the target's, on a stack of its own.
    fn is_ours(&self, registers: &Registers, candidate: &Candidate) -> bool {
        const USER_CODE_64: u64 = 0x33;
        let mut call = [0; 2];
        let is_read = self.memory.read_exact_at(&mut call, registers.rip.wrapping_sub(2)).is_ok();
        // Not `int $0x80`, whose numbers are others.
        if registers.cs != USER_CODE_64
            || !is_read
            || call != SYSCALL
            || candidate.thread.stat().is_err()
            || !self.target.is_alive()
        {
            return false;
        }
        match &candidate.unguarded {
            None => true,
            // What glibc keeps of a thread stands at the upper end of that thread's stack: of others,
            // that a program has made for itself, nobody knows how far they reach.
            Some(stack) => stack.contains(&registers.fs_base) && registers.rsp < registers.fs_base,
        }
    }

    /// Why a thread may not be traced that lets itself be looked at: somebody else does.
    fn not_traced(&self, candidate: &Candidate) -> Abort {
        match candidate.thread.status() {
            Ok(status) if status.tracer != 0 => {
                let comm = std::fs::read_to_string(format!("/proc/{}/comm", status.tracer));
                if comm.is_ok_and(|comm| comm.trim_end() == NAME) {
                    return Refusal::AnotherRelease.into();
                }
                Refusal::Traced { tracer: status.tracer }.into()
            }
            _ => match crate::checks::check_permission(self.target) {
                Err(error) => error.into(),
                Ok(()) => Refusal::AnotherRelease.into(),
            },
        }
    }
}

/// How long these threads and this one have waited for a processor, together.
pub(super) fn waits(threads: &[Thread]) -> Duration {
    threads.iter().chain([&Thread::current()]).filter_map(Thread::waited).sum()
}

/// The registers with which a thread is let go as it is, where the kernel's own would break its wait off.
fn registers_if_untouched(registers: &Registers) -> Option<Registers> {
    let r = registers;
    let args = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
    let code = wait::result_if_untouched(r.orig_rax, &args, r.rax as i64)?;
    Some(Registers { rax: code as u64, ..*r })
}

/// Whether a thread that was stopped is still where it was when it was looked at.
fn is_same(registers: &Registers, candidate: &Candidate) -> bool {
    let r = registers;
    let call = &candidate.call;
    r.orig_rax == u64::from(call.number)
        && [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] == call.args
        && r.rsp == call.stack_pointer
        && r.rip == call.instruction_pointer
}
