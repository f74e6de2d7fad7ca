//! Finds the blocks that survive in the heap of a live process, their types, and the memory that
//! holds them. The process is not modified, unless stacks are taken.
//!
//! - [`finder`]: watches a process, and reports.
//! - [`book`]: the blocks in use, and the snapshot in which each first appeared.
//! - `history`: the stored snapshots.
//! - [`schedule`]: the time of the next snapshot.
//! - [`evidence`]: the evidence on blocks that grow: types, holders, reachability.
//! - [`pins`]: the blocks that pin fragmented memory.
//! - `pointers`: pointers to blocks.
//! - [`stacks`]: call stacks of the allocations that survive.
//! - `types`: the types of blocks.
//! - [`heap_file`]: the structure of a heap in a file.
//! - `files`: the files that a process has mapped: their bytes, and names of their symbols.
//!
//! # How a search works
//!
//! 1. `BlockReader::walk` of `lowtide-probe` walks the heaps as an inspection does. Each walker
//!    reports its blocks in use to a `BlockVisitor`, one place (64 KiB of addresses) at a time,
//!    with a hash of their first 48 bytes. If a walk goes back, it reports a place again, and the
//!    last report is valid.
//! 2. [`book`] keeps 8 bytes for each block. A block keeps its cohort (the snapshot in which it was
//!    first seen) as long as its address, its size and its hash are the same. When the book is
//!    full, it keeps half of the places, chosen by a hash.
//! 3. `history` keeps the counts of at most 40 snapshots, by size class and cohort. From these
//!    alone, `lowtide-analysis` decides for each size whether it grows, and derives the verdict.
//!    `grown` follows large blocks that grow, in place or by a copy.
//! 4. At the end, [`evidence`] searches all memory twice for pointers. `pointers` finds the
//!    blocks that cannot be reached from any root. Each register that cannot be read could be a
//!    root: the largest number of blocks that so many roots could reach counts as reachable.
//! 5. `types` finds the types of blocks with the tables of their language, which `files` reads
//!    from the mapped files.
//! 6. [`stacks`] samples allocations at the same time, in a thread of its own. The process has
//!    probes only in short windows, after a trial on functions of lowtide itself. At the end, a
//!    walk of the heap finds the sampled blocks that are still in use; lowtide then probes the call
//!    that leads to their allocation, and counts how often the program makes it.
//!
//! `tests/live/subject.c` has programs that leak and programs that do not. Each keeps its own
//! counts.

pub mod book;
pub mod evidence;
mod files;
pub mod finder;
mod group;
mod grown;
pub mod heap_file;
mod history;
pub mod pins;
mod pointers;
pub mod schedule;
pub mod stacks;
mod types;
mod unreached;
mod variables;
mod whole;
