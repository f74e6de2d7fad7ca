//! Walks an allocator's heap from outside, in memory that is only read.
//!
//! Everything here is written against [`memory::Memory`], so that a live process, a saved heap and one
//! that a test made up are the same to it. Nothing needs symbols, and nothing needs the process to
//! be stopped: what is read may be torn, is checked, and is read again.
//!
//! - [`memory`]: what can be read, and what of it is resident.
//! - [`residency`]: the same, remembered for a short while.
//! - [`blocks`]: the blocks in use, one by one.
//! - [`droppable`]: free pages, and what must hold when they are dropped.
//! - [`guarded`]: one interface to such pages of all allocators but glibc's.
//! - [`layout`]: one interface to the heaps of all allocators.
//! - [`ptmalloc`]: the heap of glibc, chunk by chunk.
//! - [`jemalloc`], [`mimalloc`], [`gperftools`]: the heaps of other allocators.
//! - [`pymalloc`]: the heap of CPython's own allocator.
//! - [`hotspot`]: the heap of Java objects, as HotSpot describes it.
//! - [`ruby`], [`zend`]: where Ruby and PHP keep their memory.
//! - [`ranges`]: ranges of addresses in order.
//! - [`saved`]: a heap in a file, for tests and for inspecting it on another machine.

pub mod blocks;
pub mod droppable;
pub mod gperftools;
pub mod guarded;
pub mod hotspot;
pub mod jemalloc;
pub mod layout;
pub mod memory;
pub mod mimalloc;
pub mod ptmalloc;
pub mod pymalloc;
pub mod ranges;
pub mod residency;
mod rewalk;
pub mod ruby;
pub mod saved;
mod scattered;
pub mod zend;
