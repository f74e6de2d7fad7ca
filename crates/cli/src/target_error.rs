//! Errors of a process that is inspected, as failures of lowtide with the next step.

use std::io::ErrorKind;

use lowtide_model::inspection::Unreadable;
use lowtide_probe::permission;
use lowtide_probe::target::TargetError;

use crate::exit::{Exit, Failure};

/// Returns how lowtide ends if a process cannot be inspected.
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

/// Returns the failure for a part of a process that may not be read, with the missing permission.
/// `again` is the command line to repeat.
pub(crate) fn not_permitted(part: Unreadable, pid: u32, again: &str) -> Failure {
    let part = match part {
        Unreadable::Maps => "whose the bytes are",
        Unreadable::Memory => "what the heap holds",
    };
    let needed = if permission::is_own(pid) {
        // Yama aside, this is what `PR_SET_DUMPABLE` does, and a setuid program.
        "CAP_SYS_PTRACE, because the process is not dumpable"
    } else {
        "CAP_SYS_PTRACE, or to be its user"
    };
    let scope = match permission::ptrace_scope() {
        Some(scope) if scope != "0" => {
            format!("; kernel.yama.ptrace_scope is {scope}, which asks for the capability")
        }
        _ => String::new(),
    };
    let sentence = format!("{part} of process {pid} may not be seen: that takes {needed}{scope}");
    Failure::new(Exit::NotPermitted, sentence).next(format!("sudo {again}"))
}
