//! An allocator that knows how many bytes are allocated.

#![expect(unsafe_code, reason = "an allocator is unsafe by its definition")]

mod counters;

use std::alloc::{GlobalAlloc, Layout};

pub use counters::allocated_bytes;

/// Wraps an allocator, and counts the bytes that are allocated with it: [`allocated_bytes`].
///
/// It counts the bytes that the program asked for. What the allocator adds to them, and what it keeps of freed memory, is
/// not counted: that is the difference to the resident size. Each thread has a counter of its own, so there is no locked
/// instruction on the way of an allocation.
///
/// Declare it once, as the `#[global_allocator]`. All of them share their counters.
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

// SAFETY: every call is passed on to an allocator that keeps the contract, with the same arguments, and its result is
// returned as it is. Counting does not unwind, and allocates nothing by way of the global allocator but while a thread
// gets its counter, when nested calls are counted without one.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Tracked<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        let block = unsafe { self.0.alloc(layout) };
        count_new(block, layout.size());
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        let block = unsafe { self.0.alloc_zeroed(layout) };
        count_new(block, layout.size());
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block comes from `alloc`, `alloc_zeroed` or `realloc`, which return those of the inner allocator.
        unsafe { self.0.dealloc(block, layout) };
        counters::add(-signed(layout.size()));
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the block comes from the inner allocator, and the caller keeps the contract of `realloc`.
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

/// The size of a layout is at most `isize::MAX`.
#[inline]
fn signed(size: usize) -> i64 {
    size as i64
}
