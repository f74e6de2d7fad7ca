//! The keeper's thread.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::KeeperReport;
use super::shared::{Decision, QUIET, Shared, lock};
use crate::{SweepReport, allocated_bytes, memory, release};

/// Maximum time to wait for a load to finish falling, from the first event.
const MAX_FALL: Duration = Duration::from_secs(1);
/// Minimum decrease of the requests in flight within [`QUIET`] while the load is still falling.
const FALLING_REQUESTS: usize = 100;
/// Delays of the later checks. The first two return the memory that the last requests have freed.
/// The others return the memory that clients have freed by closing idle connections.
const CHECK_AGAIN: [Duration; 4] = [
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
];
/// Time after which a release is retried although the last one has returned too little.
const RETRY: Duration = Duration::from_secs(60);
/// If half of the memory that a release has returned is resident again within this time, the next
/// release waits longer.
const MIN_AWAY: Duration = Duration::from_secs(5);
/// Maximum time between two releases, unless `min_interval` is longer.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<()> {
    let worker = Arc::clone(&shared);
    let thread = thread::Builder::new().name("lowtide-keeper".to_owned()).spawn(move || {
        let _ending = RefuseOnDrop(&worker);
        Work::new(&worker).run();
    })?;
    // This is the only call that sets it.
    let _ = shared.thread.set(thread.thread().clone());
    Ok(())
}

/// Refuses requests for a release when the thread ends, also by a panic of a function of the
/// program.
struct RefuseOnDrop<'s>(&'s Shared);

impl Drop for RefuseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.refuse_releases();
    }
}

/// The work of the thread.
struct Work<'s> {
    shared: &'s Shared,
    /// Number of events that were handled.
    handled: u64,
    /// Present while the load falls.
    fall: Option<Fall>,
    /// Times of further checks.
    again: Vec<Instant>,
    /// Time of the next decision about connections that have drained.
    decide: Option<Instant>,
    /// Free memory at the start, or after the best release since, in bytes.
    base_bytes: u64,
    /// Time between two releases.
    interval: Duration,
    /// The last release.
    last: Option<Last>,
}

/// A fall of the load.
struct Fall {
    /// The first event since the last check.
    since: Instant,
    /// Time of the next check.
    due: Instant,
    /// The number of requests in flight at the last event.
    in_flight: usize,
}

/// A release.
struct Last {
    at: Instant,
    /// Whether another release soon cannot return much: it has returned less than `release_above`,
    /// and reached all workers.
    was_exhaustive: bool,
    /// Free memory after it, in bytes.
    left_bytes: u64,
    /// Anonymous memory at which half of the returned memory is resident again, in bytes;
    /// `u64::MAX` if the release has returned less than `release_above`.
    back_bytes: u64,
    /// Whether the memory came back within [`MIN_AWAY`].
    came_back: bool,
}

impl<'s> Work<'s> {
    fn new(shared: &'s Shared) -> Self {
        let mut work = Self {
            shared,
            handled: 0,
            fall: None,
            again: Vec::new(),
            decide: None,
            base_bytes: 0,
            interval: shared.settings.min_interval,
            last: None,
        };
        work.base_bytes = free_bytes(memory::anonymous_bytes().unwrap_or(0));
        work
    }

    fn run(&mut self) {
        while !self.shared.is_stopped() {
            let now = Instant::now();
            let events = self.shared.events();
            if events != self.handled {
                self.handled = events;
                self.answer();
                self.recycle(now);
                let since = self.fall.as_ref().map_or(now, |fall| fall.since);
                self.wait_for_quiet(since, now);
            } else if self.decide.is_some_and(|time| time <= now) {
                self.recycle(now);
            }
            if let Some(fall) = self.fall.take_if(|fall| fall.due <= now) {
                let still_falls =
                    self.shared.finite_requests() + FALLING_REQUESTS <= fall.in_flight;
                if still_falls && now < fall.since + MAX_FALL {
                    self.wait_for_quiet(fall.since, now);
                } else {
                    self.again = CHECK_AGAIN.map(|time| now + time).to_vec();
                    self.check(now);
                }
            } else if self.again.iter().any(|due| *due <= now) {
                self.again.retain(|due| *due > now);
                self.check(now);
            }
            self.wait();
        }
    }

    /// Waits for an event, or until something is due.
    fn wait(&self) {
        self.shared.set_resting(self.fall.is_none());
        let is_due = self.shared.events() != self.handled && self.fall.is_none();
        if is_due || self.shared.is_stopped() {
            return;
        }
        let due = self.fall.as_ref().map(|fall| fall.due);
        match self.again.iter().copied().chain(due).chain(self.decide).min() {
            // An event in between unparks the thread at once.
            Some(next) => thread::park_timeout(next.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }

    fn wait_for_quiet(&mut self, since: Instant, now: Instant) {
        let due = (now + QUIET).min(since + MAX_FALL);
        self.fall = Some(Fall { since, due, in_flight: self.shared.finite_requests() });
    }

    /// Shuts down connections that have drained.
    fn recycle(&mut self, now: Instant) {
        self.decide = None;
        let mut waiting = self.shared.take_drained();
        waiting.retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            match connection.recycle(now) {
                Decision::Done => false,
                Decision::Wait => true,
                Decision::Later(until) => {
                    self.decide = Some(self.decide.map_or(until, |time| time.min(until)));
                    true
                }
            }
        });
        self.shared.put_drained_back(waiting);
    }

    /// Answers requests for a release.
    fn answer(&mut self) {
        let waiting = self.shared.take_waiting();
        if waiting.is_empty() {
            return;
        }
        let report = self.sweep_and_release();
        for sender in waiting {
            // The receiver may have been dropped.
            let _ = sender.send(report.clone());
        }
    }

    /// Releases if there is enough free memory.
    fn check(&mut self, now: Instant) {
        let settings = &self.shared.settings;
        let anonymous = memory::anonymous_bytes().unwrap_or(0);
        if let Some(last) = self.last.as_mut().filter(|last| now < last.at + MIN_AWAY) {
            last.came_back |= anonymous >= last.back_bytes;
        }
        let free = free_bytes(anonymous);
        if free < self.base_bytes.saturating_add(settings.release_above) {
            return;
        }
        if let Some(last) = &self.last {
            // The memory that it has left is fragmented, or in use.
            let is_more = free >= last.left_bytes.saturating_add(settings.release_above);
            if last.was_exhaustive && !is_more && now < last.at + RETRY {
                return;
            }
            let interval = match last.came_back {
                true => self.interval.saturating_mul(2).min(MAX_INTERVAL),
                false => settings.min_interval,
            };
            let earliest = last.at + interval.max(settings.min_interval);
            if now < earliest {
                self.again.push(earliest);
                return;
            }
            self.interval = interval;
        }
        self.sweep_and_release();
        // More may have been freed meanwhile.
        self.again.push(Instant::now() + settings.min_interval);
    }

    fn sweep_and_release(&mut self) -> KeeperReport {
        let settings = &self.shared.settings;
        // A sweep returns memory, too.
        let before_bytes = memory::anonymous_bytes().unwrap_or(0);
        let mut runtimes = self.shared.take_runtimes();
        let mut sweeps: Vec<SweepReport> = Vec::new();
        runtimes.retain_mut(|runtime| {
            let result = runtime.sweep(settings.allocator, settings.sweep_timeout);
            sweeps.extend(result);
            // A runtime that has ended is not swept again.
            result.is_some()
        });
        self.shared.put_runtimes_back(runtimes);
        let released = release(settings.allocator);
        let returned_bytes = before_bytes.saturating_sub(released.after_bytes);
        let was_productive = returned_bytes >= settings.release_above;
        let unreached: u64 =
            sweeps.iter().map(|sweep| (sweep.workers - sweep.reached) as u64).sum();
        let left_bytes = free_bytes(released.after_bytes);
        self.base_bytes = self.base_bytes.min(left_bytes);
        self.last = Some(Last {
            at: Instant::now(),
            was_exhaustive: !was_productive && unreached == 0,
            left_bytes,
            back_bytes: match was_productive {
                true => released.after_bytes.saturating_add(returned_bytes / 2),
                false => u64::MAX,
            },
            came_back: false,
        });
        let mut totals = lock(&self.shared.totals);
        totals.releases += 1;
        totals.unproductive_releases += u64::from(!was_productive);
        totals.returned_bytes += returned_bytes;
        totals.last_release = released.elapsed;
        totals.longest_lock = totals.longest_lock.max(released.longest_lock);
        totals.busy_workers += unreached;
        KeeperReport { sweeps, release: released }
    }
}

/// Returns the free memory in bytes: anonymous memory less allocated bytes. Without
/// [`Tracked`](crate::Tracked), it is all anonymous memory.
fn free_bytes(anonymous: u64) -> u64 {
    anonymous.saturating_sub(allocated_bytes().unwrap_or(0))
}
