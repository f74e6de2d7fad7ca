//! Waiting for a process, and reading from a process that may block the reader.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowtide_probe::patience::Patience;
use lowtide_probe::target::Target;

/// Time between two checks for a signal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until a point in time, until the target ends, or until a signal.
pub(crate) fn wait_until(deadline: Instant, target: &Target, interrupt: &AtomicBool) {
    while !interrupt.load(Ordering::Relaxed) {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() || target.ends_within(rest.min(POLL_INTERVAL)) {
            return;
        }
    }
}

/// Reads from a process; `None` if it blocks the read for too long.
pub(crate) fn in_time<T: Send + 'static>(
    patience: Patience,
    target: &Target,
    read: impl FnOnce(Target) -> T + Send + 'static,
) -> Option<T> {
    let of_thread = target.try_clone().ok()?;
    patience.work_on(target, &AtomicBool::new(false), move || read(of_thread)).ok()
}
