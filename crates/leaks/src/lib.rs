//! Finds what survives in the heap of a live process, what it is, and which memory holds it. The process is
//! not touched, unless stacks are taken.
//!
//! - [`finder`]: watches a process, and reports.
//! - [`book`]: which blocks are there since when.
//! - [`history`]: the snapshots that are kept.
//! - [`schedule`]: when the next one is taken.
//! - [`evidence`]: what is found out about blocks that grow: types, holders, reachability.
//! - [`pointers`]: pointers to blocks.
//! - [`stacks`]: where blocks are allocated that survive.
//! - [`types`]: what a block is.
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
