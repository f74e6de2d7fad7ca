//! What is known of a process before anything is done to it: all of it is only read.

use std::time::Duration;

use lowtide_heap::memory::Memory;
use lowtide_heap::ptmalloc::{self, Heap, HeapMapping, Layout};
use lowtide_model::release::{Method, Release};
use lowtide_probe::detect::Detector;
use lowtide_probe::heap;
use lowtide_probe::inspect::{Target, TargetError};
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::patience::{GivenUp, patiently};
use lowtide_probe::process::Process;

use crate::checks::{self, Halt, Outside};
use crate::refusal::Refusal;
use crate::release::{Options, ReleaseError, Way};
use crate::remote::{Background, leave_background};

/// So often a heap that changes is walked until it agrees with what the allocator counts.
const WALKS: usize = 5;

/// What is known of a heap.
pub(crate) struct Known {
    pub(crate) outside: Outside,
    pub(crate) memory: LiveMemory,
    pub(crate) layout: Layout,
    /// The file that `malloc` is in.
    pub(crate) malloc: String,
    pub(crate) heap: Heap,
}

struct Survey {
    target: Target,
    options: Options,
    release: Release,
}

/// Looks at a process: begins the account of a release, and finds its heap, unless there is a reason to leave
/// it alone.
///
/// # Errors
/// When it has ended, when it holds up for ever whoever reads it, or when that is interrupted.
pub(crate) fn survey(
    target: &Target,
    options: &Options,
) -> Result<(Release, Result<Known, Halt>), ReleaseError> {
    let of_thread = target.try_clone().map_err(|error| target.failed(error))?;
    let of_options = options.clone();
    let found = patiently(&options.interrupt, move || {
        let mut survey = Survey::new(of_thread, of_options)?;
        let known = survey.outside().and_then(|outside| survey.look(outside));
        Ok((survey.release, known))
    });
    match found {
        Ok(found) => found,
        Err(GivenUp::Interrupted) => {
            leave_background();
            Err(ReleaseError::Interrupted)
        }
        Err(GivenUp::Blocked) => Err(TargetError::Blocked(target.pid).into()),
    }
}

impl Survey {
    fn new(target: Target, options: Options) -> Result<Self, ReleaseError> {
        let name = target.stat()?.name;
        let gone = || TargetError::Gone(target.pid);
        let process = Process::open(target.pid).map_err(|error| target.failed(error))?;
        let (process, _) = process.ok_or_else(gone)?;
        let rss_bytes = target.status()?.rss_bytes();
        let release = Release {
            dry_run: options.dry_run,
            method: match options.way {
                Way::Auto | Way::Chunks => Method::Chunks,
                Way::Trim => Method::Trim,
                Way::Purge => Method::Purge,
            },
            pause_bound_s: options.max_pause.as_secs_f64(),
            rss_before_bytes: rss_bytes,
            rss_after_bytes: rss_bytes,
            ..Release::of(target.pid, target.start_ticks, process.command_or(&name))
        };
        Ok(Self { target, options, release })
    }

    /// What can be told from outside. A child that shares the memory only until it starts its program
    /// (`vfork`, `posix_spawn`) is waited for.
    fn outside(&self) -> Result<Outside, Halt> {
        const TRIES: usize = 10;
        const STEP: Duration = Duration::from_millis(20);
        let mut detector = Detector::default();
        let mut look = || checks::outside(&self.target, &mut detector, self.options.untested);
        let mut looked = look();
        for _ in 1..TRIES {
            if !matches!(looked, Err(Halt::Refused(Refusal::SharedMemory { .. }))) {
                break;
            }
            std::thread::sleep(STEP);
            looked = look();
        }
        looked
    }

    /// Walks the heap, which must agree with what the allocator itself counts.
    fn look(&mut self, outside: Outside) -> Result<Known, Halt> {
        let malloc = outside.detected.malloc.as_ref().ok_or(Refusal::NoHeap)?;
        self.release.allocator = Some(malloc.kind.to_string());
        self.release.allocator_version.clone_from(&malloc.version);
        if self.options.way == Way::Purge {
            return Err(Refusal::NoPurge.into());
        }
        let malloc = malloc.path.to_string_lossy().into_owned();
        let memory =
            LiveMemory::open(self.target.pid).map_err(|error| self.target.failed(error))?;
        let maps = &outside.maps;
        let library = heap::library(maps, &malloc).ok_or(Refusal::NoHeap)?;
        let layout = Layout::find(&memory, &heap::data_of(maps, library.file));
        let layout = layout.ok_or(Refusal::NoHeap)?;
        let mut maps = maps.clone();
        let interrupt = &self.options.interrupt;
        let _background = Background::begin(interrupt);
        let walked = memory.until(interrupt);
        let mut found = ptmalloc::walk(&walked, &layout, &heap::mappings(&maps));
        for _ in 1..WALKS {
            if disagreement(&found).is_none() || walked.is_over() {
                break;
            }
            maps = self.target.maps().map_err(|error| self.target.failed(error))?;
            found = ptmalloc::walk(&walked, &layout, &heap::mappings(&maps));
        }
        if walked.is_over() {
            return Err(ReleaseError::Interrupted.into());
        }
        if let Some(what) = disagreement(&found) {
            return Err(Refusal::HeapNotWhole { what }.into());
        }
        self.release.predicted_bytes = match self.release.method {
            Method::Trim => found.trim_bytes(),
            Method::Chunks | Method::Purge => found.release_bytes(),
        };
        let outside = Outside { maps, ..outside };
        Ok(Known { outside, memory, layout, malloc, heap: found })
    }
}

impl Known {
    pub(crate) fn mappings(&self, target: &Target) -> Result<Vec<HeapMapping>, Halt> {
        let maps = target.maps().map_err(|error| target.failed(error))?;
        Ok(heap::mappings(&maps))
    }
}

/// What of a heap does not agree with what the allocator itself counts.
fn disagreement(heap: &Heap) -> Option<String> {
    let place = heap.arenas.iter().position(|arena| !arena.is_whole())?;
    let arena = &heap.arenas[place];
    Some(format!(
        "of arena {place}, {} of {} bytes were walked",
        arena.walked_bytes - arena.tally.unwalked_bytes.min(arena.walked_bytes),
        arena.system_bytes
    ))
}
