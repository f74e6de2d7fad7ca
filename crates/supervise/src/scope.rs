//! The processes that are supervised.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::tree::newest_process;

/// Lists processes. `None` if they cannot be listed at the moment.
type ListProcesses = Box<dyn FnMut() -> Option<BTreeSet<u32>>>;

/// The processes that are supervised. They are listed again when the machine has a new process, and
/// at regular intervals.
pub struct Scope {
    list: ListProcesses,
    ends_when_empty: bool,
    listed: Option<Listed>,
}

/// The last list of processes.
struct Listed {
    at: Instant,
    /// The newest process of the machine at the time of the list.
    newest: Option<u64>,
    /// Minimum time until the next list is made.
    interval: Duration,
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("ends_when_empty", &self.ends_when_empty)
            .finish_non_exhaustive()
    }
}

/// Minimum time between two lists of processes.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time between two lists: a process may change its name, its cgroup or its size.
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum share of the time that lists may take, as its inverse. On a large machine that
/// constantly starts processes, a list of all of them takes tens of milliseconds.
const LIST_SHARE: f64 = 200.0;

impl Scope {
    /// Creates the scope of some processes. Supervision ends when all of them have ended.
    pub fn of_processes(list: impl FnMut() -> Option<BTreeSet<u32>> + 'static) -> Self {
        Self { list: Box::new(list), ends_when_empty: true, listed: None }
    }

    /// Creates the scope of all processes that are listed, now or later. Supervision does not end
    /// by itself.
    pub fn of_selection(list: impl FnMut() -> Option<BTreeSet<u32>> + 'static) -> Self {
        Self { list: Box::new(list), ends_when_empty: false, listed: None }
    }

    /// Lists the processes if a list is due.
    pub(crate) fn refresh(&mut self, now: Instant) -> Option<BTreeSet<u32>> {
        let newest = newest_process();
        let is_due = match &self.listed {
            None => true,
            Some(Listed { at, newest: before, interval }) => {
                let since = now.saturating_duration_since(*at);
                let has_changed = newest.is_none() || newest != *before;
                since >= MAX_INTERVAL || (has_changed && since >= *interval)
            }
        };
        if !is_due {
            return None;
        }
        let begin_s = thread_cpu_s();
        let list = (self.list)();
        let interval = interval_after(thread_cpu_s() - begin_s);
        self.listed = Some(Listed { at: now, newest, interval });
        list
    }

    /// Returns whether supervision ends, when this many processes are left.
    pub(crate) fn is_over(&self, left: usize) -> bool {
        self.ends_when_empty && self.listed.is_some() && left == 0
    }
}

/// Returns the minimum time until the next list, after a list that took this CPU time in seconds.
fn interval_after(cpu_s: f64) -> Duration {
    let wait = Duration::try_from_secs_f64(cpu_s * LIST_SHARE).unwrap_or(MIN_INTERVAL);
    wait.clamp(MIN_INTERVAL, MAX_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_grows_with_the_time_that_a_list_takes() {
        let after = |ms: f64| interval_after(ms / 1e3).as_secs_f64();
        assert_eq!([0.0, 1.0, 10.0, 500.0].map(after), [0.5, 0.5, 2.0, 10.0]);
    }
}
