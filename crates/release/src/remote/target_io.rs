//! Access to a target's memory, and waiting for changes in it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::target::{Target, TargetError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{ACTION_TIMEOUT, JOB_STOP_TIMEOUT, TargetStep};
use crate::error::{Abort, failed};
use crate::refusal::Refusal;

/// Access to a target's memory. Dropping it releases the lock that keeps other releases away.
pub(crate) struct TargetIo<'t> {
    pub(super) target: &'t Target,
    /// The target's memory for inspection: reading it makes no page resident.
    pub(super) live: &'t ProcessMemory,
    memory: File,
    observe: &'t mut dyn FnMut(TargetStep),
}

impl<'t> TargetIo<'t> {
    /// Opens the target's memory. `observe` is called before every operation on the target.
    ///
    /// # Errors
    /// Fails if the target has ended or its memory may not be written.
    pub(super) fn open(
        target: &'t Target,
        live: &'t ProcessMemory,
        observe: &'t mut dyn FnMut(TargetStep),
    ) -> Result<Self, Abort> {
        let memory = OpenOptions::new().read(true).write(true).open(target.path("mem"));
        let memory = memory.map_err(|error| target.failed(error))?;
        Ok(Self { target, live, memory, observe })
    }

    /// Keeps other releases away from the process. The kernel releases this lock when lowtide ends,
    /// however that happens. Releases that see the process through another `/proc` are detected by
    /// their mappings in it.
    ///
    /// # Errors
    /// Fails if another release is in progress, or if the kernel does not give the lock for another
    /// reason.
    pub(super) fn lock(&self) -> Result<(), Abort> {
        match flock(&self.memory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(Refusal::AnotherRelease.into()),
            // Works without a lock if files of /proc cannot be locked.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(()),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    /// Returns the PID of the target.
    pub(crate) fn target_pid(&self) -> u32 {
        self.target.pid
    }

    /// Reports an operation on the target before it is performed.
    pub(super) fn observe(&mut self, step: TargetStep) {
        (self.observe)(step);
    }

    /// Returns the function that receives the operations.
    pub(super) fn observer(&mut self) -> &mut dyn FnMut(TargetStep) {
        self.observe
    }

    /// Writes to the target, from the end backwards and page by page: if a page is missing, nothing
    /// below it is written.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Abort> {
        self.observe(TargetStep::Write);
        let mut end = at + bytes.len() as u64;
        while end > at {
            let begin = at.max((end - 1) & !4095);
            let part = &bytes[(begin - at) as usize..(end - at) as usize];
            self.memory.write_all_at(part, begin).map_err(|error| self.failed(error))?;
            end = begin;
        }
        Ok(())
    }

    /// Reads from the target.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(bytes, at)
    }

    /// Reads a word of 64 bits; `None` if it is not mapped.
    pub(super) fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns another handle of the target's memory, for another thread of lowtide.
    pub(super) fn memory(&self) -> io::Result<File> {
        self.memory.try_clone()
    }

    /// Reads the target's current mappings.
    pub(super) fn maps(&self) -> Result<Vec<Mapping>, Abort> {
        self.target.maps().map_err(|error| self.failed(error))
    }

    /// Waits until `holds` returns true, up to `timeout`, or less if the process is stopped.
    /// Returns whether it did.
    pub(crate) fn until(&self, timeout: Duration, holds: impl Fn() -> bool) -> bool {
        const POLL_INTERVAL: Duration = Duration::from_micros(20);
        const SLOW_POLL_INTERVAL: Duration = Duration::from_micros(200);
        /// Interval of the checks whether the process is stopped.
        const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);
        let begin = Instant::now();
        let (mut checked, mut stopped) = (Duration::ZERO, None);
        loop {
            if holds() {
                return true;
            }
            let waited = begin.elapsed();
            if waited >= timeout || !self.live.is_in_use() {
                return false;
            }
            if waited >= checked + STOP_CHECK_INTERVAL {
                checked = waited;
                stopped = if self.is_stopped() { stopped.or(Some(waited)) } else { None };
                if stopped.is_some_and(|since| waited - since > JOB_STOP_TIMEOUT) {
                    return false;
                }
            }
            std::thread::sleep(if waited < SLOW_POLL_INTERVAL * 10 {
                POLL_INTERVAL
            } else {
                SLOW_POLL_INTERVAL
            });
        }
    }

    /// Returns whether the process is stopped by job control.
    pub(super) fn is_stopped(&self) -> bool {
        self.target.stat().is_ok_and(|stat| stat.state == 'T')
    }

    /// Returns the reason why an operation failed: the target has ended or is stopped, or else
    /// `otherwise`.
    pub(crate) fn because(&self, otherwise: &str) -> Abort {
        match self.lost() {
            Some(error) => error.into(),
            None if self.is_stopped() => failed(
                "it was stopped during the release: a later release removes what lowtide has left in it",
            ),
            None => failed(otherwise),
        }
    }

    /// Returns the error for a target whose memory no process uses any more; `None` while it is in
    /// use.
    pub(super) fn lost(&self) -> Option<TargetError> {
        if self.live.is_in_use() {
            return None;
        }
        // A process releases its memory shortly before it has ended. If it has started another
        // program, it has other memory.
        let begin = Instant::now();
        // (Its end is not reported while one of its threads is stopped by us.)
        while self.target.stat().is_ok() && begin.elapsed() < ACTION_TIMEOUT {
            if self.target.maps().is_ok_and(|maps| !maps.is_empty()) {
                return Some(TargetError::Replaced(self.target.pid));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Some(TargetError::Gone(self.target.pid))
    }

    /// Translates an error from an operation on the target.
    pub(super) fn failed(&self, error: io::Error) -> Abort {
        self.lost().unwrap_or_else(|| self.target.failed(error)).into()
    }
}

impl Drop for TargetIo<'_> {
    fn drop(&mut self) {
        // Closing the file is not enough: a child that is just being started may have it open as
        // well.
        let _ = flock(&self.memory, FlockOperation::Unlock);
    }
}
