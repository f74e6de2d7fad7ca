//! The objects of the kernel that processes hold, by kind and number.

use serde::Serialize;

/// A kind of object of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelObjectKind {
    /// Rings of io_uring.
    IoUring,
    /// Pipes.
    Pipe,
    /// Sockets.
    Socket,
    /// Event counters.
    Eventfd,
    /// Timers.
    Timerfd,
    /// Sets of files that are waited for.
    Epoll,
    /// Files and directories that are watched.
    InotifyWatch,
    /// Mappings of memory.
    Mapping,
}

/// Objects of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelObjects {
    /// Their kind.
    pub kind: KernelObjectKind,
    /// Their number in the process that has most of them.
    pub count: u64,
    /// Its PID.
    pub pid: u32,
    /// Its short name.
    pub name: String,
}

impl KernelObjectKind {
    /// Returns the name of a number of them.
    pub fn plural(self) -> &'static str {
        match self {
            Self::IoUring => "rings of io_uring",
            Self::Pipe => "pipes",
            Self::Socket => "sockets",
            Self::Eventfd => "eventfds",
            Self::Timerfd => "timerfds",
            Self::Epoll => "epoll sets",
            Self::InotifyWatch => "inotify watches",
            Self::Mapping => "mappings",
        }
    }

    /// Returns what one of them needs in a 64-bit kernel, at least, in bytes: by this, a number of
    /// them is compared with a row. Rings and pipes need more with their size.
    fn least_bytes(self) -> u64 {
        match self {
            Self::IoUring => 16 << 10,
            Self::Pipe => 1 << 10,
            Self::Socket => 1 << 10,
            Self::Eventfd | Self::Timerfd | Self::Epoll => 256,
            Self::InotifyWatch => 80,
            Self::Mapping => 160,
        }
    }
}

impl KernelObjects {
    /// Returns what they need, at least, in bytes.
    pub fn least_bytes(&self) -> u64 {
        self.count.saturating_mul(self.kind.least_bytes())
    }
}
