//! The inspection of a core: what an inspection of the process would have found, as far as a core
//! shows it.
//!
//! A core does not contain which pages were resident. All bytes of the ledger are those of pages
//! with content, which were resident or swapped out, so each row is an estimate.

use std::sync::Arc;
use std::time::Instant;

use lowtide_heap::blocks::Visitor;
use lowtide_model::bytes::Human;
use lowtide_model::inspection::Observation;

use super::blocks::BlockWalk;
use super::file_systems::FileSystems;
use super::{describe, heaps, owners};
use crate::core_file::CoreFile;
use crate::detect::{Detected, Detector};
use crate::machine::thread_cpu_s;
use crate::memory::ProcessMemory;
use crate::program::ProgramError;

/// Inspects a core, and passes the blocks in use in its heaps on.
pub fn inspect_core(core: &Arc<CoreFile>, visitor: Visitor<'_>) -> BlockWalk {
    let (begin, cpu) = (Instant::now(), thread_cpu_s());
    let memory = &ProcessMemory::of_core(Arc::clone(core));
    let mut walk = BlockWalk {
        maps: core.maps().to_vec(),
        observation: Observation {
            pid: core.pid(),
            command: core.command().to_vec(),
            threads: core.threads().len() as u64,
            mappings: Some(core.maps().len() as u64),
            ..Observation::default()
        },
        ..BlockWalk::default()
    };
    let BlockWalk { observation, heaps: walked, maps, detected, .. } = &mut walk;
    *detected = Detector::default().detect(&**core, maps).unwrap_or_else(|error| {
        observation.notes.push(undetected(&error));
        Detected::default()
    });
    *walked = heaps::walk(memory, maps, detected, observation, visitor, None);
    describe(detected, observation);
    let found = owners(memory, &walk, &core.stack_pointers(), &FileSystems::default(), &[]);
    if found.map(|found| found.add_to(&mut walk)).is_err() {
        walk.observation.notes.push("its pages could not be counted".to_owned());
    }
    walk.observation.notes.extend(notes(core));
    walk.observation.ledger.mark_estimated();
    walk.observation.rss_bytes = walk.observation.ledger.total();
    walk.elapsed_s = begin.elapsed().as_secs_f64();
    walk.cpu_s = thread_cpu_s() - cpu;
    let (elapsed_s, cpu_s) = (walk.elapsed_s, walk.cpu_s);
    (walk.observation.elapsed_s, walk.observation.cpu_s) = (elapsed_s, cpu_s);
    walk
}

/// Returns the note on an allocator that was not recognised.
fn undetected(error: &ProgramError) -> String {
    let reason = match error {
        ProgramError::NotYet => {
            "the core lacks the loader's list of libraries, or the program was still being loaded"
                .to_owned()
        }
        ProgramError::Gone => "the core lacks the auxiliary vector of the program".to_owned(),
        other => other.to_string(),
    };
    format!(
        "its allocator could not be determined: {reason}. lowtide reads the programs and libraries of a core from \
         this machine, if they have the same path and build ID"
    )
}

fn notes(core: &CoreFile) -> Vec<String> {
    const NOTABLE: u64 = 1 << 20;
    let mut notes = Vec::new();
    if core.missing_bytes() > 0 {
        notes.push(format!(
            "the core was cut off, as by a limit (ulimit -c) or a full disk: {} of its memory are missing",
            Human(core.missing_bytes())
        ));
    }
    let left_out_bytes = core.left_out_bytes();
    if left_out_bytes >= NOTABLE {
        notes.push(format!(
            "{} of memory, of which {} are shared, are not in the core: never used, or left out (MADV_DONTDUMP, \
             coredump_filter)",
            Human(left_out_bytes),
            Human(core.left_out_shared_bytes())
        ));
    }
    notes
}
