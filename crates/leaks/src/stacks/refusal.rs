//! The reasons why stacks are not taken.

use std::fmt;
use std::io;

/// The reason why the stacks of allocations are not taken, as the end of a sentence that starts
/// with "no stacks:".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoStacks {
    /// The kernel does not permit it.
    NotPermitted,
    /// The kernel has no return probes with BPF programs that see all threads of a process.
    Kernel,
    /// The kernel is locked down: its programs may not read the memory of processes.
    Lockdown,
    /// The processor is not supported.
    Processor,
    /// The process contains a Go runtime.
    Go,
    /// The process has shadow stacks.
    ShadowStack,
    /// The process has system call filters, and a return probe makes a system call that they may
    /// reject.
    Filters,
    /// The allocation functions were not found.
    NoFunctions,
    /// Something else failed.
    Failed(String),
}

impl NoStacks {
    /// Creates it from an error of the kernel.
    pub(super) fn from_error(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) if is_locked_down() => Self::Lockdown,
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::E2BIG) => Self::Kernel,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl fmt::Display for NoStacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "they require CAP_BPF and CAP_PERFMON",
            Self::Kernel => "they require Linux 5.8 or newer, with BPF and uprobes",
            Self::Lockdown => {
                "the kernel is locked down (confidentiality), and BPF programs may not read memory"
            }
            Self::Processor => "they are supported on x86_64 only",
            Self::Go => "the process contains Go code, which return probes can crash",
            Self::ShadowStack => "the process has shadow stacks, which return probes would violate",
            Self::Filters => {
                "the process has seccomp filters, and on this kernel a return probe makes a system call \
                 that they may block"
            }
            Self::NoFunctions => {
                "the allocation functions were not found: the file that contains them is stripped"
            }
            Self::Failed(why) => return write!(f, "the probes failed ({why})"),
        })
    }
}

fn is_locked_down() -> bool {
    let text = std::fs::read_to_string("/sys/kernel/security/lockdown");
    text.is_ok_and(|text| text.contains("[confidentiality]"))
}
