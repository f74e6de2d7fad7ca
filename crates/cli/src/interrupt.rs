//! Ctrl-C, and being told to end: the study ends what it has started, and keeps its record.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A flag that is set by every signal, for those who have something to give back before they end.
pub(crate) fn patient_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in heeded() {
        let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag
}

/// A flag that is set by the first signal. The second one ends lowtide at once; even then its
/// keepers end what they keep.
pub(crate) fn flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in heeded() {
        // Registered in this order, so that the first signal does not find the flag set.
        let _ = signal_hook::flag::register_conditional_shutdown(
            signal,
            128 + signal,
            Arc::clone(&flag),
        );
        let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag
}

/// The signals that end us. What was ignored when we began stays so: by that `nohup`, and `&` in a script,
/// say that it is not for us.
fn heeded() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|n| ignored & 1 << (n - 1) == 0).collect()
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
