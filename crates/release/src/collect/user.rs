//! The user of another process, as which files and sockets in its root are used: so none of them is
//! reached that the process itself could not reach, and HotSpot accepts the connection.

use std::io;

use lowtide_probe::proc::status::Status;
use rustix::process::{getegid, geteuid};
use rustix::thread::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The effective user and group of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    pub(super) fn of(status: &Status) -> Self {
        Self { uid: status.effective_uid, gid: status.effective_gid }
    }

    /// Returns whether a file's owner is this user, or root.
    pub(super) fn owns(self, owner: u32) -> bool {
        owner == self.uid || owner == 0
    }

    /// Makes the calling thread act as this user. The thread must have been started for that: it
    /// has no other groups from then on. Other threads are not affected: unlike those of the C
    /// library, these calls act on one thread.
    ///
    /// # Errors
    /// Fails if the caller may not act as this user.
    pub(super) fn enter(self) -> io::Result<Entered> {
        let own = Self { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        if own != self {
            set_thread_groups(&[])?;
            set_thread_res_gid(None, Gid::from_raw(self.gid), None)?;
            set_thread_res_uid(None, Uid::from_raw(self.uid), None)?;
        }
        Ok(Entered { own, user: self })
    }
}

/// A thread that acts as another user.
pub(super) struct Entered {
    own: User,
    user: User,
}

impl Entered {
    /// Runs something as the user of lowtide again, such as a signal: the kernel then decides by
    /// lowtide's own rights.
    ///
    /// # Errors
    /// Fails if the thread cannot change its user; then nothing was run.
    pub(super) fn as_own<T>(&self, run: impl FnOnce() -> T) -> io::Result<T> {
        if self.own == self.user {
            return Ok(run());
        }
        set_thread_res_uid(None, Uid::from_raw(self.own.uid), None)?;
        let result = run();
        set_thread_res_uid(None, Uid::from_raw(self.user.uid), None)?;
        Ok(result)
    }
}
