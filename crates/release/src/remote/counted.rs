//! Whether a borrowed thread takes part in the locks of musl.
//!
//! musl takes locks only while it counts more than one thread. If a thread that it does not count
//! (of a `clone` by the program itself) held a lock, the program would continue without it as soon
//! as the other threads have ended. A thread that musl counts holds it like one that is inside
//! `malloc`. The only thread of a process needs no lock, if it waits outside of the allocator.
//!
//! Sources: musl 1.2.1 to 1.2.5, `src/internal/libc.h`, `src/internal/pthread_impl.h`,
//! `src/thread/pthread_create.c` (a thread that ends first clears its TID, and then leaves the
//! count), `src/process/_Fork.c`.

use lowtide_probe::proc::task;

use super::stopped_thread::StoppedThread;
use super::target_io::TargetIo;

/// Place of the TID in the data of a thread (`struct pthread`), in bytes.
const TID_AT: u64 = 0x30;

/// The rule that only threads run operations that musl counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// The address of the word with the number of threads; `None` if it is not known.
    pub(super) threads: Option<u64>,
}

/// The standing of a stopped thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is the only one, and no locks are taken.
    Alone,
    /// It is one of several that musl counts, and locks are taken.
    Counted,
    /// It is neither, or that could not be read.
    Uncounted,
}

impl Counted {
    /// Returns the standing of a stopped thread. If it is the only one, it stays so until it
    /// continues.
    pub(super) fn standing(self, io: &TargetIo<'_>, stopped: &StoppedThread) -> Standing {
        let alone = || match task::program_threads(stopped.thread.pid) {
            Ok(all) if all == [stopped.thread] => Standing::Alone,
            _ => Standing::Uncounted,
        };
        let Some(at) = self.threads else { return alone() };
        let Some(word) = io.word(at) else { return Standing::Uncounted };
        // The fourth byte, with its sign, and the upper half.
        let (takes, others) = ((word >> 24) as i8, (word >> 32) as i32);
        match (takes, others) {
            (..=0, 0) => alone(),
            (1.., 1..) if is_listed(io, stopped) => Standing::Counted,
            _ => Standing::Uncounted,
        }
    }
}

/// Returns whether a thread has data of musl of its own, with its own TID.
fn is_listed(io: &TargetIo<'_>, stopped: &StoppedThread) -> bool {
    let own_data = stopped.registers.fs_base;
    let Ok(status) = stopped.thread.status() else { return false };
    let tid_at = own_data.checked_add(TID_AT);
    own_data != 0
        && status.own_pid != 0
        && io.word(own_data) == Some(own_data)
        && tid_at.and_then(|at| io.word(at)).map(|word| word as u32) == Some(status.own_pid)
}
