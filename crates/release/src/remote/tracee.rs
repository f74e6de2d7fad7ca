//! One thread of another process, held by ptrace.

#![expect(unsafe_code, reason = "ptrace(2) and waitpid(2) of a single thread")]

use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// The general registers of a thread, as the kernel has them (`struct user_regs_struct`).
pub(crate) type Registers = libc::user_regs_struct;

/// `NT_X86_XSTATE` of linux/elf.h.
const NT_X86_XSTATE: usize = 0x202;
/// The largest extended state: AVX-512 and AMX are 11 KiB.
const MOST_STATE: usize = 16 << 10;
/// Bytes of the kernel's `sigset_t`.
const SIGSET_BYTES: usize = 8;

/// So long a thread that is ending is waited for.
const END_LIMIT: Duration = Duration::from_millis(300);

/// A thread that this one traces. It is let go when it is dropped while it stands still; one that could
/// not be stopped is let go by the kernel when this thread ends. One that is ending is waited for: as long
/// as its end was not taken notice of, its process can neither end nor start another program.
#[derive(Debug)]
pub(crate) struct Tracee {
    tid: i32,
    is_stopped: bool,
    is_traced: bool,
    /// What its registers are set to when it is let go without anything having been done.
    unless_done: Option<Registers>,
    /// The kernel takes requests only from the thread that traces: it must not be sent to another one.
    _tracer: PhantomData<*const ()>,
}

/// Why a thread stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Because it was asked to.
    Asked,
    /// At the beginning or at the end of a system call ([`Tracee::next_call`]).
    Call,
    /// A signal is about to be delivered to it.
    Signal(i32),
    /// Its whole process was stopped (`SIGSTOP` and its like).
    Group,
    /// It has ended.
    Ended,
    /// It did not stop in time.
    Never,
}

impl Tracee {
    /// Begins to trace a thread, which goes on meanwhile.
    ///
    /// # Errors
    /// When that is not permitted (`EPERM`: no right to, or traced by another), or it has ended.
    pub(crate) fn seize(tid: u32) -> io::Result<Self> {
        let tid = i32::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        // Stops at system calls are distinguished from others.
        let options = libc::PTRACE_O_TRACESYSGOOD as usize;
        // SAFETY: PTRACE_SEIZE takes two numbers as large as pointers, and no pointers: it reads and writes
        // no memory of ours.
        let done = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0_usize, options) };
        checked(done)?;
        Ok(Self {
            tid,
            is_stopped: false,
            is_traced: true,
            unless_done: None,
            _tracer: PhantomData,
        })
    }

    /// Asks it to stop.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        // SAFETY: PTRACE_INTERRUPT reads and writes no memory of ours.
        checked(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, self.tid, 0_usize, 0_usize) })?;
        Ok(())
    }

    /// Waits until it stands still, for so long at most.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub(crate) fn wait(&mut self, limit: Duration) -> io::Result<Stop> {
        /// It mostly comes in a few microseconds. To spin would keep the thread from running that is to
        /// stop, where it is on the same processor.
        const STEP: Duration = Duration::from_micros(10);
        const LONG_STEP: Duration = Duration::from_micros(100);
        let begin = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: the kernel writes an int to `status`, which is one and outlives the call.
            let found =
                unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if found == self.tid {
                return Ok(self.stopped(status));
            }
            if found < 0 {
                return match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::ECHILD) => {
                        self.is_traced = false;
                        Ok(Stop::Ended)
                    }
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => Err(error),
                };
            }
            match begin.elapsed() {
                waited if waited >= limit => return Ok(Stop::Never),
                waited if waited < LONG_STEP * 10 => std::thread::sleep(STEP),
                _ => std::thread::sleep(LONG_STEP),
            }
        }
    }

    fn stopped(&mut self, status: i32) -> Stop {
        if !libc::WIFSTOPPED(status) {
            self.is_traced = false;
            return Stop::Ended;
        }
        self.is_stopped = true;
        let signal = libc::WSTOPSIG(status);
        match (status >> 16, signal) {
            (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Stop::Asked,
            (libc::PTRACE_EVENT_STOP, _) => Stop::Group,
            _ if signal == libc::SIGTRAP | 0x80 => Stop::Call,
            _ => Stop::Signal(signal),
        }
    }

    /// Lets it go on to where its next system call begins or ends.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn next_call(&mut self) -> io::Result<()> {
        // SAFETY: PTRACE_SYSCALL reads and writes no memory of ours.
        checked(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, self.tid, 0_usize, 0_usize) })?;
        self.is_stopped = false;
        // What it was to be put back to is in what it does now.
        self.unless_done = None;
        Ok(())
    }

    /// Its general registers.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn registers(&self) -> io::Result<Registers> {
        // SAFETY: `user_regs_struct` consists of integers, for which all zeros are valid.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        // SAFETY: PTRACE_GETREGS writes a `struct user_regs_struct` to its last argument, which points to one
        // that outlives the call.
        checked(unsafe {
            libc::ptrace(libc::PTRACE_GETREGS, self.tid, 0_usize, &raw mut registers)
        })?;
        Ok(registers)
    }

    /// Sets its general registers.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        // SAFETY: PTRACE_SETREGS reads a `struct user_regs_struct` from its last argument, which points to
        // one that outlives the call. It changes the other process and no memory of ours.
        checked(unsafe {
            libc::ptrace(libc::PTRACE_SETREGS, self.tid, 0_usize, std::ptr::from_ref(registers))
        })?;
        Ok(())
    }

    /// Its vector registers and all else of its extended state, as XSAVE lays it out.
    ///
    /// # Errors
    /// When it has ended, or the processor has no such state.
    pub(crate) fn extended_state(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0_u8; MOST_STATE];
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: PTRACE_GETREGSET writes at most `iov_len` bytes to `iov_base`, which points to as many,
        // and their number to `iov_len`; both outlive the call.
        checked(unsafe {
            libc::ptrace(libc::PTRACE_GETREGSET, self.tid, NT_X86_XSTATE, &raw mut vector)
        })?;
        bytes.truncate(vector.iov_len);
        Ok(bytes)
    }

    /// The signals that it blocks; those that it had blocked before a call that waits with others.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        // SAFETY: PTRACE_GETSIGMASK writes as many bytes as its third argument says, 8, to the last, which
        // points to a `u64` that outlives the call. (Requests have another type with musl than with glibc.)
        checked(unsafe {
            libc::ptrace(libc::PTRACE_GETSIGMASK as _, self.tid, SIGSET_BYTES, &raw mut mask)
        })?;
        Ok(mask)
    }

    /// Has its registers set to these when it is let go without anything having been done.
    pub(crate) fn put_back(&mut self, registers: Registers) {
        self.unless_done = Some(registers);
    }

    /// Lets it go on, with a signal that was about to be delivered, if any (0 is none).
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn let_go(mut self, signal: i32) -> io::Result<()> {
        self.detach(signal)?;
        self.is_traced = false;
        Ok(())
    }

    fn detach(&self, signal: i32) -> io::Result<()> {
        // SAFETY: PTRACE_DETACH reads and writes no memory of ours.
        checked(unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, 0_usize, signal as usize) })?;
        Ok(())
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.is_traced
            && self.is_stopped
            && let Some(registers) = &self.unless_done
        {
            let _ = self.set_registers(registers);
        }
        if !self.is_traced || self.is_stopped && self.detach(0).is_ok() {
            return;
        }
        // It is ending; or it never stopped, and may be ending.
        while let Ok(stop) = self.wait(END_LIMIT) {
            match stop {
                Stop::Ended | Stop::Never => return,
                _ if self.detach(0).is_ok() => return,
                _ => {}
            }
        }
    }
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
