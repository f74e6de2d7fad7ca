//! Tries system calls under the filters of the calling thread, in scratch processes that are killed
//! afterwards.
//!
//! A scratch process is a traced fork of this one, under the filters of the calling thread. Two
//! trials show whether the filters allow a call. Neither interprets the result of the call: an
//! errno of the kernel, for an address that only the target has, could not be distinguished from
//! the errno of a filter.
//!
//! 1. With a further filter that asks the tracer about every call (`SECCOMP_RET_TRACE`). The
//!    strictest action of all filters applies. Killing the process, SIGSYS, an errno and asking a
//!    supervisor are stricter than it. So if the process stops for its tracer, each inherited
//!    filter allows the call, logs it, or asks a tracer itself. The call is then skipped: one
//!    process tries all calls.
//! 2. Without that filter. If the process stops for its tracer again, an inherited filter asks for
//!    one, and the call would fail in a target without a tracer. Otherwise the kernel makes the
//!    call. It may damage the scratch process, so each call has its own.

#![expect(
    unsafe_code,
    reason = "clone(2), waitpid(2) and signals, which std does not have in this form"
)]

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use super::seccomp::Call;
use super::tracee::{PtraceStop, Tracee};
use super::{ACTION_TIMEOUT, STOP_TIMEOUT};
use crate::Refusal;
use crate::arch::{self, FrameCall, SYSCALL, SYSCALL_BYTES};

/// Maximum time to wait for a call: then it is interrupted. Few calls of a release can block.
const CALL_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum life of a scratch process that is not traced yet, in seconds.
const MAX_LIFE_SECONDS: i64 = 10;

/// Checks whether the filters of the calling thread allow calls.
///
/// # Errors
/// Returns the first call that they do not allow. Fails if the trial itself fails.
pub(super) fn check(calls: &[(&'static str, Call)]) -> Result<(), Refusal> {
    let refused = |call| Err(Refusal::Seccomp { call });
    let mut skipping = ScratchProcess::start(calls)?;
    skipping.ask_tracer_always()?;
    for (name, call) in calls {
        if !skipping.stops_for_tracer(call).map_err(failed)? {
            return refused(*name);
        }
        skipping.skip().map_err(failed)?;
    }
    drop(skipping);
    for named in calls {
        let mut process = ScratchProcess::start(&[*named])?;
        if process.stops_for_tracer(&named.1).map_err(failed)? {
            return refused(named.0);
        }
    }
    Ok(())
}

fn failed(error: io::Error) -> Refusal {
    // There are as many tasks as the limits permit, or no memory.
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory) {
        return Refusal::SeccompUntried { why: error.to_string() };
    }
    Refusal::SeccompUnread { why: format!("the calls of a release could not be tried: {error}") }
}

/// A scratch process, stopped between two calls. It never runs code but single `syscall`
/// instructions. Dropping this ends it.
struct ScratchProcess {
    pid: i32,
    tracee: Tracee,
    memory: File,
    /// The end of the `syscall` instruction by which it makes calls for its own preparation.
    own_instruction_pointer: u64,
    /// A thread or process that a call has started.
    started: Option<i32>,
}

impl ScratchProcess {
    /// Starts one that can make calls with these instruction pointers.
    ///
    /// # Errors
    /// Fails if it cannot be started or traced, or if the filters do not allow the calls that
    /// prepare it: a release needs the same ones.
    fn start(calls: &[(&'static str, Call)]) -> Result<Self, Refusal> {
        let mut process = Self::trace(fork_sleeper().map_err(failed)?).map_err(failed)?;
        process.replace_own_call().map_err(failed)?;
        let page_bytes = rustix::param::page_size() as u64;
        let pages: BTreeSet<u64> = calls
            .iter()
            .flat_map(|(_, call)| {
                [SYSCALL_BYTES, 1].map(|n| call.instruction_pointer.wrapping_sub(n))
            })
            .map(|at| at - at % page_bytes)
            .collect();
        let rights = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let how = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
        for page in pages {
            let args = [page, page_bytes, rights, how, u64::MAX, 0];
            process.prepare("mmap", libc::SYS_mmap, args)?;
        }
        Ok(process)
    }

    /// Traces and stops a fork. The kernel kills it if the calling thread ends.
    fn trace(pid: i32) -> io::Result<Self> {
        let options = libc::PTRACE_O_EXITKILL
            | libc::PTRACE_O_TRACESECCOMP
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK;
        let path = format!("/proc/{pid}/mem");
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let traced = opened.and_then(|memory| Ok((memory, Tracee::seize_with(pid, options)?)));
        let (memory, tracee) = traced.inspect_err(|_| {
            kill(pid);
            reap(pid);
        })?;
        let mut process = Self { pid, tracee, memory, own_instruction_pointer: 0, started: None };
        process.tracee.interrupt()?;
        match process.tracee.wait(STOP_TIMEOUT)? {
            PtraceStop::Requested => Ok(process),
            stop => Err(unexpected(stop)),
        }
    }

    /// Makes it undumpable, by a call in place of the next one of its own: its end must leave no
    /// core file.
    fn replace_own_call(&mut self) -> io::Result<()> {
        self.expect_call()?;
        let mut registers = self.tracee.registers()?;
        self.own_instruction_pointer = registers.instruction();
        for (place, arg) in [libc::PR_SET_DUMPABLE as u64, 0, 0, 0, 0].into_iter().enumerate() {
            registers.set_argument(place, arg);
        }
        self.tracee.replace_call(&registers, Some(libc::SYS_prctl as u64))?;
        self.expect_call()
    }

    /// Installs the filter that asks the tracer about every call.
    fn ask_tracer_always(&mut self) -> Result<(), Refusal> {
        /// Bytes of the stack that are left out below the stack pointer.
        const RED_ZONE: u64 = 256;
        let stack = self.tracee.registers().map_err(failed)?.stack();
        let at = stack.wrapping_sub(RED_ZONE) & !15;
        // A `struct sock_fprog`, followed by one `struct sock_filter`.
        let code = u64::from(libc::BPF_RET | libc::BPF_K);
        let words = [1, at + 16, code | u64::from(libc::SECCOMP_RET_TRACE) << 32];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write_all_at(&bytes, at).map_err(failed)?;
        let no_privileges = [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0, 0];
        self.prepare("prctl", libc::SYS_prctl, no_privileges)?;
        let mode = libc::SECCOMP_MODE_FILTER.into();
        let install = [libc::PR_SET_SECCOMP as u64, mode, at, 0, 0, 0];
        self.prepare("prctl", libc::SYS_prctl, install)
    }

    /// Makes a call that prepares it.
    ///
    /// # Errors
    /// Fails if the call does.
    fn prepare(
        &mut self,
        name: &'static str,
        number: libc::c_long,
        args: [u64; 6],
    ) -> Result<(), Refusal> {
        let instruction_pointer = self.own_instruction_pointer;
        let call = Call { number: number as u32, instruction_pointer, args };
        self.enter(&call).map_err(failed)?;
        let is_made = match self.step().map_err(failed)? {
            PtraceStop::Call => self.tracee.registers().map_err(failed)?.returned() >= 0,
            _ => false,
        };
        if is_made { Ok(()) } else { Err(Refusal::Seccomp { call: name }) }
    }

    /// Lets it make a call, up to the decision of the filters. Returns whether it stops for its
    /// tracer then: a filter asks for that, and none is stricter.
    fn stops_for_tracer(&mut self, call: &Call) -> io::Result<bool> {
        self.enter(call)?;
        self.tracee.next_call()?;
        let mut stop = self.tracee.wait(CALL_TIMEOUT)?;
        if stop == PtraceStop::TimedOut {
            // It blocks, or waits for a supervisor or for a processor.
            self.tracee.interrupt()?;
            stop = self.tracee.wait(STOP_TIMEOUT)?;
        }
        match stop {
            PtraceStop::Event(libc::PTRACE_EVENT_SECCOMP) => Ok(true),
            PtraceStop::Event(_) => {
                let tid = self.tracee.event_message()?;
                self.started = i32::try_from(tid).ok().filter(|tid| *tid > 0);
                Ok(false)
            }
            PtraceStop::TimedOut => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(false),
        }
    }

    /// Skips the call before which it has stopped for its tracer.
    fn skip(&mut self) -> io::Result<()> {
        self.tracee.replace_call(&self.tracee.registers()?, None)?;
        self.expect_call()
    }

    /// Continues it to the entry of a call. The `syscall` instruction is written for it.
    fn enter(&mut self, call: &Call) -> io::Result<()> {
        let at = call.instruction_pointer.wrapping_sub(SYSCALL_BYTES);
        self.memory.write_all_at(&SYSCALL, at)?;
        let made = FrameCall { number: call.number.into(), args: call.args };
        self.tracee.set_registers(&self.tracee.registers()?.making(&made, at))?;
        self.expect_call()
    }

    /// Continues it to the entry or exit of a call.
    fn expect_call(&mut self) -> io::Result<()> {
        match self.step()? {
            PtraceStop::Call => Ok(()),
            stop => Err(unexpected(stop)),
        }
    }

    /// Continues it to its next stop, except one that was requested earlier.
    fn step(&mut self) -> io::Result<PtraceStop> {
        loop {
            self.tracee.next_call()?;
            match self.tracee.wait(STOP_TIMEOUT)? {
                PtraceStop::Requested => {}
                stop => return Ok(stop),
            }
        }
    }
}

impl Drop for ScratchProcess {
    fn drop(&mut self) {
        kill(self.pid);
        // The kernel reports the end of the process only after its threads are reaped.
        if let Some(started) = self.started {
            kill(started);
            reap(started);
        }
        reap(self.pid);
        self.tracee.forget();
    }
}

fn unexpected(stop: PtraceStop) -> io::Error {
    io::Error::other(format!("a scratch process stopped unexpectedly: {stop:?}"))
}

/// Forks. The child waits to be traced, with all signals blocked, and ends with the calling thread.
/// Only a wait for its PID, or with `__WALL`, finds it: its end sends no signal.
fn fork_sleeper() -> io::Result<i32> {
    // SAFETY: `sigset_t` consists of integers, for which all zeros are valid.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are to two `sigset_t` of this function, which outlive the calls.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let parent = std::process::id();
    let (own_tid, none) = (AtomicI32::new(0), 0_usize);
    let (flags, own_tid_at) = (libc::CLONE_CHILD_SETTID as usize, own_tid.as_ptr());
    // SAFETY: with this flag alone, the child has a copy of all memory and no stack is needed: it
    // returns from this call as after fork(2). The kernel writes its TID to `own_tid` of the child.
    // It then calls `sleep_to_be_traced` only.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, own_tid_at, none) };
    // A filter can also make the call return 0 without a child.
    if pid == 0 && own_tid.load(Ordering::Relaxed) != 0 {
        sleep_to_be_traced(parent);
    }
    let error = io::Error::last_os_error();
    // SAFETY: the first pointer is to the `sigset_t` that was filled in above; the second may be
    // null.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
    i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(error)
}

/// Runs in the child: only makes system calls, which touch no lock and no heap. Ends when its
/// parent ends.
fn sleep_to_be_traced(parent: u32) -> ! {
    let life = libc::timespec { tv_sec: MAX_LIFE_SECONDS, tv_nsec: 0 };
    let (death_signal, kill, none) =
        (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0_usize);
    // SAFETY: prctl(PR_SET_PDEATHSIG), getppid and exit_group take numbers only. nanosleep reads
    // `life`, which outlives the call, and its second pointer may be null. libc::syscall writes
    // nothing but errno, a copy of the caller's.
    unsafe {
        libc::syscall(libc::SYS_prctl, death_signal, kill, none, none, none);
        if libc::syscall(libc::SYS_getppid) == libc::c_long::from(parent) {
            libc::syscall(libc::SYS_nanosleep, &raw const life, none);
        }
        libc::syscall(libc::SYS_exit_group, none);
    }
    // A filter has made exit_group return.
    arch::trap()
}

/// Kills a scratch process, or a process that it has started.
fn kill(pid: i32) {
    // SAFETY: it takes numbers only. The PID is that of a child or a tracee that was not reaped, so
    // it is not reused.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Waits for the end of a child or a tracee that was killed. Gives up if it does not end: the
/// kernel kills what is traced when the calling thread ends.
fn reap(pid: i32) {
    const POLL_INTERVAL: Duration = Duration::from_micros(20);
    let (begin, mut status) = (Instant::now(), 0);
    while begin.elapsed() < ACTION_TIMEOUT {
        // SAFETY: the kernel writes an int to `status`, which is one and outlives the call.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 => std::thread::sleep(POLL_INTERVAL),
            found if found == pid && libc::WIFSTOPPED(status) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use lowtide_heap::memory::MIN_PAGE_BYTES;

    use super::*;

    const IP: u64 = 0x7e12_3456_7002;

    fn call(number: libc::c_long, args: [u64; 6]) -> (&'static str, Call) {
        ("it", Call { number: number as u32, instruction_pointer: IP, args })
    }

    /// Checks calls one by one, in a thread of its own that may be filtered first.
    fn check_each(
        calls: &[(&'static str, Call)],
        filter: Option<&[libc::sock_filter]>,
    ) -> Vec<bool> {
        let each = || {
            let allowed = calls.iter().map(|named| match check(&[*named]) {
                Ok(()) => true,
                Err(Refusal::Seccomp { call: "it" }) => false,
                Err(other) => panic!("{named:x?}: {other}"),
            });
            let allowed = allowed.collect();
            let children = std::fs::read_to_string("/proc/thread-self/children").unwrap();
            assert_eq!(children, "", "a scratch process is left");
            allowed
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                if let Some(code) = filter {
                    install(code);
                }
                each()
            });
            thread.join().unwrap()
        })
    }

    fn install(code: &[libc::sock_filter]) {
        let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() };
        // SAFETY: the first call takes numbers only. The second reads a `struct sock_fprog` and the
        // instructions that it points to, both of which outlive the call; the kernel does not write
        // to them.
        let done = unsafe {
            [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            ]
        };
        assert_eq!(done, [0, 0], "{}", io::Error::last_os_error());
    }

    #[test]
    fn without_filters_even_destructive_calls_are_allowed() {
        static LONG: libc::timespec = libc::timespec { tv_sec: 1000, tv_nsec: 0 };
        let own_code = check as *const () as u64 & !(MIN_PAGE_BYTES - 1);
        let thread = super::super::calls::CLONE_FLAGS;
        let calls = [
            call(libc::SYS_nanosleep, [&raw const LONG as u64, 0, 0, 0, 0, 0]),
            call(libc::SYS_munmap, [own_code, 64 << 10, 0, 0, 0, 0]),
            call(libc::SYS_munmap, [IP & !(MIN_PAGE_BYTES - 1), MIN_PAGE_BYTES, 0, 0, 0, 0]),
            call(libc::SYS_mmap, [u64::MAX; 6]),
            call(libc::SYS_rt_sigreturn, [0; 6]),
            call(libc::SYS_exit, [0; 6]),
            call(libc::SYS_exit_group, [0; 6]),
            call(libc::SYS_clone, [thread, 0x1000, 0x1000, 0x1000, 0, 0]),
            call(libc::SYS_clone, [0; 6]),
            call(libc::SYS_fork, [0; 6]),
            call(libc::SYS_vfork, [0; 6]),
            call(libc::SYS_kill, [0, 0, 0, 0, 0, 0]),
            call(0x0fff_ffff, [0; 6]),
        ];
        assert_eq!(check_each(&calls, None), [true; 13]);
        assert_eq!(check(&calls), Ok(()));
    }

    #[test]
    fn a_filter_sees_the_instruction_pointer_and_every_argument() {
        let statement =
            |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
        let ret = |action| statement(libc::BPF_RET | libc::BPF_K, action);
        let equals = |k, jf| libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf,
            k,
        };
        let asked = (libc::SYS_getpgrp, [1 << 32, 2 << 32, 3, 4 << 32 | 4, 5, u64::MAX]);
        let mut code = vec![load(0), equals(asked.0 as u32, 30)];
        let words = [IP, 1 << 32, 2 << 32, 3, 4 << 32 | 4, 5, u64::MAX];
        for (place, word) in words.into_iter().enumerate() {
            let offset = 8 + 8 * place as u32;
            for (offset, half) in [(offset, word as u32), (offset + 4, (word >> 32) as u32)] {
                // Jumps to the last instruction but one, which denies.
                let next = code.len() as u8 + 2;
                code.extend([load(offset), equals(half, 31 - next)]);
            }
        }
        code.push(statement(libc::BPF_JMP | libc::BPF_JA, 1));
        code.push(ret(libc::SECCOMP_RET_ERRNO));
        code.push(ret(libc::SECCOMP_RET_ALLOW));
        let exact = call(asked.0, asked.1);
        let mut calls = vec![exact];
        for place in 0..6 {
            let mut other = exact;
            other.1.args[place] ^= 1 << 40;
            calls.push(other);
        }
        for other in
            [IP + 1, IP ^ 1 << 36, IP & !(MIN_PAGE_BYTES - 1), (IP & !(MIN_PAGE_BYTES - 1)) + 1]
        {
            let mut moved = exact;
            moved.1.instruction_pointer = other;
            calls.push(moved);
        }
        let allowed = check_each(&calls, Some(&code));
        assert!(allowed[0]);
        assert_eq!(allowed[1..], [false; 10]);
    }
}
