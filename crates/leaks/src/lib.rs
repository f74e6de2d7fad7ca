//! Finds the blocks that survive in the heap of a live process, their types, and the memory that
//! holds them. The process is not modified, unless stacks are taken.
//!
//! - [`finder`]: watches a process, and reports.
//! - [`book`]: the blocks in use, and the snapshot in which each first appeared.
//! - [`history`]: the stored snapshots.
//! - [`schedule`]: the time of the next snapshot.
//! - [`evidence`]: the evidence on blocks that grow: types, holders, reachability.
//! - [`pointers`]: pointers to blocks.
//! - [`stacks`]: call stacks of the allocations that survive.
//! - [`types`]: the types of blocks.
//! - [`files`]: the files that a process has mapped: their bytes, and names of their symbols.

pub mod book;
pub mod evidence;
pub mod files;
pub mod finder;
pub mod history;
pub mod pointers;
pub mod schedule;
pub mod stacks;
pub mod types;
