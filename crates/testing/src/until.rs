//! Waiting for conditions.

use std::time::{Duration, Instant};

/// Maximum time to wait: a busy machine is slow, and no test asserts how long something takes.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Time between two looks at a condition.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until a condition has a value, and returns it.
///
/// # Panics
/// Panics if it has none for ten minutes.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(INTERVAL);
    }
}

/// Waits until a condition holds.
///
/// # Panics
/// Panics if it does not for ten minutes.
pub fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}
