//! `/proc/PID/environ`: the variables that a process was started with.

use std::fs::File;
use std::io::{self, Read};

/// Maximum size of an environment that is read, in bytes: more than the kernel lets a usual program
/// start with.
pub const MAX_BYTES: u64 = 1 << 20;

/// Reads the text, of which at most `most` bytes: each variable ends with 0. A process can declare
/// all of its memory as its environment (`PR_SET_MM_MAP`).
///
/// # Errors
/// Fails if the process has ended, or may not be traced.
pub fn read(pid: u32, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/environ"))?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
