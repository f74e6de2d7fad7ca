//! Signal masks, dispositions, and the wait for signals.

#![expect(unsafe_code, reason = "functions of libc on signals, which rustix does not have")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libc::c_int;

use super::received::{Received, Sender};

/// Signals that report a fault of the running thread. The kernel does not let a thread block its
/// own.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
/// Signals by which a shell stops the process. They do not stop PID 1, which forwards them.
const JOB_CONTROL: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Whether SIGPIPE was ignored when this process was started. Rust's runtime ignores it before
/// `main`.
static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// The C library calls this before `main`, and before Rust's runtime starts.
// SAFETY: the section holds pointers to functions that take no arguments, or ignore them, and
// return nothing.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn at_start() {
        SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    }
    at_start
};

/// The signals that the reaper has blocked and waits for.
#[derive(Clone, Copy)]
pub(super) struct Blocked(libc::sigset_t);

/// The signal mask and dispositions that this process was started with.
pub(super) struct InheritedSignals {
    mask: libc::sigset_t,
    sigchld_was_ignored: bool,
    blocked: Blocked,
}

impl InheritedSignals {
    /// Blocks the signals of a reaper, and makes the kernel report children.
    pub(super) fn take(is_init: bool) -> Self {
        let sigchld_was_ignored = is_ignored(libc::SIGCHLD);
        set_ignored(libc::SIGCHLD, false);
        let left_out = FAULTS.iter().chain(JOB_CONTROL.iter().filter(|_| !is_init));
        let blocked = set(libc::sigfillset, left_out, libc::sigdelset);
        let mask = change_mask(libc::SIG_BLOCK, &blocked);
        Self { mask, sigchld_was_ignored, blocked: Blocked(blocked) }
    }

    /// Returns the signals that were blocked.
    pub(super) fn blocked(&self) -> Blocked {
        self.blocked
    }

    /// Gives the calling process the inherited mask and dispositions. Is async-signal-safe.
    pub(super) fn restore(&self) {
        for signal in 1..=libc::SIGRTMAX() {
            let was_ignored = match signal {
                libc::SIGPIPE => SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed),
                libc::SIGCHLD => self.sigchld_was_ignored,
                // A handler is not inherited: it must not run in the child before it executes the
                // service.
                _ => is_ignored(signal),
            };
            set_ignored(signal, was_ignored);
        }
        change_mask(libc::SIG_SETMASK, &self.mask);
    }
}

impl Blocked {
    /// Waits for one of the signals, without a limit if there is no timeout. Returns `None` at the
    /// timeout, and also when the process was stopped and continued.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Option<Received> {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set is initialized, `timeout` is null or points to a value that outlives the
        // call, and the kernel writes `info`.
        let number = unsafe { libc::sigtimedwait(&raw const self.0, info.as_mut_ptr(), timeout) };
        if number <= 0 {
            return None;
        }
        // SAFETY: it was zeroed, which is a valid value, and the kernel has written it. The sender
        // and the value are read only for codes for which the kernel sets them.
        unsafe {
            let info = info.assume_init();
            let sender = match info.si_code {
                libc::SI_KERNEL => Sender::Kernel,
                libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE => Sender::Process(info.si_pid()),
                _ => Sender::Other,
            };
            let value = (info.si_code == libc::SI_QUEUE).then(|| info.si_value());
            Some(Received { number, sender, value })
        }
    }
}

impl Received {
    /// Sends the signal to a child that has not been reaped yet, with its value if it has one.
    pub(super) fn forward(&self, child: libc::pid_t) {
        // SAFETY: they take only numbers. The value is an opaque number here.
        unsafe {
            match self.value {
                Some(value) => libc::sigqueue(child, self.number, value),
                None => libc::kill(child, self.number),
            };
        }
    }
}

/// Prepares the policy process: SIGTERM ends it, no signal is blocked, and a terminal does not stop
/// its messages.
pub(super) fn prepare_policy() {
    set_ignored(libc::SIGTERM, false);
    set_ignored(libc::SIGTTOU, true);
    change_mask(libc::SIG_SETMASK, &set_of(&[]));
}

/// Calls a function that writes to a terminal. Writing does not stop the process, even in the
/// background.
pub(super) fn without_terminal_stop(write: impl FnOnce()) {
    let before = change_mask(libc::SIG_BLOCK, &set_of(&[libc::SIGTTOU]));
    write();
    change_mask(libc::SIG_SETMASK, &before);
}

/// Ends the calling process by a signal. Returns if that signal does not end a process.
pub(super) fn end_by(signal: c_int) {
    set_ignored(signal, false);
    change_mask(libc::SIG_UNBLOCK, &set_of(&[signal]));
    // SAFETY: they take and return only numbers.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Returns the set of some signals.
fn set_of(signals: &[c_int]) -> libc::sigset_t {
    set(libc::sigemptyset, signals.iter(), libc::sigaddset)
}

type Begin = unsafe extern "C" fn(*mut libc::sigset_t) -> c_int;
type ChangeMask = unsafe extern "C" fn(*mut libc::sigset_t, c_int) -> c_int;

/// Returns a set that one function of libc initializes, and that another one changes for each of
/// some signals.
fn set<'a>(
    begin: Begin,
    signals: impl Iterator<Item = &'a c_int>,
    change: ChangeMask,
) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: zeros are a valid set, and the functions write to one; for a number that is not a
    // signal they fail.
    unsafe {
        begin(set.as_mut_ptr());
        for signal in signals {
            change(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Changes the signal mask. `how` is a constant of sigprocmask(2). Returns the previous mask.
fn change_mask(how: c_int, signals: &libc::sigset_t) -> libc::sigset_t {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: it reads a valid set and writes to another one, which is valid as zeros, too.
    unsafe {
        libc::sigprocmask(how, ptr::from_ref(signals), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Returns whether a signal is ignored. Is async-signal-safe.
fn is_ignored(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sigaction writes `action`, or fails and leaves it zeroed, which is a valid value.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Makes the process ignore a signal, or restores its default action. Is async-signal-safe.
fn set_ignored(signal: c_int, is_ignored: bool) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a zeroed action has no flags and an empty mask; the dispositions run no code of ours.
    // It fails for SIGKILL, SIGSTOP and the signals of the C library, and then changes nothing.
    unsafe {
        let handler = if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        action.assume_init_mut().sa_sigaction = handler;
        libc::sigaction(signal, action.as_ptr(), ptr::null_mut());
    }
}
