//! Signals that end lowtide: a verb then ends what it has started, and keeps its record.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn shared() -> Arc<AtomicBool> {
    Arc::clone(FLAG.get_or_init(Arc::default))
}

/// Whether a signal has asked lowtide to end, in a verb that listens for one.
pub(crate) fn is_set() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// The flag that every signal sets, for a verb that has something to restore before it ends.
pub(crate) fn patient_flag() -> Arc<AtomicBool> {
    let flag = shared();
    for signal in heeded() {
        let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag
}

/// The flag that the first signal sets. The second one ends lowtide at once; even then its
/// keepers end what they keep.
pub(crate) fn flag() -> Arc<AtomicBool> {
    let (flag, second) = (patient_flag(), Arc::new(AtomicBool::new(false)));
    for signal in heeded() {
        // Handlers run in the order of their registration: the first signal finds `second` unset. No signal
        // is lost between two registrations, since the flag is registered first.
        let _ = signal_hook::flag::register_conditional_shutdown(
            signal,
            128 + signal,
            Arc::clone(&second),
        );
        let _ = signal_hook::flag::register(signal, Arc::clone(&second));
    }
    flag
}

/// The signals that end us. What was ignored when we began stays so: by that `nohup`, and `&` in a script,
/// say that it is not for us.
fn heeded() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT].into_iter().filter(|n| ignored & 1 << (n - 1) == 0).collect()
}

/// The ignored signals of a process by its `status` (proc_pid_status(5)): bit 0 stands for signal 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_which_signals_are_ignored() {
        let status =
            "SigBlk:\t0000000000004000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!(ignored(status), 1 << (SIGHUP - 1) | 1 << 12);
        assert_eq!(ignored(""), 0);
    }
}
