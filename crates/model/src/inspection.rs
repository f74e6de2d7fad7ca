//! The result of inspecting a process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocator_kind::AllocatorKind;
use crate::engine::EngineHeap;
use crate::growth::{Growth, RuntimeLimit};
use crate::heap_file::Origin;
use crate::ledger::{Coverage, Ledger, Owner, Row};
use crate::open_memory::OpenMemory;
use crate::pins::{BlockCensus, Pins};
use crate::remedy::{Remedy, Setting};
use crate::verdict::Verdict;

mod arena;

pub use arena::{
    Arena, ArenaDetail, Bin, GlibcArena, GperftoolsHeap, JemallocArena, MimallocThread,
};

/// Value of the object's `schema`.
pub const SCHEMA: &str = "lowtide.inspect/1";

/// The facts that one inspection of a process measured. Unknown values are `None`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Its PID in the namespace of lowtide.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its command line; the short name in brackets for a process without one.
    pub command: Vec<String>,
    /// Duration of the inspection, in seconds.
    pub elapsed_s: f64,
    /// CPU time of the inspection, in seconds.
    pub cpu_s: f64,
    /// Time for which the process was stopped, in seconds: always 0.
    pub stopped_s: f64,
    /// The allocator that serves its `malloc`.
    pub allocator: Option<Allocator>,
    /// Runtimes that manage memory of their own.
    pub runtimes: Vec<Runtime>,
    /// The paths of the loaded libraries whose files could not be read, at most 32: a runtime in
    /// them is not detected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_libraries: Vec<String>,
    /// The collector of HotSpot in force, by its common name; `None` if it cannot be read.
    #[serde(skip)]
    pub java_collector: Option<String>,
    /// Settings of the allocator in force; glibc only.
    pub tunables_in_force: Option<Tunables>,
    /// Resident pages that the scan counted, in bytes.
    pub rss_bytes: u64,
    /// RSS as the kernel counts it, read after the scan.
    pub kernel_rss_bytes: Option<u64>,
    /// Resident bytes by owner.
    pub ledger: Ledger,
    /// The row `runtime` by runtime and allocator, the largest first.
    pub managers: Vec<Manager>,
    /// Shared memory by name, the largest first; at most 16.
    pub shared: Vec<NamedMemory>,
    /// The row `file` by name, the largest first; at most 16.
    pub files: Vec<NamedMemory>,
    /// The part of the row `file` that the kernel cannot take back when memory is short, in bytes:
    /// pages of files that exist in memory only (ramfs), and pages that the process has locked
    /// (`mlock`).
    #[serde(default)]
    pub kept_file_bytes: u64,
    /// Pages of files that the process changed in private mappings, a part of the row
    /// `program_data`, by name, the largest first; at most 16.
    #[serde(default)]
    pub changed_files: Vec<NamedMemory>,
    /// The part of the row `anonymous_other` in mappings to which the program gave a name
    /// (`PR_SET_VMA_ANON_NAME`), by name, the largest first; at most 16.
    #[serde(default)]
    pub named_anonymous: Vec<NamedMemory>,
    /// Number of mappings that have resident pages of the owner `anonymous_other`; `None` if they
    /// were not read.
    pub anonymous_mappings: Option<u64>,
    /// Bytes of pages that the process maps at several addresses, without the first address of
    /// each: RSS counts a page at each address. `None` if they were not read.
    #[serde(default)]
    pub mapped_again_bytes: Option<u64>,
    /// The room of owners of whose memory the mappings are known: shared memory, data of programs
    /// and libraries, stacks, and what the program mapped itself.
    #[serde(skip)]
    pub rooms: BTreeMap<Owner, Room>,
    /// The part of RSS that was not there when its mappings were read, a second time, in bytes: a
    /// part of the row `unattributed`. 0 if that is too little to matter.
    #[serde(skip)]
    pub moved_bytes: u64,
    /// The limits that runtimes have set for their own memory.
    #[serde(skip)]
    pub runtime_limits: Vec<RuntimeLimit>,
    /// Bytes of the heap, resident or not, that could not be walked.
    pub unwalked_bytes: u64,
    /// Proportional memory (PSS), in bytes: of a page that several processes map, each counts its
    /// part. `None` if the kernel's count would make the threads of a large process wait.
    #[serde(default)]
    pub pss_bytes: Option<u64>,
    /// What it shares with processes that were forked from the same one; `None` without such
    /// processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<ForkedMemory>,
    /// Lazily freed bytes (`MADV_FREE`): part of RSS until the kernel reclaims them.
    pub lazyfree_bytes: Option<u64>,
    /// Whether `lazyfree_bytes` is an estimate from a sample of pages: the kernel's count would
    /// make the threads of a large process wait.
    #[serde(default)]
    pub lazyfree_estimated: bool,
    /// Bytes in swap.
    pub swap_bytes: u64,
    /// Anonymous memory in huge pages.
    pub anon_huge_bytes: Option<u64>,
    /// The part of them that the process has not used. `None` without huge pages, or if they could
    /// not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,
    /// Page tables, in bytes; not a part of RSS.
    pub page_tables_bytes: Option<u64>,
    /// Memory in huge pages of the kernel's pool (hugetlb), in bytes; not a part of RSS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugetlb_bytes: Option<u64>,
    /// Files that exist only in memory (memfd, tmpfs), which the process has open and does not map;
    /// RSS does not count them. `None` if they were not read, or are too many.
    #[serde(default)]
    pub open_memory: Option<OpenMemory>,
    /// Threads.
    pub threads: u64,
    /// Open file descriptors.
    pub open_files: Option<u64>,
    /// Mappings. `None` if they cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mappings: Option<u64>,
    /// Child processes that have ended, and for which the process has not waited (zombies). `None`
    /// if they were not counted, as in a survey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_children: Option<u64>,
    /// TCP connections in the state ESTABLISHED.
    pub sockets_established: Option<u64>,
    /// The heaps that were walked.
    pub heaps: Vec<WalkedHeap>,
    /// The arenas of its heaps.
    pub arenas: Vec<Arena>,
    /// The heap of CPython's own allocator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpython: Option<CPythonHeap>,
    /// The walked heaps of other engines, by space.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<EngineHeap>,
    /// Chunks in use in all arenas, including those that threads cache, by size.
    pub allocated_by_size: Vec<Bin>,
    /// Number of mmapped chunks.
    pub mmapped_count: u64,
    /// Bytes of mmapped chunks.
    pub mmapped_bytes: u64,
    /// Parts that could not be read, each with the reason, and other remarks for the reader.
    pub notes: Vec<String>,
    /// Predicted gains of the heap's remedies; `None` if the heap was not walked.
    #[serde(skip)]
    pub heap: Option<HeapPrediction>,
    /// What could not be read, or why; the observation lacks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Unreadable>,
    /// Its C library, whichever allocator serves `malloc`.
    #[serde(skip)]
    pub c_library: Option<CLibrary>,
    /// Identifies the program among those that a process executes one after the other: two
    /// observations with equal values are of the same program. Zeros if it cannot be read.
    #[serde(skip)]
    pub image: (u64, u64),
}

/// The accessible mappings of an owner, which bound its resident memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Their size, in bytes.
    pub mapped_bytes: u64,
    /// The resident part of it, in bytes.
    pub resident_bytes: u64,
}

impl Room {
    /// Returns how many bytes can still become resident.
    pub fn free_bytes(self) -> u64 {
        self.mapped_bytes.saturating_sub(self.resident_bytes)
    }
}

/// Maximum number of PIDs of other processes in [`ForkedMemory`].
pub const MAX_RELATIVES: usize = 16;

/// Anonymous memory of a process and of those that were forked from the same one, and have executed
/// no other program since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkedMemory {
    /// Resident anonymous pages that only this process maps, in bytes: what it costs by itself.
    pub private_bytes: u64,
    /// Resident anonymous pages that other processes map too, in bytes.
    pub shared_bytes: u64,
    /// The part of `private_bytes` where the process from which it was forked has pages as well: at
    /// most so much was shared after the fork, and copied by a write since. `None` for the first
    /// process, or if the other one cannot be read.
    pub copied_bytes: Option<u64>,
    /// The part of `shared_bytes` in whole free pages, which a release returns: RSS falls by it,
    /// but the memory of the machine only once each process that maps these pages has returned
    /// them. `None` if that is not known, as for a heap that cannot be walked.
    pub free_shared_bytes: Option<u64>,
    /// PID of the process from which it was forked; `None` for the first process, or if that one
    /// has ended.
    pub parent: Option<u32>,
    /// Number of the other processes.
    pub processes: u64,
    /// Their PIDs, in order; at most 16.
    pub pids: Vec<u32>,
}

/// The transparent huge pages of a process: a write to one byte makes a whole one resident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Bytes of small pages in them that hold only zeros, as memory does that was never written.
    pub zero_bytes: u64,
    /// Whether `zero_bytes` is an estimate from a sample of pages.
    pub estimated: bool,
    /// The memory to which the system grants huge pages; `None` if its setting cannot be read.
    pub grant: Option<HugeGrant>,
    /// The variable of the environment with which the process would not ask for them; `None` if
    /// there is none, or if it would change nothing.
    pub setting: Option<Setting>,
}

/// The memory to which the system grants huge pages
/// (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugeGrant {
    /// All anonymous memory.
    Always,
    /// Memory for which a program asks for them.
    Madvise,
    /// None.
    Never,
}

impl HugeGrant {
    /// Parses the text of the kernel, in which the setting in force is in brackets.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once('[')?;
        match rest.split_once(']')?.0 {
            "always" => Some(Self::Always),
            "madvise" => Some(Self::Madvise),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}

/// A heap that was walked, in resident bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkedHeap {
    /// Its allocator.
    pub allocator: AllocatorKind,
    /// The name of the library that brings the allocator for its own use; `a library` if the name
    /// is not known; absent for the program's allocator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Bytes in use, excluding cached blocks.
    pub allocated_bytes: u64,
    /// Freed, in whole pages.
    pub reclaimable_bytes: u64,
    /// Freed, in whole pages that are locked.
    pub locked_bytes: u64,
    /// Freed, on pages that also hold other data.
    pub fragmented_bytes: u64,
    /// Freed, in the caches of threads or in transfer between them.
    pub cached_bytes: u64,
    /// The allocator's own structures.
    pub metadata_bytes: u64,
    /// Predicted gains of remedies.
    #[serde(skip)]
    pub prediction: HeapPrediction,
    /// The variable of the environment from which it reads its settings, if its build has a name of
    /// its own for it (jemalloc).
    #[serde(skip)]
    pub variable: Option<String>,
}

impl WalkedHeap {
    /// Returns whether it is the heap of the mimalloc that CPython contains since 3.13, in its own
    /// library or in the program.
    pub fn is_of_cpython(&self) -> bool {
        let is_python = |name: &String| name.starts_with("libpython") || name.starts_with("python");
        self.allocator == AllocatorKind::Mimalloc && self.library.as_ref().is_some_and(is_python)
    }

    /// Returns a heap with the bytes by owner of a ledger.
    pub fn new(
        allocator: AllocatorKind,
        library: Option<String>,
        ledger: &Ledger,
        prediction: HeapPrediction,
    ) -> Self {
        Self {
            allocator,
            library,
            allocated_bytes: ledger.bytes(Owner::Allocated),
            reclaimable_bytes: ledger.bytes(Owner::Reclaimable),
            locked_bytes: ledger.bytes(Owner::Locked),
            fragmented_bytes: ledger.bytes(Owner::Fragmented),
            cached_bytes: ledger.bytes(Owner::Cached),
            metadata_bytes: ledger.bytes(Owner::Metadata),
            prediction,
            variable: None,
        }
    }

    /// Returns its name, such as `mimalloc of libarrow.so.2600`.
    pub fn name(&self) -> String {
        match &self.library {
            Some(library) => format!("{} of {library}", self.allocator),
            None => self.allocator.to_string(),
        }
    }
}

/// Predicted gains of remedies for walked heaps, in bytes; `None` for a remedy that the allocator
/// does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeapPrediction {
    /// By a `malloc_trim(0)` in the program.
    pub trim_bytes: Option<u64>,
    /// By `lowtide release`.
    pub release_bytes: Option<u64>,
    /// By a purge of all arenas in the program (jemalloc's `arena.4096.purge`).
    pub purge_bytes: Option<u64>,
}

impl HeapPrediction {
    /// Adds the prediction for another heap of the same process.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).reduce(|a, b| a + b);
        Self {
            trim_bytes: sum(self.trim_bytes, other.trim_bytes),
            release_bytes: sum(self.release_bytes, other.release_bytes),
            purge_bytes: sum(self.purge_bytes, other.purge_bytes),
        }
    }
}

impl Observation {
    /// Withdraws the prediction of a release, which would be refused for this reason. With
    /// `own_too`, also what the program itself would return: it may not call the kernel for that.
    pub fn withdraw_release(&mut self, refusal: &str, own_too: bool) {
        let of_heaps = self.heaps.iter_mut().map(|heap| &mut heap.prediction);
        for prediction in self.heap.iter_mut().chain(of_heaps) {
            prediction.release_bytes = None;
            if own_too {
                *prediction = HeapPrediction::default();
            }
        }
        self.notes.push(format!("lowtide release would refuse it: {refusal}"));
    }
}

/// Why an observation lacks parts of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unreadable {
    /// A missing permission hides the list of its mappings, and everything that needs it.
    Maps,
    /// A missing permission hides its memory, so that its heap cannot be walked.
    Memory,
    /// Reading it takes too long.
    Slow,
    /// Reading it makes no progress.
    Blocked,
}

/// An observation and its diagnosis: the object that `lowtide inspect --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// The facts.
    #[serde(flatten)]
    pub observation: Observation,
    /// How much of RSS was walked.
    pub coverage: Coverage,
    /// The cause of its memory use.
    pub verdict: Verdict,
    /// Measures that would lower it.
    #[serde(rename = "cures")]
    pub remedies: Vec<Remedy>,
    /// The growth of the process, if it was inspected several times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
    /// The blocks that pin its fragmented memory, if they were searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pins: Option<Pins>,
    /// Its blocks in use, if they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockCensus>,
    /// The origin of the observation, if it was read from a heap file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<Origin>,
    /// The use of its cgroup's memory limit; absent without such a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerUse>,
}

/// The use of the memory limit that a process reaches first: that of its cgroup, or of one above
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ContainerUse {
    /// Path of the cgroup with the limit.
    pub path: String,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// What is charged to the cgroup, in bytes.
    pub charged_bytes: u64,
    /// Anonymous memory of the process, in bytes, at most that of the cgroup. It is an estimate: a
    /// page that forked processes share counts for each, and a process that has moved here may have
    /// left its charge with another cgroup.
    pub own_bytes: u64,
    /// The other anonymous memory of the cgroup, in bytes.
    pub others_bytes: u64,
    /// Page cache, in bytes.
    pub cache_bytes: u64,
    /// Shared memory and files of tmpfs, in bytes.
    pub shared_bytes: u64,
    /// Kernel memory that cannot be reclaimed, in bytes.
    pub kernel_bytes: u64,
}

/// The allocator of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocator {
    /// Its kind.
    #[serde(rename = "name")]
    pub kind: AllocatorKind,
    /// Its version.
    pub version: Option<String>,
    /// The way in which it was loaded into the process; absent if that is not known.
    pub linkage: Option<Linkage>,
}

/// The C library of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CLibrary {
    /// Its name: `glibc` or `musl`.
    pub name: &'static str,
    /// Its version.
    pub version: Option<String>,
}

/// The way in which an allocator was loaded into a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Linkage {
    /// As a library that the program is linked with.
    Dynamic,
    /// As a part of the program.
    Static,
    /// As a preloaded library, before the others.
    Preloaded,
}

impl Linkage {
    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic",
            Self::Static => "static",
            Self::Preloaded => "preloaded",
        }
    }
}

/// A runtime that manages memory of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// Its name: `CPython`, `V8`, `Go`, `HotSpot`.
    pub name: String,
    /// Its version.
    pub version: Option<String>,
}

/// A runtime or an allocator, with the memory that it manages. The part in use is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Its name: `CPython`, `jemalloc`, ….
    pub name: String,
    /// Resident bytes.
    pub bytes: u64,
    /// Whether that is an estimate from the appearance of mappings; otherwise it comes from the
    /// manager's structures.
    pub estimated: bool,
}

impl Manager {
    /// Returns the managers with their bytes outside of walked heaps. Omits managers without such
    /// bytes.
    pub fn outside_of_walked(managers: &[Self], ledger: &Ledger) -> Vec<Self> {
        let walked = |name: &str| -> u64 {
            let of_manager = |row: &&Row| row.manager.is_some_and(|m| m.kind().name() == name);
            ledger.rows().iter().filter(of_manager).map(|row| row.bytes).sum()
        };
        let rest = |manager: &Self| {
            let bytes = manager.bytes.saturating_sub(walked(&manager.name));
            (bytes > 0).then(|| Self { bytes, ..manager.clone() })
        };
        managers.iter().filter_map(rest).collect()
    }

    /// Returns the combined managers of two processes, the largest first.
    pub fn join(mut these: Vec<Self>, others: &[Self]) -> Vec<Self> {
        for other in others {
            match these.iter_mut().find(|manager| manager.name == other.name) {
                Some(same) => {
                    same.bytes += other.bytes;
                    same.estimated |= other.estimated;
                }
                None => these.push(other.clone()),
            }
        }
        these.sort_by_key(|manager| std::cmp::Reverse(manager.bytes));
        these
    }
}

/// Maximum number of names of files, and of shared memory, in an observation.
pub const MAX_NAMED: usize = 16;

/// Resident memory of all mappings with one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedMemory {
    /// Its kind, or the name of its mapping as the process chose it.
    pub name: String,
    /// Resident bytes, counted in full regardless of how many processes share them.
    pub bytes: u64,
    /// Number of mappings that have resident pages.
    pub mappings: u64,
    /// The part of a file's bytes that the kernel cannot take back: see
    /// [`Observation::kept_file_bytes`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept_bytes: u64,
}

impl NamedMemory {
    /// Creates it from its name, its resident bytes and the number of its mappings.
    pub fn new(name: String, bytes: u64, mappings: u64) -> Self {
        Self { name, bytes, mappings, kept_bytes: 0 }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// glibc's settings in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunables {
    /// Maximum number of arenas, if it was set.
    pub arena_max: Option<u64>,
    /// Free bytes in the top chunk from which on the main heap is trimmed.
    pub trim_threshold_bytes: u64,
    /// Bytes requested from the system in addition to the bytes needed.
    pub top_pad_bytes: u64,
    /// Size from which on a block is allocated by `mmap`, in bytes.
    pub mmap_threshold_bytes: u64,
    /// Whether both thresholds still adapt to the sizes that the program frees.
    pub mmap_threshold_dynamic: bool,
    /// Maximum number of blocks of a size class in the cache of a thread.
    pub tcache_count: u64,
    /// Size of the largest block that is cached, in bytes.
    pub tcache_max_bytes: u64,
}

/// The heap of CPython's own allocator, in the terms of `sys._debugmallocstats()`: resident or not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CPythonHeap {
    /// Number of arenas. An arena is returned to the kernel when all of its pools are free.
    pub arenas: u64,
    /// Bytes of an arena.
    pub arena_bytes: u64,
    /// Number of arenas of which less than a quarter is in use.
    pub mostly_free_arenas: u64,
    /// Bytes of a pool.
    pub pool_bytes: u64,
    /// Number of pools with blocks in use.
    pub used_pools: u64,
    /// Number of pools without a block in use.
    pub free_pools: u64,
    /// Bytes of blocks in use.
    pub allocated_bytes: u64,
    /// Bytes of free blocks in pools that have blocks in use.
    pub free_block_bytes: u64,
    /// The pools with blocks in use, by the size of the blocks.
    pub sizes: Vec<CPythonSizeClass>,
}

impl CPythonHeap {
    /// Returns the bytes of pools without a block in use.
    pub fn free_pool_bytes(&self) -> u64 {
        self.free_pools.saturating_mul(self.pool_bytes)
    }
}

/// The pools of CPython's allocator with blocks of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CPythonSizeClass {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Number of pools with blocks in use.
    pub pools: u64,
    /// Number of blocks in use.
    pub used_blocks: u64,
    /// Number of free blocks in these pools.
    pub free_blocks: u64,
    /// Number of arenas with such a block in use.
    pub arenas: u64,
    /// Number of arenas with such a block in use and less than a quarter of their bytes in use.
    pub mostly_free_arenas: u64,
}
