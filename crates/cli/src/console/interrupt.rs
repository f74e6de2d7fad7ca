//! Signals that end lowtide: a verb then stops what it has started, and keeps its record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use lowtide_probe::proc::status::Status;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn shared() -> Arc<AtomicBool> {
    Arc::clone(FLAG.get_or_init(Arc::default))
}

/// Returns whether a signal has asked lowtide to end, in a verb that handles signals.
pub(crate) fn is_set() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Asks lowtide to end, as a signal does.
pub(crate) fn set() {
    shared().store(true, Ordering::Relaxed);
}

/// Returns the flag that every signal sets, for a verb that restores something before it ends.
pub(crate) fn patient_flag() -> Arc<AtomicBool> {
    let flag = shared();
    for signal in handled_signals() {
        let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag
}

/// Returns the flag that the first signal sets. The second one ends lowtide at once; even then its
/// keepers stop the processes that it started.
pub(crate) fn flag() -> Arc<AtomicBool> {
    let (flag, second) = (patient_flag(), Arc::new(AtomicBool::new(false)));
    for signal in handled_signals() {
        // Handlers run in the order of their registration: the first signal finds `second` unset.
        // No signal is lost between two registrations, since the flag is registered first.
        let _ = signal_hook::flag::register_conditional_shutdown(
            signal,
            128 + signal,
            Arc::clone(&second),
        );
        let _ = signal_hook::flag::register(signal, Arc::clone(&second));
    }
    flag
}

/// Returns the signals that end lowtide. A signal that was ignored at the start stays ignored, as
/// `nohup` and `&` in a script intend.
fn handled_signals() -> Vec<i32> {
    // Bit 0 is signal 1.
    let ignored = Status::own().map_or(0, |status| status.signals.ignored);
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT].into_iter().filter(|n| ignored & 1 << (n - 1) == 0).collect()
}
