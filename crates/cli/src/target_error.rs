//! Translates errors of inspecting a process into failures of lowtide with the next step.

use std::io::ErrorKind;

use lowtide_model::inspection::Unreadable;
use lowtide_probe::permission;
use lowtide_probe::target::TargetError;

use crate::exit::{Exit, Failure};

/// Returns the exit code if a process cannot be inspected.
pub(crate) fn exit(error: &TargetError) -> Exit {
    match error {
        TargetError::NoSuchProcess(_) | TargetError::Zombie(_) | TargetError::Gone(_) => Exit::Gone,
        TargetError::KernelThread(_) => Exit::Usage,
        TargetError::Other(_, error) if error.kind() == ErrorKind::PermissionDenied => {
            Exit::NotPermitted
        }
        TargetError::Replaced(_)
        | TargetError::FirstThreadEnded(_)
        | TargetError::Blocked(_)
        | TargetError::Other(..) => Exit::Failed,
    }
}

/// Returns the failure for a process that cannot be inspected. `again` is the command line to repeat.
pub(crate) fn failure(error: &TargetError, again: &str) -> Failure {
    let failure = Failure::new(exit(error), error);
    match failure.exit() {
        Exit::NotPermitted => failure.next(format!("sudo {again}")),
        _ => failure,
    }
}

/// Returns the failure for a part of a process that lowtide may not read, with the missing permission.
/// `again` is the command line to repeat.
pub(crate) fn not_permitted(part: Unreadable, pid: u32, again: &str) -> Failure {
    let part = match part {
        Unreadable::Maps => "memory mappings",
        Unreadable::Memory => "heap",
    };
    let needed = if permission::is_own(pid) {
        // Yama aside, the cause is `PR_SET_DUMPABLE` or a setuid program.
        "CAP_SYS_PTRACE, because the process is not dumpable"
    } else {
        "CAP_SYS_PTRACE, or running lowtide as the user of the process"
    };
    let scope = match permission::ptrace_scope() {
        Some(scope) if scope != "0" => {
            format!("; kernel.yama.ptrace_scope is {scope}, so the capability is required")
        }
        _ => String::new(),
    };
    let sentence =
        format!("the {part} of process {pid} may not be read: this requires {needed}{scope}");
    Failure::new(Exit::NotPermitted, sentence).next(format!("sudo {again}"))
}
