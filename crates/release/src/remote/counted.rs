//! Whether a borrowed thread takes part in the locks of the C library.
//!
//! A C library takes locks only while it counts more than one thread. While a thread that it does
//! not count (of a `clone` by the program itself) holds a lock, the others may continue without it:
//! under glibc, as long as no other thread was ever started; under musl, as soon as the other
//! threads have ended. Besides, such a thread may share the data of another one, and with it the
//! caches of an allocator. A thread that is counted holds a lock like one that is inside `malloc`.
//! The only thread of a process needs no lock, if it waits outside of the allocator.
//!
//! Sources: glibc, `nptl/descr.h` (`header.tcb` and `tid` of `struct pthread`),
//! `nptl/pthread_create.c` (which clears `__libc_single_threaded`); musl 1.2.1 to 1.2.5,
//! `src/internal/libc.h`, `src/internal/pthread_impl.h`, `src/thread/pthread_create.c` (a thread
//! that ends first clears its TID, and then leaves the count), `src/process/_Fork.c`.

use lowtide_heap::droppable::Droppers;
use lowtide_probe::proc::task;

use super::stopped_thread::StoppedThread;
use super::target_io::TargetIo;
use crate::arch::{self, TidPlaces};

/// The rule which threads may run operations.
#[derive(Debug, Clone, Copy)]
pub(super) enum TakesPart {
    /// Those that the C library, whichever it is, has data of.
    Any,
    /// Those that musl counts.
    Musl {
        /// The address of the word with the number of threads; `None` if it is not known.
        threads: Option<u64>,
    },
}

/// The standing of a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadStanding {
    /// It is the only one, and no locks are taken.
    Alone,
    /// The C library counts it.
    Counted,
    /// It is neither, or that could not be read.
    Uncounted,
}

impl TakesPart {
    /// Returns the rule for operations of a heap.
    pub(super) fn of(droppers: Droppers) -> Self {
        match droppers {
            Droppers::Counted { threads } => Self::Musl { threads },
            Droppers::Any | Droppers::Owners => Self::Any,
        }
    }

    /// Returns the standing of a stopped thread. If it is the only one, it stays so until it
    /// continues.
    pub(super) fn standing(self, io: &TargetIo<'_>, stopped: &StoppedThread) -> ThreadStanding {
        let alone = || match task::program_threads(stopped.thread.pid) {
            Ok(all) if all == [stopped.thread] => ThreadStanding::Alone,
            _ => ThreadStanding::Uncounted,
        };
        let threads = match self {
            Self::Any if is_listed(io, stopped, |places| [places.glibc, places.musl]) => {
                return ThreadStanding::Counted;
            }
            Self::Any | Self::Musl { threads: None } => return alone(),
            Self::Musl { threads: Some(threads) } => threads,
        };
        let Some(word) = io.word(threads) else { return ThreadStanding::Uncounted };
        // The fourth byte, with its sign, and the upper half.
        let (takes, others) = ((word >> 24) as i8, (word >> 32) as i32);
        match (takes, others) {
            (..=0, 0) => alone(),
            (1.., 1..) if is_listed(io, stopped, |places| [None, places.musl]) => {
                ThreadStanding::Counted
            }
            _ => ThreadStanding::Uncounted,
        }
    }

    /// Returns why a thread that is [`ThreadStanding::Uncounted`] runs no operations.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Any => {
                "the C library does not know it (a clone of the program itself has started it)"
            }
            Self::Musl { .. } => "musl does not count it among the threads that take locks",
        }
    }
}

/// Returns whether a thread has data of its C library of its own, with its own TID in one of some
/// places.
fn is_listed(
    io: &TargetIo<'_>,
    stopped: &StoppedThread,
    places: impl Fn(TidPlaces) -> [Option<u64>; 2],
) -> bool {
    let own_data = stopped.registers.own_data();
    let Ok(status) = stopped.thread.status() else { return false };
    let tid = |at: u64| io.word(at).map(|word| word as u32);
    let all = places(arch::tid_places(stopped.thread.tid, own_data, |at| io.word(at)));
    status.own_pid != 0 && all.into_iter().flatten().any(|at| tid(at) == Some(status.own_pid))
}
