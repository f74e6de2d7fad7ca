//! An alarm that wakes the loop at a time, to some 50 µs: what the loop itself waits by is whole
//! milliseconds, and a schedule would be kept that much too late.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// An alarm.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    /// When it goes off, since the run started.
    set: Option<Duration>,
}

impl Timer {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { fd, set: None })
    }

    /// Has it go off at a time of the run, unless it goes off earlier anyway.
    pub(crate) fn set(&mut self, at: Duration, now: Duration) -> io::Result<()> {
        if self.set.is_some_and(|set| set > now && set <= at) {
            return Ok(());
        }
        // Zero would switch it off.
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
