//! An allocator that counts what the program has allocated, in one atomic, as the document does.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

const REAL: std::alloc::System = std::alloc::System;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Bytes that the program has asked for and not freed.
pub(crate) fn allocated() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

/// Counts, and leaves the rest to the real one.
pub(crate) struct Counting;

// SAFETY: every call goes to the real allocator as it came; the count touches no memory of theirs.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        let block = unsafe { REAL.alloc(layout) };
        if !block.is_null() {
            ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from the same allocator with the same layout.
        unsafe { REAL.dealloc(block, layout) };
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        let block = unsafe { REAL.alloc_zeroed(layout) };
        if !block.is_null() {
            ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `block` came from the same allocator with the same layout.
        let moved = unsafe { REAL.realloc(block, layout, size) };
        if !moved.is_null() {
            ALLOCATED.fetch_add(size.wrapping_sub(layout.size()), Ordering::Relaxed);
        }
        moved
    }
}
