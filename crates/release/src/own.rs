//! Releases the free memory of the process that calls it. Nothing is stopped or traced.
//!
//! The walk reads the process's memory by system calls, as for any other process. The ranges that
//! it finds may have changed since, and each is verified under the lock of its arena. While a lock
//! is held, only the code of `stub/stub.c` runs, which neither allocates nor frees, and all signals
//! are blocked.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Options of a release of the calling process's own memory.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OwnOptions {
    /// Leaves huge pages whole, as in [`Options`](crate::Options).
    pub keep_huge_pages: bool,
    /// Ends the release early when another thread sets it.
    pub interrupt: Arc<AtomicBool>,
}

/// The account of a release of the calling process's own memory.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OwnRelease {
    /// Size of the pages that were dropped, in bytes.
    pub returned_bytes: u64,
    /// Number of times that an arena was locked.
    pub lock_holds: u64,
    /// The longest lock hold.
    pub longest_lock: Duration,
    /// Number of ranges that were no longer free when their arena was locked, or whose arena was
    /// too busy.
    pub skipped_ranges: u64,
    /// Number of passes over the heap.
    pub passes: u64,
}

/// A reason not to release the calling process's own memory.
#[derive(Debug)]
#[non_exhaustive]
pub enum OwnRefusal {
    /// The processor is not x86-64, or the C library is not glibc.
    Machine,
    /// The version of glibc is untested.
    Untested(String),
    /// glibc's heap was not found: for instance, another allocator serves `malloc`.
    NoHeap,
    /// A seccomp filter of the process does not allow a system call that a release needs.
    Filtered,
    /// A device uses pages of the process, and their place is unknown.
    Pinned,
    /// Another thread is already releasing.
    Busy,
    /// [`OwnOptions::interrupt`] was set.
    Interrupted,
    /// The process cannot read its own memory or page table: for instance, it is not dumpable.
    NotReadable(io::Error),
}

impl fmt::Display for OwnRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => out.write_str("only glibc on x86-64 is supported"),
            Self::Untested(version) => write!(out, "glibc {version} is untested"),
            Self::NoHeap => out.write_str("glibc's heap was not found"),
            Self::Filtered => {
                out.write_str("a seccomp filter does not allow the system calls of a release")
            }
            Self::Pinned => {
                out.write_str("a device uses its memory (VmPin, or VFIO), and may use free pages")
            }
            Self::Busy => out.write_str("another thread is already releasing memory"),
            Self::Interrupted => out.write_str("it was interrupted"),
            Self::NotReadable(error) => {
                write!(out, "the process cannot read its own memory: {error}")
            }
        }
    }
}

impl std::error::Error for OwnRefusal {}

/// Releases the free memory of the calling process's glibc heap, all arenas and their top chunks
/// included. It runs in the calling thread, for about 0.1 s per GiB, and may be called while other
/// threads allocate and free: an arena is locked for about 60 µs at a time.
///
/// If the process has a seccomp filter, the first call forks a child, which tries the system
/// calls.
///
/// # Errors
/// Returns the reason if the release was not started, or was not completed. After
/// [`OwnRefusal::Interrupted`] and [`OwnRefusal::NotReadable`], a part of the memory may have been
/// returned.
pub fn release_own(options: &OwnOptions) -> Result<OwnRelease, OwnRefusal> {
    implementation::release_own(options)
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
mod implementation {
    use super::{OwnOptions, OwnRefusal, OwnRelease};

    pub(super) fn release_own(_: &OwnOptions) -> Result<OwnRelease, OwnRefusal> {
        Err(OwnRefusal::Machine)
    }
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod implementation {
    use std::ffi::CStr;
    use std::fs::File;
    use std::io::{self, BufReader};
    use std::ops::Range;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use lowtide_heap::droppable_heap::DroppableHeap;
    use lowtide_heap::ptmalloc::{HeapMapping, Layout, Links};
    use lowtide_model::allocator_kind::AllocatorKind;
    use lowtide_probe::heap;
    use lowtide_probe::locked::LockedMemory;
    use lowtide_probe::memory::ProcessMemory;
    use lowtide_probe::proc::maps::{self, Mapping};
    use lowtide_probe::target::Target;

    use super::{OwnOptions, OwnRefusal, OwnRelease};
    use crate::clock::WorkerClock;
    use crate::error::{Abort, ReleaseError};
    use crate::keep_huge::HugePageKeeper;
    use crate::passes::{Operator, Passes};
    use crate::releasable::ReleasableHeap;
    use crate::remote::nanoseconds;
    use crate::stub::contract::*;
    use crate::stub::{MAX_HOLD, Op, PAGES_PER_HOLD, StubCounts, parts};
    use crate::worker::{GAP, LOCK_TIMEOUT};

    pub(super) fn release_own(options: &OwnOptions) -> Result<OwnRelease, OwnRefusal> {
        let _releasing = Releasing::begin().ok_or(OwnRefusal::Busy)?;
        let version = glibc_version();
        if !AllocatorKind::Glibc.is_tested(Some(&version)) {
            return Err(OwnRefusal::Untested(version));
        }
        if !Filter::get().allows_calls() {
            return Err(OwnRefusal::Filtered);
        }
        check_proc().map_err(OwnRefusal::NotReadable)?;
        let mut memory =
            ProcessMemory::open(std::process::id()).map_err(OwnRefusal::NotReadable)?;
        let mappings: Vec<Mapping> =
            read_mappings().and_then(Iterator::collect).map_err(OwnRefusal::NotReadable)?;
        memory.set_locked(locked(&mappings)?);
        let layout = find_heap(&memory, &mappings).ok_or(OwnRefusal::NoHeap)?;
        drop(mappings);
        let mut release = OwnRelease::default();
        let mut own = Own::new(&layout, &options.interrupt);
        let heap = ReleasableHeap::Dropped(DroppableHeap::Ptmalloc(layout));
        let passes = Passes {
            memory: &memory,
            heap: &heap,
            mappings: &|| {
                heap_mappings().map_err(|error| ReleaseError::Failed(error.to_string()).into())
            },
            earlier: (&[], 0),
            keeper: options.keep_huge_pages.then(|| HugePageKeeper::of(&memory)),
            interrupt: &options.interrupt,
            dropping: &mut |_| {},
            count: &mut release.passes,
        };
        let passed = passes.run(&mut own, Vec::new());
        release.returned_bytes = own.counts.returned_bytes;
        release.lock_holds = own.counts.lock_holds;
        release.longest_lock = own.counts.longest;
        release.skipped_ranges = own.counts.skipped + own.counts.busy;
        match passed {
            Ok(()) => Ok(release),
            Err(Abort::Failed(ReleaseError::Interrupted)) => Err(OwnRefusal::Interrupted),
            Err(other) => Err(OwnRefusal::NotReadable(io::Error::other(other.to_string()))),
        }
    }

    /// Held by the thread that releases.
    struct Releasing;

    /// The process in which a thread is releasing, or 0. A forked child does not have that thread.
    static RELEASING: AtomicU32 = AtomicU32::new(0);

    impl Releasing {
        /// Returns `None` if another thread of this process is releasing.
        fn begin() -> Option<Self> {
            let pid = std::process::id();
            (RELEASING.swap(pid, Ordering::Acquire) != pid).then_some(Self)
        }
    }

    impl Drop for Releasing {
        fn drop(&mut self) {
            RELEASING.store(0, Ordering::Release);
        }
    }

    /// Checks that `/proc` shows this process under its own PID: it may be that of another PID
    /// namespace.
    fn check_proc() -> io::Result<()> {
        let pid = std::process::id().to_string();
        match std::fs::read_link("/proc/self")?.as_os_str() == pid.as_str() {
            true => Ok(()),
            false => Err(io::Error::other("/proc is that of another PID namespace")),
        }
    }

    /// The effect of seccomp on the system calls of a release.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Filter {
        Allows,
        Refuses,
    }

    impl Filter {
        /// Tries the system calls once per process. A filter that is added later is not noticed.
        fn get() -> Self {
            static FILTER: OnceLock<Filter> = OnceLock::new();
            *FILTER.get_or_init(|| {
                let status = std::fs::read_to_string("/proc/thread-self/status");
                let is_unfiltered = status.is_ok_and(|status| status.contains("\nSeccomp:\t0\n"));
                if is_unfiltered || try_calls_in_child() { Self::Allows } else { Self::Refuses }
            })
        }

        fn allows_calls(self) -> bool {
            self == Self::Allows
        }
    }

    /// Makes the system calls of `stub.c` in a child, which a filter may kill. Returns whether each
    /// had its usual result.
    #[expect(unsafe_code, reason = "system calls")]
    fn try_calls_in_child() -> bool {
        const TIMEOUT: Duration = Duration::from_secs(1);
        // SAFETY: without flags and a stack, this is `fork`; without a signal at its end, the
        // program does not notice the child. The child calls only `calls_have_usual_results`, which
        // neither allocates nor locks, and `_exit`.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0);
            if child == 0 {
                libc::syscall(libc::SYS_exit_group, i32::from(!calls_have_usual_results()));
            }
            let Ok(child @ 1..) = i32::try_from(child) else { return false };
            let begin = Instant::now();
            let mut status = 0;
            loop {
                match libc::waitpid(child, &mut status, libc::__WALL | libc::WNOHANG) {
                    0 if begin.elapsed() < TIMEOUT => sleep(Duration::from_millis(1)),
                    0 => {
                        libc::kill(child, libc::SIGKILL);
                        libc::waitpid(child, &mut status, libc::__WALL);
                        return false;
                    }
                    ended => return ended == child && status == 0,
                }
            }
        }
    }

    /// Runs in the child: makes each system call of `stub.c`.
    #[expect(unsafe_code, reason = "system calls")]
    fn calls_have_usual_results() -> bool {
        let mut time = [0_u64; 2];
        let mut word = 0_u32;
        let word: *mut u32 = &mut word;
        let requeue = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: all words belong to this frame; the range of `madvise` is empty, so it has no
        // effect; `rt_sigprocmask` with an invalid first argument fails.
        unsafe {
            let is_invalid = |result| result == -1 && *libc::__errno_location() == libc::EINVAL;
            libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, time.as_mut_ptr()) == 0
                && libc::syscall(libc::SYS_futex, word, requeue, 0, 0, word, 0) == 0
                && libc::syscall(libc::SYS_futex, word, wake, 1, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_futex, word, wait, 2, 0, 0, 0) == -1
                && *libc::__errno_location() == libc::EAGAIN
                && libc::syscall(libc::SYS_madvise, 0, 0, libc::MADV_DONTNEED) == 0
                && is_invalid(libc::syscall(libc::SYS_rt_sigprocmask, 77, word, 0, 8))
        }
    }

    #[expect(unsafe_code, reason = "a function of the C library")]
    fn glibc_version() -> String {
        // SAFETY: it returns a constant text that ends with 0.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        version.to_string_lossy().into_owned()
    }

    fn read_mappings() -> io::Result<impl Iterator<Item = io::Result<Mapping>>> {
        Ok(maps::read(BufReader::new(File::open("/proc/self/maps")?)))
    }

    fn heap_mappings() -> io::Result<Vec<HeapMapping>> {
        read_mappings()?.filter_map(|found| found.map(|m| heap::mapping(&m)).transpose()).collect()
    }

    /// Returns the locked ranges, which the kernel does not drop.
    fn locked(mappings: &[Mapping]) -> Result<Vec<Range<u64>>, OwnRefusal> {
        let failed = |error| OwnRefusal::NotReadable(io::Error::other(error));
        let target = Target::open(std::process::id()).map_err(failed)?;
        let status = target.status().map_err(failed)?;
        let locked = LockedMemory::find(&target, &status, mappings);
        match status.pinned_bytes.max(locked.unplaced_bytes) {
            0 => Ok(locked.ranges),
            _ => Err(OwnRefusal::Pinned),
        }
    }

    /// Finds the arenas in the data of the file that has glibc's code.
    fn find_heap(memory: &ProcessMemory, mappings: &[Mapping]) -> Option<Layout> {
        let code = libc::gnu_get_libc_version as *const () as u64;
        let library =
            mappings.iter().find(|mapping| mapping.contains(code) && mapping.has_file())?;
        Layout::find(memory, &heap::data_of(mappings, library.file))
    }

    /// Runs operations in the calling thread.
    struct Own<'a> {
        interrupt: &'a AtomicBool,
        /// The shared block, up to the end of the operations.
        block: Box<[u64]>,
        counts: StubCounts,
    }

    #[expect(unsafe_code, reason = "the code of stub.c")]
    unsafe extern "C" {
        /// Runs the next operations of a block, in one lock hold.
        fn lowtide_run_own(block: *mut u64);
    }

    impl<'a> Own<'a> {
        fn new(layout: &Layout, interrupt: &'a AtomicBool) -> Self {
            let block = vec![0; (OPS_END / 8) as usize].into_boxed_slice();
            let mut own = Self { interrupt, block, counts: StubCounts::default() };
            own.put(field::MAIN_ARENA, layout.arenas.first().copied().unwrap_or(0));
            own.put(field::BINS_AT, layout.head_bytes);
            own.put(field::PAGES_PER_HOLD, PAGES_PER_HOLD);
            own.put(field::HOLD_TICKS, nanoseconds(MAX_HOLD));
            own.put(field::LOCK_TIMEOUT_TICKS, nanoseconds(LOCK_TIMEOUT));
            own
        }

        fn put(&mut self, field: Field<u64>, word: u64) {
            self.block[(field.offset / 8) as usize] = word;
        }

        fn get(&self, field: Field<u64>) -> u64 {
            self.block[(field.offset / 8) as usize]
        }

        /// Runs the next operations of the block, in one lock hold.
        #[expect(unsafe_code, reason = "the code of stub.c")]
        fn run_next(&mut self) {
            let _signals = SignalsBlocked::new();
            // SAFETY: the block has the layout of `struct shared_block`, with `field::COUNT`
            // operations of which `field::NEXT` are done, and no other thread knows it. The code
            // verifies each operation under the lock of its arena, of which the walk has found that
            // it is one, and drops only pages that are in a free block then. It does not unwind.
            unsafe { lowtide_run_own(self.block.as_mut_ptr()) };
        }
    }

    impl Operator for Own<'_> {
        fn consolidate(&mut self, ops: &[Op], links: Links) -> Result<(), Abort> {
            self.put(field::MIXED_LINKS, u64::from(links == Links::Mixed));
            self.submit(ops)
        }

        fn submit(&mut self, ops: &[Op]) -> Result<(), Abort> {
            for part in parts(ops) {
                self.finish()?;
                let words: Vec<u64> = part.iter().flat_map(Op::slots).flatten().collect();
                let table = (OPS / 8) as usize;
                self.block[table..table + words.len()].copy_from_slice(&words);
                let slots = words.len() as u64 * 8 / OP_BYTES;
                self.put(field::NEXT, 0);
                self.put(field::COUNT, slots);
                while self.get(field::NEXT) < slots {
                    self.run_next();
                    std::thread::sleep(GAP);
                }
            }
            let words = &self.block[(StubCounts::OFFSET / 8) as usize..][..StubCounts::BYTES / 8];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.counts = StubCounts::parse(&bytes, WorkerClock::KERNEL);
            Ok(())
        }

        fn finish(&mut self) -> Result<(), Abort> {
            match self.interrupt.load(Ordering::Relaxed) {
                true => Err(ReleaseError::Interrupted.into()),
                false => Ok(()),
            }
        }

        fn counts(&self) -> &StubCounts {
            &self.counts
        }
    }

    /// All signals of the calling thread are blocked as long as this lives: a handler could call
    /// `fork`, which waits for the lock of each arena.
    struct SignalsBlocked {
        before: libc::sigset_t,
    }

    #[expect(unsafe_code, reason = "functions of the C library")]
    impl SignalsBlocked {
        fn new() -> Self {
            // SAFETY: both are sets of signals, for which any bytes are valid, and of this function
            // alone. Only the mask of the calling thread changes.
            unsafe {
                let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
                libc::sigfillset(&mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
                Self { before }
            }
        }
    }

    impl Drop for SignalsBlocked {
        #[expect(unsafe_code, reason = "a function of the C library")]
        fn drop(&mut self) {
            // SAFETY: the set was initialised by `new`. Only the mask of the calling thread
            // changes.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
        }
    }
}
