//! Reads that another process can block or delay.
//!
//! A read of a process's memory, arguments or files can wait for a file system that does not answer
//! or answers slowly, or for a program that serves pages itself (FUSE, userfaultfd): the process
//! decides how long such a read takes. So it runs in a thread of its own, which is abandoned
//!
//! - if it makes no progress for 5 s (or until the deadline that the user has set),
//! - if it was neither running nor waiting for a processor for 2 s, and 1 s more for each GiB of
//!   the process's anonymous memory,
//! - or if this and the time in which it ran are more than 10 s, and as much more.
//!
//! Time in which it waits for a processor does not count. It can also wait for a lock of the kernel
//! whose holder, a thread of the process, waits for a processor. So its other waiting time counts
//! as many times less as there are more runnable threads than processors, up to [`MAX_CROWDING`]
//! times.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::abandoned::{MAX_ABANDONED, abandoned};
use crate::mapped;
use crate::proc::task::Thread;
use crate::target::{Target, TargetError};

/// Time that interrupted work has to end by itself.
const GRACE: Duration = Duration::from_millis(300);
/// Interval between two checks of the work's progress,
const STEP: Duration = Duration::from_millis(100);
/// and time without progress after which it is abandoned.
const WITHOUT_PROGRESS: Duration = Duration::from_secs(5);
/// Time for which work that ends itself may sleep.
pub const MAX_SLEEP: Duration = Duration::from_secs(60);
/// Maximum factor by which a busy machine extends the limits: a process can have as many runnable
/// threads as it likes.
pub const MAX_CROWDING: f64 = 4.0;
/// Work in a thread, which the thread that waits for it may leave.
#[derive(Clone)]
struct ThreadWork {
    process: (u32, u64),
    /// Set by the first of the two that leaves the other.
    is_left: Arc<AtomicBool>,
}

impl ThreadWork {
    fn abandon(&self) {
        // Both hold the lock, so that none of them misses the other.
        let mut all = abandoned();
        if !self.is_left.swap(true, Ordering::Relaxed) {
            all.push(self.process);
        }
    }

    fn end(&self) {
        let mut all = abandoned();
        if self.is_left.swap(true, Ordering::Relaxed)
            && let Some(place) = all.iter().position(|process| *process == self.process)
        {
            all.swap_remove(place);
        }
    }
}

/// Ends work when it is dropped, also on a panic.
struct EndOnDrop(ThreadWork);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The reason why work was abandoned. Its thread ends when the operation that it waits for ends.
/// Until then, this process cannot end if the kernel does not let the thread be killed: so another
/// process reads files on remote file systems ([`crate::mapped::read_remote_files_by`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum GivenUp {
    /// It made no progress.
    #[error("it made no progress")]
    Blocked,
    /// It took too long.
    #[error("it took too long")]
    Slow,
    /// The caller interrupted it.
    #[error("it was interrupted")]
    Interrupted,
    /// It panicked: lowtide has a fault.
    #[error("internal error of lowtide: please report it with the message above")]
    Panicked,
    /// It was not started: at a limit on tasks (`pids.max`, RLIMIT_NPROC), or without memory.
    #[error("no thread can be started: a limit on tasks is reached (pids.max, RLIMIT_NPROC)")]
    NoThread,
    /// It was not started: too much work is abandoned already.
    #[error("too many reads of other processes are still blocked")]
    TooMany,
}

impl GivenUp {
    /// Returns the error of work that reads a process.
    pub fn error(self, pid: u32) -> TargetError {
        match self {
            Self::Blocked | Self::Interrupted => TargetError::Blocked(pid),
            Self::Slow => TargetError::Slow(pid),
            Self::Panicked | Self::NoThread | Self::TooMany => {
                TargetError::Other(pid, io::Error::other(self))
            }
        }
    }
}

/// How long work may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Patience {
    /// Maximum duration of the work, in place of the limit of the time in which it runs or idles.
    pub deadline: Option<Duration>,
    /// Time at which the work is given up in any case, such as the end of a whole verb.
    pub end: Option<Instant>,
    /// Whether the work itself limits the time in which it runs. It may also sleep, for
    /// [`MAX_SLEEP`] in all and for less than 5 s at once.
    pub ends_itself: bool,
}

/// The limits of one piece of work.
#[derive(Debug, Clone, Copy)]
struct WorkLimits {
    /// Of the time in which it neither runs nor waits for a processor.
    idle: Duration,
    /// Of that time and the time in which it runs.
    own: Duration,
    /// Of all time.
    total: Duration,
    /// Of the time since it last made progress.
    without_progress: Duration,
}

impl Patience {
    /// Returns the limits for work on a process with this amount of anonymous memory.
    fn limits(self, bytes: u64) -> WorkLimits {
        let more = Duration::from_secs_f64(bytes as f64 / f64::from(1 << 30));
        let idle = Duration::from_secs(2) + more;
        let own = Duration::from_secs(10) + more;
        let most = Duration::MAX;
        let without =
            WorkLimits { idle, own: most, total: most, without_progress: WITHOUT_PROGRESS };
        match self.deadline {
            Some(total) => WorkLimits { idle: total, total, without_progress: most, ..without },
            None if self.ends_itself => WorkLimits { idle: own + MAX_SLEEP, ..without },
            None => WorkLimits { own, ..without },
        }
    }

    /// Works on a process in a thread of its own, until the work takes too long or `interrupt` is
    /// set.
    ///
    /// # Errors
    /// Fails if the work was abandoned, was not started, or panicked.
    pub fn work_on<T: Send + 'static>(
        self,
        target: &Target,
        interrupt: &AtomicBool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GivenUp> {
        let rest = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        if rest == Some(Duration::ZERO) {
            return Err(GivenUp::Slow);
        }
        let deadline = self.deadline.into_iter().chain(rest).min();
        // Its own memory: a process can map the same file as often as it likes.
        let bytes = target.status().map_or(0, |status| status.anon_bytes);
        let process = (target.pid, target.start_ticks);
        patiently(process, Self { deadline, ..self }.limits(bytes), interrupt, work)
    }
}

/// Counts the time of a thread.
struct Watch {
    thread: Thread,
    /// The times for which it had run, and had waited for a processor, at the last check.
    before: [Duration; 2],
    checked: Instant,
    idle: Duration,
    own: Duration,
    switches: u64,
    /// All time that was counted: less than has elapsed if lowtide itself had no processor.
    watched: Duration,
    /// Time since it last made progress: all of it, and as it counts.
    without_progress: [Duration; 2],
}

impl Watch {
    fn new(thread: Thread) -> Self {
        let none = Duration::ZERO;
        Self {
            thread,
            before: [none; 2],
            checked: Instant::now(),
            idle: none,
            own: none,
            switches: 0,
            watched: none,
            without_progress: [none; 2],
        }
    }

    /// Counts the time since the last call. `crowding` is the number of runnable threads of the
    /// machine for each processor, at least 1.
    fn check(&mut self, crowding: f64) {
        let status = self.thread.status().unwrap_or_default();
        let step = std::mem::replace(&mut self.checked, Instant::now()).elapsed();
        // lowtide itself may have been stopped meanwhile.
        let step = step.min(STEP * 5);
        let now = [self.thread.ran(), self.thread.waited()];
        let now = now.map(Option::unwrap_or_default);
        // Kernels without this account show zeros.
        let is_known = now != [Duration::ZERO; 2];
        let [ran, waited] = std::array::from_fn(|at| now[at].saturating_sub(self.before[at]));
        self.before = now;
        // The kernel counts the time for which it waits for a processor only when it has one.
        let idle = match status.state {
            'R' => Duration::ZERO,
            _ => step.saturating_sub(ran).saturating_sub(waited).div_f64(crowding),
        };
        self.idle += idle;
        // Where the kernel has no such account, all time counts.
        self.own += if is_known { ran.min(step) + idle } else { step };
        let has_moved = status.state == 'R' || status.voluntary_switches != self.switches;
        self.switches = status.voluntary_switches;
        self.watched += step;
        let [all, counted] = self.without_progress;
        self.without_progress = match has_moved {
            true => [Duration::ZERO; 2],
            false => [all + step, counted + step.div_f64(crowding)],
        };
    }

    /// Returns why the work has to be given up.
    fn verdict(&self, limits: &WorkLimits, elapsed: Duration) -> Option<GivenUp> {
        let is_slow = self.idle > limits.idle || self.own > limits.own || elapsed > limits.total;
        let [without_progress, counted] = self.without_progress;
        let has_not_moved = without_progress > self.watched / 2;
        match () {
            () if counted >= limits.without_progress || is_slow && has_not_moved => {
                Some(GivenUp::Blocked)
            }
            () if is_slow => Some(GivenUp::Slow),
            () => None,
        }
    }
}

/// The time for which a thread has run or was idle. Time in which it waits for a processor does not
/// count.
pub struct OwnTime(Watch);

impl OwnTime {
    /// Starts to count the time of a thread.
    pub fn new(thread: Thread) -> Self {
        Self(Watch::new(thread))
    }

    /// Returns this time since the start. Of more than half a second between two calls, the rest
    /// does not count: lowtide itself may have been stopped.
    pub fn total(&mut self) -> Duration {
        self.0.check(crowding());
        self.0.own
    }

    /// Waits for a message of the thread until this time is more than `most`; `None` if there is
    /// none.
    pub fn receive<T>(&mut self, receiver: &Receiver<T>, most: Duration) -> Option<T> {
        loop {
            match receiver.recv_timeout(STEP) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Timeout) if self.total() <= most => {}
                Err(_) => return None,
            }
        }
    }
}

/// Returns the number of runnable threads of the machine for each processor, from 1 to
/// [`MAX_CROWDING`].
fn crowding() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    // `0.20 0.18 0.12 1/80 11206`: one of 80 threads is runnable.
    let running = text.split(' ').nth(3).and_then(|counts| counts.split_once('/'));
    let running = running.and_then(|(running, _)| running.parse::<f64>().ok()).unwrap_or(1.0);
    (running / *PROCESSORS).clamp(1.0, MAX_CROWDING)
}

/// Number of processors of the machine. This process may be limited to fewer.
static PROCESSORS: LazyLock<f64> = LazyLock::new(|| {
    // Such as `0-63`.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = online.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<f64>().ok());
    let own = || thread::available_parallelism().map_or(1, usize::from) as f64;
    last.map_or_else(own, |last| last + 1.0)
});

fn patiently<T: Send + 'static>(
    process: (u32, u64),
    limits: WorkLimits,
    interrupt: &AtomicBool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, GivenUp> {
    {
        let all = abandoned();
        // A second thread would only be blocked as well.
        if all.contains(&process) {
            return Err(GivenUp::Blocked);
        }
        if all.len() >= MAX_ABANDONED {
            return Err(GivenUp::TooMany);
        }
    }
    let begin = Instant::now();
    let (sender, receiver) = channel();
    let (thread_sender, thread_receiver) = channel();
    let this = ThreadWork { process, is_left: Arc::default() };
    let ending = EndOnDrop(this.clone());
    let worker = thread::Builder::new().spawn(move || {
        let _ending = ending;
        mapped::wait_for_remote_files();
        // If the work was abandoned, the receiver is gone.
        let _ = thread_sender.send(Thread::current());
        let _ = sender.send(work());
    });
    worker.map_err(|_| GivenUp::NoThread)?;
    let own = std::process::id();
    let mut watch = Watch::new(thread_receiver.recv().unwrap_or(Thread { pid: own, tid: 0 }));
    let given_up = loop {
        match receiver.recv_timeout(STEP) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Disconnected) => return Err(GivenUp::Panicked),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupt.load(Ordering::Relaxed) {
            // Work that checks the interrupt itself ends at once.
            match receiver.recv_timeout(GRACE) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Disconnected) => return Err(GivenUp::Panicked),
                Err(RecvTimeoutError::Timeout) => break GivenUp::Interrupted,
            }
        }
        watch.check(crowding());
        if let Some(given_up) = watch.verdict(&limits, begin.elapsed()) {
            break given_up;
        }
    };
    this.abandon();
    Err(given_up)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    /// Returns another process each time.
    fn nobody() -> (u32, u64) {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        (0, NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn patiently<T: Send + 'static>(
        interrupt: &AtomicBool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GivenUp> {
        super::patiently(nobody(), Patience::default().limits(0), interrupt, work)
    }

    #[test]
    fn completed_work_returns_its_result() {
        assert_eq!(patiently(&never(), || 7), Ok(7));
    }

    #[test]
    fn a_panic_is_an_error_of_the_work() {
        assert_eq!(patiently(&never(), || panic!("a fault")), Err::<(), _>(GivenUp::Panicked));
    }

    #[test]
    fn blocked_work_is_abandoned() {
        // The other end stays open, and nothing is written to it.
        let (mut waited_for, other_end) = std::io::pipe().unwrap();
        let found = patiently(&never(), move || waited_for.read(&mut [0]).is_ok());
        assert_eq!(found, Err(GivenUp::Blocked));
        drop(other_end);
    }

    #[test]
    fn work_that_waits_again_and_again_is_abandoned_as_slow() {
        static OVER: AtomicBool = AtomicBool::new(false);
        let slow = || {
            while !OVER.load(Ordering::Relaxed) {
                thread::sleep(STEP);
            }
        };
        assert_eq!(patiently(&never(), slow), Err(GivenUp::Slow));
        OVER.store(true, Ordering::Relaxed);
    }

    #[test]
    fn the_limits_rise_with_the_size_of_the_process() {
        let limits = Patience::default().limits(3 << 30);
        assert_eq!((limits.idle.as_secs(), limits.own.as_secs()), (5, 13));
    }

    #[test]
    fn work_ends_by_its_deadline() {
        let patience = Patience { deadline: Some(STEP * 3), ..Patience::default() };
        static OVER: AtomicBool = AtomicBool::new(false);
        let busy = || {
            while !OVER.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        assert_eq!(
            super::patiently(nobody(), patience.limits(0), &never(), busy),
            Err(GivenUp::Slow)
        );
        OVER.store(true, Ordering::Relaxed);
    }

    #[test]
    fn no_work_is_started_after_the_end_of_the_verb() {
        let target = Target::open(std::process::id()).unwrap();
        let patience = |end| Patience { end: Some(end), ..Patience::default() };
        let now = Instant::now();
        assert_eq!(patience(now).work_on(&target, &never(), || true), Err(GivenUp::Slow));
        assert_eq!(patience(now + MAX_SLEEP).work_on(&target, &never(), || true), Ok(true));
    }

    #[test]
    fn time_in_which_work_waits_for_a_processor_does_not_count() {
        let mut watch = Watch::new(Thread::current());
        // As on a busy machine: it can run, and does not.
        watch.checked -= Duration::from_secs(60);
        watch.check(1.0);
        assert!(watch.idle.is_zero() && watch.own < Duration::from_secs(30), "{:?}", watch.own);
    }

    #[test]
    fn a_message_is_awaited_until_its_thread_was_idle_for_long_or_has_ended() {
        let ((sender, receiver), (end, ended)) = (channel::<Thread>(), channel::<()>());
        let worker = thread::spawn(move || {
            sender.send(Thread::current()).unwrap();
            ended.recv().unwrap_err();
        });
        let thread = receiver.recv().unwrap();
        let mut own = OwnTime::new(thread);
        assert!(own.receive(&receiver, STEP).is_none());
        assert!(own.total() > STEP);
        drop(end);
        worker.join().unwrap();
        assert!(OwnTime::new(thread).receive(&receiver, Duration::MAX).is_none());
    }

    #[test]
    fn waiting_counts_less_on_a_machine_with_more_runnable_threads_than_processors() {
        let idle = |crowding| {
            let (sender, receiver) = channel();
            let (end, ended) = channel::<()>();
            let worker = thread::spawn(move || {
                sender.send(Thread::current()).unwrap();
                ended.recv().unwrap_err();
            });
            let thread = receiver.recv().unwrap();
            while thread.status().unwrap().state != 'S' {
                thread::yield_now();
            }
            let mut watch = Watch::new(thread);
            watch.check(crowding);
            let begin = watch.idle;
            watch.checked -= STEP * 5;
            watch.check(crowding);
            drop(end);
            worker.join().unwrap();
            watch.idle - begin
        };
        let most = (STEP * 5).div_f64(MAX_CROWDING);
        assert!(idle(MAX_CROWDING) <= most, "{most:?}");
        assert!(idle(1.0) > most * 2);
        assert!((1.0..=MAX_CROWDING).contains(&crowding()));
    }

    #[test]
    fn a_process_with_an_abandoned_thread_gets_no_second_one() {
        let process = nobody();
        let limits = || Patience::default().limits(0);
        let (mut waited_for, other_end) = std::io::pipe().unwrap();
        let read = move || waited_for.read(&mut [0]).is_ok();
        assert_eq!(super::patiently(process, limits(), &never(), read), Err(GivenUp::Blocked));
        let again = super::patiently(process, limits(), &never(), || true);
        assert_eq!(again, Err(GivenUp::Blocked));
        drop(other_end);
        while abandoned().contains(&process) {
            thread::yield_now();
        }
        assert_eq!(super::patiently(process, limits(), &never(), || true), Ok(true));
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_the_work() {
        let (mut waited_for, other_end) = std::io::pipe().unwrap();
        let interrupt = AtomicBool::new(true);
        let found = patiently(&interrupt, move || waited_for.read(&mut [0]).is_ok());
        assert_eq!(found, Err(GivenUp::Interrupted));
        drop(other_end);
    }
}
