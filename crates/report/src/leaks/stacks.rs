//! Stacks of allocations as text.

use lowtide_model::duration::HumanSeconds;
use lowtide_model::leaks::{LeakFrame, LeakGroup, LeakStack, StackSampling};

use crate::text::{printable, thousands};

/// Maximum number of stacks of a group that are shown, and of frames of each.
const MAX_STACKS: usize = 3;
const MAX_FRAMES: usize = 10;
/// Minimum part of the samples for a further stack to be shown.
const MIN_SHARE: f64 = 0.1;

/// Returns the stacks of a group that are worth showing.
pub(super) fn shown(group: &LeakGroup) -> impl Iterator<Item = &LeakStack> {
    let mut stacks = group.stacks.iter().enumerate().take(MAX_STACKS);
    std::iter::from_fn(move || {
        stacks
            .find(|(place, stack)| *place == 0 || stack.share >= MIN_SHARE)
            .map(|(_, stack)| stack)
    })
}

/// Formats the summary of a stack.
pub(super) fn title(stack: &LeakStack) -> String {
    let samples = match stack.samples {
        1 => "one sample".to_owned(),
        samples => format!("{} samples", thousands(samples)),
    };
    let proof = stack.proof.map_or(String::new(), |proof| {
        let [calls, blocks] =
            [proof.calls_per_hour, proof.survivors_per_hour].map(|count| thousands(count as u64));
        format!("; {calls} calls an hour for {blocks} surviving blocks")
    });
    format!("allocated by ({:.0} %, {samples}{proof}):", stack.share * 100.0)
}

/// Formats the frames of a stack, the innermost first.
pub(super) fn lines(stack: &LeakStack) -> Vec<String> {
    let mut lines: Vec<String> = stack.frames.iter().take(MAX_FRAMES).map(frame).collect();
    if let Some(more) = stack.frames.len().checked_sub(MAX_FRAMES).filter(|more| *more > 0) {
        lines.push(format!("… {more} more"));
    } else if stack.is_cut {
        lines.push("… the rest is unknown".to_owned());
    }
    lines
}

/// Formats the function of a frame: `≈` marks an estimate.
pub(super) fn name_of(frame: &LeakFrame) -> String {
    let name = printable(&frame.function);
    if frame.estimated { format!("≈ {name}") } else { name }
}

/// Formats a frame: function, and its line or its module.
fn frame(frame: &LeakFrame) -> String {
    let function = name_of(frame);
    match (&frame.file, frame.line, &frame.module) {
        (Some(file), Some(line), _) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{function}  {}:{line}", printable(file))
        }
        (Some(file), None, None) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{function}  {}", printable(file))
        }
        (_, _, Some(module)) if !function.starts_with(module.as_str()) => {
            format!("{function}  {}", printable(module))
        }
        _ => function,
    }
}

/// Formats how stacks were sampled.
pub(super) fn sampling(sampling: &StackSampling, exposure: f64) -> String {
    format!(
        "{} allocations sampled by probes that were open {:.2} % of the time; a request of 1,000 \
         allocations lost at most about {}",
        thousands(sampling.samples),
        exposure * 100.0,
        HumanSeconds(sampling.max_delay_s)
    )
}
