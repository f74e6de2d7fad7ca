//! Walks an allocator's heap from outside the process, without writing to its memory.
//!
//! All code here is generic over [`memory::Memory`], so it works on a live process, a saved heap
//! and a synthetic heap of a test. No symbols are needed, and the process need not be stopped: the
//! memory that is read may be torn, so it is checked, and read again if necessary.
//!
//! - [`memory`]: readable memory and its residency.
//! - [`residency`]: resident pages, cached for a short time.
//! - [`blocks`]: the blocks in use, one by one.
//! - [`droppable`]: free pages, and the conditions under which they may be dropped.
//! - [`guarded`]: one interface to such pages of all allocators except glibc's.
//! - [`layout`]: one interface to the heaps of all allocators.
//! - [`ptmalloc`]: the heap of glibc, chunk by chunk.
//! - [`jemalloc`], [`mimalloc`], [`gperftools`]: the heaps of other allocators.
//! - [`pymalloc`]: the heap of CPython's own allocator.
//! - [`hotspot`]: the heap of Java objects, as HotSpot describes it.
//! - [`ruby`], [`zend`]: the memory of Ruby and PHP.
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
