//! Options of a release, and its progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::bytes::Human;
use lowtide_model::release::Method;
use lowtide_probe::detect::Detector;
use lowtide_probe::patience::Patience;

use crate::hold::Hold;
use crate::kept::Walk;

/// One of the heaps of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeapName {
    /// The name of its allocator.
    pub allocator: String,
    /// The library that contains the allocator; `None` for an allocator of the program.
    pub library: Option<String>,
}

/// Options of a release.
#[derive(Debug, Clone)]
pub struct Options {
    /// Maximum pause of a thread of the target, for work that can be sliced.
    pub max_pause: Duration,
    /// The method that returns the memory; `None` selects the one that suits the allocator.
    pub method: Option<Method>,
    /// Permits versions of allocators that the torture test never ran on.
    pub untested: bool,
    /// The allocators that a release acts on; `None` for all that lowtide can release.
    pub allocators: Option<Vec<AllocatorKind>>,
    /// The heaps that a release leaves alone, because earlier releases of them went wrong.
    pub left_alone: Vec<HeapName>,
    /// Leaves huge pages whole: of memory in huge pages, only those that are free as a whole are
    /// dropped. For programs that need their transparent huge pages more than the memory.
    /// `malloc_trim` ([`Method::Trim`]) ignores it.
    pub keep_huge_pages: bool,
    /// Minimum predicted gain of a release, in bytes. If the heap holds less, no thread is stopped.
    pub min_release_bytes: u64,
    /// The caller knows that the target inherited its seccomp filters from the same process as
    /// lowtide: for instance, lowtide has started it. The kernel shows these filters to neither;
    /// this permits to try them in a child of lowtide instead. No effect unless lowtide is under a
    /// filter.
    pub shares_inherited_filters: bool,
    /// Minimum age of a process that has privileges, before a worker thread runs in it. A younger
    /// one may still be about to drop them, and gets slices.
    pub min_privileged_age: Duration,
    /// Writes our code word by word, as if the kernel permitted nothing else
    /// (`proc_mem.force_override=never`).
    #[doc(hidden)]
    pub words_only: bool,
    /// How long the examination of the target may take.
    pub patience: Patience,
    /// Prevents the release, or ends it early, while its file exists.
    pub hold: Hold,
    /// Only reports what a release would do.
    pub dry_run: bool,
    /// The process may soon reach a memory limit: lowtide's threads do not give way to others.
    pub is_urgent: bool,
    /// Where the release finds the free memory.
    pub walk: Walk,
    /// Ends the release early when another thread sets it. The operation in progress is completed,
    /// and everything that lowtide has mapped leaves the target.
    pub interrupt: Arc<AtomicBool>,
    /// Recognises the allocator. It remembers the files that it has read, for further releases of
    /// the same process.
    pub detector: Arc<Mutex<Detector>>,
    /// Receives the progress.
    pub progress: Arc<ReleaseProgress>,
}

/// The progress of a release, for display.
#[derive(Debug, Default)]
pub struct ReleaseProgress {
    is_acting: AtomicBool,
    returned_bytes: AtomicU64,
}

impl ReleaseProgress {
    /// Describes the current state for a progress line: `scanning the heap`, `12 MiB returned`.
    pub fn text(&self) -> String {
        match self.is_acting.load(Ordering::Relaxed) {
            false => "scanning the heap".to_owned(),
            true => format!("{} returned", Human(self.returned_bytes.load(Ordering::Relaxed))),
        }
    }

    pub(crate) fn set(&self, returned_bytes: u64) {
        self.is_acting.store(true, Ordering::Relaxed);
        self.returned_bytes.store(returned_bytes, Ordering::Relaxed);
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_pause: Duration::from_millis(1),
            method: None,
            untested: false,
            allocators: None,
            left_alone: Vec::new(),
            keep_huge_pages: false,
            min_release_bytes: 0,
            shares_inherited_filters: false,
            min_privileged_age: Duration::from_secs(60),
            words_only: false,
            patience: Patience::default(),
            hold: Hold::default(),
            dry_run: false,
            is_urgent: false,
            walk: Walk::default(),
            interrupt: Arc::default(),
            detector: Arc::default(),
            progress: Arc::default(),
        }
    }
}
