//! The allocators, and the way in which each of them returns memory.

#![expect(unsafe_code, reason = "functions of allocators in C")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::memory;

/// The allocator of the program.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Allocator {
    /// Rust's [`System`](std::alloc::System) allocator, which is the allocator of the C library:
    /// glibc's, or jemalloc or mimalloc if one of these was preloaded in its place (`LD_PRELOAD`).
    System,
    /// jemalloc, linked by `tikv-jemallocator`.
    #[cfg(feature = "jemalloc")]
    Jemalloc,
    /// mimalloc 2 or 3, linked by the crate `mimalloc`.
    #[cfg(feature = "mimalloc")]
    Mimalloc,
    /// Any other allocator.
    Other {
        /// Returns free memory to the OS. It is called on the keeper's thread, and must not panic.
        release: fn(),
        /// Frees the cache of the calling thread, a worker. It must neither panic nor block for
        /// long. `None` if a release does not need it.
        flush: Option<fn()>,
    },
}

impl Default for Allocator {
    /// Returns `Mimalloc` if the feature `mimalloc` is on, else `Jemalloc` if `jemalloc` is on,
    /// else [`Allocator::System`]. A feature does not install the allocator: the program declares
    /// it as its global allocator.
    fn default() -> Self {
        #[cfg(feature = "mimalloc")]
        return Self::Mimalloc;
        #[cfg(all(feature = "jemalloc", not(feature = "mimalloc")))]
        return Self::Jemalloc;
        #[cfg(not(any(feature = "jemalloc", feature = "mimalloc")))]
        return Self::System;
    }
}

/// The way in which a release was done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// The free pages of glibc's heap were dropped in parts. An arena was locked for about 60 µs at
    /// a time.
    Parts,
    /// `malloc_trim` was called, which locks an arena until all its free pages are dropped.
    Trim {
        /// The reason why it was not done in parts.
        why: String,
    },
    /// The allocator's own function was called.
    Purge,
    /// Nothing was released.
    Nothing {
        /// The reason.
        why: String,
    },
}

/// The result of [`release`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReleaseReport {
    /// The way in which it was done.
    pub method: Method,
    /// Bytes of anonymous memory before the release.
    pub before_bytes: u64,
    /// Bytes of anonymous memory after the release, with what other threads have allocated
    /// meanwhile.
    pub after_bytes: u64,
    /// Duration of the release.
    pub elapsed: Duration,
    /// Longest time for which the lock of an arena was held. `None` unless the method is
    /// [`Method::Parts`].
    pub longest_lock: Option<Duration>,
}

impl ReleaseReport {
    /// Returns the decrease of the anonymous memory in bytes.
    pub fn returned_bytes(&self) -> u64 {
        self.before_bytes.saturating_sub(self.after_bytes)
    }
}

/// Returns the free memory of an allocator to the OS. It blocks the calling thread: with glibc, for
/// about 0.1 s per GiB of heap. jemalloc and mimalloc also cache free memory in each thread: call
/// [`sweep`](crate::sweep) first.
///
/// With glibc, the free pages of all arenas are dropped in parts: [`Method::Parts`]. Where that is
/// not possible, `malloc_trim` is called instead, and [`Method::Trim`] has the reason. If another
/// thread is already releasing, nothing is done.
pub fn release(allocator: Allocator) -> ReleaseReport {
    let begin = Instant::now();
    let before_bytes = memory::anonymous_bytes().unwrap_or(0);
    let mut longest_lock = None;
    let method = match allocator {
        Allocator::System => match system() {
            System::Libc => release_libc(&mut longest_lock),
            System::Jemalloc(control) => release_jemalloc(control),
            System::Mimalloc(collect) => collect_mimalloc(collect),
        },
        #[cfg(feature = "jemalloc")]
        Allocator::Jemalloc => release_jemalloc(tikv_jemalloc_sys::mallctl),
        #[cfg(feature = "mimalloc")]
        Allocator::Mimalloc => collect_mimalloc(libmimalloc_sys::mi_collect),
        Allocator::Other { release, .. } => {
            release();
            Method::Purge
        }
    };
    let after_bytes = memory::anonymous_bytes().unwrap_or(0);
    ReleaseReport { method, before_bytes, after_bytes, elapsed: begin.elapsed(), longest_lock }
}

impl Allocator {
    /// Returns the function that frees the cache of the calling thread; `None` if a release does
    /// not need it.
    pub(crate) fn flush(self) -> Option<fn()> {
        match self {
            // A release drops the free pages of glibc's arenas. The caches of threads hold only a
            // few small blocks.
            Self::System if matches!(system(), System::Libc) => None,
            Self::System => Some(flush_system),
            #[cfg(feature = "jemalloc")]
            Self::Jemalloc => Some(|| flush_jemalloc(tikv_jemalloc_sys::mallctl)),
            #[cfg(feature = "mimalloc")]
            Self::Mimalloc => Some(|| _ = collect_mimalloc(libmimalloc_sys::mi_collect)),
            Self::Other { flush, .. } => flush,
        }
    }
}

/// `mallctl` of jemalloc.
type Mallctl =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
/// `mi_collect` of mimalloc.
type Collect = unsafe extern "C" fn(bool);

/// The allocator behind `malloc`.
#[derive(Clone, Copy)]
enum System {
    /// The C library, or an allocator without a function to call.
    Libc,
    Jemalloc(Mallctl),
    Mimalloc(Collect),
}

/// Returns the allocator behind `malloc`. It is looked up once: it does not change while the
/// program runs.
fn system() -> System {
    static FOUND: OnceLock<System> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if let Some(control) = symbol(c"mallctl") {
            // SAFETY: only jemalloc exports this name, as a function of this type since version
            // 3.0.
            return System::Jemalloc(unsafe { transmute::<*mut c_void, Mallctl>(control) });
        }
        if let Some(collect) = symbol(c"mi_collect") {
            // SAFETY: only mimalloc exports this name, as a function of this type since version 1.
            return System::Mimalloc(unsafe { transmute::<*mut c_void, Collect>(collect) });
        }
        System::Libc
    })
}

/// Finds a function by its name, in the libraries that are loaded.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with 0.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn flush_system() {
    match system() {
        System::Libc => {}
        System::Jemalloc(control) => flush_jemalloc(control),
        System::Mimalloc(collect) => _ = collect_mimalloc(collect),
    }
}

fn release_libc(longest_lock: &mut Option<Duration>) -> Method {
    #[cfg(feature = "glibc")]
    {
        use lowtide_release::{OwnOptions, OwnRefusal, release_own};
        match release_own(&OwnOptions::default()) {
            Ok(release) => {
                *longest_lock = Some(release.longest_lock);
                Method::Parts
            }
            Err(why @ OwnRefusal::Busy) => Method::Nothing { why: why.to_string() },
            Err(why) => trim(why.to_string()),
        }
    }
    #[cfg(not(feature = "glibc"))]
    {
        _ = longest_lock;
        trim("the feature `glibc` is off".to_owned())
    }
}

#[cfg(target_env = "gnu")]
fn trim(why: String) -> Method {
    // SAFETY: it may be called at any time by any thread.
    unsafe { libc::malloc_trim(0) };
    Method::Trim { why }
}

#[cfg(not(target_env = "gnu"))]
fn trim(_: String) -> Method {
    Method::Nothing { why: "the C library has no function that returns free memory".to_owned() }
}

/// Calls a function of jemalloc's control interface that has neither input nor output.
/// Returns whether it succeeded.
fn control_jemalloc(control: Mallctl, name: &CStr) -> bool {
    use std::ptr::null_mut;
    // SAFETY: the name ends with 0; with null pointers, nothing is read or written. An unknown name
    // is an error that changes nothing.
    unsafe { control(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) == 0 }
}

fn release_jemalloc(control: Mallctl) -> Method {
    flush_jemalloc(control);
    // `MALLCTL_ARENAS_ALL`, since jemalloc 5.
    if control_jemalloc(control, c"arena.4096.purge") {
        Method::Purge
    } else {
        Method::Nothing { why: "jemalloc is older than version 5".to_owned() }
    }
}

fn flush_jemalloc(control: Mallctl) {
    control_jemalloc(control, c"thread.tcache.flush");
}

fn collect_mimalloc(collect: Collect) -> Method {
    // SAFETY: it may be called at any time by any thread, and concerns the heap of the calling
    // thread.
    unsafe { collect(true) };
    Method::Purge
}
