//! Watches one process on a thread of its own: a cheap sample at every tick, and an inspection when
//! one is due, so that the view never waits for either. It also follows the log of acts, if there
//! is one.

pub(crate) mod acts;
pub(crate) mod leaks;
pub(crate) mod pins;
pub(crate) mod record;
pub(crate) mod whole;

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use acts::{ActFollower, LoggedAct};
use lowtide_model::act::Act;
use lowtide_model::inspection::Observation;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::patience::Patience;
use lowtide_probe::sampler::{Attention, Sampler, Tick};
use lowtide_probe::target::{Target, TargetError};

use crate::failure::exit::Failure;

/// Minimum ratio of the time between inspections to their CPU time: they take at most 1/10 of a
/// CPU.
const COST_FACTOR: u32 = 10;
/// Time between two checks whether the process has ended, or the watcher was dropped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An event of a watch. Times are in seconds since the watch started.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    /// A sample of the kernel's counters.
    Sample(Box<Tick>),
    /// The result of an inspection, and when it started.
    Observed(f64, Box<Observation>),
    /// An act of a policy on the process, and when it ended; negative if that was before the watch.
    Acted(f64, Box<Act>),
    /// The process could not be sampled or inspected.
    Failed(TargetError),
    /// The process has ended.
    Ended(f64),
}

/// The cost of watching.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WatchCost {
    /// CPU time, in seconds.
    pub(crate) cpu_s: f64,
    /// Ticks that were skipped because they came too late.
    pub(crate) missed_ticks: u64,
}

#[derive(Debug)]
struct WatcherState {
    control: Mutex<Control>,
    changed: Condvar,
}

#[derive(Debug)]
struct Control {
    interval: Duration,
    stop: bool,
    cost: WatchCost,
}

impl WatcherState {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The watch of a process. Dropping it stops the thread without waiting: inspecting a large heap
/// may take a while.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<WatcherState>,
    events: Receiver<WatchEvent>,
}

impl Watcher {
    /// Starts to watch. Times count from `start`. `log` has the acts of a policy on the process.
    pub(crate) fn start(
        target: Target,
        start: Instant,
        interval: Duration,
        log: Option<ActFollower>,
    ) -> io::Result<Self> {
        let control = Control { interval, stop: false, cost: WatchCost::default() };
        let shared =
            Arc::new(WatcherState { control: Mutex::new(control), changed: Condvar::new() });
        let (sender, events) = channel();
        let thread = WatchThread {
            sampler: None,
            inspector: Inspector::default().with_details(),
            target,
            start,
            shared: Arc::clone(&shared),
            sender,
            inspected: None,
            helper_cpu_s: 0.0,
            log,
        };
        thread::Builder::new().name("watcher".to_owned()).spawn(move || thread.run())?;
        Ok(Self { shared, events })
    }

    /// Returns the events, in order. The channel closes after the end of the process.
    pub(crate) fn events(&self) -> &Receiver<WatchEvent> {
        &self.events
    }

    /// Changes the time between two ticks.
    pub(crate) fn set_interval(&self, interval: Duration) {
        self.shared.control().interval = interval;
        self.shared.changed.notify_all();
    }

    /// Returns the cost of watching so far.
    pub(crate) fn cost(&self) -> WatchCost {
        self.shared.control().cost
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.control().stop = true;
        self.shared.changed.notify_all();
    }
}

/// Returns the failure of a watch whose thread has ended before the process.
pub(crate) fn broke_off() -> Failure {
    Failure::failed("the watch failed: start it again")
}

/// Returns the time between two inspections, if each costs `cost` CPU time.
pub(crate) fn between_inspections(interval: Duration, cost: Duration) -> Duration {
    interval.max(cost.saturating_mul(COST_FACTOR))
}

struct WatchThread {
    target: Target,
    /// `None` before the first sample, and after one that blocked for too long.
    sampler: Option<Sampler>,
    inspector: Inspector,
    start: Instant,
    shared: Arc<WatcherState>,
    sender: Sender<WatchEvent>,
    /// The tick of the last inspection, and its CPU time.
    inspected: Option<(Instant, Duration)>,
    /// CPU time of the threads for reads that could block forever, in seconds.
    helper_cpu_s: f64,
    log: Option<ActFollower>,
}

/// The end of the watch: the watcher was dropped, or the process has ended.
struct Over;

impl WatchThread {
    fn run(mut self) {
        if self.follow_log().is_err() {
            return;
        }
        let mut tick = Instant::now();
        while self.tick(tick).is_ok() {
            let Some(next) = self.wait_from(tick) else { return };
            tick = next;
        }
    }

    fn now(&self) -> f64 {
        // Microseconds are enough, and keep the lines of a record short.
        (self.start.elapsed().as_secs_f64() * 1e6).round() / 1e6
    }

    fn send(&self, event: WatchEvent) -> Result<(), Over> {
        self.sender.send(event).map_err(|_| Over)
    }

    fn end(&mut self) -> Over {
        // If the watcher was dropped, there is no receiver to notify.
        let _ = self.follow_log().and_then(|()| self.send(WatchEvent::Ended(self.now())));
        Over
    }

    /// Sends the acts that were logged since the last call.
    fn follow_log(&mut self) -> Result<(), Over> {
        let logged = self.log.as_mut().map(ActFollower::poll).unwrap_or_default();
        let now_s = self.now();
        logged.into_iter().try_for_each(|LoggedAct { age_s, act }| {
            let t_s = ((now_s - age_s) * 1e3).round() / 1e3;
            self.send(WatchEvent::Acted(t_s.min(now_s), Box::new(act)))
        })
    }

    /// Samples the process, and inspects it if an inspection is due. `at` is the due time of the
    /// tick.
    fn tick(&mut self, at: Instant) -> Result<(), Over> {
        let sampled = self.sample();
        // Checked after the sample, which therefore is of this process and not of a later one with
        // its PID.
        if !self.target.is_alive() {
            return Err(self.end());
        }
        match sampled {
            Ok(tick) if tick.sample.processes == 0 => return Err(self.end()),
            Ok(tick) => self.send(WatchEvent::Sample(Box::new(tick)))?,
            Err(error) => self.send(WatchEvent::Failed(error))?,
        }
        let interval = self.shared.control().interval;
        let is_due = self
            .inspected
            .is_none_or(|(last, cost)| at >= last + between_inspections(interval, cost));
        if is_due {
            self.inspect(at)?;
        }
        self.shared.control().cost.cpu_s = self.helper_cpu_s + thread_cpu_s();
        Ok(())
    }

    fn sample(&mut self) -> Result<Tick, TargetError> {
        let (pid, t_s) = (self.target.pid, self.now());
        let mut sampler = self.sampler.take().unwrap_or_else(|| Sampler::for_process(pid));
        let done = Patience::default().work_on(&self.target, &AtomicBool::new(false), move || {
            let sampled = sampler.tick(t_s, Attention::Normal);
            (sampler, sampled, thread_cpu_s())
        });
        let (sampler, sampled, cpu_s) = done.map_err(|given_up| given_up.error(pid))?;
        self.sampler = Some(sampler);
        self.helper_cpu_s += cpu_s;
        sampled.map_err(|error| TargetError::Other(pid, error))
    }

    fn inspect(&mut self, at: Instant) -> Result<(), Over> {
        let (start, t_s) = (Instant::now(), self.now());
        let inspected = self.inspector.inspect(&self.target);
        // CPU time, not elapsed time: waiting for a processor on a busy machine costs the target
        // nothing.
        let cost = match &inspected {
            Ok(observed) => Duration::try_from_secs_f64(observed.cpu_s).unwrap_or_default(),
            Err(_) => start.elapsed(),
        };
        self.inspected = Some((at, cost));
        match inspected {
            Ok(observed) => {
                self.helper_cpu_s += observed.cpu_s;
                self.send(WatchEvent::Observed(t_s, Box::new(observed)))
            }
            // An exiting process has no memory for a moment before its state shows the end.
            Err(TargetError::Gone(_)) => Err(self.end()),
            Err(_) if !self.target.is_alive() => Err(self.end()),
            Err(error) => self.send(WatchEvent::Failed(error)),
        }
    }

    /// Waits for the tick after the one that was due at `last`, and returns it; `None` if the
    /// watcher was dropped.
    fn wait_from(&mut self, last: Instant) -> Option<Instant> {
        let begin = Instant::now();
        loop {
            self.follow_log().ok()?;
            let mut control = self.shared.control();
            if control.stop {
                return None;
            }
            let mut next = last + control.interval;
            if next < begin {
                let missed = (begin - last).as_nanos() / control.interval.as_nanos().max(1);
                let missed = u32::try_from(missed).unwrap_or(u32::MAX);
                next = last + control.interval * missed;
                if next < begin {
                    next += control.interval;
                }
            }
            let rest = next.saturating_duration_since(Instant::now());
            if rest.is_zero() || !self.target.is_alive() {
                let taken = (next - last).as_nanos() / control.interval.as_nanos().max(1);
                let missed = u64::try_from(taken).unwrap_or(u64::MAX).saturating_sub(1);
                control.cost.missed_ticks += missed;
                return Some(next);
            }
            drop(self.shared.changed.wait_timeout(control, rest.min(POLL_INTERVAL)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inspections_take_at_most_a_tenth_of_the_time() {
        let ms = Duration::from_millis;
        assert_eq!(between_inspections(ms(1000), ms(3)), ms(1000));
        assert_eq!(between_inspections(ms(1000), ms(100)), ms(1000));
        assert_eq!(between_inspections(ms(1000), ms(140)), ms(1400));
        assert_eq!(between_inspections(ms(100), ms(2000)), ms(20_000));
    }

    #[test]
    fn a_process_is_sampled_and_inspected_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        let watcher =
            Watcher::start(target, Instant::now(), Duration::from_millis(100), None).unwrap();
        let timeout = Duration::from_secs(60);
        let first = watcher.events().recv_timeout(timeout).unwrap();
        assert!(
            matches!(&first, WatchEvent::Sample(tick) if tick.sample.processes == 1),
            "{first:?}"
        );
        let second = watcher.events().recv_timeout(timeout).unwrap();
        assert!(matches!(second, WatchEvent::Observed(_, _) | WatchEvent::Failed(_)), "{second:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let mut last = second;
        while let Ok(event) = watcher.events().recv_timeout(timeout) {
            last = event;
        }
        assert!(matches!(last, WatchEvent::Ended(t_s) if t_s > 0.0), "{last:?}");
    }
}
