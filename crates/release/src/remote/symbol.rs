//! Where a name of a library is in a process.

use lowtide_probe::mapped::open_mapped;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::program::symbol;

/// The address of a name that a file defines for others; `None` where it does not.
pub(crate) fn address(pid: u32, maps: &[Mapping], file: &Mapping, name: &str) -> Option<u64> {
    let (value, first) = symbol(&open_mapped(pid, file).ok()?, name)?;
    // The loader puts the page of the first segment where the file is first mapped.
    let base = maps.iter().find(|m| m.file == file.file && m.offset == 0)?.start;
    base.checked_add(value.checked_sub(first)?)
}
