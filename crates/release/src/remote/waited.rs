//! How long a thread has been waiting.
//!
//! The kernel tells when a thread was last accounted for running (`se.exec_start` in
//! `/proc/PID/task/TID/sched`, in ms of the clock of its processor), which is when it began to wait. What
//! time it is by that clock is told by our own thread, on the same processor.

use std::fs;
use std::time::{Duration, Instant};

use super::candidates::Candidate;
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
        let directory = format!("/proc/{}/task/{}", thread.pid, thread.tid);
        let text = account(&directory)?;
        let (since, sleeps) = (last_ran(&text)?, sleeps(&text)?);
        let now = on_processor(processor(&directory)?, || {
            rustix::thread::sched_yield();
            last_ran(&account("/proc/thread-self")?)
        })?;
        let by_then = now.saturating_sub(since);
        Some(Self { looked: Instant::now(), by_then, sleeps })
    }

    /// How long it is now.
    pub(crate) fn by_now(&self) -> Duration {
        self.by_then + self.looked.elapsed()
    }

    /// Whether a thread that was stopped meanwhile had not run since: another wait may look just like
    /// the one that it was in, but has begun later.
    pub(crate) fn is_same_wait(&self, thread: Thread) -> bool {
        let text = account(&format!("/proc/{}/task/{}", thread.pid, thread.tid));
        // Once more, in the stop.
        text.and_then(|text| sleeps(&text)) == Some(self.sleeps + 1)
    }
}

/// The time-out that a thread was given anew last, where its call takes whole milliseconds: when it really
/// ends.
#[derive(Debug, Default)]
pub(super) struct Told(Option<(u32, u64, Instant)>);

impl Told {
    /// What is left of a time-out by now, if what its call says leaves so much: where it is the one that was
    /// told last, the moment at which it ends is known better.
    pub(super) fn rest(
        &mut self,
        candidate: &Candidate,
        ms: u64,
        left: Duration,
        now: Instant,
    ) -> Duration {
        let (tid, sleeps) = (candidate.thread.tid, candidate.waited.map_or(0, |w| w.sleeps));
        let known = self.0.filter(|(of, at_sleep, end)| {
            let known = end.saturating_duration_since(now);
            // It has been stopped since, and has gone to sleep again, and nothing else.
            let is_same = *of == tid && *at_sleep + 2 == sleeps;
            is_same && known <= left && left - known <= Duration::from_millis(2)
        });
        let end = known.map_or(now + left.min(Duration::from_millis(ms)), |(.., end)| end);
        self.0 = Some((tid, sleeps, end));
        end.saturating_duration_since(now)
    }
}

/// What the scheduler tells of a thread.
fn account(directory: &str) -> Option<String> {
    fs::read_to_string(format!("{directory}/sched")).ok()
}

fn value_of<'a>(account: &'a str, name: &str) -> Option<&'a str> {
    let line = account.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start().strip_prefix(':')?.trim())
}

/// When a thread was last accounted for, by the clock of its processor.
fn last_ran(account: &str) -> Option<Duration> {
    let (ms, ns) = value_of(account, "se.exec_start")?.split_once('.')?;
    Some(Duration::from_millis(ms.parse().ok()?) + Duration::from_nanos(ns.parse().ok()?))
}

/// How often a thread has given its processor up by itself.
fn sleeps(account: &str) -> Option<u64> {
    value_of(account, "nr_voluntary_switches")?.parse().ok()
}

/// The processor on which a thread last ran.
fn processor(directory: &str) -> Option<usize> {
    let text = fs::read_to_string(format!("{directory}/stat")).ok()?;
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
    use super::*;

    #[test]
    fn how_long_a_thread_waits_is_told_within_a_few_milliseconds() {
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send((rustix::thread::gettid().as_raw_nonzero().get(), Instant::now())).unwrap();
            let _ = receive.recv();
        });
        let (tid, begin) = told.recv().unwrap();
        let tid = u32::try_from(tid).unwrap();
        let thread_of_ours = Thread { pid: std::process::id(), tid };
        if account("/proc/thread-self").is_some() {
            let mut found = Duration::ZERO;
            while found < Duration::from_millis(20) {
                std::thread::sleep(Duration::from_millis(5));
                found = Waited::of(thread_of_ours).unwrap().by_then;
                // Never more than there was.
                assert!(found <= begin.elapsed() + Duration::from_millis(1), "{found:?}");
            }
        } else {
            assert!(Waited::of(thread_of_ours).is_none());
        }
        drop(send);
        thread.join().unwrap();
    }
}
