//! How long a thread has been waiting.
//!
//! The kernel tells when a thread was last accounted for running (`se.exec_start` in
//! `/proc/PID/task/TID/sched`, in ms of the clock of its processor), which is when it began to wait. What
//! time it is by that clock is told by our own thread, on the same processor.

use std::fs;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long a thread that waits has been waiting; `None` where the kernel does not tell. Rather too short
/// than too long: while the processor was taken away from the machine, its clock stood still.
pub fn waited(pid: u32, tid: u32) -> Option<Duration> {
    let directory = format!("/proc/{pid}/task/{tid}");
    let since = last_ran(&directory)?;
    let now = on_processor(processor(&directory)?, || {
        rustix::thread::sched_yield();
        last_ran("/proc/thread-self")
    })?;
    Some(now.saturating_sub(since))
}

/// When a thread was last accounted for, by the clock of its processor.
fn last_ran(directory: &str) -> Option<Duration> {
    let text = fs::read_to_string(format!("{directory}/sched")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("se.exec_start"))?;
    let value = line.trim_start().strip_prefix(':')?.trim();
    let (ms, ns) = value.split_once('.')?;
    Some(Duration::from_millis(ms.parse().ok()?) + Duration::from_nanos(ns.parse().ok()?))
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
    use std::time::Instant;

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
        let pid = std::process::id();
        if last_ran("/proc/thread-self").is_some() {
            let mut found = Duration::ZERO;
            while found < Duration::from_millis(20) {
                std::thread::sleep(Duration::from_millis(5));
                found = waited(pid, tid).unwrap();
                // Never more than there was.
                assert!(found <= begin.elapsed() + Duration::from_millis(1), "{found:?}");
            }
        } else {
            assert_eq!(waited(pid, tid), None);
        }
        drop(send);
        thread.join().unwrap();
    }
}
