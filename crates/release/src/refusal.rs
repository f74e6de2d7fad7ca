//! Why a process is left alone.

use thiserror::Error;

/// How a reason begins for which a thread cannot be borrowed whenever it waits.
pub(crate) const LASTING: &str = "it waits for a socket that has its own timeout";

/// Why a process is left alone: each a sentence, with what would help.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Another debugger is at work on it.
    #[error("it is being traced by process {tracer}, and only one can: end that first")]
    Traced {
        /// Who traces it.
        tracer: u32,
    },
    /// Another release is at work on it.
    #[error("another release is at work on it: wait until that one has ended")]
    AnotherRelease,
    /// It was stopped.
    #[error("it is stopped, and nothing can run in it: kill -CONT {pid} lets it go on")]
    Stopped {
        /// The process.
        pid: u32,
    },
    /// Its control group is frozen.
    #[error("it is frozen (by the freezer of its control group), and nothing can run in it")]
    Frozen,
    /// It is no 64-bit x86 process, and the code for others is not there.
    #[error("it is no 64-bit x86 process: others are not supported")]
    Machine,
    /// It has another allocator.
    #[error("its allocator is {name}, and this version gives back only what glibc's holds")]
    Allocator {
        /// Which.
        name: String,
    },
    /// Its heap could not be found.
    #[error("its heap could not be found: it has not allocated yet, or its layout is not known")]
    NoHeap,
    /// It was built with a sanitizer, or runs under one.
    #[error("it runs under {name}, whose heap must be left alone")]
    Sanitizer {
        /// Which.
        name: &'static str,
    },
    /// Its glibc is of a version that was never tried.
    #[error(
        "its glibc is {version}, on which releases were never tortured (they were on {tested}): \
         --untested permits it"
    )]
    Untested {
        /// The version, or that it is not known.
        version: String,
        /// Those that were.
        tested: String,
    },
    /// What was walked is not what the allocator says that it has.
    #[error(
        "its heap does not agree with what the allocator itself counts ({what}), and was left alone: \
         try again"
    )]
    HeapNotWhole {
        /// What does not agree.
        what: String,
    },
    /// A system-call filter would not let it.
    #[error("its seccomp filter does not allow {call}, and could end it")]
    Seccomp {
        /// Which call.
        call: &'static str,
    },
    /// A system-call filter cannot be read.
    #[error(
        "it runs under a seccomp filter that cannot be read ({why}), and that could end it: reading \
         it takes CAP_SYS_ADMIN, and lowtide itself outside of any filter"
    )]
    SeccompUnread {
        /// Why not.
        why: String,
    },
    /// It has shadow stacks.
    #[error("its threads have shadow stacks, which do not let another return address in")]
    ShadowStack,
    /// It may not get new code.
    #[error(
        "it has asked the kernel for memory that is never both written and executed (PR_SET_MDWE)"
    )]
    WriteExecuteDenied,
    /// It has locked memory, or memory that is pinned for a device.
    #[error(
        "it has locked or pinned memory ({bytes} bytes), which cannot be given back page by page"
    )]
    Locked {
        /// How much.
        bytes: u64,
    },
    /// It has memory in huge pages of the kernel's pool.
    #[error(
        "it has {bytes} bytes of huge pages from the kernel's pool (hugetlb), which are not its own to drop"
    )]
    Hugetlb {
        /// How much.
        bytes: u64,
    },
    /// Another process has the same memory.
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
        /// How many it has.
        threads: usize,
        /// What was in the way of most of them.
        why: String,
    },
    /// A piece that is needed is not in its C library.
    #[error("its C library lacks {what}, without which a thread cannot be put back")]
    Gadget {
        /// What.
        what: &'static str,
    },
    /// There is nothing else that its allocator could be asked for.
    #[error(
        "glibc has no purge of its own but malloc_trim: --method chunks gives back more, in bounded holds"
    )]
    NoPurge,
    /// `malloc_trim` is not there to be called.
    #[error("its C library has no malloc_trim that could be found: --method chunks does without")]
    NoTrim,
}

fn none_of(threads: usize) -> String {
    match threads {
        0 | 1 => "its only thread is not one that".to_owned(),
        threads => format!("none of its {threads} threads"),
    }
}

impl Refusal {
    /// Whether it may pass by itself, so that it is worth waiting for.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Traced { .. }
            | Self::AnotherRelease
            | Self::Stopped { .. }
            | Self::Frozen
            | Self::HeapNotWhole { .. }
            | Self::SharedMemory { .. }
            | Self::NoHeap => true,
            // A thread that runs will wait; one that waits for a socket with a time-out of its own will do
            // so again.
            Self::NoThread { why, .. } => !why.starts_with(LASTING),
            _ => false,
        }
    }

    /// A word for it that stays.
    pub fn hazard(&self) -> &'static str {
        match self {
            Self::Traced { .. } => "traced",
            Self::AnotherRelease => "another_release",
            Self::Stopped { .. } => "stopped",
            Self::Frozen => "frozen",
            Self::Machine => "machine",
            Self::Allocator { .. } => "allocator",
            Self::NoHeap => "no_heap",
            Self::Sanitizer { .. } => "sanitizer",
            Self::Untested { .. } => "untested",
            Self::HeapNotWhole { .. } => "heap_not_whole",
            Self::Seccomp { .. } => "seccomp",
            Self::SeccompUnread { .. } => "seccomp_unread",
            Self::ShadowStack => "shadow_stack",
            Self::WriteExecuteDenied => "write_execute_denied",
            Self::Locked { .. } => "locked",
            Self::Hugetlb { .. } => "hugetlb",
            Self::SharedMemory { .. } => "shared_memory",
            Self::NoThread { .. } => "no_thread",
            Self::Gadget { .. } => "gadget",
            Self::NoPurge => "no_purge",
            Self::NoTrim => "no_trim",
        }
    }
}
