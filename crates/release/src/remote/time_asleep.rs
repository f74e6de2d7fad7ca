//! Measures the time for which a thread has been asleep in its call.
//!
//! The kernel reports when it last accounted for a thread's run time (`se.exec_start` in
//! `/proc/PID/task/TID/sched`, in ms of the clock of its processor): the time at which it fell
//! asleep. The current time of that clock is read by our own thread, on the same processor.
//!
//! The kernel resets `se.exec_start` when it moves a thread to another processor. Since Linux 6.12
//! this can happen for an instant after the thread has fallen asleep (`sched_delayed` and
//! `migrate_task_rq_fair` in `kernel/sched/fair.c`): for 1 to 4 sleeps in 1,000 on a busy machine.
//! The time asleep is then unknown.

use std::fs;
use std::time::{Duration, Instant};

use super::wait::in_ms;
use lowtide_probe::proc::task::Thread;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The time that a sleeping thread has been asleep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeAsleep {
    measured: Instant,
    /// The time asleep at that instant.
    asleep: Duration,
    /// Number of times that the thread has fallen asleep.
    sleeps: u64,
}

impl TimeAsleep {
    /// Measures a thread; `None` if the kernel does not report it. Errs on the short side: a
    /// processor's clock stops while a hypervisor has suspended the processor.
    pub(crate) fn measure(thread: Thread) -> Option<Self> {
        // The clocks of two processors differ. The thread was on one of them between two equal
        // accounts.
        let account = SchedAccount::read(thread)?;
        let processor = processor(thread)?;
        let SchedAccount { last_ran, sleeps } =
            SchedAccount::read(thread).filter(|again| *again == account)?;
        let now = on_processor(processor, || {
            rustix::thread::sched_yield();
            Some(SchedAccount::read_file("/proc/thread-self/sched")?.last_ran)
        })?;
        let asleep = now.saturating_sub(last_ran);
        Some(Self { measured: Instant::now(), asleep, sleeps })
    }

    /// Returns the time asleep at an instant.
    pub(crate) fn at(&self, now: Instant) -> Duration {
        self.asleep + now.saturating_duration_since(self.measured)
    }

    /// Returns whether a thread that was stopped since the measurement has not run in between.
    /// Otherwise it may be in another wait, which looks the same but started later.
    pub(crate) fn is_same_wait(&self, thread: Thread) -> bool {
        // The stop counts as one more sleep.
        SchedAccount::read(thread).is_some_and(|account| account.sleeps == self.sleeps + 1)
    }
}

/// The timeout that was last given to a borrowed thread, for calls that take whole milliseconds. It
/// keeps the exact instant at which the timeout ends.
#[derive(Debug, Default)]
pub(super) struct LastTimeout(Option<RewrittenTimeout>);

/// A timeout that was rounded to milliseconds and written anew into a thread's call.
#[derive(Debug, Clone, Copy)]
struct RewrittenTimeout {
    tid: u32,
    /// Number of times that the thread had fallen asleep.
    sleeps: u64,
    /// The timeout of the call before it was rewritten for the first time.
    first_ms: u64,
    /// The timeout that was written, at most.
    written_ms: u64,
    end: Instant,
}

impl LastTimeout {
    /// Returns the remaining timeout of a thread asleep in a call with a timeout of `ms`. If that
    /// is the timeout that was written last, its exact end is known.
    pub(super) fn remaining(
        &mut self,
        thread: Thread,
        asleep: &TimeAsleep,
        ms: u64,
        now: Instant,
    ) -> Duration {
        let left = Duration::from_millis(ms).saturating_sub(asleep.at(now));
        let (tid, sleeps) = (thread.tid, asleep.sleeps);
        let known = self.0.filter(|last| {
            // Two more sleeps: the stop, and the restarted wait. A wait that returned at once and
            // was followed by another one looks the same. So it counts as the same wait only if its
            // timeout is at most the one that was written, and less than the original one.
            let may_be_same = last.tid == tid && last.sleeps + 2 == sleeps;
            let is_ours = ms <= last.written_ms && ms < last.first_ms && last.end > now;
            let rest = last.end.saturating_duration_since(now);
            may_be_same && is_ours && rest <= left && left - rest <= Duration::from_millis(2)
        });
        let end = known.map_or(now + left, |last| last.end);
        let first_ms = known.map_or(ms, |last| last.first_ms);
        let rest = end.saturating_duration_since(now);
        self.0 = Some(RewrittenTimeout { tid, sleeps, first_ms, written_ms: in_ms(rest), end });
        rest
    }

    /// Returns whether a thread's timeout was rewritten a moment ago, to as many milliseconds as
    /// before. Rewritten once more, the wait would silently become longer by the time in between.
    pub(super) fn is_unchanged(
        &self,
        thread: Thread,
        asleep: &TimeAsleep,
        ms: u64,
        now: Instant,
    ) -> bool {
        const UNIT: Duration = Duration::from_millis(1);
        self.0.is_some_and(|last| {
            let may_be_same = last.tid == thread.tid && last.sleeps + 2 == asleep.sleeps;
            may_be_same && ms == last.first_ms && asleep.at(now) < UNIT
        })
    }
}

/// The scheduler's account of a thread.
#[derive(Debug, PartialEq, Eq)]
struct SchedAccount {
    /// Time when it last ran, by the clock of its processor.
    last_ran: Duration,
    /// Number of times that it has yielded its processor voluntarily.
    sleeps: u64,
}

impl SchedAccount {
    fn read(thread: Thread) -> Option<Self> {
        Self::read_file(&format!("/proc/{}/task/{}/sched", thread.pid, thread.tid))
    }

    fn read_file(path: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (ms, ns) = value_of(text, "se.exec_start")?.split_once('.')?;
        let (ms, ns) = (Duration::from_millis(ms.parse().ok()?), ns.parse().ok()?);
        let last_ran = Some(ms + Duration::from_nanos(ns)).filter(|at| !at.is_zero())?;
        Some(Self { last_ran, sleeps: value_of(text, "nr_voluntary_switches")?.parse().ok()? })
    }
}

/// Returns the value of a line `name : value`.
fn value_of<'a>(account: &'a str, name: &str) -> Option<&'a str> {
    let line = account.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start().strip_prefix(':')?.trim())
}

/// Returns the processor on which a thread last ran.
fn processor(thread: Thread) -> Option<usize> {
    let text = fs::read_to_string(format!("/proc/{}/task/{}/stat", thread.pid, thread.tid)).ok()?;
    // proc(5): the name, which may contain anything, is field 2, and the processor field 39.
    text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Calls `act` on one processor.
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
    fn the_time_asleep_is_measured_within_a_few_milliseconds() {
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (send_thread, threads) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            send_thread.send((Thread::current(), Instant::now())).unwrap();
            let _ = receive.recv();
        });
        let (waiting, begin) = threads.recv().unwrap();
        if SchedAccount::read(waiting).is_some() {
            let mut found = Duration::ZERO;
            while found < 20 * MS {
                std::thread::sleep(5 * MS);
                // The kernel may have just moved it.
                let Some(time) = TimeAsleep::measure(waiting) else { break };
                found = time.asleep;
                // Never longer than the time since the thread started.
                assert!(found <= begin.elapsed() + MS, "{found:?}");
            }
        } else {
            assert!(TimeAsleep::measure(waiting).is_none());
        }
        drop(send);
        thread.join().unwrap();
    }

    /// On a busy machine, the kernel moves a few threads when they are already asleep.
    #[test]
    #[ignore = "keeps every processor busy for some ten seconds"]
    fn the_time_asleep_is_never_overestimated_when_threads_migrate() {
        const THREADS: usize = 12;
        /// A thread, and the time when it last fell asleep, in nanoseconds since the start; 0 while
        /// it runs.
        struct Sleeper {
            thread: Thread,
            asleep_since: AtomicU64,
        }
        let is_exhaustive = std::env::var_os("LOWTIDE_TEST_EXHAUSTIVE").is_some();
        let enough = if is_exhaustive { 30_000 } else { 8_000 };
        let begin = Instant::now();
        let now = || u64::try_from(begin.elapsed().as_nanos()).unwrap();
        let (send_thread, threads) = std::sync::mpsc::channel();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for place in 0..THREADS as u64 {
                let (send_thread, is_over) = (send_thread.clone(), &is_over);
                scope.spawn(move || {
                    let sleeper =
                        Sleeper { thread: Thread::current(), asleep_since: AtomicU64::new(0) };
                    let sleeper = std::sync::Arc::new(sleeper);
                    send_thread.send(std::sync::Arc::clone(&sleeper)).unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        let work = now() + 300_000 + place * 100_000;
                        while now() < work {}
                        sleeper.asleep_since.store(now(), Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(3 + place));
                        sleeper.asleep_since.store(0, Ordering::SeqCst);
                    }
                });
            }
            let sleepers: Vec<_> = threads.iter().take(THREADS).collect();
            let mut longest = (Duration::ZERO, Duration::ZERO);
            let mut samples = 0;
            while samples < enough && SchedAccount::read(Thread::current()).is_some() {
                for sleeper in &sleepers {
                    let since = sleeper.asleep_since.load(Ordering::SeqCst);
                    let time = TimeAsleep::measure(sleeper.thread);
                    let (Some(time), true) = (time, since > 0) else { continue };
                    if sleeper.asleep_since.load(Ordering::SeqCst) == since {
                        samples += 1;
                        let at = Instant::now();
                        let slept = (at - begin).saturating_sub(Duration::from_nanos(since));
                        longest = longest.max((time.at(at).saturating_sub(slept), slept));
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
            let (more, slept) = longest;
            assert!(more < MS, "one was measured {more:?} too long, {slept:?}");
        });
    }

    #[test]
    fn the_time_asleep_of_a_migrated_thread_is_unknown() {
        let account = |at| {
            let counts = "nr_switches : 9\nnr_voluntary_switches :   7\n";
            SchedAccount::parse(&format!(
                "se.exec_start       :   {at}\nse.vruntime : 1.0\n{counts}"
            ))
        };
        let found = account("1699.482113").unwrap();
        assert_eq!(found.last_ran, Duration::from_nanos(1_699_482_113));
        assert_eq!(found.sleeps, 7);
        assert!(account("0.000000").is_none());
    }

    #[test]
    fn a_rewritten_timeout_ends_on_time_and_is_not_confused_with_another_wait() {
        let (thread, now) = (Thread::current(), Instant::now());
        let asleep =
            |sleeps, us| TimeAsleep { measured: now, asleep: Duration::from_micros(us), sleeps };
        let mut last = LastTimeout::default();
        let us = Duration::from_micros;
        assert_eq!(last.remaining(thread, &asleep(1, 4_400), 15, now), us(10_600));
        // 11 ms were written; it has slept again, and 2 ms later is stopped once more.
        let later = now + 2 * MS;
        let is_same = last.remaining(thread, &asleep(3, 0), 11, later);
        assert_eq!(is_same, us(8_600));
        // Another wait, which followed when that one returned at once, has a longer timeout than
        // was written.
        let mut last = LastTimeout::default();
        last.remaining(thread, &asleep(1, 4_400), 15, now);
        assert_eq!(last.remaining(thread, &asleep(3, 0), 12, now + MS), us(11_000));
        // Or the same one as the original.
        let mut last = LastTimeout::default();
        last.remaining(thread, &asleep(1, 400), 15, now);
        assert_eq!(last.remaining(thread, &asleep(3, 0), 15, now + MS), us(14_000));
        // A timeout that has ended is not the current one.
        let mut last = LastTimeout::default();
        assert_eq!(last.remaining(thread, &asleep(1, 15_000), 15, now), Duration::ZERO);
        assert_eq!(last.remaining(thread, &asleep(3, 0), 1, now), MS);
    }

    #[test]
    fn a_timeout_is_not_rewritten_repeatedly_with_the_same_value() {
        let thread = Thread::current();
        let now = Instant::now();
        let asleep =
            |sleeps, us| TimeAsleep { measured: now, asleep: Duration::from_micros(us), sleeps };
        let mut last = LastTimeout::default();
        last.remaining(thread, &asleep(1, 400), 15, now);
        assert!(last.is_unchanged(thread, &asleep(3, 0), 15, now));
        // The rewritten timeout would be shorter than before, or it is another wait.
        assert!(!last.is_unchanged(thread, &asleep(3, 1_000), 15, now));
        assert!(!last.is_unchanged(thread, &asleep(3, 0), 14, now));
        assert!(!last.is_unchanged(thread, &asleep(4, 0), 15, now));
    }
}
