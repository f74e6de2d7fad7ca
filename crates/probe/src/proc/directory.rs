//! An open `/proc/PID`, so that a process with a reused PID is not mistaken for the one that was
//! opened.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};

use super::is_gone;
use super::stat::Stat;

/// An open `/proc/PID`. Its files are always those of the process that had the PID when it was
/// opened: after that process was reaped, none of them can be opened ([`is_gone`]), even if another
/// process has its PID.
///
/// This is what a pidfd is for, which kernels before 5.3 do not have.
#[derive(Debug)]
pub struct ProcessDirectory(OwnedFd);

impl ProcessDirectory {
    /// Opens the directory of a process, or of a thread, whose TID leads to a directory as well.
    ///
    /// # Errors
    /// Fails if there is no such process, or if no more files can be opened.
    pub fn open(pid: u32) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?))
    }

    /// Opens the same directory a second time.
    ///
    /// # Errors
    /// Fails if no more files can be opened.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Opens one of its files.
    ///
    /// # Errors
    /// Fails if it may not be read, or if the process was reaped.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// Reads the text of one of its files.
    ///
    /// # Errors
    /// Fails if it may not be read, or if the process was reaped.
    pub fn text(&self, name: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.file(name)?.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads its `stat`.
    ///
    /// # Errors
    /// Fails if the process was reaped.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(Stat::parse(&self.text("stat")?)?)
    }

    /// Returns whether all threads of the process have ended, even if its parent has not reaped it
    /// yet.
    pub fn has_ended(&self) -> bool {
        // If another thread than the first executes a program, it takes the place of the first.
        // Whoever reads `stat` in that moment sees the end of the first.
        self.seems_ended() && self.seems_ended()
    }

    fn seems_ended(&self) -> bool {
        match self.stat() {
            // The first thread can end before others. It then looks like a zombie, and waits for
            // them.
            Ok(stat) => stat.has_ended() && stat.threads <= 1,
            Err(error) => is_gone(&error),
        }
    }
}

impl AsFd for ProcessDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
