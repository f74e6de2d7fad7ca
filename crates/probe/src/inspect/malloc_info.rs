//! The text of `malloc_info(3)`, read from outside the process.

use lowtide_heap::ptmalloc::{self, Layout, MallocInfo};
use lowtide_model::allocator_kind::AllocatorKind;

use super::blocks::left;
use crate::detect::Detector;
use crate::heap;
use crate::memory::ProcessMemory;
use crate::program::ProgramError;
use crate::target::{Target, TargetError};

/// Reads what `malloc_info(3)` would print in a process, without calling it there. `None` if
/// glibc's allocator does not serve the process, or if it has no heap yet.
///
/// # Errors
/// Fails if the process has ended, or if its memory may not be read.
pub fn malloc_info(target: &Target) -> Result<Option<MallocInfo>, TargetError> {
    let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
    let maps = target.maps().map_err(|error| target.failed(error))?;
    let detected = match Detector::default().detect(target.pid, &maps) {
        Ok(detected) => detected,
        Err(ProgramError::Gone) if !target.is_alive() => return Err(TargetError::Gone(target.pid)),
        Err(error) => return Err(target.failed(std::io::Error::other(error.to_string()))),
    };
    let allocator = detected.allocators().find(|one| one.kind == AllocatorKind::Glibc);
    let found = allocator.and_then(|allocator| {
        let library = heap::library(&maps, &allocator.path.to_string_lossy())?;
        let layout = Layout::find(&memory, &heap::data_of(&maps, library.file))?;
        ptmalloc::malloc_info(&memory, &layout)
    });
    if memory.is_in_use() { Ok(found) } else { Err(left(target)) }
}
