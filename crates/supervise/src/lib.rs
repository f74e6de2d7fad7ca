//! Keeps the memory of processes low: observes them, lets a policy decide, and releases their memory.
//!
//! `lowtide run`, `lowtide attach` and studies share this loop. [`Supervisor`] is the loop, [`Scope`] the processes that
//! it supervises, [`Observer`] the receiver of its acts.

mod acts;
mod freed_counter;
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
pub use supervisor::{DEFAULT_BUDGET, Observer, Options, Supervisor};
pub use textfile::Textfile;
