//! Acting in another process: the only ptrace.
//!
//! A thread that waits in a system call is stopped for a moment, given other registers, and let go; what it
//! then does ends by itself with its own registers, its own signal mask and its call begun again, whether
//! we are still there or not.
//!
//! - `candidates`: which thread can be borrowed, told from outside.
//! - `wait` and `waited`: the calls that threads wait in, and what is left of their time-outs.
//! - `tracee` and `held`: one thread that is stopped, and how it goes on.
//! - `calls`: the calls that are made in the target.
//! - `frame`, `gadgets`, `vectors`: calls that a thread makes without any code of ours.
//! - `presence`: where our code goes, and what an earlier release has left.
//! - `priority`: not being interrupted while a thread stands still.
//! - [`seccomp`]: whether a thread may make those calls.
//! - `symbol`: where names of the C library are.

mod calls;
pub(crate) mod candidates;
mod files;
pub(crate) mod frame;
pub(crate) mod gadgets;
mod held;
pub(crate) mod presence;
mod priority;
pub mod seccomp;
pub(crate) mod symbol;
pub(crate) mod tracee;
pub(crate) mod vectors;
pub(crate) mod wait;
pub(crate) mod waited;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lowtide_probe::inspect::{Target, TargetError};
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task::{self, Doing};

use crate::checks::Halt;
use crate::refusal::Refusal;
use crate::release::ReleaseError;
use crate::stub::numbers::*;
use crate::stub::{BLOCK_BYTES, CODE, CODE_BYTES, NAME, SYSCALL_BYTES};

use calls::{
    CLONE_FLAGS, CLONE_SETTLS, MUNMAP, RT_SIGPROCMASK, STORAGE_AT, code_calls, mapping_calls,
    name_of, seccomp_call, sigreturn_call,
};
use candidates::{Candidate, Candidates, Surroundings};
use frame::{Back, Call, chain, set_argument};
use gadgets::Gadgets;
use held::Held;
use presence::Owner;
pub(crate) use priority::Unstopped;
use priority::Urgent;
use tracee::{Registers, Stop, Tracee};
use wait::{Resume, Timeout};
use waited::Told;

/// So long a thread is given to stop: it goes on meanwhile, and may have to wait for a processor.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// So long what a thread was sent to do may take until nothing more is done.
pub(crate) const ACT_LIMIT: Duration = Duration::from_secs(5);
/// So long it is waited for that a thread which has run our code is seen outside of it, before others go on.
const BACK_LIMIT: Duration = Duration::from_millis(100);
/// A thread that has had a processor for so long since it was let go must have left our code.
const SURELY_OUT: Duration = Duration::from_millis(100);
/// So long `malloc_trim` may take.
pub(crate) const TRIM_LIMIT: Duration = Duration::from_secs(60);
/// So long it is tried to find a thread that can be borrowed.
const SEARCH_LIMIT: Duration = Duration::from_secs(2);
/// So long a process may be stopped until nothing more is done.
const STOPPED_LIMIT: Duration = Duration::from_millis(300);
/// So often calls are tried that a handler breaks off.
const TRIES: u32 = 10;
/// So long what another release does is watched to see whether it is still there.
const BEAT_LIMIT: Duration = Duration::from_millis(400);

/// One act on the target, told before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A thread is about to be traced.
    Seize,
    /// It is asked to stop.
    Interrupt,
    /// It is waited for.
    Wait,
    /// Its registers are read.
    Read,
    /// Something is written to memory of the target.
    Write,
    /// Its registers are set.
    Set,
    /// It is let go.
    LetGo,
    /// What it was sent to do is waited for.
    Await,
}

/// What a borrowed thread is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// To start a thread of our own, which works or trims.
    Clone {
        /// Whether that thread calls `malloc_trim`.
        trims: bool,
    },
    /// To work for so long.
    Slice(Duration),
    /// To call `malloc_trim` itself.
    Trim,
}

/// A process in which something is done.
pub(crate) struct Remote<'a> {
    target: &'a Target,
    live: &'a LiveMemory,
    memory: File,
    maps: Vec<Mapping>,
    heap: Vec<Range<u64>>,
    code: Vec<Range<u64>>,
    gadgets: Gadgets,
    restorers: Vec<u64>,
    /// Where our code is.
    place: Option<u64>,
    /// What earlier releases have left, and must stay.
    left: Vec<Range<u64>>,
    /// Whether our code may still be at work: then it must stay.
    pub(crate) is_busy: bool,
    /// How long threads of the target were held up.
    pub(crate) pauses: Vec<Duration>,
    /// Threads that were sent into our code, and how long each had had a processor by then.
    inside: Vec<(Candidate, Option<Duration>)>,
    /// The thread that was borrowed first, and the call that it waited in.
    pub(crate) borrowed: Option<(u32, &'static str)>,
    /// Where the thread that was borrowed last has its thread-local storage.
    fs_base: u64,
    /// The time-out that was told last in whole milliseconds.
    told: Told,
    tell: &'a mut dyn FnMut(Step),
}

impl<'a> Remote<'a> {
    /// Takes hold of a process; nothing is done to it yet. `malloc` is the file that its `malloc` is in.
    pub(crate) fn open(
        target: &'a Target,
        live: &'a LiveMemory,
        maps: Vec<Mapping>,
        malloc: &str,
        tell: &'a mut dyn FnMut(Step),
    ) -> Result<Self, Halt> {
        priority::sleep_exactly();
        priority::give_way();
        let code: Vec<&Mapping> = maps
            .iter()
            .filter(|m| m.has_file() && m.name == malloc && m.permissions.contains('x'))
            .collect();
        let gadgets = Gadgets::find(target.pid, &code)?;
        let code = code.iter().map(|m| m.start..m.end).collect();
        let restorers = gadgets::restorers(target.pid, &maps);
        let memory = OpenOptions::new().read(true).write(true).open(target.path("mem"));
        let memory = memory.map_err(|error| target.failed(error))?;
        let (heap, pauses) = (Vec::new(), Vec::new());
        Ok(Self {
            target,
            live,
            memory,
            maps,
            heap,
            code,
            gadgets,
            restorers,
            place: None,
            left: Vec::new(),
            is_busy: false,
            pauses,
            inside: Vec::new(),
            borrowed: None,
            fs_base: 0,
            told: Told::default(),
            tell,
        })
    }

    /// Keeps other releases away from the process. The kernel lets go of this when lowtide ends, however that
    /// happens; releases that see the process through another `/proc` are told apart by what they leave
    /// in it.
    ///
    /// # Errors
    /// When another release is at work there.
    pub(crate) fn lock(&self) -> Result<(), Halt> {
        use rustix::fs::{FlockOperation, flock};
        match flock(&self.memory, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Refusal::AnotherRelease.into()),
            // Where files of /proc have no locks, it goes without.
            _ => Ok(()),
        }
    }

    /// Tells where the heap is, so that no stack is mistaken that lies there.
    pub(crate) fn set_heap(&mut self, heap: Vec<Range<u64>>) {
        self.heap = heap;
    }

    /// The threads that can be borrowed.
    pub(crate) fn candidates(&self) -> Candidates {
        self.surroundings().candidates()
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            target: self.target,
            memory: self.live,
            maps: &self.maps,
            heap: &self.heap,
            code: &self.code,
            restorers: &self.restorers,
        }
    }

    /// Removes what earlier releases have left: gives the bytes that are gone, and those that stay because a
    /// thread may still come back to them.
    ///
    /// # Errors
    /// When another release is at work there.
    pub(crate) fn clean(&mut self) -> Result<(u64, u64), Halt> {
        let (mut cleaned, mut left) = (0, 0);
        for leftover in presence::leftovers(self.live, &self.maps) {
            let wait = || std::thread::sleep(BEAT_LIMIT);
            if leftover.is_active(self.target, self.live, wait) {
                return Err(Refusal::AnotherRelease.into());
            }
            let range = leftover.range;
            if self.surroundings().may_be_returned_to(&range) {
                left += range.end - range.start;
                self.left.push(range);
            } else {
                self.unmap(&range)?;
                cleaned += range.end - range.start;
            }
        }
        Ok((cleaned, left))
    }

    /// Maps our code and its block, and writes both.
    pub(crate) fn map(&mut self) -> Result<(), Halt> {
        let place = self.map_somewhere()?;
        // Two that begin at the same time see each other now, at the latest.
        self.maps = self.target.maps().map_err(|error| self.failed(error))?;
        let others = presence::leftovers(self.live, &self.maps);
        let is_other = |range: &Range<u64>| range.start != place && !self.left.contains(range);
        if others.iter().any(|other| is_other(&other.range)) {
            self.leave()?;
            return Err(Refusal::AnotherRelease.into());
        }
        self.write(place, CODE)?;
        self.put(OFF_BYTES, BLOCK_BYTES)?;
        for (n, word) in Owner::ourselves().words().into_iter().enumerate() {
            self.put(OFF_OWNER + n as u64 * 8, word)?;
        }
        let mut name = [0; 16];
        name[..NAME.len()].copy_from_slice(NAME.as_bytes());
        self.write_block(OFF_NAME, &name)
    }

    /// Maps both where nothing else is. The target maps memory too, and may be first in the place that was
    /// chosen: then another is.
    fn map_somewhere(&mut self) -> Result<u64, Halt> {
        const PLACES: usize = 5;
        let text = format!("{NAME}\0");
        for _ in 0..PLACES {
            self.maps = self.target.maps().map_err(|error| self.failed(error))?;
            let place = presence::place(&self.maps, salt()).ok_or_else(|| {
                ReleaseError::Failed("its address space has no room for a page of code".to_owned())
            })?;
            let all = mapping_calls(place);
            let are_ours = |remote: &Self| {
                remote.target.maps().is_ok_and(|maps| presence::are_both_at(&maps, place))
            };
            self.place = Some(place);
            if self.have_made(text.as_bytes(), &|text| all(text), &are_ours)? {
                return Ok(place);
            }
            if self.lost().is_some() || self.is_stopped() {
                break;
            }
            // Perhaps there was room for a part.
            self.leave()?;
            if !presence::is_taken(&self.maps, place) {
                break;
            }
        }
        Err(self
            .because("no memory could be mapped in it: its address space or its cgroup is full"))
    }

    /// Whether no thread can be in our code any more, or come back to it from a handler.
    fn are_all_outside(&self) -> bool {
        let Some(place) = self.place else { return true };
        let code = place..place + CODE_BYTES;
        let surroundings = self.surroundings();
        self.inside.iter().all(|(thread, ran)| {
            let now = thread.thread.ran();
            surroundings.is_elsewhere(thread.thread, &code)
                || now.zip(*ran).is_some_and(|(now, ran)| now > ran + SURELY_OUT)
        })
    }

    /// Removes all that is ours.
    pub(crate) fn leave(&mut self) -> Result<(), Halt> {
        let Some(place) = self.place else { return Ok(()) };
        if self.is_busy {
            return Err(failed(
                "our code in it is still at work: it ends by itself, and a later release \
                               removes what is left",
            ));
        }
        if let Some(error) = self.lost() {
            return Err(error.into());
        }
        // Our thread may have unmapped a part, and the target mapped something there since.
        self.maps = self.target.maps().map_err(|error| self.failed(error))?;
        let ours = presence::leftovers(self.live, &self.maps);
        let whole =
            ours.iter().find(|ours| ours.range.start == place).map(|ours| ours.range.clone());
        let code_alone = || {
            let at_place = self.maps.iter().find(|m| m.start == place && !m.has_file())?;
            (at_place.permissions == "r-xp").then_some(place..place + CODE_BYTES)
        };
        let Some(range) = whole.or_else(code_alone) else {
            // Nothing of ours is there, and perhaps nothing at all any more.
            self.place = None;
            return self.lost().map_or(Ok(()), |error| Err(error.into()));
        };
        if !self.until(ACT_LIMIT, Self::are_all_outside) {
            return Err(self.because(
                "a thread that was borrowed has not left our code yet: a later release removes it",
            ));
        }
        self.unmap(&range)?;
        self.place = None;
        Ok(())
    }

    fn unmap(&mut self, range: &Range<u64>) -> Result<(), Halt> {
        let range = range.clone();
        let call =
            Call { number: MUNMAP, args: [range.start, range.end - range.start, 0, 0, 0, 0] };
        let start = range.start;
        if self.have_made(&[], &|_| vec![call], &|remote| remote.word(start).is_none())? {
            Ok(())
        } else {
            Err(self
                .because("what was mapped in it could not be removed: a later release does that"))
        }
    }

    /// Has a thread make some calls until something holds. Whether it does: a handler that comes first
    /// breaks the calls off, and then they are made again.
    fn have_made(
        &mut self,
        text: &[u8],
        calls: &dyn Fn(u64) -> Vec<Call>,
        holds: &dyn Fn(&Self) -> bool,
    ) -> Result<bool, Halt> {
        /// So often it is looked whether it holds before the thread is back.
        const LOOK: Duration = Duration::from_millis(2);
        for _ in 0..TRIES {
            let thread = self.call(text, calls)?;
            let (is_made, looked) = (Cell::new(false), Cell::new(Instant::now()));
            let is_over = self.until(ACT_LIMIT, |remote| {
                // First whether it is over, and then what came of it.
                let is_back = remote.is_back(&thread);
                if is_back || looked.get().elapsed() >= LOOK {
                    is_made.set(holds(remote));
                    looked.set(Instant::now());
                }
                is_made.get() || is_back
            });
            if is_made.get() || !is_over {
                return Ok(is_made.get());
            }
        }
        Ok(false)
    }

    /// Whether a thread that was borrowed is itself again: then all that it was sent to do is over. What it
    /// does for us uses the stack below where it was; a handler that came before that may run on another.
    fn is_back(&self, candidate: &Candidate) -> bool {
        match candidate.thread.doing() {
            Ok(Doing::Running) => false,
            Ok(doing) => doing.stack_pointer().is_none_or(|now| {
                now >= candidate.call.stack_pointer && !self.surroundings().is_in_handler(now)
            }),
            Err(_) => true,
        }
    }

    /// Has a thread make some calls, without any code of ours.
    fn call(&mut self, text: &[u8], calls: &dyn Fn(u64) -> Vec<Call>) -> Result<Candidate, Halt> {
        let count = calls(0).len();
        let mut planned: Vec<(&'static str, seccomp::Call)> = calls(0)
            .iter()
            .map(|call| (name_of(call.number), seccomp_call(call, self.gadgets.syscall_ret)))
            .collect();
        planned.push(("rt_sigreturn", sigreturn_call(self.gadgets.restore)));
        planned.push(("rt_sigreturn", sigreturn_call(self.gadgets.syscall_ret)));
        self.borrow(&planned, Some(count), |remote, held| {
            let Some(mut back) = remote.back(held)? else { return Ok(None) };
            match held.left() {
                Some((Timeout::Milliseconds(place, _), left)) => {
                    set_argument(&mut back.registers, place, wait::in_ms(left));
                }
                Some((Timeout::Timespec(place, _), left)) => {
                    let timespec = [left.as_secs(), left.subsec_nanos().into()];
                    back.timespec = Some((place, timespec));
                }
                _ => {}
            }
            let chain =
                chain(&held.registers, held.resume.code, &remote.gadgets, &back, text, calls);
            remote.write(chain.at, &chain.bytes)?;
            Ok(Some(chain.registers))
        })
    }

    /// How a thread goes back; `None` where its extended state cannot be put into a frame.
    fn back(&self, held: &Held) -> Result<Option<Back>, Halt> {
        let state = held.tracee.extended_state().map_err(|error| self.failed(error))?;
        let Ok(vectors) = vectors::framed(&state) else { return Ok(None) };
        let (registers, broken_off, mask) = (held.back, held.broken_off, held.mask);
        Ok(Some(Back { registers, broken_off, mask, vectors, timespec: None }))
    }

    /// Has a thread run our code. Comes back when the thread is itself again; says how long our code ran.
    pub(crate) fn enter(&mut self, wanted: Wanted) -> Result<Duration, Halt> {
        let place = self.place.ok_or_else(|| failed("nothing was mapped yet"))?;
        let limit = if wanted == Wanted::Trim { TRIM_LIMIT } else { ACT_LIMIT };
        let begin = Instant::now();
        loop {
            let planned = code_calls(place);
            self.borrow(&planned, None, |remote, held| remote.prepare(place, held, wanted))?;
            if !self.until(limit, |remote| remote.half(OFF_BORROWED) == Some(STATE_BACK)) {
                self.is_busy = true;
                return Err(self.because(
                    "a thread that was borrowed did not come back in time: it will by itself",
                ));
            }
            // It says so two instructions early.
            self.until(BACK_LIMIT, Self::are_all_outside);
            let worked = self.get(OFF_WORKED_NS).unwrap_or(0);
            if worked > 0 {
                let worked = Duration::from_nanos(worked);
                if let Some(pause) = self.pauses.last_mut() {
                    *pause += worked;
                }
                return Ok(worked);
            }
            // A signal's handler came before us, and its call was broken off.
            if begin.elapsed() > SEARCH_LIMIT {
                return Err(failed("signals came again and again before anything could be done"));
            }
        }
    }

    /// Writes what a thread needs to run our code and to be itself again.
    fn prepare(
        &mut self,
        place: u64,
        held: &Held,
        wanted: Wanted,
    ) -> Result<Option<Registers>, Halt> {
        let Some(mut back) = self.back(held)? else { return Ok(None) };
        let block = place + CODE_BYTES;
        if let Some((Timeout::Timespec(argument, _), ..)) = held.left {
            set_argument(&mut back.registers, argument, block + OFF_TIMESPEC);
        }
        // The two ways back, without any calls before them.
        let code = held.resume.code;
        let ways = chain(&held.registers, code, &self.gadgets, &back, &[], |_| Vec::new());
        self.write(ways.at, &ways.bytes)?;
        let (left_how, left_at) = match held.left {
            Some((Timeout::Milliseconds(argument, _), ..)) => {
                (LEFT_IN_MS, frame::argument_at(ways.back_at, argument))
            }
            Some((Timeout::Timespec(..), ..)) => (LEFT_AS_TIMESPEC, block + OFF_TIMESPEC),
            Some((Timeout::Updated(_, at), ..)) => (LEFT_AS_TIMESPEC, at),
            _ => (LEFT_NOT_TOLD, 0),
        };
        let (number, slice, trims) = match wanted {
            Wanted::Clone { trims } => (WANTED_CLONE, Duration::ZERO, trims),
            Wanted::Slice(slice) => (WANTED_SLICE, slice, false),
            Wanted::Trim => (WANTED_TRIM, Duration::ZERO, false),
        };
        let words = [ways.back_at, ways.broken_at, held.mask, u64::MAX];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write_block(OFF_BACK_AT, &bytes)?;
        // Not back yet, and what is wanted.
        self.put(OFF_BORROWED, number << 32)?;
        if matches!(wanted, Wanted::Clone { .. }) {
            let tls = if trims { CLONE_SETTLS } else { 0 };
            self.put(OFF_CLONE_FLAGS, CLONE_FLAGS | tls)?;
            self.put(OFF_CLONED, 0)?;
            self.write_block(OFF_TID, &[1, 0, 0, 0, u8::from(trims), 0, 0, 0])?;
            if trims {
                self.copy_storage(place, held.registers.fs_base)?;
            }
        }
        self.put(OFF_RESTARTS, held.resume.restarts)?;
        self.put(OFF_SLICE_NS, nanoseconds(slice))?;
        self.put(OFF_WORKED_NS, 0)?;
        let left = held.left().map_or(0, |(_, left)| nanoseconds(left));
        let told: Vec<u8> = [held.waits_with.unwrap_or(0), left_how, left_at, left]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        self.write_block(OFF_WAITS_WITH, &told)?;
        let mut registers = held.registers;
        registers.rip = place + SYSCALL_BYTES;
        registers.orig_rax = RT_SIGPROCMASK;
        registers.rax = held.resume.code as u64;
        registers.rdi = 2; // SIG_SETMASK
        registers.rsi = block + OFF_ALL;
        registers.rdx = 0;
        registers.r10 = 8;
        registers.rsp = ways.at;
        Ok(Some(registers))
    }

    /// Gives the thread of our own a copy of a thread's thread-local storage, with the beginning of what
    /// glibc keeps of a thread: `malloc_trim` looks there whether it must take locks, and sets errno.
    fn copy_storage(&mut self, place: u64, fs_base: u64) -> Result<(), Halt> {
        const ABOVE: u64 = 2 << 10;
        let below = self.maps.iter().find(|m| m.contains(fs_base)).map_or(0, |m| fs_base - m.start);
        let below = below.min(STORAGE_AT - OFF_OPS - 4096);
        let mut bytes = vec![0; (below + ABOVE) as usize];
        self.memory
            .read_exact_at(&mut bytes, fs_base - below)
            .map_err(|error| self.target.failed(error))?;
        let own = place + CODE_BYTES + STORAGE_AT + fs_base % 64;
        // Where it begins, it points to itself (`tcb` and `self`).
        for at in [0, 16] {
            let at = (below + at) as usize;
            bytes[at..at + 8].copy_from_slice(&own.to_le_bytes());
        }
        self.write(own - below, &bytes)?;
        self.put(OFF_TLS, own)
    }

    /// Whether glibc up to 2.31 takes locks, by what it keeps of a thread (`header.multiple_threads`);
    /// `None` before a thread was borrowed.
    pub(crate) fn has_multiple_threads(&self) -> Option<bool> {
        const MULTIPLE_THREADS: u64 = 0x18;
        if self.fs_base == 0 {
            return None;
        }
        Some(self.word(self.fs_base + MULTIPLE_THREADS)? as u32 != 0)
    }

    /// Has our thread go before others, for what it does holds them up: it should not be interrupted.
    pub(crate) fn raise(&self) {
        let threads = task::threads(self.target.pid).unwrap_or_default();
        for thread in threads.iter().filter(|t| t.stat().is_ok_and(|stat| stat.name == NAME)) {
            priority::raise(thread.tid);
        }
    }

    /// A way to tell our thread that somebody is still there, from another thread of ours.
    pub(crate) fn pulse(&self) -> io::Result<(File, u64)> {
        let place = self.place.unwrap_or(0);
        Ok((self.memory.try_clone()?, place + CODE_BYTES + OFF_BEAT))
    }

    /// Stops a thread at a safe point, has it prepared, and lets it go with the registers that it is given.
    /// One that makes so many calls is escorted where a handler may run in it.
    fn borrow(
        &mut self,
        calls: &[(&'static str, seccomp::Call)],
        escorted: Option<usize>,
        mut prepare: impl FnMut(&mut Self, &Held) -> Result<Option<Registers>, Halt>,
    ) -> Result<Candidate, Halt> {
        let begin = Instant::now();
        loop {
            let candidates = self.candidates();
            for candidate in &candidates.found {
                let urgent = Urgent::begin();
                let Some(held) = self.hold(candidate)? else { continue };
                let permitted =
                    seccomp::permits(candidate.thread.tid as i32, candidate.seccomp, calls);
                let prepared = match permitted {
                    Ok(()) => prepare(self, &held),
                    Err(refusal) => Err(refusal.into()),
                };
                let Some(registers) = prepared? else { continue };
                (self.tell)(Step::Set);
                let set = held.tracee.set_registers(&registers);
                (self.tell)(Step::LetGo);
                let since = held.since;
                let fs_base = held.registers.fs_base;
                let gone = match escorted {
                    Some(calls) if set.is_ok() && candidate.may_handle => {
                        held.see_through(calls, self.tell)
                    }
                    _ => held.tracee.let_go(0),
                };
                self.pauses.push(since.elapsed());
                drop(urgent);
                if escorted.is_none() {
                    self.inside.retain(|(other, _)| other.thread != candidate.thread);
                    self.inside.push((candidate.clone(), candidate.thread.ran()));
                }
                set.and(gone).map_err(|error| self.failed(error))?;
                let thread = (candidate.thread.tid, candidate.wait.name);
                self.borrowed.get_or_insert(thread);
                self.fs_base = fs_base;
                (self.tell)(Step::Await);
                return Ok(candidate.clone());
            }
            if let Some(error) = self.lost() {
                return Err(error.into());
            }
            if begin.elapsed() > STOPPED_LIMIT && self.is_stopped() {
                return Err(Refusal::Stopped { pid: self.target.pid }.into());
            }
            if begin.elapsed() > SEARCH_LIMIT {
                let (threads, why) = (candidates.threads, candidates.why());
                return Err(Refusal::NoThread { threads, why }.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops a thread, unless it has gone on meanwhile.
    fn hold(&mut self, candidate: &Candidate) -> Result<Option<Held>, Halt> {
        // A call that it is not known in could be broken off for nothing: looked at a last time, it has only
        // a few microseconds left to go on.
        if candidate.thread.doing().ok() != Some(Doing::In(candidate.call)) {
            return Ok(None);
        }
        let tid = candidate.thread.tid;
        (self.tell)(Step::Seize);
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
        (self.tell)(Step::Interrupt);
        let since = Instant::now();
        if tracee.interrupt().is_err() {
            return Ok(None);
        }
        (self.tell)(Step::Wait);
        match tracee.wait(STOP_LIMIT).map_err(|error| self.failed(error))? {
            Stop::Asked => {}
            Stop::Signal(signal) => {
                if let Some(registers) = tracee.registers().ok().and_then(|r| unless_done(&r)) {
                    let _ = tracee.set_registers(&registers);
                }
                let _ = tracee.let_go(signal);
                return Ok(None);
            }
            Stop::Group => {
                let _ = tracee.let_go(0);
                return Err(Refusal::Stopped { pid: self.target.pid }.into());
            }
            Stop::Ended | Stop::Call => return Ok(None),
            Stop::Never => {
                return Err(failed(
                    "a thread could not be stopped: it is frozen, or the kernel holds it",
                ));
            }
        }
        (self.tell)(Step::Read);
        let looked = |error| self.failed(error);
        let registers = tracee.registers().map_err(looked)?;
        if let Some(registers) = unless_done(&registers) {
            tracee.put_back(registers);
        }
        let mask = tracee.signal_mask().map_err(looked)?;
        let is_same_wait = candidate.waited.is_none_or(|w| w.is_same_wait(candidate.thread));
        if !is_same(&registers, candidate) || !self.is_ours(&registers, candidate) || !is_same_wait
        {
            return Ok(None);
        }
        let result = registers.rax as i64;
        let resume = Resume::of(&candidate.wait, result);
        let (mut back, mut broken_off) = (registers, registers);
        broken_off.rax = resume.broken_off(result) as u64;
        let mut left = None;
        if resume.again {
            back.rip -= SYSCALL_BYTES;
            back.rax = registers.orig_rax;
            let waited = candidate.waited.map(|waited| waited.by_now()).unwrap_or_default();
            let timeout = candidate.wait.timeout;
            let given = match timeout {
                Timeout::Kept => None,
                Timeout::Milliseconds(_, ms) => Some(Duration::from_millis(ms)),
                Timeout::Timespec(..) => candidate.timespec.and_then(wait::duration),
                // The kernel has just left there what remains, and so may we.
                Timeout::Updated(_, at) => {
                    let words = self.word(at).zip(self.word(at.wrapping_add(8)));
                    words.and_then(|(seconds, rest)| wait::duration([seconds, rest]))
                }
            };
            left = given.map(|given| (timeout, given.saturating_sub(waited), Instant::now()));
            if let (Timeout::Milliseconds(_, ms), Some((_, left, since))) = (timeout, &mut left) {
                // Told in whole ms again and again, it would grow by some of one each time.
                *left = self.told.rest(candidate, ms, *left, *since);
            }
            if let (true, Some((Timeout::Milliseconds(place, _), left, _))) =
                (candidate.wait.gives_up, left)
            {
                let mut again = Registers { rax: wait::ERESTARTNOHAND as u64, ..registers };
                set_argument(&mut again, place, wait::in_ms(left));
                tracee.put_back(again);
            }
        }
        back.orig_rax = u64::MAX;
        broken_off.orig_rax = u64::MAX;
        let waits_with = candidate.waits_with;
        Ok(Some(Held {
            tracee,
            thread: candidate.thread,
            registers,
            resume,
            back,
            broken_off,
            left,
            mask,
            waits_with,
            since,
        }))
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
    fn not_traced(&self, candidate: &Candidate) -> Halt {
        match candidate.thread.status() {
            Ok(status) if status.tracer != 0 => {
                let comm = std::fs::read_to_string(format!("/proc/{}/comm", status.tracer));
                if comm.is_ok_and(|comm| comm.trim_end() == NAME) {
                    return Refusal::AnotherRelease.into();
                }
                Refusal::Traced { tracer: status.tracer }.into()
            }
            _ => match crate::checks::permission(self.target) {
                Err(error) => error.into(),
                Ok(()) => Refusal::AnotherRelease.into(),
            },
        }
    }

    /// Waits until something holds, for so long at most; less long in a process that is stopped.
    pub(crate) fn until(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        const STEP: Duration = Duration::from_micros(20);
        const LONG_STEP: Duration = Duration::from_micros(200);
        /// So often it is asked whether the process is stopped.
        const LOOK: Duration = Duration::from_millis(20);
        let begin = Instant::now();
        let (mut looked, mut stopped) = (Duration::ZERO, None);
        loop {
            if holds(self) {
                return true;
            }
            let waited = begin.elapsed();
            if waited >= limit || !self.live.is_in_use() {
                return false;
            }
            if waited >= looked + LOOK {
                looked = waited;
                stopped = if self.is_stopped() { stopped.or(Some(waited)) } else { None };
                if stopped.is_some_and(|since| waited - since > STOPPED_LIMIT) {
                    return false;
                }
            }
            std::thread::sleep(if waited < LONG_STEP * 10 { STEP } else { LONG_STEP });
        }
    }

    fn is_stopped(&self) -> bool {
        self.target.stat().is_ok_and(|stat| stat.state == 'T')
    }

    /// Why something did not come to pass: because the target is no more, or stopped; else as it is said.
    pub(crate) fn because(&self, else_why: &str) -> Halt {
        match self.lost() {
            Some(error) => error.into(),
            None if self.is_stopped() => {
                failed("it was stopped meanwhile: what is left in it a later release removes")
            }
            None => failed(else_why),
        }
    }

    /// What has become of a target whose memory is nobody's any more.
    fn lost(&self) -> Option<TargetError> {
        if self.live.is_in_use() {
            return None;
        }
        // A process gives its memory away a little before it has ended; one that has started another
        // program has other memory.
        let begin = Instant::now();
        // (Its end is not told as long as one of its threads is held here.)
        while self.target.stat().is_ok() && begin.elapsed() < ACT_LIMIT {
            if self.target.maps().is_ok_and(|maps| !maps.is_empty()) {
                return Some(TargetError::Replaced(self.target.pid));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Some(TargetError::Gone(self.target.pid))
    }

    /// What an error in acting on it means.
    fn failed(&self, error: io::Error) -> Halt {
        self.lost().unwrap_or_else(|| self.target.failed(error)).into()
    }

    /// Writes to the target, from the end backwards, a page at a time: where pages are missing, nothing
    /// below them is written.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Halt> {
        (self.tell)(Step::Write);
        let mut end = at + bytes.len() as u64;
        while end > at {
            let begin = at.max((end - 1) & !4095);
            let part = &bytes[(begin - at) as usize..(end - at) as usize];
            self.memory.write_all_at(part, begin).map_err(|error| self.failed(error))?;
            end = begin;
        }
        Ok(())
    }

    pub(crate) fn write_block(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Halt> {
        let place = self.place.ok_or_else(|| failed("nothing was mapped yet"))?;
        self.write(place + CODE_BYTES + offset, bytes)
    }

    pub(crate) fn put(&mut self, offset: u64, word: u64) -> Result<(), Halt> {
        self.write_block(offset, &word.to_le_bytes())
    }

    pub(crate) fn put_half(&mut self, offset: u64, half: u64) -> Result<(), Halt> {
        self.write_block(offset, &(half as u32).to_le_bytes())
    }

    pub(crate) fn get(&self, offset: u64) -> Option<u64> {
        self.word(self.place? + CODE_BYTES + offset)
    }

    pub(crate) fn half(&self, offset: u64) -> Option<u64> {
        let at = self.place? + CODE_BYTES + offset;
        let mut bytes = [0; 4];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        Some(u32::from_le_bytes(bytes).into())
    }

    pub(crate) fn read_block(&self, offset: u64, bytes: &mut [u8]) -> Option<()> {
        let place = self.place?;
        self.memory.read_exact_at(bytes, place + CODE_BYTES + offset).ok()
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

impl Drop for Remote<'_> {
    fn drop(&mut self) {
        use rustix::fs::{FlockOperation, flock};
        // Not only by closing the file: a child that is just being started may have it too.
        let _ = flock(&self.memory, FlockOperation::Unlock);
    }
}

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The registers with which a thread is let go as it is, where the kernel's own would break its wait off.
fn unless_done(registers: &Registers) -> Option<Registers> {
    let r = registers;
    let args = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
    let code = wait::unless_done(r.orig_rax, &args, r.rax as i64)?;
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

/// Saturating: hundreds of years are as good as more.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Something that makes two releases choose different places.
fn salt() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = now.map_or(0, |d| u64::from(d.subsec_nanos()));
    nanoseconds.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(std::process::id()) << 12)
}

pub(crate) fn failed(what: &str) -> Halt {
    Halt::Failed(ReleaseError::Failed(what.to_owned()))
}
