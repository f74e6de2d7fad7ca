//! The clock that aligns the records of several processes of one machine.

use crate::v1::ClockReading;
use rustix::time::{ClockId, clock_gettime};

/// Returns the current reading of the clock; `None` if the kernel does not provide the boot ID.
pub fn clock() -> Option<ClockReading> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    let now = clock_gettime(ClockId::Monotonic);
    // Microseconds are enough.
    let monotonic_s = now.tv_sec as f64 + (now.tv_nsec / 1000) as f64 / 1e6;
    Some(ClockReading { boot, monotonic_s }).filter(|clock| !clock.boot.is_empty())
}
