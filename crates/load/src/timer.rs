//! A timer that wakes the loop with an accuracy of about 50 µs. The poll timeout has whole
//! milliseconds, which would delay a schedule.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A timer that is registered with the poller.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    /// The time at which it fires, since the start of the run.
    set: Option<Duration>,
}

impl Timer {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { fd, set: None })
    }

    /// Sets the timer to a time since the start of the run, unless it fires earlier anyway.
    pub(crate) fn set(&mut self, at: Duration, now: Duration) -> io::Result<()> {
        if self.set.is_some_and(|set| set > now && set <= at) {
            return Ok(());
        }
        // Zero would disarm it.
        let wait = at.saturating_sub(now).max(Duration::from_micros(1));
        let value = Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec)?;
        self.set = Some(at);
        Ok(())
    }
}
