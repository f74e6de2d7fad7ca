//! The blocks that `lowtide inspect` shows: `--pins` and `--blocks`, the code that allocates them,
//! and the cause of a fragmentation.

use std::sync::atomic::AtomicBool;

use lowtide_analysis::pins::sentence;
use lowtide_leaks::pins::{self, BlockReport, EarlierBlocks, HeldMemory, Wanted, Watched};
use lowtide_leaks::stacks::sampler::{Attachment, StackSampler};
use lowtide_model::inspection::{Inspection, Observation};
use lowtide_model::pins::Pins;
use lowtide_model::verdict::VerdictKind;
use lowtide_probe::inspect::Inspector;
use lowtide_probe::target::{Target, TargetError};
use lowtide_report::pins::{folded, folded_blocks, pprof, pprof_blocks};

use super::leaks::without_stacks;
use super::leaks_record::LeaksRecord;
use crate::args::InspectArgs;
use crate::console::output::{Output, note};
use crate::failure::exit::Failure;
use crate::failure::rerun::Rerun;
use crate::failure::target_error::failure;

/// Number of groups of blocks from which the cause of a fragmentation is named.
pub(super) const NAMED_SIZES: usize = 10;

/// Checks the flags of the code that allocates blocks.
pub(super) fn check(args: &InspectArgs, processes: usize) -> Result<(), Failure> {
    if !wants_stacks(args) {
        return Ok(());
    }
    let flag = match (args.folded, &args.pprof) {
        (true, _) => "--folded",
        (false, Some(_)) => "--pprof",
        (false, None) => "--stacks",
    };
    if !args.pins && !args.blocks {
        return Err(Failure::usage(format!(
            "{flag} shows the code that allocates blocks: add --pins, for those that pin memory, or --blocks"
        )));
    }
    if args.watch.is_none() {
        return Err(Failure::usage(format!(
            "{flag} samples the allocations of some time: add --watch 1m"
        )));
    }
    if processes != 1 {
        return Err(Failure::usage(format!(
            "{flag} is for one process, but {processes} are selected: name one PID"
        )));
    }
    Ok(())
}

fn wants_stacks(args: &InspectArgs) -> bool {
    args.stacks || args.folded || args.pprof.is_some()
}

/// What is followed during `--watch` for `--pins` and `--blocks`.
pub(super) struct BlockWatch {
    earlier: EarlierBlocks,
    sampler: Option<StackSampler>,
    /// The program at the beginning.
    image: (u64, u64),
}

impl BlockWatch {
    /// Begins to follow the blocks of a process, if that is requested.
    pub(super) fn begin(
        args: &InspectArgs,
        target: &Target,
        again: &Rerun,
    ) -> Result<Option<Self>, Failure> {
        if args.watch.is_none() || !(args.pins || args.blocks) {
            return Ok(None);
        }
        let sampler = wants_stacks(args)
            .then(|| StackSampler::start(target, args.overhead, &Attachment::ALL))
            .transpose()
            .map_err(|reason| without_stacks(target.pid, &reason, again, None))?;
        let fails = |error: TargetError| failure(&error, again);
        let image = target.stat().map_err(fails)?.image;
        let earlier = patiently(target, args, EarlierBlocks::read).map_err(fails)?;
        Ok(Some(Self { earlier, sampler, image }))
    }

    /// Ends to follow the blocks; `None` if the process executes another program meanwhile.
    fn end(self, target: &Target) -> Result<Option<Watched>, TargetError> {
        if target.stat()?.image != self.image {
            return Ok(None);
        }
        let (samples, note) = match self.sampler.map(StackSampler::finish).transpose() {
            Ok(samples) => (samples, None),
            Err(reason) => (None, Some(format!("no stacks: {reason}"))),
        };
        note.into_iter().for_each(|note| note!("lowtide: {note}"));
        Ok(Some(Watched { earlier: self.earlier, samples }))
    }
}

/// Inspects a process. What `--pins` and `--blocks` show is read in the same walk, unless it is
/// followed for some time.
pub(super) fn inspect(
    inspector: &mut Inspector,
    target: &Target,
    args: &InspectArgs,
) -> Result<(Observation, Option<HeldMemory>), TargetError> {
    match args.pins || args.blocks {
        true => pins::inspect(inspector, target),
        false => Ok((inspector.inspect(target)?, None)),
    }
}

/// Adds what `--pins` and `--blocks` show. Without them, names the sizes of the blocks that pin
/// fragmented memory. `held` are the blocks, if they were read already.
pub(super) fn add_blocks(
    found: &mut Inspection,
    target: &Target,
    args: &InspectArgs,
    held: Option<HeldMemory>,
    watch: Option<BlockWatch>,
) -> Result<(), TargetError> {
    if args.pins || args.blocks {
        let watched = watch.map(|watch| watch.end(target)).transpose()?.flatten();
        let wanted = Wanted { pins: args.pins, blocks: args.blocks, top: args.top };
        let read = move |target: &Target| {
            let held = match held {
                Some(held) => held,
                None => HeldMemory::read_since(target, watched.as_ref())?,
            };
            held.report(target, watched.as_ref(), wanted, &AtomicBool::new(false))
        };
        let BlockReport { pins, blocks } = patiently(target, args, read)?;
        pins.iter().for_each(|pins| name_cause(found, pins));
        (found.pins, found.blocks) = (pins, blocks);
    }
    if !args.pins && found.verdict.kind == VerdictKind::Fragmentation {
        let read = |target: &Target| Ok(HeldMemory::read(target, false)?.pins(NAMED_SIZES));
        let pins = patiently(target, args, read)?;
        found.observation.cpu_s += pins.cpu_s;
        name_cause(found, &pins);
    }
    Ok(())
}

/// Adds what pins the memory to a verdict of fragmentation, after the first reason, which it
/// explains.
pub(super) fn name_cause(found: &mut Inspection, pins: &Pins) {
    if found.verdict.kind == VerdictKind::Fragmentation {
        let place = found.verdict.because.len().min(1);
        sentence(pins).into_iter().for_each(|cause| found.verdict.because.insert(place, cause));
    }
}

/// Reads from a process in a thread of its own.
pub(super) fn patiently<T: Send + 'static>(
    target: &Target,
    args: &InspectArgs,
    read: impl FnOnce(&Target) -> Result<T, TargetError> + Send + 'static,
) -> Result<T, TargetError> {
    let of_thread = target.try_clone().map_err(|error| target.failed(error))?;
    let work = move || read(&of_thread);
    let done = args.patience().work_on(target, &AtomicBool::new(false), work);
    done.map_err(|given_up| given_up.error(target.pid))?
}

/// Prints the stacks for flame graphs in place of the page. Returns whether that is requested.
pub(super) fn print_folded(
    found: &Inspection,
    args: &InspectArgs,
    output: &Output,
) -> Result<bool, Failure> {
    if !args.folded || output.json {
        return Ok(false);
    }
    let text = match (&found.pins, &found.blocks) {
        (Some(pins), _) => folded(pins),
        (None, Some(blocks)) => folded_blocks(blocks),
        (None, None) => String::new(),
    };
    output.text(&text)?;
    Ok(true)
}

/// Writes the stacks to the file for pprof.
pub(super) fn write_profile(found: &Inspection, args: &InspectArgs) -> Result<(), Failure> {
    let Some(path) = &args.pprof else { return Ok(()) };
    let bytes = match (&found.pins, &found.blocks) {
        (Some(pins), _) => pprof(pins),
        (None, Some(blocks)) => pprof_blocks(blocks),
        (None, None) => return Ok(()),
    };
    let mut profile = LeaksRecord::create(path)?;
    profile.write_bytes(&bytes)?;
    let path = profile.finish()?;
    note!("wrote {0}\n  next: go tool pprof -top {0}", path.display());
    Ok(())
}
