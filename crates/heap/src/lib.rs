//! Walks an allocator's heap from outside, in memory that is only read.
//!
//! Everything here is written against [`memory::Memory`], so that a live process, a saved heap and one
//! that a test made up are the same to it. Nothing needs symbols, and nothing needs the process to
//! stand still: what is read may be torn, is checked, and is read again.

pub mod memory;
pub mod ptmalloc;
