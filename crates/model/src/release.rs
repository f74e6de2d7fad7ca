//! The outcome of a release: the object that `lowtide release --json` prints.

use serde::{Deserialize, Serialize};

/// Value of the object's `schema`.
pub const SCHEMA: &str = "lowtide.release/1";

/// The outcome of a release. Unknown values are `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Release {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// The PID in lowtide's namespace.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its command line; the short name in brackets for a process without one.
    pub command: Vec<String>,
    /// Whether the release was only simulated.
    pub dry_run: bool,
    /// The outcome.
    pub outcome: ReleaseOutcome,
    /// The reason for a refusal or an early end: a sentence that names the remedy.
    pub reason: Option<String>,
    /// The reason for a refusal, in a form for programs.
    pub hazard: Option<Hazard>,
    /// Whether the reason for the refusal is temporary.
    pub may_pass: Option<bool>,
    /// The allocator; with several heaps, the one whose heap has returned most.
    pub allocator: Option<String>,
    /// Its version.
    pub allocator_version: Option<String>,
    /// Each heap that was examined, that of the program's own allocator first. The figures of the
    /// release are their sums; `predicted_bytes` is that of the heaps that were released, if any
    /// was.
    pub heaps: Vec<HeapRelease>,
    /// The method that returned the memory.
    pub method: Method,
    /// The place where that code runs; absent if it was not decided.
    pub runs_in: Option<RunsIn>,
    /// The thread that runs it, by its TID in lowtide's namespace.
    pub thread: Option<u32>,
    /// Name of the system call in which that thread waits.
    pub waiting_in: Option<String>,
    /// Predicted gain, in bytes.
    pub predicted_bytes: u64,
    /// Bytes that were returned to the OS: the dropped pages. For `trim` and `purge`: the decrease
    /// of the bytes that they could return.
    pub returned_bytes: u64,
    /// The part of the returned bytes (for a dry run: of the predicted ones) that other processes
    /// map too, since all were forked from the same one: the memory of the machine falls by it only
    /// once each of them has returned it. Absent without such processes, or if it is not known.
    pub shared_bytes: Option<u64>,
    /// Number of these processes; absent with `shared_bytes`.
    pub shared_with: Option<u64>,
    /// Resident bytes before the release, as the kernel counts them.
    pub rss_before_bytes: u64,
    /// Resident bytes after the release, as the kernel counts them.
    pub rss_after_bytes: u64,
    /// Duration of the release, in seconds.
    pub elapsed_s: f64,
    /// CPU time of lowtide for the release, in seconds. It excludes the CPU time of lowtide's code
    /// in the process.
    pub cpu_s: f64,
    /// Number of pauses of threads of the target.
    pub pauses: u64,
    /// The longest pause, in seconds.
    pub longest_pause_s: f64,
    /// The median pause, in seconds.
    pub median_pause_s: f64,
    /// Limit of a pause if the work can be sliced (`--max-pause`), in seconds.
    pub pause_bound_s: f64,
    /// Number of pauses that took longer.
    pub pauses_over_bound: u64,
    /// Time in these pauses during which a thread of the target or of lowtide waited for a
    /// processor, in seconds.
    pub waited_over_bound_s: f64,
    /// Number of times that the lock of an arena was held.
    pub lock_holds: u64,
    /// The longest lock hold time, in seconds.
    pub longest_lock_s: f64,
    /// 99th percentile of the lock hold time, in seconds; with several heaps, the largest of
    /// theirs. Its precision is that of the counted classes, which are an eighth apart.
    pub p99_lock_s: f64,
    /// Number of passes over the heap.
    pub passes: u64,
    /// Ranges that were no longer free when they were due, or were locked meanwhile.
    pub skipped_ranges: u64,
    /// Free blocks that were coalesced with their neighbours first (fast bins, up to glibc 2.42).
    pub joined_blocks: u64,
    /// Bytes that were in huge pages of the heap before, and are in none now: dropped, or in a page
    /// that was split.
    pub huge_gone_bytes: u64,
    /// Bytes of huge pages that were split afterwards because at least half of each was free.
    pub split_bytes: u64,
    /// The collection that the runtime made before; for a dry run, the one that it would make.
    /// Absent if none was asked for.
    pub collected: Option<Collected>,
    /// Bytes that an earlier release left when it was killed, and that were removed now.
    pub cleaned_bytes: u64,
    /// Growth of memory over the requested time after the release (`--watch`).
    pub regained: Option<Regained>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl Release {
    /// Returns a release that has not started: nothing is known, and so it counts as refused.
    pub fn of(pid: u32, start_ticks: u64, command: Vec<String>) -> Self {
        Self {
            schema: SCHEMA,
            pid,
            start_ticks,
            command,
            dry_run: false,
            outcome: ReleaseOutcome::Refused,
            reason: None,
            hazard: None,
            may_pass: None,
            allocator: None,
            allocator_version: None,
            heaps: Vec::new(),
            method: Method::Chunks,
            runs_in: None,
            thread: None,
            waiting_in: None,
            predicted_bytes: 0,
            returned_bytes: 0,
            shared_bytes: None,
            shared_with: None,
            rss_before_bytes: 0,
            rss_after_bytes: 0,
            elapsed_s: 0.0,
            cpu_s: 0.0,
            pauses: 0,
            longest_pause_s: 0.0,
            median_pause_s: 0.0,
            pause_bound_s: 0.0,
            pauses_over_bound: 0,
            waited_over_bound_s: 0.0,
            lock_holds: 0,
            longest_lock_s: 0.0,
            p99_lock_s: 0.0,
            passes: 0,
            skipped_ranges: 0,
            joined_blocks: 0,
            huge_gone_bytes: 0,
            split_bytes: 0,
            collected: None,
            cleaned_bytes: 0,
            regained: None,
            notes: Vec::new(),
        }
    }
}

/// A collection by the runtime of a process, before a release. What is known only afterwards is
/// absent for a dry run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Collected {
    /// The runtime.
    pub runtime: String,
    /// Its collector, if it is known.
    pub collector: Option<String>,
    /// The commands that it carried out, by their names in the runtime.
    pub by: Vec<String>,
    /// Time for which all threads of the program waited, in seconds, as the runtime counts it. It
    /// includes collections that began by themselves meanwhile.
    pub pause_s: Option<f64>,
    /// Duration of the commands, in seconds.
    pub elapsed_s: Option<f64>,
    /// Resident bytes of the process before.
    pub before_bytes: u64,
    /// Resident bytes of the process after.
    pub after_bytes: Option<u64>,
    /// The heap of the runtime before, as the runtime counts it, if it shows that.
    pub heap_before: Option<JavaHeapSize>,
    /// The same after.
    pub heap_after: Option<JavaHeapSize>,
}

/// The size of a heap of Java objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct JavaHeapSize {
    /// Bytes in use after the last collection.
    pub used_bytes: u64,
    /// Committed bytes.
    pub committed_bytes: u64,
}

/// The release of one heap of a process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeapRelease {
    /// Its allocator.
    pub allocator: String,
    /// The version of the allocator.
    pub allocator_version: Option<String>,
    /// The library that contains the allocator for its own use; absent for the allocators of the
    /// program.
    pub library: Option<String>,
    /// Predicted gain, in bytes.
    pub predicted_bytes: u64,
    /// Bytes that were returned to the OS.
    pub returned_bytes: u64,
    /// The outcome.
    pub outcome: ReleaseOutcome,
    /// The reason for a refusal or an early end.
    pub reason: Option<String>,
    /// Whether the reason of a refusal may pass; absent otherwise.
    pub may_pass: Option<bool>,
    /// Longest pause of a thread of the process for this heap, in seconds.
    pub longest_pause_s: f64,
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseOutcome {
    /// It ran to completion. For a dry run: it would be done.
    Released,
    /// There is no memory to return, and nothing was done.
    NothingToRelease,
    /// It would not have been safe, and nothing was done.
    Refused,
    /// It was done in part.
    Partial,
}

/// The method that returns the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Range by range, each under a lock that is held for a bounded time.
    Chunks,
    /// `malloc_trim`, which holds each arena's lock for as long as it takes.
    Trim,
    /// The purge of the allocator: its own function that returns free memory, which threads of the
    /// process call.
    Purge,
}

/// The place where the code that returns memory runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunsIn {
    /// In a thread of its own, beside the target's.
    OwnThread,
    /// In slices, in a thread of the target that waits.
    Slices,
}

/// The growth of memory some time after a release.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Regained {
    /// Time after the release, in seconds.
    pub after_s: f64,
    /// Growth of the resident bytes since then.
    pub rss_bytes: u64,
    /// Growth of anonymous huge pages since then, which khugepaged filled again, in bytes. Absent
    /// if they cannot be counted without making the process's threads wait.
    pub huge_bytes: Option<u64>,
}

/// The reason for refusing a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hazard {
    /// A file holds all releases.
    Held,
    /// Another process traces it.
    Traced,
    /// Another release is running in it.
    AnotherRelease,
    /// Job control has stopped it.
    Stopped,
    /// Its control group is frozen.
    Frozen,
    /// It is a process for another processor, or uses what lowtide was not tested with on this one.
    Machine,
    /// lowtide does not support its allocator.
    Allocator,
    /// Its heap was not found.
    NoHeap,
    /// It runs under a sanitizer.
    Sanitizer,
    /// Its glibc is not among the tested versions.
    Untested,
    /// The walked heap does not agree with the counts of its allocator.
    HeapNotWhole,
    /// A seccomp filter forbids a required system call.
    Seccomp,
    /// Its seccomp filters cannot be read.
    SeccompUnread,
    /// Its threads have shadow stacks.
    ShadowStack,
    /// It may not map memory as executable after writing to it.
    WriteExecuteDenied,
    /// The kernel denies it new executable memory.
    CodeDenied,
    /// Its memory cgroup has no room for a release.
    NoHeadroom,
    /// Its system calls are dispatched to a signal handler.
    UserDispatch,
    /// It has changed its privileges during the release.
    PrivilegesChanged,
    /// Its free memory is locked.
    Locked,
    /// It has memory that is pinned for a device.
    Pinned,
    /// Its heap is in huge pages of hugetlbfs.
    Hugetlb,
    /// Another process shares its memory.
    SharedMemory,
    /// None of its threads can be borrowed.
    NoThread,
    /// Its own threads held the locks of its heap at every attempt.
    LockTaken,
    /// Its C library lacks a required instruction.
    Gadget,
    /// The method `purge` does not exist for its allocator.
    NoPurge,
    /// It has no `malloc_trim`.
    NoTrim,
    /// Its runtime cannot be made to collect.
    NoCollection,
}
