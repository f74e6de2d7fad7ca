//! Permission to inspect another process (ptrace(2), "Ptrace access mode checking").

use std::fs;

use crate::proc::status::Status;

/// Returns whether a process belongs to the user that lowtide runs as.
pub fn is_own(pid: u32) -> bool {
    Status::read(pid).is_ok_and(|status| status.uid == rustix::process::geteuid().as_raw())
}

/// Returns `kernel.yama.ptrace_scope`; `None` if the kernel runs without Yama.
pub fn ptrace_scope() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    Some(text.trim().to_owned())
}
