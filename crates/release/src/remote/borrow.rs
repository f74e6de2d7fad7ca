//! Borrowing a thread of the target: it is stopped at a safe point, and continues with other
//! registers.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_heap::droppable::Droppers;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task::Thread;
use lowtide_probe::target::Target;

use super::candidates::{Candidate, Candidates, ThreadInspector, retry_after};
use super::counted::{TakesPart, ThreadStanding};
use super::shared_filters::SharedFilters;
use super::stopped_thread::StoppedThread;
use super::target_io::TargetIo;
use super::time_asleep::LastTimeout;
use super::{JOB_STOP_TIMEOUT, SEARCH_TIMEOUT, TargetStep, leftovers, seccomp};
use crate::arch::{self, Registers, SYSCALL_BYTES};
use crate::checks::{self, CALL_UNDER_FILTER};
use crate::error::{Abort, ReleaseError};
use crate::options::Options;
use crate::priority::{self, RealtimeGuard};
use crate::refusal::Refusal;
use crate::target_code::TargetCode;

/// A pause of a thread of the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    /// Length of the pause.
    pub length: Duration,
    /// The part of this time during which that thread, or ours, waited for a processor.
    pub waited: Duration,
}

/// Borrows threads of a target. Nothing in the target changes until it does.
pub(crate) struct ThreadBorrower<'t> {
    pub(super) io: TargetIo<'t>,
    /// The target's mappings, as they were read last.
    pub(super) maps: Arc<Vec<Mapping>>,
    heap: Vec<Range<u64>>,
    pub(super) code: &'t TargetCode,
    /// The timeout that was last rewritten in whole milliseconds.
    pub(super) last_timeout: LastTimeout,
    /// Ends the search for a thread when another thread sets it; `None` once our code must leave
    /// the target.
    interrupt: Option<&'t AtomicBool>,
    /// The filters of lowtide, if the target is known to have inherited them too.
    pub(super) shared_filters: Option<SharedFilters>,
    pauses: Vec<Pause>,
    /// Whether only threads are borrowed that cannot be inside an allocator.
    only_outside_allocator: bool,
    /// Whether the next thread is borrowed to map our code.
    pub(super) will_map: bool,
    /// Whether the kernel permits to write our code by words only.
    pub(super) words_only: bool,
    /// The only thread that is borrowed, by the address of its own data; `None`: any thread.
    pub(super) owner: Option<u64>,
    /// Which threads may run operations.
    takes_part: TakesPart,
    /// The standing of the thread that was stopped last to run them.
    pub(super) standing: ThreadStanding,
    /// The addresses of the own data of threads that were stopped, by their TIDs.
    own_data: HashMap<u32, u64>,
    /// The TID of the thread that was borrowed first, and the name of the call that it waited in.
    first: Option<(u32, &'static str)>,
    /// The address of the own data of the thread that was borrowed last.
    last_own_data: Option<u64>,
}

/// The calls of a redirected thread that are traced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Escort {
    /// Number of the calls.
    pub(super) calls: usize,
    /// Whether they are always traced: to learn their results. Otherwise only if a handler may run
    /// in the thread.
    pub(super) always: bool,
}

/// A thread that was stopped and redirected to other registers.
#[must_use = "it must be confirmed"]
pub(super) struct Redirected {
    pub(super) candidate: Candidate,
    own_data: u64,
    /// Whether its registers were set and it was detached.
    detached: io::Result<()>,
    /// The results of its calls, as far as it was traced while it made them.
    pub(super) results: Vec<i64>,
}

impl<'t> ThreadBorrower<'t> {
    /// Prepares to borrow threads of a process. `heap` are the areas of its heap, where no stack is
    /// trusted.
    ///
    /// # Errors
    /// Fails if the target has ended or may not be written.
    pub(crate) fn open(
        target: &'t Target,
        live: &'t ProcessMemory,
        maps: Arc<Vec<Mapping>>,
        heap: Vec<Range<u64>>,
        code: &'t TargetCode,
        options: &'t Options,
        observe: &'t mut dyn FnMut(TargetStep),
    ) -> Result<Self, Abort> {
        priority::reduce_timer_slack();
        if !options.is_urgent {
            priority::lower();
        }
        let io = TargetIo::open(target, live, observe)?;
        Ok(Self {
            io,
            maps,
            heap,
            code,
            last_timeout: LastTimeout::default(),
            interrupt: Some(&options.interrupt),
            shared_filters: options.shares_inherited_filters.then(SharedFilters::own).flatten(),
            pauses: Vec::new(),
            only_outside_allocator: checks::calls_allocator(options),
            will_map: options.dry_run,
            words_only: options.words_only,
            owner: None,
            takes_part: TakesPart::Any,
            standing: ThreadStanding::Uncounted,
            own_data: HashMap::new(),
            first: None,
            last_own_data: None,
        })
    }

    /// Keeps other releases away from the process until this is dropped.
    ///
    /// # Errors
    /// Fails if another release is in progress.
    pub(crate) fn lock(&self) -> Result<(), Abort> {
        self.io.lock()
    }

    /// Finds the threads that can be borrowed.
    pub(crate) fn candidates(&self) -> Candidates {
        let is_other = |thread: &Thread| {
            let known = self.own_data.get(&thread.tid);
            self.owner.zip(known).is_some_and(|(owner, known)| owner != *known)
        };
        let mut candidates = self.inspector().candidates(&|thread| !is_other(thread));
        if let Some(owner) = self.owner {
            let may_own = |candidate: &Candidate| self.may_own(candidate, owner);
            candidates.found.retain(may_own);
        }
        candidates
    }

    /// Returns whether a thread may have its own data at an address. That of most threads is above
    /// their stack, in the same mapping.
    fn may_own(&self, candidate: &Candidate, own_data: u64) -> bool {
        let thread = candidate.thread;
        match self.own_data.get(&thread.tid) {
            Some(known) => *known == own_data,
            None => {
                let place = self.maps.partition_point(|m| m.end <= own_data);
                let mapping = self.maps.get(place);
                thread.tid == thread.pid
                    || mapping.is_some_and(|m| m.contains(candidate.call.stack_pointer))
            }
        }
    }

    /// Borrows only threads for operations that may drop the free pages of the heap.
    pub(crate) fn borrow_for(&mut self, droppers: Droppers) {
        self.takes_part = TakesPart::of(droppers);
    }

    /// Returns whether a stopped thread is the one that is wanted, and remembers which one it is.
    pub(super) fn is_wanted(&mut self, stopped: &StoppedThread) -> bool {
        let own_data = stopped.registers.own_data();
        self.own_data.insert(stopped.thread.tid, own_data);
        self.standing = self.takes_part.standing(&self.io, stopped);
        self.standing != ThreadStanding::Uncounted
            && self.owner.is_none_or(|owner| owner == own_data)
    }

    /// Returns the pauses so far.
    pub(crate) fn pauses(&self) -> &[Pause] {
        &self.pauses
    }

    /// Extends the last pause by the time that our code ran in the thread. `waited` is the part for
    /// which the thread waited for a processor.
    pub(super) fn extend_pause(&mut self, length: Duration, waited: Duration) {
        if let Some(pause) = self.pauses.last_mut() {
            pause.length += length;
            pause.waited += waited;
        }
    }

    /// Returns the TID of the thread that was borrowed first, and the name of the call that it
    /// waited in.
    pub(crate) fn first_borrowed(&self) -> Option<(u32, &'static str)> {
        self.first
    }

    /// Returns whether glibc up to 2.31 takes locks, by its data of the thread that was borrowed
    /// last (`header.multiple_threads`); `None` before a thread was borrowed.
    pub(crate) fn has_multiple_threads(&self) -> Option<bool> {
        let own_data = self.last_own_data.filter(|own_data| *own_data != 0)?;
        Some(self.io.word(own_data + arch::MULTIPLE_THREADS_AT?)? as u32 != 0)
    }

    /// Ignores interrupts from now on: our code must leave the target.
    pub(super) fn ignore_interrupt(&mut self) {
        self.interrupt = None;
    }

    /// Reads the target's mappings again.
    pub(super) fn refresh_maps(&mut self) -> Result<(), Abort> {
        self.maps = Arc::new(self.io.maps()?);
        Ok(())
    }

    /// Returns an inspector of the target's threads.
    pub(super) fn inspector(&self) -> ThreadInspector<'_> {
        ThreadInspector {
            target: self.io.target,
            memory: self.io.live,
            maps: &self.maps,
            heap: &self.heap,
            code: self.code,
            only_outside_allocator: self.only_outside_allocator,
            will_map: self.will_map,
        }
    }

    /// Stops a thread at a safe point, and detaches it with the registers that `prepare` returns.
    /// If it makes calls `escorted` by us, it is traced until it has made them.
    ///
    /// # Errors
    /// Fails if its filters do not permit `calls`, or if no thread can be borrowed.
    pub(super) fn redirect(
        &mut self,
        calls: &[(&'static str, seccomp::Call)],
        escorted: Option<Escort>,
        mut prepare: impl FnMut(&mut Self, &StoppedThread) -> Result<Option<Registers>, Abort>,
    ) -> Result<Redirected, Abort> {
        self.try_calls(calls)?;
        let (candidate, (own_data, detached, results)) =
            self.with_stopped_thread(|borrower, candidate, stopped| {
                borrower.permits(candidate, calls)?;
                let Some(registers) = prepare(borrower, &stopped)? else { return Ok(None) };
                let own_data = stopped.registers.own_data();
                let escorted = escorted.filter(|one| one.always || candidate.may_handle);
                let escorted = escorted.map(|escort| escort.calls);
                let mut results = Vec::new();
                let observe = borrower.io.observer();
                let detached = stopped.redirect(&registers, escorted, &mut results, observe)?;
                Ok(Some((own_data, detached, results)))
            })?;
        Ok(Redirected { candidate, own_data, detached, results })
    }

    /// Confirms that a thread was redirected.
    ///
    /// # Errors
    /// Fails if it has ended meanwhile.
    pub(super) fn confirm(&mut self, redirected: Redirected) -> Result<Candidate, Abort> {
        let Redirected { candidate, own_data, detached, .. } = redirected;
        detached.map_err(|error| self.io.failed(error))?;
        self.first.get_or_insert((candidate.thread.tid, candidate.wait.name));
        self.last_own_data = Some(own_data);
        self.io.observe(TargetStep::Await);
        Ok(candidate)
    }

    /// Stops a thread for as long as it takes to check the filters of its system calls.
    ///
    /// # Errors
    /// Fails if the filters do not permit a release or cannot be read, or if no thread can be
    /// borrowed.
    pub(crate) fn check_filters(&mut self) -> Result<(), Abort> {
        let place = leftovers::find_place(&self.maps, leftovers::salt()).unwrap_or(0);
        let calls = self.all_planned(place);
        self.pause(&calls, |_, _| Ok(()))
    }

    /// Checks whether the filters that lowtide shares with the target allow calls, if it shares
    /// any.
    fn try_calls(&mut self, calls: &[(&'static str, seccomp::Call)]) -> Result<(), Refusal> {
        let Some(filters) = &mut self.shared_filters else { return Ok(()) };
        filters.check(calls)?;
        filters.try_restart(self.code.gadgets.syscall_ret + SYSCALL_BYTES);
        Ok(())
    }

    /// Checks whether a stopped thread may make calls. If it should have the filters of lowtide,
    /// those allow the calls (`try_calls`).
    fn permits(
        &self,
        candidate: &Candidate,
        calls: &[(&'static str, seccomp::Call)],
    ) -> Result<(), Refusal> {
        let (thread, mode) = (candidate.thread, candidate.filters.mode);
        // The process may have set a filter since it was examined.
        if self.only_outside_allocator && mode != 0 {
            return Err(Refusal::NoPurge { why: CALL_UNDER_FILTER });
        }
        match &self.shared_filters {
            Some(filters) if mode == libc::SECCOMP_MODE_FILTER => filters.check_thread(thread),
            _ => seccomp::permits(thread.tid.cast_signed(), mode, calls),
        }
    }

    /// Stops a thread and calls `act`, which lets it continue; records the pause. If `act` returns
    /// `None`, tries the next thread.
    pub(super) fn with_stopped_thread<T>(
        &mut self,
        mut act: impl FnMut(&mut Self, &Candidate, StoppedThread) -> Result<Option<T>, Abort>,
    ) -> Result<(Candidate, T), Abort> {
        let mut search = Search::begin();
        loop {
            // Read before the inspection: nothing must come between that and the stop, because a
            // thread may enter another wait.
            let waited = waits(&[]);
            let mut candidates = self.candidates();
            for candidate in &candidates.found {
                let realtime = RealtimeGuard::new();
                let stopped = match self.stop(candidate)? {
                    Ok(stopped) => stopped,
                    Err(why) => {
                        candidates.others.add(why);
                        continue;
                    }
                };
                let since = stopped.since;
                let Some(done) = act(self, candidate, stopped)? else {
                    candidates.others.add(self.unused(candidate));
                    continue;
                };
                let length = since.elapsed();
                drop(realtime);
                let waited = waits(&[]).saturating_sub(waited);
                self.pauses.push(Pause { length, waited: waited.min(length) });
                return Ok((candidate.clone(), done));
            }
            self.wait_for_retry(&mut search, &candidates)?;
        }
    }

    /// Returns the reason why a thread that was stopped could not be used.
    fn unused(&self, candidate: &Candidate) -> &'static str {
        let own_data = self.own_data.get(&candidate.thread.tid);
        match self.owner {
            Some(owner) if own_data != Some(&owner) => "it does not own the memory to release",
            _ if self.standing == ThreadStanding::Uncounted => self.takes_part.why(),
            _ => "its vector registers do not fit into a signal frame",
        }
    }

    /// Waits a little after no thread could be borrowed.
    ///
    /// # Errors
    /// Fails if another attempt makes no sense.
    fn wait_for_retry(&self, search: &mut Search, candidates: &Candidates) -> Result<(), Abort> {
        if let Some(error) = self.io.lost() {
            return Err(error.into());
        }
        if self.interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed)) {
            return Err(ReleaseError::Interrupted.into());
        }
        let elapsed = search.elapsed();
        if elapsed > JOB_STOP_TIMEOUT && self.io.is_stopped() {
            return Err(Refusal::Stopped { pid: self.io.target.pid }.into());
        }
        let timeout = if self.owner.is_some() { OWNER_TIMEOUT } else { SEARCH_TIMEOUT };
        search.attempts += 1;
        if elapsed > timeout || search.is_long() {
            return Err(candidates.refusal().into());
        }
        std::thread::sleep(retry_after(elapsed));
        Ok(())
    }
}

/// The search for a thread that can be borrowed.
struct Search {
    begin: Instant,
    /// How long this thread had waited for a processor when it began.
    waited: Duration,
    /// Number of attempts that found none.
    attempts: u32,
}

impl Search {
    fn begin() -> Self {
        Self { begin: Instant::now(), waited: waits(&[]), attempts: 0 }
    }

    /// Returns whether it has lasted long, and has made enough attempts nevertheless.
    fn is_long(&self) -> bool {
        self.attempts >= ENOUGH_ATTEMPTS && self.begin.elapsed() > MAX_SEARCH
    }

    /// Returns the time since it began, without that in which lowtide waited for a processor: on a
    /// busy machine, it has made few attempts, and must not leave its code in the target for that.
    fn elapsed(&self) -> Duration {
        self.begin.elapsed().saturating_sub(waits(&[]).saturating_sub(self.waited))
    }
}

/// Maximum time to wait for the owner of memory: there may be many, of which each runs or has
/// ended.
const OWNER_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum time of a search on a busy machine, after this number of attempts.
const MAX_SEARCH: Duration = Duration::from_secs(10);
const ENOUGH_ATTEMPTS: u32 = 50;
/// Returns the total time for which these threads and the calling one have waited for a processor.
pub(super) fn waits(threads: &[Thread]) -> Duration {
    threads.iter().chain([&Thread::current()]).filter_map(Thread::waited).sum()
}
