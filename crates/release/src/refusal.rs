//! The reasons why a process is left alone.

use lowtide_heap::droppable::UNCOUNTED_THREADS;
use lowtide_model::bytes::Human;
use lowtide_model::release::{Hazard, Release, ReleaseOutcome};
use thiserror::Error;

/// The reasons why a thread cannot run a release in any of its waits: a retry is useless.
pub(crate) const SOCKET_TIMEOUT: &str = "it waits for a socket that has its own timeout";
pub(crate) const SOCKET_UNKNOWN: &str =
    "it waits for a socket, and kernels before 5.6 do not show whether that has its own timeout";

pub(crate) const STATIC_TIMEOUT: &str = "it waits with a timeout, in a static program whose C library makes its calls \
     where lowtide cannot tell them from others";

/// The reason why a process is left alone. Each is displayed as a sentence that ends with the next
/// step, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A file holds all releases ([`Hold`](crate::Hold)).
    #[error("releases are held by {}{}: remove this file to permit them", .path.escape_debug(), in_brackets(.reason.as_deref()))]
    Held {
        /// The path of the file.
        path: String,
        /// Its first line, if there is one.
        reason: Option<String>,
    },
    /// A debugger traces it.
    #[error(
        "it is already traced by process {tracer}: a process can have only one tracer; end that tracer first"
    )]
    Traced {
        /// The PID of the tracer.
        tracer: u32,
    },
    /// Another release of it is in progress.
    #[error("another release of its memory is in progress: wait until it has ended")]
    AnotherRelease,
    /// It is stopped.
    #[error("it is stopped, and none of its threads can run: resume it with kill -CONT {pid}")]
    Stopped {
        /// The process.
        pid: u32,
    },
    /// Its cgroup is frozen.
    #[error("its cgroup is frozen, and none of its threads can run: thaw the cgroup first")]
    Frozen,
    /// It is a process for another processor than lowtide, or for one without releases.
    #[error(
        "it is not a 64-bit process for x86-64 or aarch64, or not for the processor of lowtide"
    )]
    Machine,
    /// On this processor, releases were not tested with something that it uses.
    #[error(
        "it uses {what}, and on {processor} lowtide was not tested with that: it releases the heap of glibc only, \
         of processes without seccomp filters, memory tags, guarded control stacks and the matrix of SME",
        processor = std::env::consts::ARCH
    )]
    Processor {
        /// What it uses.
        what: &'static str,
    },
    /// It has an allocator whose memory lowtide cannot release.
    #[error(
        "its allocator is {name}, and lowtide can release the memory of glibc, musl, jemalloc, mimalloc and \
         gperftools only"
    )]
    Allocator {
        /// The name of the allocator.
        name: String,
    },
    /// It has an allocator that the caller did not select
    /// ([`Options::allocators`](crate::Options::allocators)).
    #[error("its allocator is {name}, and its memory is released only with `--allocators {name}`")]
    NotChosen {
        /// The name of the allocator.
        name: String,
    },
    /// The caller leaves this heap alone ([`Options::left_alone`](crate::Options::left_alone)).
    #[error("earlier releases of the heap of {name} went wrong")]
    LeftAlone {
        /// The name of the allocator.
        name: String,
    },
    /// The free memory of its allocator is not guarded.
    #[error("its allocator is {name}, whose memory cannot be released safely because {why}")]
    Unguarded {
        /// The name of the allocator.
        name: String,
        /// The reason, as the end of the sentence.
        why: &'static str,
    },
    /// Its locks are those of another C library than glibc.
    #[error(
        "its allocator is {name} with the locks of {c_library}, and lowtide supports those of glibc, and of musl's \
         own malloc"
    )]
    Locks {
        /// The name of the allocator.
        name: String,
        /// The name of the C library.
        c_library: String,
    },
    /// Its heap could not be found.
    #[error(
        "its heap was not found: it has not allocated yet, or the layout of its heap is not supported"
    )]
    NoHeap,
    /// It runs under a sanitizer.
    #[error("it runs under {name}: its heap must not be modified")]
    Sanitizer {
        /// The name of the sanitizer.
        name: &'static str,
    },
    /// The version of its allocator is untested.
    #[error(
        "its {name} is {version}, but releases were tested with {tested} only: `lowtide release --untested` \
         permits it"
    )]
    Untested {
        /// The name of the allocator.
        name: String,
        /// The version, or a phrase for an unknown one.
        version: String,
        /// The tested versions.
        tested: String,
    },
    /// The walk disagrees with the allocator's own counts.
    #[error(
        "its heap disagrees with the allocator's own counts ({what}), and was not modified: try again"
    )]
    HeapNotWhole {
        /// A description of the disagreement.
        what: String,
    },
    /// A seccomp filter forbids a call.
    #[error("its seccomp filter does not permit {call}, and could kill the process")]
    Seccomp {
        /// The name of the system call.
        call: &'static str,
    },
    /// A seccomp filter cannot be read.
    #[error(
        "its seccomp filter could kill the process, and cannot be read ({why}): to read it, lowtide needs \
         CAP_SYS_ADMIN and must not be under a filter itself; in a container, start the service with \
         `lowtide run`"
    )]
    SeccompUnread {
        /// The reason.
        why: String,
    },
    /// No process could be started in which the seccomp filter is tried.
    #[error(
        "its seccomp filter could kill the process, and could not be tried now ({why}): try again"
    )]
    SeccompUntried {
        /// The reason.
        why: String,
    },
    /// Its threads have shadow stacks.
    #[error("its threads have shadow stacks, which reject the return addresses of a release")]
    ShadowStack,
    /// The kernel does not permit it to map new code.
    #[error("the kernel denies it memory that is both writable and executable (PR_SET_MDWE)")]
    WriteExecuteDenied,
    /// The kernel denies it a page of code.
    #[error(
        "the kernel denies it new executable memory: a policy of SELinux (execmem) or another security module \
         forbids that; ausearch -m avc shows what SELinux denied"
    )]
    CodeDenied,
    /// Its memory cgroup is full.
    #[error(
        "its memory cgroup has {} left, and a release itself needs 1 MiB for a moment: raise the limit first",
        Human(*.free_bytes)
    )]
    NoHeadroom {
        /// The free memory of the group that is closest to its limit, in bytes.
        free_bytes: u64,
    },
    /// The system calls of its threads are dispatched to a signal handler.
    #[error(
        "its system calls are dispatched to a signal handler of its own (Syscall User Dispatch, as in Wine), \
         which does not expect those of a release"
    )]
    UserDispatch,
    /// It has changed its privileges during the release.
    #[error(
        "it changed its user, its capabilities or its system call filters during the release, which ended \
         at once: try again"
    )]
    PrivilegesChanged,
    /// Its free memory is locked.
    #[error(
        "its free memory ({bytes} bytes) is locked (mlock), and a release leaves locked memory alone: it can be \
         returned only after the program has unlocked it (munlock), or by a restart"
    )]
    Locked {
        /// The size of the locked free memory in bytes.
        bytes: u64,
    },
    /// It has memory that is pinned for a device.
    #[error(
        "it has memory that is pinned for a device ({bytes} bytes), and where is unknown: the device may use free \
         memory too"
    )]
    Pinned {
        /// The size of that memory in bytes.
        bytes: u64,
    },
    /// Its heap is in huge pages from the kernel's pool (hugetlb).
    #[error(
        "its heap is in huge pages from the kernel's pool (hugetlb, {bytes} bytes), which a release must not drop"
    )]
    Hugetlb {
        /// The size of all such pages of the process, in bytes.
        bytes: u64,
    },
    /// Another process shares its memory.
    #[error(
        "it shares its memory (CLONE_VM) with process {other}, and its allocator's locks do not stop that process"
    )]
    SharedMemory {
        /// The PID of that process.
        other: u32,
    },
    /// None of its threads can run the release.
    #[error("{} run the release: {why}", none_can(*.threads))]
    NoThread {
        /// Number of its threads.
        threads: usize,
        /// The most frequent reason.
        why: String,
    },
    /// Its own threads held the locks of its heap, and nothing was returned.
    #[error(
        "another thread held a lock of its allocator at {}",
        of_all(*.locked, *.attempts)
    )]
    LockTaken {
        /// Number of attempts at which it was taken, most of them.
        locked: u64,
        /// Number of attempts.
        attempts: u64,
    },
    /// Its runtime cannot be made to collect.
    #[error("its runtime was not asked to collect, because {why}")]
    NoCollection {
        /// The reason, as the end of the sentence.
        why: String,
        /// Whether it may pass by itself.
        may_pass: bool,
    },
    /// Its C library lacks an instruction that a release needs.
    #[error("its C library lacks {what}, without which the state of a thread cannot be restored")]
    Gadget {
        /// The missing instruction.
        what: &'static str,
    },
    /// Its allocator has no purge function that can be called.
    #[error(
        "{why}: use --method chunks, which returns more and holds each lock for a bounded time"
    )]
    NoPurge {
        /// The reason.
        why: &'static str,
    },
    /// `malloc_trim` was not found.
    #[error(
        "malloc_trim was not found in its C library: use --method chunks, which does not need it"
    )]
    NoTrim,
    /// `malloc_trim` does not act on its allocator.
    #[error(
        "its allocator is {name}, and malloc_trim returns the memory of glibc only: use --method chunks"
    )]
    NotForTrim {
        /// The name of the allocator.
        name: String,
    },
}

/// Formats untrusted text as a part of a sentence.
fn in_brackets(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" ({text:?})"))
}

fn none_can(threads: usize) -> String {
    match threads {
        0 | 1 => "its only thread cannot".to_owned(),
        threads => format!("none of its {threads} threads can"),
    }
}

/// Formats a number of attempts, of which some or all failed.
fn of_all(failed: u64, attempts: u64) -> String {
    match attempts {
        1 => "the only attempt".to_owned(),
        _ if failed == attempts => format!("each of {attempts} attempts"),
        _ => format!("{failed} of {attempts} attempts"),
    }
}

impl Refusal {
    /// Returns whether the reason may pass by itself, so that a retry makes sense.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Held { .. }
            | Self::Traced { .. }
            | Self::AnotherRelease
            | Self::Stopped { .. }
            | Self::Frozen
            | Self::HeapNotWhole { .. }
            | Self::SeccompUntried { .. }
            | Self::SharedMemory { .. }
            | Self::PrivilegesChanged
            | Self::LockTaken { .. }
            | Self::NoHeadroom { .. }
            | Self::NoHeap => true,
            Self::Unguarded { why, .. } => *why == UNCOUNTED_THREADS,
            Self::NoCollection { may_pass, .. } => *may_pass,
            // A running thread will wait later. The others will wait in the same way again.
            Self::NoThread { why, .. } => ![SOCKET_TIMEOUT, SOCKET_UNKNOWN, STATIC_TIMEOUT]
                .iter()
                .any(|begin| why.starts_with(begin)),
            _ => false,
        }
    }

    /// Records the refusal in the report of the release that it prevents.
    pub(crate) fn enter(&self, release: &mut Release) {
        release.outcome = ReleaseOutcome::Refused;
        release.hazard = Some(self.hazard());
        release.may_pass = Some(self.may_pass());
        release.reason = Some(self.to_string());
    }

    /// Returns its stable identifier.
    pub fn hazard(&self) -> Hazard {
        match self {
            Self::Held { .. } => Hazard::Held,
            Self::Traced { .. } => Hazard::Traced,
            Self::AnotherRelease => Hazard::AnotherRelease,
            Self::Stopped { .. } => Hazard::Stopped,
            Self::Frozen => Hazard::Frozen,
            Self::Machine | Self::Processor { .. } => Hazard::Machine,
            Self::Allocator { .. }
            | Self::NotChosen { .. }
            | Self::LeftAlone { .. }
            | Self::Unguarded { .. }
            | Self::Locks { .. } => Hazard::Allocator,
            Self::NoHeap => Hazard::NoHeap,
            Self::Sanitizer { .. } => Hazard::Sanitizer,
            Self::Untested { .. } => Hazard::Untested,
            Self::HeapNotWhole { .. } => Hazard::HeapNotWhole,
            Self::Seccomp { .. } => Hazard::Seccomp,
            Self::SeccompUnread { .. } | Self::SeccompUntried { .. } => Hazard::SeccompUnread,
            Self::ShadowStack => Hazard::ShadowStack,
            Self::WriteExecuteDenied => Hazard::WriteExecuteDenied,
            Self::CodeDenied => Hazard::CodeDenied,
            Self::UserDispatch => Hazard::UserDispatch,
            Self::NoHeadroom { .. } => Hazard::NoHeadroom,
            Self::PrivilegesChanged => Hazard::PrivilegesChanged,
            Self::Locked { .. } => Hazard::Locked,
            Self::Pinned { .. } => Hazard::Pinned,
            Self::Hugetlb { .. } => Hazard::Hugetlb,
            Self::SharedMemory { .. } => Hazard::SharedMemory,
            Self::NoThread { .. } => Hazard::NoThread,
            Self::LockTaken { .. } => Hazard::LockTaken,
            Self::NoCollection { .. } => Hazard::NoCollection,
            Self::Gadget { .. } => Hazard::Gadget,
            Self::NoPurge { .. } => Hazard::NoPurge,
            Self::NoTrim | Self::NotForTrim { .. } => Hazard::NoTrim,
        }
    }
}
