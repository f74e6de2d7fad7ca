//! The allocators, and how each of them returns memory.

#![expect(unsafe_code, reason = "functions of allocators in C")]

use std::time::{Duration, Instant};

use crate::memory;

/// The allocator of the program.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Allocator {
    /// glibc's `malloc`, which Rust's [`System`](std::alloc::System) allocator uses on Linux.
    #[cfg(feature = "glibc")]
    Glibc,
    /// jemalloc, as the crate `tikv-jemallocator` has it.
    #[cfg(feature = "jemalloc")]
    Jemalloc,
    /// mimalloc 2 or 3, as the crate `mimalloc` has it.
    #[cfg(feature = "mimalloc")]
    Mimalloc,
    /// Any other.
    Other {
        /// Returns free memory to the OS, as far as any thread can do that.
        release: fn(),
        /// Gives back what the calling thread keeps for itself. `None` if a release has no need of it.
        flush: Option<fn()>,
    },
}

impl Default for Allocator {
    /// mimalloc or jemalloc if their feature is on, else glibc. Without any of these features, nothing is released.
    fn default() -> Self {
        #[cfg(feature = "mimalloc")]
        return Self::Mimalloc;
        #[cfg(all(feature = "jemalloc", not(feature = "mimalloc")))]
        return Self::Jemalloc;
        #[cfg(all(feature = "glibc", not(feature = "jemalloc"), not(feature = "mimalloc")))]
        return Self::Glibc;
        #[cfg(not(any(feature = "glibc", feature = "jemalloc", feature = "mimalloc")))]
        return Self::Other { release: || {}, flush: None };
    }
}

/// The account of a release.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Released {
    /// Bytes of anonymous memory before the release.
    pub before_bytes: u64,
    /// Bytes of anonymous memory after it. It also has what other threads have allocated meanwhile.
    pub after_bytes: u64,
    /// Time that it took.
    pub elapsed: Duration,
    /// The longest time that the allocator was locked, if that is known: with glibc.
    pub longest_lock: Option<Duration>,
    /// Why `malloc_trim` was called, which locks an arena for as long as it takes. `None` otherwise.
    pub fallback: Option<String>,
}

impl Released {
    /// Bytes by which the anonymous memory has become smaller.
    pub fn returned_bytes(&self) -> u64 {
        self.before_bytes.saturating_sub(self.after_bytes)
    }
}

/// Returns the free memory of an allocator to the OS. It runs in the calling thread, and blocks it for up to some tenths
/// of a second. jemalloc and mimalloc have free memory in each thread as well: [`sweep`](crate::sweep) first.
///
/// With glibc, whole free pages of all arenas are dropped, and an arena is locked for about 60 µs at a time. On another
/// processor than x86-64, and on a version of glibc that lowtide was not tested with, `malloc_trim` is called instead:
/// [`Released::fallback`].
pub fn release(allocator: Allocator) -> Released {
    let begin = Instant::now();
    let mut released =
        Released { before_bytes: memory::anonymous_bytes().unwrap_or(0), ..Released::default() };
    match allocator {
        #[cfg(feature = "glibc")]
        Allocator::Glibc => release_glibc(&mut released),
        #[cfg(feature = "jemalloc")]
        Allocator::Jemalloc => release_jemalloc(),
        #[cfg(feature = "mimalloc")]
        Allocator::Mimalloc => collect_mimalloc(),
        Allocator::Other { release, .. } => release(),
    }
    released.after_bytes = memory::anonymous_bytes().unwrap_or(0);
    released.elapsed = begin.elapsed();
    released
}

impl Allocator {
    /// Returns the function that gives back what the calling thread keeps for itself; `None` if a release has no need
    /// of it.
    pub(crate) fn flush(self) -> Option<fn()> {
        match self {
            // A release drops what the arenas of other threads have. Their caches hold a few small blocks.
            #[cfg(feature = "glibc")]
            Self::Glibc => None,
            #[cfg(feature = "jemalloc")]
            Self::Jemalloc => Some(flush_jemalloc),
            #[cfg(feature = "mimalloc")]
            Self::Mimalloc => Some(collect_mimalloc),
            Self::Other { flush, .. } => flush,
        }
    }
}

#[cfg(feature = "glibc")]
fn release_glibc(released: &mut Released) {
    use lowtide_release::{OwnOptions, OwnRefusal, release_own};
    match release_own(&OwnOptions::default()) {
        Ok(release) => released.longest_lock = Some(release.longest_lock),
        Err(OwnRefusal::Busy) => {}
        Err(why) => {
            released.fallback = Some(why.to_string());
            #[cfg(target_env = "gnu")]
            // SAFETY: it may be called at any time by any thread.
            unsafe {
                libc::malloc_trim(0)
            };
        }
    }
}

/// Calls a function of jemalloc's control interface that has neither input nor output.
#[cfg(feature = "jemalloc")]
fn control_jemalloc(name: &std::ffi::CStr) {
    use std::ptr::null_mut;
    // SAFETY: the name ends with 0; null pointers say that nothing is read or written. An unknown name is an error that
    // changes nothing.
    unsafe {
        tikv_jemalloc_sys::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0);
    }
}

#[cfg(feature = "jemalloc")]
fn release_jemalloc() {
    flush_jemalloc();
    // `MALLCTL_ARENAS_ALL`.
    control_jemalloc(c"arena.4096.purge");
}

#[cfg(feature = "jemalloc")]
fn flush_jemalloc() {
    control_jemalloc(c"thread.tcache.flush");
}

#[cfg(feature = "mimalloc")]
fn collect_mimalloc() {
    // SAFETY: it may be called at any time by any thread, and concerns the heap of the calling thread.
    unsafe { libmimalloc_sys::mi_collect(true) };
}
