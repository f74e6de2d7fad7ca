//! Returns a live process's free memory to the OS.
//!
//! A walk over the heap finds the free ranges from outside. A page of code in the target then takes
//! the allocator's lock, verifies each range, drops its pages, and unlocks. This is the only part
//! of lowtide that stops threads or writes to another process, and all of that is in the module
//! `remote`.
//!
//! A program can also release its own memory ([`release_own`]). Then the same code runs in the
//! thread that asks for it.
//!
//! Before a release, the runtime of a process can be made to collect ([`collect()`], `collect/`).
//! Nothing of it stops a thread or writes to the process.
//!
//! That code is for x86-64 and aarch64 (`arch/`). On another processor the same functions exist,
//! and refuse every process.
//!
//! # How a release works
//!
//! A process may have several heaps: of the program's own allocator, and of the one that serves
//! `malloc`. They are released one after the other, each by these steps (`heaps.rs` joins their
//! accounts).
//!
//! 1. **Checks** (`examination.rs`, `checks.rs`). Whatever could make a release unsafe and is
//!    visible from outside is checked first. Each reason is a [`Refusal`]: a sentence for people,
//!    and a word for programs, which stays the same in later versions. A refusal is a result; an
//!    error means that the check itself failed.
//! 2. **Walk.** The walk from outside must agree with glibc's own counts. Its result is the
//!    prediction. If nothing can be returned, the release ends here, and no thread is stopped.
//! 3. **Candidate** (`remote/candidates.rs`). A thread is chosen from outside: it waits in a
//!    restartable system call (`remote/wait.rs`), is not inside a signal handler, and has stack
//!    space.
//! 4. **Borrow** (`remote/borrow.rs`), for about 0.1 ms. `PTRACE_SEIZE` and `PTRACE_INTERRUPT` stop
//!    the thread. Its state must equal the state that was read from outside. Its registers are
//!    replaced *once*, and it continues. From then on it returns to its own registers, vector
//!    state, signal mask and system call by itself, whether lowtide lives or not:
//!    - without code of lowtide (`remote/frame.rs`), by a chain of signal frames on its own stack.
//!      Each makes one system call through a `syscall; ret` of the C library; the last one restores
//!      the thread. This maps the page of code, and unmaps it at the end. A stop that only reads
//!      filters or writes the page ends with a chain that makes no calls: the kernel would continue
//!      some waits by `restart_syscall`, in which no thread can be borrowed, and which a filter may
//!      not permit.
//!    - with that code (`remote/enter.rs`), which uses general registers only and returns by a
//!      signal frame. It is unmapped only after each thread that ran it was seen outside of it.
//! 5. **Filters.** The thread's seccomp filters must allow all of this: they are read and
//!    interpreted (`remote/seccomp.rs`). In a container, the kernel does not show them; if lowtide
//!    has the same filters (`remote/shared_filters.rs`), the calls are tried in scratch processes
//!    instead, before a thread is stopped (`remote/scratch.rs`).
//! 6. **Page of code** (`stub/stub.c`; `stub/contract.def` describes its data, its operations and
//!    its calls). It locks an arena, verifies each range as glibc's own checks would, drops its
//!    pages, unlocks, and repeats, a bounded number of pages at a time. It runs in a thread of its
//!    own if glibc is known to take locks (`__libc_single_threaded`), otherwise in slices in the
//!    borrowed thread. A second build of it (`stub/guarded.h`) drops free ranges of other
//!    allocators: the walk names what guards each range, and the words that must be unchanged while
//!    the guard is held. For a purge, a borrowed thread calls the allocator's own function instead
//!    (`purge.rs`).
//! 7. **Passes** (`passes.rs`, `plan.rs`, `worker.rs`). Free pages go to that code in batches of 16
//!    MiB, while they are fresh. Passes repeat until one returns everything that it has found,
//!    returns little, or finds as much as the one before. The target can write to the data of the
//!    code, so every value that is read back is limited to its valid range. `dropped.rs` keeps a
//!    sample of the dropped pages for a caller that wants to know later how many came back.
//!
//! While its code is mapped, lowtide renews a heartbeat (`remote/heartbeat.rs`). If lowtide is
//! killed, its thread in the target ends within a second, and the next release removes what is
//! still mapped (`remote/leftovers.rs`). With each heartbeat, lowtide compares the privileges of
//! that thread with those of the process (`privileges.rs`). A young process with privileges gets
//! slices instead. A lock on `/proc/PID/mem` prevents a second release at the same time; where two
//! releases see the process through different mounts of `/proc`, the heartbeat does.
//!
//! What cannot be read counts as the worse case. Our code stays mapped, for a later release, unless
//! it was seen that no thread can be in it.
//!
//! Registers, instructions, signal frames and the rule by which an interrupted call restarts depend
//! on the processor: `arch/` has one interface for them, and `stub/PROCESSOR/` the assembler. For
//! other processors, this crate does not compile.
//!
//! The tests kill lowtide, end the target, or make the target change itself at every step
//! (`crash_safety.rs`, `self_changes.rs`), and verify every byte, register and timeout of programs
//! whose memory is released (`torture/`). `kernel_state.rs` is the table of all state of the kernel
//! that a release touches or rests on.

mod arch;
mod checks;
mod clock;
mod collect;
mod dropped;
mod end;
mod error;
mod examination;
mod filters;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod headroom;
mod heaps;
mod hold;
mod huge;
mod keep_huge;
mod kept;
mod options;
mod own;
mod passes;
mod periodic;
mod plan;
mod prediction;
mod priority;
mod privileges;
mod purge;
mod reasons;
mod refusal;
mod releasable;
mod release;
mod remote;
mod stub;
mod symbol;
mod target_code;
mod worker;

pub use checks::check_permission;
pub use collect::collect;
pub use dropped::{CameBack, DroppedRanges};
pub use end::{EndDuringRelease, EndKind};
pub use error::ReleaseError;
pub use hold::Hold;
pub use kept::{KeptWalk, Walk};
pub use options::{HeapName, Options, ReleaseProgress};
pub use own::{OwnOptions, OwnRefusal, OwnRelease, release_own};
pub use periodic::PeriodicThread;
pub use prediction::predict_refusal;
pub use priority::{end_preference, prefer_this_thread, prefer_thread};
pub use refusal::Refusal;
pub use release::{PreparedRelease, release};

/// Parts that tests observe or call directly. They are not part of the interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::checks::{TargetFacts, check, check_permission};
    pub use crate::error::Abort;
    pub use crate::release::{TargetStep, release_observed};
    pub use crate::remote::seccomp::{
        Call, Filter, FilterAction, Instruction, decide, filters_of, permits,
    };
}
