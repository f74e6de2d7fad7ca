//! Addresses of a library's symbols in a process.

use std::io;

use lowtide_probe::mapped::open_mapped;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::program::symbol;

/// Returns the address of a symbol that a mapped file exports; `None` if it does not export it.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn address(
    pid: u32,
    maps: &[Mapping],
    file: &Mapping,
    name: &str,
) -> io::Result<Option<u64>> {
    let found = symbol(&open_mapped(pid, file)?, name).map_err(io::Error::other)?;
    Ok(found.and_then(|(value, first)| {
        // The first mapping of the file is the page of the first segment.
        let base = maps.iter().find(|m| m.file == file.file && m.offset == 0)?.start;
        base.checked_add(value.checked_sub(first)?)
    }))
}
