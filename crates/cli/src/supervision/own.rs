//! The preparation of this process for supervising others, and the detection of lowtide's own
//! processes.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use lowtide_probe::proc::maps::FileId;

use crate::failure::exit::Failure;
use crate::proc_mount;

/// The file name of the program.
const NAME: &[u8] = b"lowtide";
/// Suffix that the kernel appends to the path of a removed file.
const REMOVED: &[u8] = b" (deleted)";

/// Prepares this process to supervise others: it may open many files, and keeps its own memory low.
///
/// # Errors
/// Fails if `/proc` does not show the processes of this PID namespace.
pub(crate) fn prepare() -> Result<(), Failure> {
    lowtide_load::raise_open_files();
    lowtide_supervise::keep_own_memory_low();
    proc_mount::check_namespace()
}

/// Returns whether a process is lowtide: this one, or another that runs this file or a file of the
/// same name. A supervisor does not supervise another one: each would only disturb the releases of
/// the other.
pub(crate) fn is_lowtide(pid: u32) -> bool {
    let id = |path: &str| FileId::of(path).ok();
    let program = format!("/proc/{pid}/exe");
    let is_own_file = || id("/proc/self/exe").is_some_and(|own| id(&program) == Some(own));
    pid == std::process::id() || has_name(&program) || is_own_file()
}

fn has_name(program: &str) -> bool {
    let Ok(path) = fs::read_link(program) else { return false };
    let name = path.file_name().map_or(&b""[..], OsStrExt::as_bytes);
    name.strip_suffix(REMOVED).unwrap_or(name) == NAME
}
