//! Watches one process from a thread of its own: a cheap sample at every tick, and a look when it is
//! due, so that whoever shows it never waits for either.

pub(crate) mod record;

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_model::inspection::Observation;
use lowtide_probe::inspect::{Inspector, Target, TargetError};
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::patience::patiently;
use lowtide_probe::sampler::{Attention, Sampler, Tick};

/// Looking takes 1 part in so many of a processor's time at most.
pub(crate) const LOOK_SHARE: u32 = 10;
/// So soon it is seen that the process has ended, or that nobody watches any more.
const STEP: Duration = Duration::from_millis(50);

/// What was seen. Times are in seconds since the watch began.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    /// What the kernel says.
    Sample(Box<Tick>),
    /// The result of an inspection, and when it started.
    Observed(f64, Box<Observation>),
    /// It could not be looked at.
    Failed(TargetError),
    /// It has ended.
    Ended(f64),
}

/// What watching has cost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    /// CPU time, in seconds.
    pub(crate) cpu_s: f64,
    /// Ticks that came too late to be taken.
    pub(crate) missed_ticks: u64,
}

#[derive(Debug)]
struct Shared {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Debug)]
struct Wanted {
    interval: Duration,
    stop: bool,
    account: Account,
}

impl Shared {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever watches. The thread ends with it, but is not waited for: a look at a large heap may take
/// a while.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    seen: Receiver<WatchEvent>,
}

impl Watcher {
    /// Begins to watch. Times count from `begun`.
    pub(crate) fn start(target: Target, begun: Instant, interval: Duration) -> io::Result<Self> {
        let wanted = Wanted { interval, stop: false, account: Account::default() };
        let shared = Arc::new(Shared { wanted: Mutex::new(wanted), changed: Condvar::new() });
        let (sender, seen) = channel();
        let work = Work {
            sampler: None,
            inspector: Inspector::default(),
            target,
            begun,
            shared: Arc::clone(&shared),
            sender,
            looked: None,
            apart_cpu_s: 0.0,
        };
        thread::Builder::new().name("watcher".to_owned()).spawn(move || work.run())?;
        Ok(Self { shared, seen })
    }

    /// What was seen, in order. It hangs up behind the end of the process.
    pub(crate) fn seen(&self) -> &Receiver<WatchEvent> {
        &self.seen
    }

    /// Changes the time between two ticks.
    pub(crate) fn set_interval(&self, interval: Duration) {
        self.shared.wanted().interval = interval;
        self.shared.changed.notify_all();
    }

    /// What watching has cost so far.
    pub(crate) fn account(&self) -> Account {
        self.shared.wanted().account
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.wanted().stop = true;
        self.shared.changed.notify_all();
    }
}

/// From one look to the next, where one takes so much CPU time.
pub(crate) fn between_looks(interval: Duration, cost: Duration) -> Duration {
    interval.max(cost.saturating_mul(LOOK_SHARE))
}

struct Work {
    target: Target,
    /// `None` before the first sample, and when one was given up.
    sampler: Option<Sampler>,
    inspector: Inspector,
    begun: Instant,
    shared: Arc<Shared>,
    sender: Sender<WatchEvent>,
    /// The tick of the last look, and the CPU time that it took.
    looked: Option<(Instant, Duration)>,
    /// CPU time of what threads of their own do, which could be held up for ever, in seconds.
    apart_cpu_s: f64,
}

/// Nobody listens any more, or there is nothing more to tell.
struct Over;

impl Work {
    fn run(mut self) {
        let mut tick = Instant::now();
        while self.tick(tick).is_ok() {
            let Some(next) = self.wait_from(tick) else { return };
            tick = next;
        }
    }

    fn now(&self) -> f64 {
        // Microseconds are enough, and keep the lines of a record short.
        (self.begun.elapsed().as_secs_f64() * 1e6).round() / 1e6
    }

    fn send(&self, seen: WatchEvent) -> Result<(), Over> {
        self.sender.send(seen).map_err(|_| Over)
    }

    fn end(&self) -> Over {
        // That nobody listens makes no difference any more.
        let _ = self.send(WatchEvent::Ended(self.now()));
        Over
    }

    /// `at` is when the tick was due.
    fn tick(&mut self, at: Instant) -> Result<(), Over> {
        let sampled = self.sample();
        // Asked behind the reading: that was of this very process, then, not of another of its number.
        if !self.target.is_alive() {
            return Err(self.end());
        }
        match sampled {
            Ok(tick) if tick.sample.processes == 0 => return Err(self.end()),
            Ok(tick) => self.send(WatchEvent::Sample(Box::new(tick)))?,
            Err(error) => self.send(WatchEvent::Failed(error))?,
        }
        let interval = self.shared.wanted().interval;
        let is_due =
            self.looked.is_none_or(|(last, cost)| at >= last + between_looks(interval, cost));
        if is_due {
            self.look(at)?;
        }
        self.shared.wanted().account.cpu_s = self.apart_cpu_s + thread_cpu_s();
        Ok(())
    }

    fn sample(&mut self) -> Result<Tick, TargetError> {
        let (pid, t_s) = (self.target.pid, self.now());
        let mut sampler = self.sampler.take().unwrap_or_else(|| Sampler::for_process(pid));
        let done = patiently(&AtomicBool::new(false), move || {
            let sampled = sampler.tick(t_s, Attention::Normal);
            (sampler, sampled, thread_cpu_s())
        });
        let (sampler, sampled, cpu_s) = done.map_err(|_| TargetError::Blocked(pid))?;
        self.sampler = Some(sampler);
        self.apart_cpu_s += cpu_s;
        sampled.map_err(|error| TargetError::Other(pid, error))
    }

    fn look(&mut self, at: Instant) -> Result<(), Over> {
        let (begin, t_s) = (Instant::now(), self.now());
        let looked = self.inspector.inspect(&self.target);
        // CPU time, not elapsed time: waiting for a processor on a busy machine costs the target nothing.
        let cost = match &looked {
            Ok(observed) => Duration::try_from_secs_f64(observed.cpu_s).unwrap_or_default(),
            Err(_) => begin.elapsed(),
        };
        self.looked = Some((at, cost));
        match looked {
            Ok(observed) => {
                self.apart_cpu_s += observed.cpu_s;
                self.send(WatchEvent::Observed(t_s, Box::new(observed)))
            }
            Err(_) if !self.target.is_alive() => Err(self.end()),
            Err(error) => self.send(WatchEvent::Failed(error)),
        }
    }

    /// Waits for the tick behind the one that was due at `last`; `None` when nobody watches any more.
    fn wait_from(&self, last: Instant) -> Option<Instant> {
        let mut wanted = self.shared.wanted();
        let begin = Instant::now();
        loop {
            if wanted.stop {
                return None;
            }
            let mut next = last + wanted.interval;
            if next < begin {
                let missed = (begin - last).as_nanos() / wanted.interval.as_nanos().max(1);
                let missed = u32::try_from(missed).unwrap_or(u32::MAX);
                next = last + wanted.interval * missed;
                if next < begin {
                    next += wanted.interval;
                }
            }
            let rest = next.saturating_duration_since(Instant::now());
            if rest.is_zero() || !self.target.is_alive() {
                let taken = (next - last).as_nanos() / wanted.interval.as_nanos().max(1);
                let missed = u64::try_from(taken).unwrap_or(u64::MAX).saturating_sub(1);
                wanted.account.missed_ticks += missed;
                return Some(next);
            }
            let waited = self.shared.changed.wait_timeout(wanted, rest.min(STEP));
            wanted = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_takes_a_tenth_of_the_time_at_most() {
        let ms = Duration::from_millis;
        assert_eq!(between_looks(ms(1000), ms(3)), ms(1000));
        assert_eq!(between_looks(ms(1000), ms(100)), ms(1000));
        assert_eq!(between_looks(ms(1000), ms(140)), ms(1400));
        assert_eq!(between_looks(ms(100), ms(2000)), ms(20_000));
    }

    #[test]
    fn a_process_is_sampled_and_looked_at_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        let watcher = Watcher::start(target, Instant::now(), Duration::from_millis(100)).unwrap();
        let patience = Duration::from_secs(60);
        let first = watcher.seen().recv_timeout(patience).unwrap();
        assert!(
            matches!(&first, WatchEvent::Sample(tick) if tick.sample.processes == 1),
            "{first:?}"
        );
        let look = watcher.seen().recv_timeout(patience).unwrap();
        assert!(matches!(look, WatchEvent::Observed(_, _) | WatchEvent::Failed(_)), "{look:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let mut last = look;
        while let Ok(seen) = watcher.seen().recv_timeout(patience) {
            last = seen;
        }
        assert!(matches!(last, WatchEvent::Ended(t_s) if t_s > 0.0), "{last:?}");
    }
}
