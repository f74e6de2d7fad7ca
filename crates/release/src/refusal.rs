//! Why a process is left alone.

use lowtide_model::release::{Hazard, Release, ReleaseOutcome};
use thiserror::Error;

/// The reason why a thread cannot be borrowed whenever it waits in a call.
pub(crate) const SOCKET_TIMEOUT: &str = "it waits for a socket that has its own timeout";

/// Why a process is left alone. Each is displayed as a sentence with advice.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A debugger traces it.
    #[error("it is being traced by process {tracer}, and only one can: end that first")]
    Traced {
        /// The PID of the tracer.
        tracer: u32,
    },
    /// Another release of it is in progress.
    #[error("another release is at work on it: wait until that one has ended")]
    AnotherRelease,
    /// It is stopped.
    #[error("it is stopped, and nothing can run in it: kill -CONT {pid} lets it go on")]
    Stopped {
        /// The process.
        pid: u32,
    },
    /// Its cgroup is frozen.
    #[error("it is frozen (by the freezer of its control group), and nothing can run in it")]
    Frozen,
    /// It is not a 64-bit x86 process, or lowtide is not.
    #[error("it is no 64-bit x86 process: releases are supported on x86-64 only")]
    Machine,
    /// It has an allocator whose memory lowtide cannot release.
    #[error(
        "its allocator is {name}, and lowtide can release the memory of glibc, jemalloc, mimalloc 3 and \
         gperftools only"
    )]
    Allocator {
        /// Which.
        name: String,
    },
    /// It has an allocator that the caller did not choose ([`Options::allocators`](crate::Options::allocators)).
    #[error("its allocator is {name}, and releases act on it only with `--allocators {name}`")]
    NotChosen {
        /// Which.
        name: String,
    },
    /// The free memory of its allocator is not guarded.
    #[error("its allocator is {name}, whose memory cannot be released safely because {why}")]
    Unguarded {
        /// Which.
        name: String,
        /// The end of the sentence.
        why: &'static str,
    },
    /// Its C library has other locks than glibc.
    #[error(
        "its allocator is {name} with the locks of {c_library}, and lowtide knows those of glibc only"
    )]
    Locks {
        /// Which allocator.
        name: String,
        /// Which C library.
        c_library: String,
    },
    /// Its heap could not be found.
    #[error("its heap could not be found: it has not allocated yet, or its layout is not known")]
    NoHeap,
    /// It runs under a sanitizer.
    #[error("it runs under {name}, whose heap must be left alone")]
    Sanitizer {
        /// Which.
        name: &'static str,
    },
    /// The version of its allocator is untested.
    #[error(
        "its {name} is {version}, and releases were tested on {tested} only: `lowtide release --untested` \
         permits one"
    )]
    Untested {
        /// The allocator.
        name: String,
        /// The version, or a phrase for an unknown one.
        version: String,
        /// The tested versions.
        tested: String,
    },
    /// The walk does not agree with the allocator's own counts.
    #[error(
        "its heap does not agree with what the allocator itself counts ({what}), and was left alone: \
         try again"
    )]
    HeapNotWhole {
        /// The disagreement.
        what: String,
    },
    /// A seccomp filter forbids a call.
    #[error("its seccomp filter does not allow {call}, and could end it")]
    Seccomp {
        /// The call.
        call: &'static str,
    },
    /// A seccomp filter cannot be read.
    #[error(
        "it runs under a seccomp filter that cannot be read ({why}), and that could end it: reading \
         it takes CAP_SYS_ADMIN, and lowtide itself outside of any filter; in a container, start the \
         service by `lowtide run`"
    )]
    SeccompUnread {
        /// The reason.
        why: String,
    },
    /// Its threads have shadow stacks.
    #[error("its threads have shadow stacks, which do not let another return address in")]
    ShadowStack,
    /// It may not map new code.
    #[error(
        "it has asked the kernel for memory that is never both written and executed (PR_SET_MDWE)"
    )]
    WriteExecuteDenied,
    /// It has locked memory, or memory that is pinned for a device.
    #[error(
        "it has locked or pinned memory ({bytes} bytes), which cannot be given back page by page"
    )]
    Locked {
        /// Their size.
        bytes: u64,
    },
    /// It has huge pages of the kernel's pool.
    #[error(
        "it has {bytes} bytes of huge pages from the kernel's pool (hugetlb), which are not its own to drop"
    )]
    Hugetlb {
        /// Their size.
        bytes: u64,
    },
    /// Another process shares its memory.
    #[error(
        "process {other} shares its memory (CLONE_VM), and would not be held back by its locks"
    )]
    SharedMemory {
        /// Which.
        other: u32,
    },
    /// None of its threads can be borrowed.
    #[error("{} can be borrowed: {why}", none_of(*.threads))]
    NoThread {
        /// Number of its threads.
        threads: usize,
        /// The most frequent reason.
        why: String,
    },
    /// Its C library lacks an instruction that is needed.
    #[error("its C library lacks {what}, without which a thread cannot be put back")]
    Gadget {
        /// What.
        what: &'static str,
    },
    /// Its allocator has no purge that can be called.
    #[error("{why}: --method chunks gives back more, in bounded holds")]
    NoPurge {
        /// Why not.
        why: &'static str,
    },
    /// `malloc_trim` was not found.
    #[error("its C library has no malloc_trim that could be found: --method chunks does without")]
    NoTrim,
    /// `malloc_trim` does not concern its allocator.
    #[error(
        "its allocator is {name}, and malloc_trim returns the memory of glibc only: --method chunks returns it"
    )]
    NotForTrim {
        /// Which.
        name: String,
    },
}

fn none_of(threads: usize) -> String {
    match threads {
        0 | 1 => "its only thread is not one that".to_owned(),
        threads => format!("none of its {threads} threads"),
    }
}

impl Refusal {
    /// Returns whether it may pass by itself, so that a retry makes sense.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Traced { .. }
            | Self::AnotherRelease
            | Self::Stopped { .. }
            | Self::Frozen
            | Self::HeapNotWhole { .. }
            | Self::SharedMemory { .. }
            | Self::NoHeap => true,
            // A running thread will wait later. A thread that waits for a socket with its own timeout will do so again.
            Self::NoThread { why, .. } => !why.starts_with(SOCKET_TIMEOUT),
            _ => false,
        }
    }

    /// Enters it into the account of a release that it prevents.
    pub(crate) fn enter(&self, release: &mut Release) {
        release.outcome = ReleaseOutcome::Refused;
        release.hazard = Some(self.hazard());
        release.may_pass = Some(self.may_pass());
        release.reason = Some(self.to_string());
    }

    /// Returns its stable identifier.
    pub fn hazard(&self) -> Hazard {
        match self {
            Self::Traced { .. } => Hazard::Traced,
            Self::AnotherRelease => Hazard::AnotherRelease,
            Self::Stopped { .. } => Hazard::Stopped,
            Self::Frozen => Hazard::Frozen,
            Self::Machine => Hazard::Machine,
            Self::Allocator { .. }
            | Self::NotChosen { .. }
            | Self::Unguarded { .. }
            | Self::Locks { .. } => Hazard::Allocator,
            Self::NoHeap => Hazard::NoHeap,
            Self::Sanitizer { .. } => Hazard::Sanitizer,
            Self::Untested { .. } => Hazard::Untested,
            Self::HeapNotWhole { .. } => Hazard::HeapNotWhole,
            Self::Seccomp { .. } => Hazard::Seccomp,
            Self::SeccompUnread { .. } => Hazard::SeccompUnread,
            Self::ShadowStack => Hazard::ShadowStack,
            Self::WriteExecuteDenied => Hazard::WriteExecuteDenied,
            Self::Locked { .. } => Hazard::Locked,
            Self::Hugetlb { .. } => Hazard::Hugetlb,
            Self::SharedMemory { .. } => Hazard::SharedMemory,
            Self::NoThread { .. } => Hazard::NoThread,
            Self::Gadget { .. } => Hazard::Gadget,
            Self::NoPurge { .. } => Hazard::NoPurge,
            Self::NoTrim | Self::NotForTrim { .. } => Hazard::NoTrim,
        }
    }
}
