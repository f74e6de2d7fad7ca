//! Walks an allocator's heap from outside, in memory that is only read.
//!
//! Everything here is written against [`memory::Memory`], so that a live process, a saved heap and one
//! that a test made up are the same to it. Nothing needs symbols, and nothing needs the process to
//! stand still: what is read may be torn, is checked, and is read again.
//!
//! - [`memory`]: what can be read, and what of it is resident.
//! - [`residency`]: the same, remembered for a short while.
//! - [`ptmalloc`]: the heap of glibc.
//! - [`ranges`]: ranges of addresses in order.
//! - [`saved`]: a heap in a file, for tests and for looking at it elsewhere.

pub mod memory;
pub mod ptmalloc;
pub mod ranges;
pub mod residency;
pub mod saved;
