//! What one release came to: the object that `lowtide release --json` prints.

use serde::{Deserialize, Serialize};

/// What the object's `schema` says.
pub const SCHEMA: &str = "lowtide.release/1";

/// What one release came to. What is not known is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Release {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// The process, as lowtide sees it.
    pub pid: u32,
    /// When it began, in clock ticks since the machine booted.
    pub start_ticks: u64,
    /// Its command line; the short name in brackets for one that has none.
    pub command: Vec<String>,
    /// Whether it was only said what a release would do.
    pub dry_run: bool,
    /// How it ended.
    pub outcome: ReleaseOutcome,
    /// Why it was refused or ended early: a sentence that says what would help.
    pub reason: Option<String>,
    /// The reason of a refusal, for programs.
    pub hazard: Option<Hazard>,
    /// Whether what it was refused for may pass by itself.
    pub may_pass: Option<bool>,
    /// The allocator.
    pub allocator: Option<String>,
    /// Its version.
    pub allocator_version: Option<String>,
    /// What gave the memory back.
    pub method: Method,
    /// Where that code runs; absent where it was not decided.
    pub runs_in: Option<RunsIn>,
    /// The thread that is used for it, by its number as lowtide sees it.
    pub thread: Option<u32>,
    /// What that thread is waiting in, by the system call's name.
    pub waiting_in: Option<String>,
    /// What was predicted to go back, in bytes.
    pub predicted_bytes: u64,
    /// What was given back, in bytes: the pages that were dropped. Of `trim` and `purge`, by how much what they could return
    /// has fallen.
    pub returned_bytes: u64,
    /// Resident bytes before and after, as the kernel counts them.
    pub rss_before_bytes: u64,
    /// See there.
    pub rss_after_bytes: u64,
    /// How long it all took, in seconds.
    pub elapsed_s: f64,
    /// CPU time that lowtide itself used for it, in seconds. What its code used in the process is not
    /// in it.
    pub cpu_s: f64,
    /// How often a thread of the target was held up.
    pub pauses: u64,
    /// The longest of them, in seconds.
    pub longest_pause_s: f64,
    /// Their median, in seconds.
    pub median_pause_s: f64,
    /// What a pause may take where it can be sliced (`--max-pause`), in seconds.
    pub pause_bound_s: f64,
    /// How many of the pauses took longer.
    pub pauses_over_bound: u64,
    /// For how long in these a thread of the target or of lowtide waited for a processor, in seconds.
    pub waited_over_bound_s: f64,
    /// How often the lock of an arena was held.
    pub lock_holds: u64,
    /// The longest of them, in seconds.
    pub longest_lock_s: f64,
    /// 99 of 100 were shorter than this, in seconds; as good as the classes that are counted, which
    /// are an eighth apart.
    pub p99_lock_s: f64,
    /// How often the heap was gone over.
    pub passes: u64,
    /// Ranges that were no longer free when their turn came.
    pub skipped_ranges: u64,
    /// Free blocks that were joined with their neighbours first (fast bins, up to glibc 2.42).
    pub joined_blocks: u64,
    /// Bytes of huge pages that were split afterwards because at least half of each was free.
    pub split_bytes: u64,
    /// What an earlier release had left behind when it was killed, and is gone now, in bytes.
    pub cleaned_bytes: u64,
    /// What had come back after the time that was asked for (`--watch`).
    pub regained: Option<Regained>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl Release {
    /// One that has not begun: nothing is known, and so it would be refused.
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
            method: Method::Chunks,
            runs_in: None,
            thread: None,
            waiting_in: None,
            predicted_bytes: 0,
            returned_bytes: 0,
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
            split_bytes: 0,
            cleaned_bytes: 0,
            regained: None,
            notes: Vec::new(),
        }
    }
}

/// How a release ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseOutcome {
    /// It was done to its end. Of a dry run: it would be done.
    Released,
    /// There is nothing to give back, and nothing was done.
    NothingToRelease,
    /// It would not have been safe, and nothing was done.
    Refused,
    /// A part was done.
    Partial,
}

/// What gives the memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Range by range, each under a lock that is held for a bounded time.
    Chunks,
    /// `malloc_trim`, which holds each arena's lock for as long as it takes.
    Trim,
    /// The purge of the allocator: its own function that returns free memory, which threads of the process call.
    Purge,
}

/// Where the code that gives memory back runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunsIn {
    /// In a thread of its own, beside the target's.
    OwnThread,
    /// In slices, in a thread of the target that waits.
    Slices,
}

/// What has come back some time after a release.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Regained {
    /// So long after it, in seconds.
    pub after_s: f64,
    /// By how much resident bytes have grown since.
    pub rss_bytes: u64,
    /// By how much anonymous huge pages have grown since: what khugepaged filled again, in bytes.
    /// Absent where they cannot be counted without having the process's threads wait.
    pub huge_bytes: Option<u64>,
}

/// Why a process was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hazard {
    /// Another process traces it.
    Traced,
    /// Another release is at work in it.
    AnotherRelease,
    /// It is stopped by job control.
    Stopped,
    /// Its control group is frozen.
    Frozen,
    /// It is not a 64-bit x86 process.
    Machine,
    /// Its allocator is not one that lowtide releases.
    Allocator,
    /// Its heap was not found.
    NoHeap,
    /// It runs under a sanitizer.
    Sanitizer,
    /// Its glibc is not among the tested versions.
    Untested,
    /// The walked heap does not agree with the counts of its allocator.
    HeapNotWhole,
    /// A seccomp filter forbids a call that is needed.
    Seccomp,
    /// Its seccomp filters cannot be read.
    SeccompUnread,
    /// Its threads have shadow stacks.
    ShadowStack,
    /// It may not map executable memory that was written.
    WriteExecuteDenied,
    /// It has locked its memory.
    Locked,
    /// It has huge pages of hugetlbfs.
    Hugetlb,
    /// Another process shares its memory.
    SharedMemory,
    /// None of its threads can be borrowed.
    NoThread,
    /// Its C library has no instruction that is needed.
    Gadget,
    /// The method `purge` does not exist for its allocator.
    NoPurge,
    /// It has no `malloc_trim`.
    NoTrim,
}
