//! What a process may do, by its credentials and filters, and a watch over it while the worker
//! thread runs.
//!
//! The C library changes the credentials of all threads that it knows; it does not know the worker
//! thread. So a process that drops its privileges during a release would keep them in that thread.
//! And a filter that a process installs for all of its threads applies to that thread as well.
//! Therefore the worker thread must end as soon as either changes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use lowtide_probe::proc::is_gone;
use lowtide_probe::proc::task::Thread;

/// The lines of a thread's `status` that say what it may do (Documentation/filesystems/proc.rst).
const KEYS: [&str; 11] = [
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
];

/// The privileges of a thread, as lines of its `status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Privileges(String);

impl Privileges {
    fn parse(text: &str) -> Self {
        let is_one = |line: &&str| line.split_once(':').is_some_and(|(key, _)| KEYS.contains(&key));
        Self(text.lines().filter(is_one).flat_map(|line| [line, "\n"]).collect())
    }
}

/// Reads the privileges of one thread repeatedly.
#[derive(Debug)]
pub(crate) struct PrivilegeReader {
    status: File,
}

impl PrivilegeReader {
    /// Opens a thread.
    ///
    /// # Errors
    /// Fails if it has ended.
    pub(crate) fn open(thread: Thread) -> io::Result<Self> {
        let path = format!("/proc/{}/task/{}/status", thread.pid, thread.tid);
        Ok(Self { status: File::open(path)? })
    }

    /// Reads its privileges.
    ///
    /// # Errors
    /// Fails if it has ended.
    pub(crate) fn read(&self) -> io::Result<Privileges> {
        /// More than any `status` has: those of Linux 6.18 have 1.5 KB, and a line of at most
        /// 65,536 groups.
        const MAX_BYTES: usize = 1 << 20;
        let mut bytes = vec![0; 4096];
        let mut length = 0;
        loop {
            match self.status.read_at(&mut bytes[length..], length as u64)? {
                0 => break,
                read => length += read,
            }
            if length == bytes.len() {
                if length >= MAX_BYTES {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                bytes.resize(length * 4, 0);
            }
        }
        Ok(Privileges::parse(&String::from_utf8_lossy(&bytes[..length])))
    }
}

/// The first thread of a process and the worker thread in it, with the privileges that both should
/// have.
#[derive(Debug)]
pub(crate) struct PrivilegeWatch {
    threads: [PrivilegeReader; 2],
    expected: Privileges,
}

impl PrivilegeWatch {
    /// Creates a watch. `expected` are the privileges of the first thread before the worker thread
    /// was started.
    pub(crate) fn new(
        first: PrivilegeReader,
        worker: PrivilegeReader,
        expected: Privileges,
    ) -> Self {
        Self { threads: [first, worker], expected }
    }

    /// Returns whether a thread may have other privileges now: also if they cannot be read. A
    /// thread that has ended has none.
    pub(crate) fn has_changed(&self) -> bool {
        let may_differ = |thread: &PrivilegeReader| match thread.read() {
            Ok(now) => now != self.expected,
            Err(error) => !is_gone(&error),
        };
        self.threads.iter().any(may_differ)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nVmRSS:\t 12 kB\nCapEff:\t000001ffffffffff\n\
        Seccomp:\t0\nSeccomp_filters:\t0\nnonvoluntary_ctxt_switches:\t7\n";

    #[test]
    fn only_the_lines_of_privileges_count() {
        let before = Privileges::parse(STATUS);
        for (from, to) in [(" 12 kB", " 13 kB"), ("switches:\t7", "switches:\t8")] {
            assert_eq!(before, Privileges::parse(&STATUS.replace(from, to)));
        }
        for (from, to) in [
            ("Uid:\t0\t0", "Uid:\t0\t65534"),
            ("Gid:\t0", "Gid:\t7"),
            ("000001ffff", "000000ffff"),
            ("Seccomp:\t0", "Seccomp:\t2"),
            ("filters:\t0", "filters:\t1"),
        ] {
            assert_ne!(before, Privileges::parse(&STATUS.replace(from, to)), "{to}");
        }
    }

    #[test]
    fn the_privileges_of_a_thread_are_read_again_and_again() {
        let reader = PrivilegeReader::open(Thread::current()).unwrap();
        let before = reader.read().unwrap();
        assert!(before.0.contains("Uid:") && before.0.contains("Seccomp:"), "{before:?}");
        assert_eq!(reader.read().unwrap(), before);
        let again = || PrivilegeReader::open(Thread::current()).unwrap();
        assert!(!PrivilegeWatch::new(again(), again(), before).has_changed());
    }
}
