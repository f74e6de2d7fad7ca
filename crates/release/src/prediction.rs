//! Whether a release would leave a process alone, before there is one.

use std::path::Path;

use lowtide_probe::detect::Detector;
use lowtide_probe::target::Target;

use crate::checks::{allocators, c_library_of, check};
use crate::error::Abort;
use crate::headroom;
use crate::options::Options;
use crate::refusal::Refusal;
use crate::release::check_threads;
use crate::target_code::TargetCode;

/// Returns the reason why a release would leave a process alone, by the checks of a release before
/// it stops a thread, except for those of a heap that it has walked. `None` also if the process
/// cannot be inspected.
pub fn predict_refusal(target: &Target) -> Option<Refusal> {
    match check_without_walk(target) {
        Err(Abort::Refused(refusal)) => Some(refusal),
        Ok(()) | Err(Abort::Failed(_)) => None,
    }
}

/// Checks a process as a release does, but for its heap.
fn check_without_walk(target: &Target) -> Result<(), Abort> {
    let facts = check(target, &mut Detector::default(), &Options::default())?;
    let detected = &facts.detected;
    let c_library = match allocators(detected).next() {
        Some(allocator) => c_library_of(detected, allocator),
        None => detected.c_library_path.as_deref(),
    };
    let Some(c_library) = c_library.map(Path::to_string_lossy) else { return Ok(()) };
    headroom::check(target.pid)?;
    let is_static = detected.is_static;
    let code = TargetCode::of_library(target.pid, &facts.maps, &c_library, is_static)?;
    check_threads(target, &facts.maps, &code)
}
