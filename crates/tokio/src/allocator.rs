//! The allocators, and how each of them returns memory.

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
    /// Rust's [`System`](std::alloc::System) allocator, which is the C library's: glibc's, or what was preloaded in its
    /// place (`LD_PRELOAD`), if that is jemalloc or mimalloc.
    System,
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
    /// mimalloc or jemalloc if their feature is on, else the system's.
    fn default() -> Self {
        #[cfg(feature = "mimalloc")]
        return Self::Mimalloc;
        #[cfg(all(feature = "jemalloc", not(feature = "mimalloc")))]
        return Self::Jemalloc;
        #[cfg(not(any(feature = "jemalloc", feature = "mimalloc")))]
        return Self::System;
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
/// Of glibc's heap, whole free pages of all arenas are dropped, and an arena is locked for about 60 µs at a time. On another
/// processor than x86-64, and on a version of glibc that lowtide was not tested with, `malloc_trim` is called instead:
/// [`Released::fallback`]. musl has nothing to call.
pub fn release(allocator: Allocator) -> Released {
    let begin = Instant::now();
    let mut released =
        Released { before_bytes: memory::anonymous_bytes().unwrap_or(0), ..Released::default() };
    match allocator {
        Allocator::System => match system() {
            System::Libc => release_libc(&mut released),
            System::Jemalloc(control) => release_jemalloc(control),
            System::Mimalloc(collect) => collect_mimalloc(collect),
        },
        #[cfg(feature = "jemalloc")]
        Allocator::Jemalloc => release_jemalloc(tikv_jemalloc_sys::mallctl),
        #[cfg(feature = "mimalloc")]
        Allocator::Mimalloc => collect_mimalloc(libmimalloc_sys::mi_collect),
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
            // A release drops what glibc's arenas have. The caches of threads hold a few small blocks.
            Self::System if matches!(system(), System::Libc) => None,
            Self::System => Some(flush_system),
            #[cfg(feature = "jemalloc")]
            Self::Jemalloc => Some(|| flush_jemalloc(tikv_jemalloc_sys::mallctl)),
            #[cfg(feature = "mimalloc")]
            Self::Mimalloc => Some(|| collect_mimalloc(libmimalloc_sys::mi_collect)),
            Self::Other { flush, .. } => flush,
        }
    }
}

/// `mallctl` of jemalloc.
type Control =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
/// `mi_collect` of mimalloc.
type Collect = unsafe extern "C" fn(bool);

/// What serves `malloc`.
#[derive(Clone, Copy)]
enum System {
    /// The C library, or an allocator that has nothing to call.
    Libc,
    Jemalloc(Control),
    Mimalloc(Collect),
}

/// Returns what serves `malloc`. It is looked up once: it does not change while the program runs.
fn system() -> System {
    static FOUND: OnceLock<System> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if let Some(control) = symbol(c"mallctl") {
            // SAFETY: only jemalloc exports this name, as a function of this type since version 3.
            return System::Jemalloc(unsafe { transmute::<*mut c_void, Control>(control) });
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
        System::Mimalloc(collect) => collect_mimalloc(collect),
    }
}

fn release_libc(released: &mut Released) {
    #[cfg(feature = "glibc")]
    {
        use lowtide_release::{OwnOptions, OwnRefusal, release_own};
        match release_own(&OwnOptions::default()) {
            Ok(release) => released.longest_lock = Some(release.longest_lock),
            Err(OwnRefusal::Busy) => {}
            Err(why) => trim(released, &why.to_string()),
        }
    }
    #[cfg(not(feature = "glibc"))]
    trim(released, "the feature `glibc` is off");
}

/// Calls `malloc_trim`, if the C library has it.
fn trim(released: &mut Released, why: &str) {
    released.fallback = Some(why.to_owned());
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Calls a function of jemalloc's control interface that has neither input nor output.
fn control_jemalloc(control: Control, name: &CStr) {
    use std::ptr::null_mut;
    // SAFETY: the name ends with 0; null pointers say that nothing is read or written. An unknown name is an error that
    // changes nothing.
    unsafe { control(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
}

fn release_jemalloc(control: Control) {
    flush_jemalloc(control);
    // `MALLCTL_ARENAS_ALL`.
    control_jemalloc(control, c"arena.4096.purge");
}

fn flush_jemalloc(control: Control) {
    control_jemalloc(control, c"thread.tcache.flush");
}

fn collect_mimalloc(collect: Collect) {
    // SAFETY: it may be called at any time by any thread, and concerns the heap of the calling thread.
    unsafe { collect(true) };
}
