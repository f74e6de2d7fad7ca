//! Reads the bytes that a process has freed, as the preload library counts them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use lowtide_preload::{FREED_BYTES, Freed, find_counter};
use lowtide_probe::target::Target;

/// Time between the first two attempts to find the library, in seconds. It doubles with each
/// attempt: a program without the library never loads it later.
const RETRY_S: f64 = 1.0;
/// Maximum number of times that it doubles.
const MAX_DOUBLINGS: u32 = 8;

/// The counter of one process.
#[derive(Debug, Default)]
pub(crate) struct FreedCounter {
    /// The memory of the process and the address of the counter, if it was found.
    found: Option<(File, u64)>,
    /// The time of the next attempt, in seconds.
    due_s: f64,
    /// Number of attempts that did not find it.
    misses: u32,
}

impl FreedCounter {
    /// Reads the counter; `None` if the process does not count.
    pub(crate) fn read(&mut self, target: &Target, t_s: f64) -> Option<Freed> {
        if self.found.is_none() {
            if t_s < self.due_s {
                return None;
            }
            self.due_s = t_s + RETRY_S * f64::from(1 << self.misses.min(MAX_DOUBLINGS));
            self.misses += 1;
            self.found = find(target);
        }
        let (memory, address) = self.found.as_ref()?;
        let mut bytes = [0; FREED_BYTES];
        let read = memory.read_exact_at(&mut bytes, *address);
        let freed = read.ok().and_then(|()| Freed::parse(&bytes));
        let freed = freed.filter(|freed| freed.inactive.is_none());
        if freed.is_none() {
            // It has executed another program, or has not started to count.
            self.found = None;
        }
        freed
    }
}

fn find(target: &Target) -> Option<(File, u64)> {
    let address = find_counter(&target.maps().ok()?)?;
    Some((File::open(target.path("mem")).ok()?, address))
}
