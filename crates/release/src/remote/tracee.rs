//! One thread of another process, traced by ptrace(2).

#![expect(unsafe_code, reason = "ptrace(2) and waitpid(2) of a single thread")]

use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::arch::{self, Registers};

/// Bytes of the kernel's `sigset_t`.
const SIGSET_BYTES: usize = 8;

/// Maximum time to wait for a thread that is ending.
const EXIT_TIMEOUT: Duration = Duration::from_millis(300);

/// A thread that the calling thread traces.
///
/// Dropping it detaches a stopped thread. A thread that could not be stopped is detached by the
/// kernel when the tracing thread ends. A thread that is ending is waited for: until its exit is
/// reaped, its process can neither end nor start another program.
#[derive(Debug)]
pub(crate) struct Tracee {
    tid: i32,
    is_stopped: bool,
    is_traced: bool,
    /// The registers to set if it is dropped without having been used.
    restore_on_drop: Option<Registers>,
    /// The kernel accepts requests only from the tracing thread, so this must not be sent to
    /// another one.
    _tracer: PhantomData<*const ()>,
}

/// The result of waiting for a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PtraceStop {
    /// It stopped on request ([`Tracee::interrupt`]).
    Requested,
    /// It stopped at the entry or exit of a system call ([`Tracee::next_call`]).
    Call,
    /// It stopped because a signal is about to be delivered to it.
    Signal(i32),
    /// It stopped at a requested event ([`Tracee::seize_with`]): a `PTRACE_EVENT_…`.
    Event(i32),
    /// Its whole process was stopped (`SIGSTOP` and the like).
    Group,
    /// It has ended.
    Ended,
    /// It did not stop in time.
    TimedOut,
}

impl Tracee {
    /// Starts to trace a thread, without stopping it.
    ///
    /// # Errors
    /// Fails if this is not permitted (`EPERM`: missing rights, or another tracer), or if the
    /// thread has ended.
    pub(crate) fn seize(tid: u32) -> io::Result<Self> {
        let tid = i32::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        Self::seize_with(tid, 0)
    }

    /// Starts to trace a thread like [`Tracee::seize`], with further options (`PTRACE_O_…`).
    ///
    /// # Errors
    /// Fails like [`Tracee::seize`].
    pub(crate) fn seize_with(tid: i32, options: i32) -> io::Result<Self> {
        // Makes stops at system calls distinguishable from others.
        let options = (libc::PTRACE_O_TRACESYSGOOD | options) as usize;
        // SAFETY: PTRACE_SEIZE takes two numbers as large as pointers, and no pointers: it reads
        // and writes no memory of ours.
        let done = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0_usize, options) };
        checked(done)?;
        Ok(Self {
            tid,
            is_stopped: false,
            is_traced: true,
            restore_on_drop: None,
            _tracer: PhantomData,
        })
    }

    /// Requests a stop.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        // SAFETY: PTRACE_INTERRUPT reads and writes no memory of ours.
        checked(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, self.tid, 0_usize, 0_usize) })?;
        Ok(())
    }

    /// Waits for a stop, up to `timeout`.
    ///
    /// # Errors
    /// Fails if waitpid(2) fails.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<PtraceStop> {
        /// Most stops take a few microseconds. Spinning would keep the thread from running, and so
        /// from stopping, if it is on the same processor.
        const POLL_INTERVAL: Duration = Duration::from_micros(10);
        const SLOW_POLL_INTERVAL: Duration = Duration::from_micros(100);
        let begin = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: the kernel writes an int to `status`, which is one and outlives the call.
            let found =
                unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if found == self.tid {
                return Ok(self.note_status(status));
            }
            if found < 0 {
                return match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::ECHILD) => {
                        self.is_traced = false;
                        Ok(PtraceStop::Ended)
                    }
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => Err(error),
                };
            }
            match begin.elapsed() {
                waited if waited >= timeout => return Ok(PtraceStop::TimedOut),
                waited if waited < SLOW_POLL_INTERVAL * 10 => std::thread::sleep(POLL_INTERVAL),
                _ => std::thread::sleep(SLOW_POLL_INTERVAL),
            }
        }
    }

    /// Records a status that waitpid(2) has returned.
    fn note_status(&mut self, status: i32) -> PtraceStop {
        if !libc::WIFSTOPPED(status) {
            self.is_traced = false;
            return PtraceStop::Ended;
        }
        self.is_stopped = true;
        let signal = libc::WSTOPSIG(status);
        match (status >> 16, signal) {
            (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => PtraceStop::Requested,
            (libc::PTRACE_EVENT_STOP, _) => PtraceStop::Group,
            (0, _) if signal == libc::SIGTRAP | 0x80 => PtraceStop::Call,
            (0, _) => PtraceStop::Signal(signal),
            (event, _) => PtraceStop::Event(event),
        }
    }

    /// Continues it to the entry or exit of its next system call.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn next_call(&mut self) -> io::Result<()> {
        // SAFETY: PTRACE_SYSCALL reads and writes no memory of ours.
        checked(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, self.tid, 0_usize, 0_usize) })?;
        self.is_stopped = false;
        // The frames that it now returns to restore its registers.
        self.restore_on_drop = None;
        Ok(())
    }

    /// Reads its general registers.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn registers(&self) -> io::Result<Registers> {
        arch::read_registers(self.tid)
    }

    /// Sets its general registers.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        arch::write_registers(self.tid, registers)
    }

    /// Reads the message of the event at which it stopped: the TID of a thread or process that it
    /// has started.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn event_message(&self) -> io::Result<libc::c_ulong> {
        let mut message: libc::c_ulong = 0;
        // SAFETY: PTRACE_GETEVENTMSG writes an unsigned long to its last argument, which points to
        // one that outlives the call.
        checked(unsafe {
            libc::ptrace(libc::PTRACE_GETEVENTMSG, self.tid, 0_usize, &raw mut message)
        })?;
        Ok(message)
    }

    /// Sets the registers of a thread that has stopped at the entry of a call, and the number of
    /// the call that it makes; `None`: it makes none.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn replace_call(
        &self,
        registers: &Registers,
        number: Option<u64>,
    ) -> io::Result<()> {
        arch::replace_call(self.tid, registers, number)
    }

    /// Reads its vector registers, in the layout of a frame; `None` if they cannot be put into one.
    ///
    /// # Errors
    /// Fails if the thread has ended, or if the processor has no such state.
    pub(crate) fn vectors(&self) -> io::Result<Option<Vec<u8>>> {
        arch::vectors(self.tid)
    }

    /// Reads its signal mask. During a call with a mask of its own, this is the mask from before
    /// the call.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        // SAFETY: PTRACE_GETSIGMASK writes the number of bytes in its third argument, 8, to the
        // last, which points to a `u64` that outlives the call. (Requests have another type with
        // musl than with glibc.)
        checked(unsafe {
            libc::ptrace(libc::PTRACE_GETSIGMASK as _, self.tid, SIGSET_BYTES, &raw mut mask)
        })?;
        Ok(mask)
    }

    /// Blocks all signals. The thread no longer restores the mask from before its call.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn block_signals(&self) -> io::Result<()> {
        let mask = u64::MAX;
        // SAFETY: PTRACE_SETSIGMASK reads the number of bytes in its third argument, 8, from the
        // last, which points to a `u64` that outlives the call.
        checked(unsafe {
            libc::ptrace(libc::PTRACE_SETSIGMASK as _, self.tid, SIGSET_BYTES, &raw const mask)
        })?;
        Ok(())
    }

    /// Writes a word to its memory, whatever the rights of the mapping.
    ///
    /// # Errors
    /// Fails if the thread has ended, or if nothing is mapped there.
    pub(crate) fn poke(&self, at: u64, word: u64) -> io::Result<()> {
        // SAFETY: PTRACE_POKEDATA takes an address in the other process and a word as numbers; it
        // reads and writes no memory of ours.
        checked(unsafe { libc::ptrace(libc::PTRACE_POKEDATA, self.tid, at, word) })?;
        Ok(())
    }

    /// Returns whether its system calls are dispatched to a signal handler (Syscall User Dispatch);
    /// `None` if the kernel does not say (before 6.4).
    pub(crate) fn has_user_dispatch(&self) -> Option<bool> {
        /// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG` of include/uapi/linux/ptrace.h.
        const REQUEST: libc::c_uint = 0x4211;
        // `struct ptrace_sud_config`: mode, selector, offset, length.
        let mut config = [0_u64; 4];
        // SAFETY: the request writes as many bytes as its third argument says to the last, which
        // points to as many that outlive the call.
        let done = checked(unsafe {
            libc::ptrace(REQUEST as _, self.tid, size_of_val(&config), config.as_mut_ptr())
        });
        done.ok().map(|_| config[0] != 0)
    }

    /// Sets the registers that a drop restores: those with which the thread continues if it is not
    /// used.
    pub(crate) fn restore_on_drop(&mut self, registers: Registers) {
        self.restore_on_drop = Some(registers);
    }

    /// Leaves the thread to the kernel: dropping this has no effect.
    pub(crate) fn forget(&mut self) {
        self.is_traced = false;
    }

    /// Detaches it, so that it continues. Delivers `signal`, if it is not 0.
    ///
    /// # Errors
    /// Fails if the thread has ended.
    pub(crate) fn detach(mut self, signal: i32) -> io::Result<()> {
        self.request_detach(signal)?;
        self.is_traced = false;
        Ok(())
    }

    fn request_detach(&self, signal: i32) -> io::Result<()> {
        // SAFETY: PTRACE_DETACH reads and writes no memory of ours.
        checked(unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, 0_usize, signal as usize) })?;
        Ok(())
    }

    /// Sets the registers that a drop restores. Where the kernel does not decide about a restart, a
    /// signal that comes before the thread makes its call again ends the wait.
    fn restore(&mut self, registers: &Registers) -> io::Result<()> {
        let stopped = self.registers()?;
        self.set_registers(registers)?;
        if !arch::BLOCKS_SIGNALS {
            return Ok(());
        }
        self.next_call()?;
        if let PtraceStop::Signal(signal) = self.wait(EXIT_TIMEOUT)? {
            self.set_registers(&stopped)?;
            self.request_detach(signal)?;
            self.is_traced = false;
        }
        Ok(())
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.is_traced
            && self.is_stopped
            && let Some(registers) = self.restore_on_drop
        {
            let _ = self.restore(&registers);
        }
        if !self.is_traced || self.is_stopped && self.request_detach(0).is_ok() {
            return;
        }
        // It is ending; or it never stopped, and may be ending.
        while let Ok(stop) = self.wait(EXIT_TIMEOUT) {
            match stop {
                PtraceStop::Ended | PtraceStop::TimedOut => return,
                _ if self.request_detach(0).is_ok() => return,
                _ => {}
            }
        }
    }
}

/// Returns the result of a call of ptrace(2), or its error.
///
/// # Errors
/// Fails if the call did.
pub(crate) fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
