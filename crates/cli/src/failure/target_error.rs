//! Translates errors of inspecting a process into failures of lowtide with the next step.

use std::io::ErrorKind;

use lowtide_model::inspection::Unreadable;
use lowtide_model::number::HumanCount;
use lowtide_probe::permission::{Access, required};
use lowtide_probe::proc::status::Status;
use lowtide_probe::target::{Target, TargetError};

use crate::console::output::note;
use crate::failure::exit::{Exit, Failure};
use crate::failure::rerun::Rerun;

/// Returns the exit code if a process cannot be inspected.
pub(crate) fn exit(error: &TargetError) -> Exit {
    match error {
        TargetError::NoSuchProcess(_) | TargetError::Zombie(_) | TargetError::Gone(_) => Exit::Gone,
        TargetError::KernelThread(_) => Exit::Usage,
        TargetError::Hidden(_) => Exit::NotPermitted,
        TargetError::Other(_, error) if error.kind() == ErrorKind::PermissionDenied => {
            Exit::NotPermitted
        }
        TargetError::Replaced(_)
        | TargetError::FirstThreadEnded(_)
        | TargetError::Blocked(_)
        | TargetError::Slow(_)
        | TargetError::Other(..) => Exit::Failed,
    }
}

/// Returns the failure for a process that cannot be inspected. `again` is the command line to
/// repeat.
pub(crate) fn failure(error: &TargetError, again: &Rerun) -> Failure {
    refused(error, Access::Read, again)
}

/// Returns the failure for a process that cannot be accessed, with the permission that is missing.
pub(crate) fn refused(error: &TargetError, access: Access, again: &Rerun) -> Failure {
    let failure = match error {
        TargetError::Other(pid, _) if exit(error) == Exit::NotPermitted => {
            let what = match access {
                Access::Read => "may not be read",
                Access::Trace => "may not be traced, as a release does",
            };
            let required = required(*pid, access);
            let sentence = format!("process {pid} {what}: this requires {required}");
            Failure::new(Exit::NotPermitted, sentence)
        }
        _ => Failure::new(exit(error), error),
    };
    match (error, failure.exit()) {
        (TargetError::Slow(_), _) => failure.next(again.with_value("deadline", "5m")),
        (_, Exit::NotPermitted) => as_root(failure, again),
        _ => failure,
    }
}

/// Prints a note if a process is read by another thread than its first one.
pub(crate) fn note_thread(target: &Target) {
    if target.is_by_thread() {
        note!(
            "lowtide: the first thread of process {} has ended: its memory is read by thread {}",
            target.process,
            target.pid
        );
    }
}

/// Returns the failure for a process of which parts were not read, with the missing permission.
/// `again` is the command line to repeat.
pub(crate) fn unread(why: Unreadable, pid: u32, again: &Rerun) -> Failure {
    let part = match why {
        Unreadable::Maps => "memory mappings",
        Unreadable::Memory => "heap",
        Unreadable::Slow => return failure(&TargetError::Slow(pid), again),
        Unreadable::Blocked => return failure(&TargetError::Blocked(pid), again),
    };
    let required = required(pid, Access::Read);
    let sentence = format!("the {part} of process {pid} may not be read: this requires {required}");
    as_root(Failure::new(Exit::NotPermitted, sentence), again)
}

/// Returns one failure for all processes that lowtide may not read; `None` if there are none.
/// `again` is the command line to repeat.
pub(crate) fn several_not_permitted(pids: &[u32], again: &Rerun) -> Option<Failure> {
    let required = required(*pids.first()?, Access::Read);
    let sentence = match pids {
        [pid] => format!("the memory of process {pid} may not be read: this requires {required}"),
        _ => format!(
            "the memory of {} processes may not be read: this requires {required}",
            HumanCount(pids.len() as u64)
        ),
    };
    Some(as_root(Failure::new(Exit::NotPermitted, sentence), again))
}

/// Adds the command that runs lowtide as root, unless it has the capability that root has for this
/// already: then a namespace or a security module decides, which the sentence names.
pub(crate) fn as_root(failure: Failure, again: &Rerun) -> Failure {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let is_root = rustix::process::geteuid().is_root();
    let own = Status::own().map_or(0, |own| own.capabilities);
    match is_root && own & CAP_SYS_PTRACE != 0 {
        true => failure,
        false => failure.next(format!("sudo {again}")),
    }
}
