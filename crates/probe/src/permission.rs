//! Permission to inspect and to trace another process (ptrace(2), "Ptrace access mode checking").

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::proc::status::Status;

/// Numbers of capabilities (include/uapi/linux/capability.h).
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_PTRACE: u32 = 19;

/// An access to a process that the kernel can deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading its memory.
    Read,
    /// Tracing it, and writing to its memory.
    Trace,
}

impl Access {
    /// Returns the capability that opens the files of this access, whose modes are 0400 and 0600.
    fn of_files(self) -> (u32, &'static str) {
        match self {
            Self::Read => (CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
            Self::Trace => (CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
        }
    }
}

/// Returns what the kernel requires for an access that it has denied, as the end of a sentence such
/// as "this requires …".
pub fn required(pid: u32, access: Access) -> String {
    let own = Status::own().unwrap_or_default();
    let target = Status::read(pid).unwrap_or_default();
    let user = rustix::process::geteuid().as_raw();
    let owner = fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid());
    let denied = Denied {
        access,
        is_own: target.uid == user,
        owns_files: owner.is_ok_and(|owner| owner == user),
        capabilities: own.capabilities,
        has_more_capabilities: target.capabilities & !own.capabilities != 0,
        scope: fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default(),
    };
    denied.required()
}

/// The facts on which the kernel's decision depends.
#[derive(Debug)]
struct Denied {
    access: Access,
    /// Whether the process belongs to the user that lowtide runs as.
    is_own: bool,
    /// Whether its files in `/proc` belong to this user. Those of a process that is not dumpable
    /// belong to root.
    owns_files: bool,
    /// Effective capabilities of lowtide.
    capabilities: u64,
    /// Whether the process has capabilities that lowtide lacks.
    has_more_capabilities: bool,
    /// Setting of Yama (Documentation/admin-guide/LSM/Yama.rst); empty if the kernel runs without
    /// Yama.
    scope: String,
}

impl Denied {
    fn required(&self) -> String {
        let scope = self.scope.trim();
        if scope == "3" {
            return "a reboot: kernel.yama.ptrace_scope is 3, which forbids all tracing until then"
                .to_owned();
        }
        let files = Some(self.access.of_files()).filter(|_| !self.owns_files);
        let needed = [Some((CAP_SYS_PTRACE, "CAP_SYS_PTRACE")), files];
        let missing: Vec<&str> = needed
            .into_iter()
            .flatten()
            .filter(|(number, _)| self.capabilities & (1 << number) == 0)
            .map(|(_, name)| name)
            .collect();
        if missing.is_empty() {
            return "the consent of a security module (SELinux, AppArmor), or lowtide in a user namespace \
                    that contains the process; the capabilities of lowtide suffice"
                .to_owned();
        }
        format!("{}{}", missing.join(" and "), self.circumstances(scope))
    }

    /// Returns why a capability is required, or what would do instead.
    fn circumstances(&self, scope: &str) -> String {
        let is_restricted = matches!(scope, "1" | "2");
        match self.is_own {
            false if is_restricted => String::new(),
            false => ", or running lowtide as the user of the process".to_owned(),
            // A program that is setuid, or called `PR_SET_DUMPABLE`.
            true if !self.owns_files => ", because the process is not dumpable".to_owned(),
            true if self.has_more_capabilities => {
                ", because the process has capabilities that lowtide lacks".to_owned()
            }
            true if is_restricted => {
                format!(", or kernel.yama.ptrace_scope at 0; it is {scope}")
            }
            // The files of root's processes belong to root in any case.
            true => ", because the process is not dumpable".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(access: Access, scope: &str) -> Denied {
        Denied {
            access,
            is_own: true,
            owns_files: true,
            capabilities: 0,
            has_more_capabilities: false,
            scope: format!("{scope}\n"),
        }
    }

    fn foreign(access: Access, scope: &str) -> Denied {
        Denied { is_own: false, owns_files: false, ..own(access, scope) }
    }

    #[test]
    fn the_setting_of_yama_is_named_where_it_is_the_cause() {
        for scope in ["1", "2"] {
            assert_eq!(
                own(Access::Trace, scope).required(),
                format!("CAP_SYS_PTRACE, or kernel.yama.ptrace_scope at 0; it is {scope}")
            );
        }
        assert!(own(Access::Read, "3").required().contains("reboot"));
    }

    #[test]
    fn without_yama_the_cause_is_the_process() {
        let required = own(Access::Read, "0").required();
        assert_eq!(required, "CAP_SYS_PTRACE, because the process is not dumpable");
        let hidden = Denied { owns_files: false, ..own(Access::Read, "1") };
        assert_eq!(
            hidden.required(),
            "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, because the process is not dumpable"
        );
        let powerful = Denied { has_more_capabilities: true, ..own(Access::Trace, "1") };
        assert!(powerful.required().ends_with("capabilities that lowtide lacks"));
    }

    #[test]
    fn processes_of_others_require_a_capability_for_their_files_as_well() {
        assert_eq!(
            foreign(Access::Trace, "").required(),
            "CAP_SYS_PTRACE and CAP_DAC_OVERRIDE, or running lowtide as the user of the process"
        );
        let required = foreign(Access::Read, "1").required();
        assert_eq!(required, "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH");
    }

    #[test]
    fn only_missing_capabilities_are_named() {
        let partly = Denied { capabilities: 1 << CAP_SYS_PTRACE, ..foreign(Access::Trace, "2") };
        assert_eq!(partly.required(), "CAP_DAC_OVERRIDE");
        let all = Denied { capabilities: u64::MAX, ..foreign(Access::Trace, "2") };
        assert!(all.required().contains("SELinux"), "{}", all.required());
    }
}
