//! The processes that are supervised.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use lowtide_probe::tree::newest_process;

/// Lists processes. `None` if they cannot be listed at the moment.
type List = Box<dyn FnMut() -> Option<BTreeSet<u32>>>;

/// The processes that are supervised. They are listed again when the machine has a new process, and from time to time.
pub struct Scope {
    list: List,
    ends_when_empty: bool,
    listed: Option<(Instant, Option<u64>)>,
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("ends_when_empty", &self.ends_when_empty)
            .finish_non_exhaustive()
    }
}

/// Minimum time between two lists.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time between two lists: a process may change its name, its cgroup or its size.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

impl Scope {
    /// Creates the scope of some processes. Supervision ends when all of them have ended.
    pub fn of_processes(list: impl FnMut() -> Option<BTreeSet<u32>> + 'static) -> Self {
        Self { list: Box::new(list), ends_when_empty: true, listed: None }
    }

    /// Creates the scope of whatever is listed, now or later. Supervision does not end by itself.
    pub fn of_selection(list: impl FnMut() -> Option<BTreeSet<u32>> + 'static) -> Self {
        Self { list: Box::new(list), ends_when_empty: false, listed: None }
    }

    /// Lists the processes, if that is due.
    pub(crate) fn refresh(&mut self, now: Instant) -> Option<BTreeSet<u32>> {
        let newest = newest_process();
        let is_due = match self.listed {
            None => true,
            Some((then, before)) => {
                let since = now.saturating_duration_since(then);
                let has_changed = newest.is_none() || newest != before;
                since >= MAX_INTERVAL || (has_changed && since >= MIN_INTERVAL)
            }
        };
        if !is_due {
            return None;
        }
        self.listed = Some((now, newest));
        (self.list)()
    }

    /// Returns whether supervision ends, with this many processes left.
    pub(crate) fn is_over(&self, left: usize) -> bool {
        self.ends_when_empty && self.listed.is_some() && left == 0
    }
}
