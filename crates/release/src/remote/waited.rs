//! How long a thread has been waiting.
//!
//! The kernel tells when a thread was last accounted for running (`se.exec_start` in
//! `/proc/PID/task/TID/sched`, in ms of the clock of its processor), which is when it began to wait. What
//! time it is by that clock is told by our own thread, on the same processor.
//!
//! It resets that time when it moves a thread to another processor, as it may for an instant after the thread
//! has gone to sleep (since Linux 6.12: `sched_delayed` and `migrate_task_rq_fair` in `kernel/sched/fair.c`):
//! 1 to 4 of 1,000 where many want a processor. How long such a thread has waited is unknown.

use std::fs;
use std::time::{Duration, Instant};

use super::wait::in_ms;
use lowtide_probe::proc::task::Thread;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long a thread that waits has been waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waited {
    looked: Instant,
    by_then: Duration,
    /// How often it has gone to sleep.
    sleeps: u64,
}

impl Waited {
    /// Looks at a thread; `None` where the kernel does not tell. Rather too short than too long: while
    /// the processor was taken away from the machine, its clock stood still.
    pub(crate) fn of(thread: Thread) -> Option<Self> {
        // The clocks of two processors differ. Between two accounts that agree, it was on one of them.
        let account = Account::of(thread)?;
        let processor = processor(thread)?;
        let Account { last_ran, sleeps } = Account::of(thread).filter(|again| *again == account)?;
        let now = on_processor(processor, || {
            rustix::thread::sched_yield();
            Some(Account::read("/proc/thread-self/sched")?.last_ran)
        })?;
        let by_then = now.saturating_sub(last_ran);
        Some(Self { looked: Instant::now(), by_then, sleeps })
    }

    /// How long it is at a moment.
    pub(crate) fn by(&self, now: Instant) -> Duration {
        self.by_then + now.saturating_duration_since(self.looked)
    }

    /// Whether a thread that was stopped meanwhile had not run since: another wait may look just like
    /// the one that it was in, but has begun later.
    pub(crate) fn is_same_wait(&self, thread: Thread) -> bool {
        // Once more, in the stop.
        Account::of(thread).is_some_and(|account| account.sleeps == self.sleeps + 1)
    }
}

/// The time-out that a thread was given anew last, where its call takes whole milliseconds: when it really
/// ends.
#[derive(Debug, Default)]
pub(super) struct Told(Option<Anew>);

#[derive(Debug, Clone, Copy)]
struct Anew {
    tid: u32,
    sleeps: u64,
    /// What its call said before it was told anew for the first time.
    first_ms: u64,
    /// What it was told last, at most.
    told_ms: u64,
    end: Instant,
}

impl Told {
    /// What is left of the time-out of a thread that has been waiting: of so many milliseconds, by what its
    /// call says. Where it is the one that was told last, the moment at which it ends is known better.
    pub(super) fn rest(
        &mut self,
        thread: Thread,
        waited: &Waited,
        ms: u64,
        now: Instant,
    ) -> Duration {
        let left = Duration::from_millis(ms).saturating_sub(waited.by(now));
        let (tid, sleeps) = (thread.tid, waited.sleeps);
        let known = self.0.filter(|told| {
            // Two more sleeps: the stop, and the wait begun again. But a wait that returned at once and was
            // followed by another looks the same. It is taken for the same only if its call says no more than
            // it was told, and less than it said itself.
            let may_be_same = told.tid == tid && told.sleeps + 2 == sleeps;
            let is_told = ms <= told.told_ms && ms < told.first_ms && told.end > now;
            let rest = told.end.saturating_duration_since(now);
            may_be_same && is_told && rest <= left && left - rest <= Duration::from_millis(2)
        });
        let end = known.map_or(now + left, |told| told.end);
        let first_ms = known.map_or(ms, |told| told.first_ms);
        let rest = end.saturating_duration_since(now);
        self.0 = Some(Anew { tid, sleeps, first_ms, told_ms: in_ms(rest), end });
        rest
    }

    /// Whether a thread was told its time-out a moment ago, in as many milliseconds as before: told it once
    /// more, it would wait that much longer, and nobody would know.
    pub(super) fn is_unchanged(&self, thread: Thread, waited: &Waited, ms: u64) -> bool {
        const UNIT: Duration = Duration::from_millis(1);
        self.0.is_some_and(|told| {
            let may_be_same = told.tid == thread.tid && told.sleeps + 2 == waited.sleeps;
            may_be_same && ms == told.first_ms && waited.by(Instant::now()) < UNIT
        })
    }
}

/// What the scheduler tells of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Account {
    /// When it was last accounted for, by the clock of its processor.
    last_ran: Duration,
    /// How often it has given its processor up by itself.
    sleeps: u64,
}

impl Account {
    fn of(thread: Thread) -> Option<Self> {
        Self::read(&format!("/proc/{}/task/{}/sched", thread.pid, thread.tid))
    }

    fn read(path: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (ms, ns) = value_of(text, "se.exec_start")?.split_once('.')?;
        let (ms, ns) = (Duration::from_millis(ms.parse().ok()?), ns.parse().ok()?);
        let last_ran = Some(ms + Duration::from_nanos(ns)).filter(|at| !at.is_zero())?;
        Some(Self { last_ran, sleeps: value_of(text, "nr_voluntary_switches")?.parse().ok()? })
    }
}

fn value_of<'a>(account: &'a str, name: &str) -> Option<&'a str> {
    let line = account.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start().strip_prefix(':')?.trim())
}

/// The processor on which a thread last ran.
fn processor(thread: Thread) -> Option<usize> {
    let text = fs::read_to_string(format!("/proc/{}/task/{}/stat", thread.pid, thread.tid)).ok()?;
    // proc(5): the name, which may hold anything, is field 2, and the processor field 39.
    text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Does something on one processor.
fn on_processor<T>(processor: usize, act: impl FnOnce() -> Option<T>) -> Option<T> {
    let before = sched_getaffinity(None).ok()?;
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).ok()?;
    let result = act();
    sched_setaffinity(None, &before).ok()?;
    result
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn how_long_a_thread_waits_is_told_within_a_few_milliseconds() {
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send((Thread::current(), Instant::now())).unwrap();
            let _ = receive.recv();
        });
        let (waiting, begin) = told.recv().unwrap();
        if Account::of(waiting).is_some() {
            let mut found = Duration::ZERO;
            while found < 20 * MS {
                std::thread::sleep(5 * MS);
                // It may just have been moved.
                let Some(waited) = Waited::of(waiting) else { break };
                found = waited.by_then;
                // Never more than there was.
                assert!(found <= begin.elapsed() + MS, "{found:?}");
            }
        } else {
            assert!(Waited::of(waiting).is_none());
        }
        drop(send);
        thread.join().unwrap();
    }

    /// Beside others that want their processor, the kernel moves a few of them when they sleep already.
    #[test]
    #[ignore = "keeps every processor busy for some ten seconds"]
    fn no_thread_is_said_to_wait_for_longer_than_it_does_wherever_the_kernel_moves_it() {
        const THREADS: usize = 12;
        const LOOKS: usize = 30_000;
        /// When a thread last went to sleep, in nanoseconds since the beginning.
        struct Sleeper {
            thread: Thread,
            asleep_since: AtomicU64,
        }
        let begin = Instant::now();
        let now = || u64::try_from(begin.elapsed().as_nanos()).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for place in 0..THREADS as u64 {
                let (tell, is_over) = (tell.clone(), &is_over);
                scope.spawn(move || {
                    let sleeper =
                        Sleeper { thread: Thread::current(), asleep_since: AtomicU64::new(0) };
                    let sleeper = std::sync::Arc::new(sleeper);
                    tell.send(std::sync::Arc::clone(&sleeper)).unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        let work = now() + 300_000 + place * 100_000;
                        while now() < work {}
                        sleeper.asleep_since.store(now(), Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(3 + place));
                        sleeper.asleep_since.store(0, Ordering::SeqCst);
                    }
                });
            }
            let sleepers: Vec<_> = told.iter().take(THREADS).collect();
            let mut longest = (Duration::ZERO, Duration::ZERO);
            let mut looks = 0;
            while looks < LOOKS && Account::of(Thread::current()).is_some() {
                for sleeper in &sleepers {
                    let since = sleeper.asleep_since.load(Ordering::SeqCst);
                    let waited = Waited::of(sleeper.thread);
                    let (Some(waited), true) = (waited, since > 0) else { continue };
                    if sleeper.asleep_since.load(Ordering::SeqCst) == since {
                        looks += 1;
                        let at = Instant::now();
                        let slept = (at - begin).saturating_sub(Duration::from_nanos(since));
                        longest = longest.max((waited.by(at).saturating_sub(slept), slept));
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
            let (more, slept) = longest;
            assert!(more < MS, "one was said to wait {more:?} longer than it did, {slept:?}");
        });
    }

    #[test]
    fn of_a_thread_that_was_moved_while_it_slept_nothing_is_known() {
        let account = |at| {
            let counts = "nr_switches : 9\nnr_voluntary_switches :   7\n";
            Account::parse(&format!("se.exec_start       :   {at}\nse.vruntime : 1.0\n{counts}"))
        };
        let found = account("1699.482113").unwrap();
        assert_eq!(found.last_ran, Duration::from_nanos(1_699_482_113));
        assert_eq!(found.sleeps, 7);
        assert!(account("0.000000").is_none());
    }

    #[test]
    fn a_wait_that_was_told_anew_ends_when_it_should_and_another_is_not_taken_for_it() {
        let (thread, now) = (Thread::current(), Instant::now());
        let waited =
            |sleeps, us| Waited { looked: now, by_then: Duration::from_micros(us), sleeps };
        let mut told = Told::default();
        let us = Duration::from_micros;
        assert_eq!(told.rest(thread, &waited(1, 4_400), 15, now), us(10_600));
        // It was told 11 ms, has slept again, and 2 ms later is stopped once more.
        let later = now + 2 * MS;
        let is_same = told.rest(thread, &waited(3, 0), 11, later);
        assert_eq!(is_same, us(8_600));
        // Another wait, begun when that one came back at once, says more than it was told.
        let mut told = Told::default();
        told.rest(thread, &waited(1, 4_400), 15, now);
        assert_eq!(told.rest(thread, &waited(3, 0), 12, now + MS), us(11_000));
        // Or it says as much as that one did at first.
        let mut told = Told::default();
        told.rest(thread, &waited(1, 400), 15, now);
        assert_eq!(told.rest(thread, &waited(3, 0), 15, now + MS), us(14_000));
        // What has ended is not what a thread waits for now.
        let mut told = Told::default();
        assert_eq!(told.rest(thread, &waited(1, 15_000), 15, now), Duration::ZERO);
        assert_eq!(told.rest(thread, &waited(3, 0), 1, now), MS);
    }

    #[test]
    fn a_wait_is_not_told_the_same_time_out_again_and_again() {
        let thread = Thread::current();
        let waited = |sleeps, us| Waited {
            looked: Instant::now(),
            by_then: Duration::from_micros(us),
            sleeps,
        };
        let mut told = Told::default();
        told.rest(thread, &waited(1, 400), 15, Instant::now());
        assert!(told.is_unchanged(thread, &waited(3, 0), 15));
        // What it is told now is less than before, or it is another wait.
        assert!(!told.is_unchanged(thread, &waited(3, 1_000), 15));
        assert!(!told.is_unchanged(thread, &waited(3, 0), 14));
        assert!(!told.is_unchanged(thread, &waited(4, 0), 15));
    }
}
