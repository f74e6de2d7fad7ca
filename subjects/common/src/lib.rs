//! Measurements that several subjects report about themselves.

use std::alloc::{GlobalAlloc, Layout};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes that the program has allocated and not freed, if its allocator is a
/// [`Counting`] one.
pub fn allocated_bytes() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

/// An allocator that counts the bytes that the program has allocated, in one atomic, as the
/// post of `million-streams` does. Another allocator does the rest.
pub struct Counting<A>(pub A);

// SAFETY: every call is passed on unchanged to the wrapped allocator; the count touches none of its
// memory.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller observes the contract of `alloc`, which is the same.
        let block = unsafe { self.0.alloc(layout) };
        if !block.is_null() {
            ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from the same allocator with the same layout.
        unsafe { self.0.dealloc(block, layout) };
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller observes the contract of `alloc_zeroed`, which is the same.
        let block = unsafe { self.0.alloc_zeroed(layout) };
        if !block.is_null() {
            ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `block` came from the same allocator with the same layout.
        let moved = unsafe { self.0.realloc(block, layout, size) };
        if !moved.is_null() {
            ALLOCATED.fetch_add(size.wrapping_sub(layout.size()), Ordering::Relaxed);
        }
        moved
    }
}

/// Returns the resident memory by the kernel's count, in bytes; 0 if it cannot be read.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Converts bytes to MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

/// Replaces a file as a whole, so that no reader sees a part of it.
///
/// # Errors
/// Fails if the file, or a temporary file next to it, cannot be written.
pub fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = file.to_owned().into_os_string();
    beside.push(".new");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)
}
