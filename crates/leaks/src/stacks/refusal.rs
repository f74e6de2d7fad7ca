//! The reasons why stacks are not taken.

use std::fmt;
use std::io;

use lowtide_probe::proc::status::Status;

/// Capabilities (include/uapi/linux/capability.h). The first implies the two others.
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;
const CAP_BPF: u64 = 1 << 39;

/// The first version that does not count BPF maps as locked memory.
const WITHOUT_LOCKED_MAPS: (u32, u32) = (5, 11);
/// The first version whose probes for several functions see all threads. Before, a perf event is
/// needed for each.
const WITH_MULTI_PROBES: (u32, u32) = (6, 10);

/// The reason why the stacks of allocations are not taken, as the end of a sentence that starts
/// with "no stacks:".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoStacks {
    /// lowtide lacks CAP_BPF or CAP_PERFMON.
    NotPermitted,
    /// lowtide lacks CAP_SYS_ADMIN, which perf events with probes require.
    Administrator,
    /// lowtide has the capabilities, and the kernel does not permit it.
    Forbidden,
    /// The kernel counts BPF maps as locked memory, and the limit of that is too low. Kernels from
    /// 5.11 on do not.
    LockedMemory,
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
            Some(libc::EPERM | libc::EACCES) => {
                let capabilities = Status::own().map_or(0, |own| own.capabilities);
                Self::denied(capabilities, &kernel_release(), is_locked_down())
            }
            Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::E2BIG) => Self::Kernel,
            _ => Self::Failed(error.to_string()),
        }
    }

    /// Creates it from an error of the kernel when a BPF map was created.
    pub(super) fn from_map_error(error: &io::Error) -> Self {
        match Self::from_error(error) {
            Self::Forbidden
                if locked_memory_limit().is_some()
                    && is_before(&kernel_release(), WITHOUT_LOCKED_MAPS) =>
            {
                Self::LockedMemory
            }
            other => other,
        }
    }

    /// Returns the reason if the kernel denies probes to lowtide with these capabilities.
    fn denied(capabilities: u64, release: &str, is_locked_down: bool) -> Self {
        let has = |capability| capabilities & capability != 0;
        match has(CAP_SYS_ADMIN) {
            false if is_before(release, WITH_MULTI_PROBES) => Self::Administrator,
            false if !has(CAP_PERFMON) || !has(CAP_BPF) => Self::NotPermitted,
            _ if is_locked_down => Self::Lockdown,
            _ => Self::Forbidden,
        }
    }
}

impl fmt::Display for NoStacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "they require CAP_BPF and CAP_PERFMON",
            Self::Administrator => "before Linux 6.10, they require CAP_SYS_ADMIN",
            Self::Forbidden => {
                "lowtide has the capabilities, and the kernel forbids probes: lowtide runs in a user namespace, \
                 or a seccomp filter or a security module (SELinux, AppArmor) denies bpf(2) or perf_event_open(2)"
            }
            Self::LockedMemory => {
                "before Linux 5.11, they require a higher limit of locked memory (RLIMIT_MEMLOCK), which \
                 lowtide may not raise: run ulimit -l unlimited before lowtide, or give it CAP_SYS_RESOURCE"
            }
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

fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Returns whether a release of the kernel is older than a version.
fn is_before(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < version
}

/// Returns the limit of locked memory, in bytes; `None` if there is none.
pub(super) fn locked_memory_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_a_denial_depends_on_capabilities_and_kernel() {
        let probes = CAP_PERFMON | CAP_BPF;
        for (capabilities, release, reason) in [
            (0, "6.10.0", NoStacks::NotPermitted),
            (CAP_BPF, "7.2.13", NoStacks::NotPermitted),
            (probes, "6.1.0-50", NoStacks::Administrator),
            (CAP_SYS_ADMIN, "6.1.0-50", NoStacks::Forbidden),
            (probes, "6.12.1", NoStacks::Forbidden),
        ] {
            assert_eq!(NoStacks::denied(capabilities, release, false), reason, "{release}");
        }
        assert_eq!(NoStacks::denied(0, "6.12", true), NoStacks::NotPermitted);
        assert_eq!(NoStacks::denied(probes, "6.12", true), NoStacks::Lockdown);
    }

    #[test]
    fn kernels_before_5_11_count_maps_as_locked_memory() {
        for release in ["4.18.0-553.el8_10.x86_64", "5.8.0", "5.10.0-46-cloud-amd64"] {
            assert!(is_before(release, WITHOUT_LOCKED_MAPS), "{release}");
        }
        for release in ["5.11.0", "5.15.0-1", "6.1", "7.2-cloud-amd64"] {
            assert!(!is_before(release, WITHOUT_LOCKED_MAPS), "{release}");
        }
    }
}
