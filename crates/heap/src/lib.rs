//! Walks an allocator's heap from outside the process, without writing to its memory.
//!
//! All code here is generic over [`memory::Memory`], so it works on a live process, a saved heap
//! and a synthetic heap of a test. No symbols are needed, and the process need not be stopped: the
//! memory that is read may be torn, so it is checked, and read again if necessary.
//!
//! - [`memory`]: readable memory and its residency.
//! - [`residency`]: resident pages, cached for a short time.
//! - [`blocks`]: the blocks in use, one by one.
//! - [`rooms`]: the memory in which blocks share pages, and the rule by which they hold a page.
//! - [`droppable`]: free pages, and the conditions under which they may be dropped.
//! - [`guarded`]: one interface to such pages of all allocators except glibc's.
//! - [`layout`]: one interface to the heaps of all allocators.
//! - [`engine`]: one interface to the heaps of all engines.
//! - [`ptmalloc`]: the heap of glibc, chunk by chunk.
//! - [`jemalloc`], [`mimalloc`], [`gperftools`], [`musl`]: the heaps of other allocators.
//! - [`pymalloc`]: the heap of CPython's own allocator.
//! - `v8`: the heap of V8.
//! - [`hotspot`]: the heap of Java objects, as HotSpot describes it.
//! - [`ruby`], [`zend`]: the memory of Ruby and PHP.
//! - [`ranges`]: ranges of addresses in order.
//! - [`saved`]: a heap in a file, for tests and for inspecting it on another machine.
//!
//! # How a heap is walked
//!
//! A page that is not resident is never read, because reading makes it resident. `lowtide-probe`
//! implements [`memory::Memory`] for live processes, [`saved`] for saved heaps. [`residency`]
//! caches the residency of 16 MiB at a time, just before it is used, and divides free memory into
//! droppable and locked bytes.
//!
//! - **glibc.** `ptmalloc/layout.rs` finds arenas and settings, `ptmalloc/walk.rs` goes from chunk
//!   to chunk. A stretch that stays inconsistent is skipped and counted as not walked.
//!   `stretch_tally.rs` has the rules of `malloc_trim`; `lists.rs` and `caches.rs` read what chunk
//!   heads do not show. An arena is whole if the walked bytes equal the arena's own count.
//! - **jemalloc.** `jemalloc/rtree.rs` finds the tree from pages to extents. The record of an
//!   extent can be older than its entry in the tree. If they contradict each other, the extent is
//!   read again at once.
//! - **mimalloc.** `mimalloc/find.rs` finds the segments of version 2 and the arenas of version 3
//!   by how they begin. Pages are counted by thread.
//! - **gperftools.** `gperftools/page_map.rs` finds the page map in zeroed data, and the spans in
//!   it. `caches.rs` finds the blocks in the caches of threads, and in the transfer caches between
//!   them.
//! - **musl.** `musl/context.rs` finds the allocator's context by its secret, and the records of
//!   all groups of slots. Slots are read only if their blocks are wanted.
//! - **CPython and HotSpot.** [`pymalloc`] recognises arenas by the headers of their pools,
//!   [`hotspot`] the Java heap by HotSpot's own variables, which `lowtide-probe` finds in its
//!   library.
//! - **V8.** `v8` recognises chunks by descriptions that refer to each other: chunk, space and heap
//!   of the isolate. Which of them are in the pool follows from the lists of the spaces.
//!
//! `tests/saved/` has small heaps of each allocator. Tests also damage them at random. The tests of
//! `lowtide-probe` compare live heaps with the statistics of their allocators, with `malloc_trim`,
//! and with the program's own count.

mod allocator;
pub mod blocks;
mod code;
pub mod droppable;
pub mod droppable_heap;
pub mod engine;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod gperftools;
pub mod guarded;
pub mod hotspot;
pub mod jemalloc;
pub mod layout;
pub mod memory;
pub mod mimalloc;
pub mod musl;
pub mod ptmalloc;
pub mod pymalloc;
pub mod ranges;
pub mod residency;
mod rewalk;
pub mod rooms;
pub mod ruby;
pub mod saved;
mod scattered;
mod v8;
pub mod zend;
