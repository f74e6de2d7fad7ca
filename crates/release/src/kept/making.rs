//! Makes a walk that is kept.

use lowtide_model::release::Release;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::target::Target;

use super::{KeptHeap, KeptWalk, Walk, code_mappings, writable};
use crate::error::ReleaseError;
use crate::examination::{ExaminedHeap, TargetHeap, examine};
use crate::options::Options;

impl KeptWalk {
    /// Walks the heaps of a process. Returns `None` if a release would return nothing, or would
    /// leave the process alone.
    ///
    /// # Errors
    /// Fails if the process cannot be inspected, or ends meanwhile.
    pub fn make(target: &Target, options: &Options) -> Result<Option<Self>, ReleaseError> {
        let program =
            ProcessMemory::pages_only(target.pid).map_err(|error| target.failed(error))?;
        // Read before: a library that is loaded meanwhile is not in it.
        let maps = target.maps().map_err(|error| target.failed(error))?;
        let options = Options { walk: Walk::Kept, ..options.clone() };
        let heaps = examine(target, &options, None)?;
        let cpu_s = heaps.iter().map(|heap| heap.release.cpu_s).sum();
        let heaps: Vec<KeptHeap> = heaps.into_iter().filter_map(KeptHeap::new).collect();
        let is_worth_it = heaps.iter().any(|heap| !heap.ranges.is_empty());
        Ok((is_worth_it && program.is_in_use()).then_some(Self {
            program,
            code_mappings: code_mappings(&maps),
            writable: writable(&maps).collect(),
            heaps,
            cpu_s,
        }))
    }
}

impl KeptHeap {
    fn new(examined: ExaminedHeap) -> Option<Self> {
        let ExaminedHeap { library, is_chosen, release: Release { predicted_bytes, .. }, found } =
            examined;
        let (TargetHeap { heap, allocator, c_library, areas, consolidations, ranges, .. }, code) =
            found.ok()?;
        Some(Self {
            library,
            is_chosen,
            allocator,
            c_library,
            heap,
            areas,
            consolidations,
            ranges,
            code,
            predicted_bytes,
        })
    }
}
