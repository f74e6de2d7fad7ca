//! The keeper's thread.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Report;
use super::connection::Decision;
use super::shared::{Shared, lock};
use crate::{allocated_bytes, memory, release, sweep};

/// Time without an event after which load counts as gone.
const QUIET: Duration = Duration::from_millis(100);
/// Maximum time to wait for that.
const MAX_UNQUIET: Duration = Duration::from_secs(1);
/// Number of requests: if so many end while the keeper waits for quiet, and no others begin, load is still going.
const UNQUIET_REQUESTS: usize = 100;
/// Times after a look when the keeper looks again: what was freed last is free by then.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(1)];
/// Time after which a release is tried again although the last one has returned too little.
const RETRY: Duration = Duration::from_secs(60);

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<()> {
    let worker = Arc::clone(&shared);
    let thread = thread::Builder::new().name("lowtide-keeper".to_owned()).spawn(move || {
        Work::new(&worker).run();
        // Nobody will answer them.
        drop(worker.take_requests());
    })?;
    // It is set once.
    let _ = shared.thread.set(thread.thread().clone());
    Ok(())
}

/// The work of the thread.
struct Work<'s> {
    shared: &'s Shared,
    /// Number of events that were seen.
    seen: u64,
    /// Present if load is going, until it is quiet.
    unquiet: Option<Unquiet>,
    /// Further times to look.
    again: Vec<Instant>,
    /// When a connection is old enough to go.
    of_age: Option<Instant>,
    /// Anonymous memory that was not allocated at the start, in bytes.
    base_bytes: u64,
    /// The last release.
    last: Option<Last>,
}

/// Load is going.
struct Unquiet {
    /// The first event since the last look.
    since: Instant,
    /// When to look.
    due: Instant,
    /// The number of requests in flight at the last event.
    in_flight: usize,
}

/// A release.
struct Last {
    at: Instant,
    /// Whether it has returned as much as a release should.
    was_worth_it: bool,
    /// What was left in excess, in bytes.
    left_bytes: u64,
}

impl<'s> Work<'s> {
    fn new(shared: &'s Shared) -> Self {
        let mut work = Self {
            shared,
            seen: 0,
            unquiet: None,
            again: Vec::new(),
            of_age: None,
            base_bytes: 0,
            last: None,
        };
        work.base_bytes = work.excess_bytes();
        work
    }

    fn run(&mut self) {
        while !self.shared.is_stopped() {
            let now = Instant::now();
            let events = self.shared.events();
            if events != self.seen {
                self.seen = events;
                self.answer();
                self.recycle(now);
                let since = self.unquiet.as_ref().map_or(now, |unquiet| unquiet.since);
                self.wait_for_quiet(since, now);
                continue;
            }
            if self.of_age.is_some_and(|time| time <= now) {
                self.recycle(now);
            }
            if let Some(unquiet) = self.unquiet.take_if(|unquiet| unquiet.due <= now) {
                let is_going = self.shared.in_flight() + UNQUIET_REQUESTS <= unquiet.in_flight;
                if is_going && now < unquiet.since + MAX_UNQUIET {
                    self.wait_for_quiet(unquiet.since, now);
                    continue;
                }
                self.again = LOOK_AGAIN.map(|time| now + time).to_vec();
                self.look(now);
            } else if self.again.iter().any(|due| *due <= now) {
                self.again.retain(|due| *due > now);
                self.look(now);
            }
            let due = self.unquiet.as_ref().map(|unquiet| unquiet.due);
            let next = self.again.iter().copied().chain(due).chain(self.of_age).min();
            match next {
                // An event in between unparks at once.
                Some(next) => thread::park_timeout(next.saturating_duration_since(Instant::now())),
                None => thread::park(),
            }
        }
    }

    fn wait_for_quiet(&mut self, since: Instant, now: Instant) {
        let due = (now + QUIET).min(since + MAX_UNQUIET);
        self.unquiet = Some(Unquiet { since, due, in_flight: self.shared.in_flight() });
    }

    /// Asks connections that have drained to go.
    fn recycle(&mut self, now: Instant) {
        self.of_age = None;
        let mut waiting = self.shared.take_drained();
        waiting.retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            match connection.recycle(now) {
                Decision::Done => false,
                Decision::Wait => true,
                Decision::Young(until) => {
                    self.of_age = Some(self.of_age.map_or(until, |time| time.min(until)));
                    true
                }
            }
        });
        self.shared.put_drained_back(waiting);
    }

    /// Answers requests for a release.
    fn answer(&mut self) {
        let requests = self.shared.take_requests();
        if requests.is_empty() {
            return;
        }
        let report = self.act();
        for request in requests {
            // Who asked may be gone.
            let _ = request.send(report.clone());
        }
    }

    /// Returns anonymous memory that is not allocated, in bytes: all of it, if nobody counts what is allocated.
    fn excess_bytes(&self) -> u64 {
        let anonymous = memory::anonymous_bytes().unwrap_or(0);
        anonymous.saturating_sub(allocated_bytes().unwrap_or(0))
    }

    /// Releases if that is worth it.
    fn look(&mut self, now: Instant) {
        let settings = &self.shared.settings;
        let excess = self.excess_bytes();
        if excess < self.base_bytes.saturating_add(settings.release_above) {
            return;
        }
        if let Some(last) = &self.last {
            let earliest = last.at + settings.at_most_every;
            // What a release has left that returned little is fragmented, or in use.
            let is_more = excess >= last.left_bytes.saturating_add(settings.release_above);
            if !last.was_worth_it && !is_more && now < last.at + RETRY {
                return;
            }
            if now < earliest {
                self.again.push(earliest);
                return;
            }
        }
        self.act();
        // More may have been freed while it ran.
        self.again.push(Instant::now() + settings.at_most_every);
    }

    /// Sweeps and releases.
    fn act(&mut self) -> Report {
        let settings = &self.shared.settings;
        let sweep = |runtime| sweep(&runtime, settings.allocator, settings.patience);
        let swept: Vec<_> = self.shared.runtimes().into_iter().map(sweep).collect();
        let released = release(settings.allocator);
        self.last = Some(Last {
            at: Instant::now(),
            was_worth_it: released.returned_bytes() >= settings.release_above,
            left_bytes: self.excess_bytes(),
        });
        let mut acts = lock(&self.shared.acts);
        acts.releases += 1;
        acts.returned_bytes += released.returned_bytes();
        acts.last_release = released.elapsed;
        acts.longest_lock = acts.longest_lock.max(released.longest_lock);
        acts.busy_workers +=
            swept.iter().map(|swept| (swept.workers - swept.reached) as u64).sum::<u64>();
        Report { swept, released }
    }
}
