//! An allocator that counts the allocated bytes.

#![expect(unsafe_code, reason = "an allocator is unsafe by its definition")]

mod counters;

use std::alloc::{GlobalAlloc, Layout};

pub use counters::allocated_bytes;

/// Wraps an allocator, and counts the bytes that are allocated with it: [`allocated_bytes`].
/// It counts the bytes that the program requests. The overhead of the allocator, and the freed
/// memory that it keeps, are not counted: they are the difference to the resident size. Each thread
/// has a counter of its own, so an allocation needs no locked instruction.
///
/// Declare it once, as the `#[global_allocator]`. All instances share their counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tracked<A>(A);

impl<A> Tracked<A> {
    /// Wraps an allocator.
    pub const fn new(allocator: A) -> Self {
        Self(allocator)
    }

    /// Returns the allocator that is wrapped.
    pub const fn inner(&self) -> &A {
        &self.0
    }
}

// SAFETY: every call is passed on to an allocator that observes the contract, with the same
// arguments, and its result is returned unchanged. Counting does not unwind. It allocates nothing
// with the global allocator, except while a thread gets its counter, when nested calls are counted
// without one.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Tracked<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller observes the contract of `alloc`.
        let block = unsafe { self.0.alloc(layout) };
        count_new(block, layout.size());
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller observes the contract of `alloc_zeroed`.
        let block = unsafe { self.0.alloc_zeroed(layout) };
        count_new(block, layout.size());
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block comes from `alloc`, `alloc_zeroed` or `realloc`, which return those of
        // the inner allocator.
        unsafe { self.0.dealloc(block, layout) };
        counters::add(-signed(layout.size()));
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the block comes from the inner allocator, and the caller observes the contract of
        // `realloc`.
        let moved = unsafe { self.0.realloc(block, layout, size) };
        if !moved.is_null() {
            counters::add(signed(size) - signed(layout.size()));
        }
        moved
    }
}

/// Counts a block unless there is none.
#[inline]
fn count_new(block: *mut u8, size: usize) {
    if !block.is_null() {
        counters::add(signed(size));
    }
}

/// Returns the size of a layout, which is at most `isize::MAX`.
#[inline]
fn signed(size: usize) -> i64 {
    size as i64
}
