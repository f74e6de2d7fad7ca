//! Keeps the memory of processes low: observes them, lets a policy decide, and releases their
//! memory.
//!
//! `lowtide run`, `lowtide attach` and studies share this loop. [`Supervisor`] is the loop,
//! [`Scope`] the processes that it supervises, [`Observer`] the receiver of its acts.
//!
//! # How memory stays low
//!
//! 1. `scope.rs` lists the processes: descendants, PIDs, or what a selector matches. Each becomes a
//!    `Subject` with a policy of its own.
//! 2. At each tick, `supervisor.rs` reads the state of each process: size, CPU time, faults, open
//!    files. Some policies also get pressure and limits (`surroundings.rs`), or the bytes that the
//!    preload library has counted (`freed_counter.rs`). None of this walks a heap or stops a
//!    thread.
//! 3. `Policy::decide` returns an action. A release has conditions (`supervisor/releases.rs`): the
//!    brake permits none for a time after releases that failed or took too long (of several heaps,
//!    each has a brake of its own: `heap_brakes.rs`), no hold file exists, the budget of CPU time
//!    is not used up, and no other supervisor releases memory on the host (`host_lock.rs`).
//! 4. `PreparedRelease::run` releases memory, and returns a sample of the dropped pages. `Refaults`
//!    decides when it is checked for pages that came back; the policy learns from the result.
//! 5. An [`Observer`] receives each act. `lowtide run` and `lowtide attach` write the log and the
//!    metrics, and, like a study, the record.
//!
//! With a black box ([`black_box`]), another thread records the processes for the case that the
//! kernel kills one of them.
//!
//! `lowtide run` starts its command through the [`reaper`]. Its policy process runs the same loop
//! over all descendants of the reaper. It knows which of them have inherited lowtide's own seccomp
//! filters, which permits releases in containers.

mod acts;
pub mod black_box;
mod freed_counter;
mod heap_brakes;
mod host_lock;
mod log;
mod own_memory;
pub mod reaper;
mod scope;
mod subject;
mod supervisor;
mod surroundings;
mod textfile;

pub use acts::recorded;
pub use log::{ActLog, LogError};
pub use own_memory::keep_own_memory_low;
pub use scope::Scope;
pub use supervisor::{DEFAULT_BUDGET, Observer, Supervisor, SupervisorOptions};
pub use textfile::Textfile;
