//! Stacks of allocations: as text, for flame graphs and for pprof.

mod folded;
mod pprof;

use lowtide_model::duration::HumanSeconds;
use lowtide_model::leaks::{LeakFrame, LeakStack, StackSampling};

use crate::text::{printable, thousands};

pub(crate) use folded::folded;
pub(crate) use pprof::{Profile, pprof};

/// Maximum number of stacks of a group that are shown, and of frames of each.
const MAX_STACKS: usize = 3;
const MAX_FRAMES: usize = 10;
/// Minimum part of the samples for a further stack to be shown.
const MIN_SHARE: f64 = 0.1;

/// A stack with its values, for other tools.
pub(crate) struct StackSample {
    /// The functions, the innermost first.
    pub(crate) frames: Vec<LeakFrame>,
    /// The values of the profile, such as blocks and their bytes.
    pub(crate) values: Vec<u64>,
    /// The name of its group.
    pub(crate) label: String,
}

/// Returns the stacks of a group that are worth showing.
pub(crate) fn shown(stacks: &[LeakStack]) -> impl Iterator<Item = &LeakStack> {
    let mut stacks = stacks.iter().enumerate().take(MAX_STACKS);
    std::iter::from_fn(move || {
        stacks
            .find(|(place, stack)| *place == 0 || stack.share >= MIN_SHARE)
            .map(|(_, stack)| stack)
    })
}

/// Formats the summary of a stack that allocated blocks.
pub(crate) fn title(stack: &LeakStack) -> String {
    summary("allocated", stack)
}

/// Formats the summary of a stack. `done` is what it did.
pub(crate) fn summary(done: &str, stack: &LeakStack) -> String {
    let samples = match stack.samples {
        1 => "one sample".to_owned(),
        samples => format!("{} samples", thousands(samples)),
    };
    let proof = stack.proof.map_or(String::new(), |proof| {
        if proof.calls == 0 {
            return format!("; not called in {:.0} s at the end", proof.seconds);
        }
        let [calls, blocks] =
            [proof.calls_per_hour, proof.survivors_per_hour].map(|count| thousands(count as u64));
        format!("; {calls} calls and {blocks} surviving blocks an hour")
    });
    format!("{done} by ({:.0} %, {samples}{proof}):", stack.share * 100.0)
}

/// Formats the frames of a stack, the innermost first. The functions of a Python program come
/// before the interpreter that runs them, which is only counted.
pub(crate) fn lines(stack: &LeakStack) -> Vec<String> {
    let has_python = stack.frames.iter().any(is_of_python);
    let is_own = |frame: &&LeakFrame| !has_python || is_of_python(frame);
    let own: Vec<&LeakFrame> = stack.frames.iter().filter(is_own).collect();
    let others = stack.frames.len() - own.len();
    let mut lines: Vec<String> = own.iter().take(MAX_FRAMES).map(|found| frame(found)).collect();
    if let Some(more) = own.len().checked_sub(MAX_FRAMES).filter(|more| *more > 0) {
        lines.push(format!("… {more} more"));
    } else if stack.is_cut {
        lines.push("… the rest is unknown".to_owned());
    }
    if others > 0 {
        let innermost = stack.frames.iter().find(|frame| !is_of_python(frame));
        let name = innermost.map_or_else(String::new, |frame| format!(", in {}", name_of(frame)));
        let are = if others == 1 { "frame" } else { "frames" };
        lines.push(format!("({others} {are} of the interpreter and of libraries{name})"));
    }
    lines
}

/// Returns whether a frame is a function of a Python program: it has a file, and no module.
fn is_of_python(frame: &LeakFrame) -> bool {
    frame.module.is_none() && frame.file.is_some()
}

/// Formats the function of a frame: `≈` marks an estimate.
pub(crate) fn name_of(frame: &LeakFrame) -> String {
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
pub(crate) fn sampling(sampling: &StackSampling, exposure: f64) -> String {
    format!(
        "{} allocations sampled by probes that were open {:.2} % of the time; a request of 1,000 \
         allocations lost at most about {}",
        thousands(sampling.samples),
        exposure * 100.0,
        HumanSeconds(sampling.max_delay_s)
    )
}

#[cfg(test)]
mod tests {
    use lowtide_model::leaks::CallProof;

    use super::*;

    #[test]
    fn a_call_that_was_not_seen_at_the_end_has_no_rate() {
        let title_of = |calls: u64| {
            let proof = CallProof {
                calls,
                seconds: 5.0,
                calls_per_hour: calls as f64 * 720.0,
                survivors_per_hour: 36_000.0,
            };
            let stack = LeakStack {
                share: 1.0,
                samples: 12,
                is_cut: false,
                frames: Vec::new(),
                proof: Some(proof),
            };
            title(&stack)
        };
        let said =
            "allocated by (100 %, 12 samples; 36,720 calls and 36,000 surviving blocks an hour):";
        assert_eq!(title_of(51), said);
        assert_eq!(title_of(0), "allocated by (100 %, 12 samples; not called in 5 s at the end):");
    }

    #[test]
    fn the_functions_of_a_python_program_come_before_the_interpreter() {
        let frame = |function: &str, file: Option<&str>, module: Option<&str>| LeakFrame {
            function: function.to_owned(),
            file: file.map(str::to_owned),
            line: Some(4).filter(|_| file.is_some()),
            module: module.map(str::to_owned),
            estimated: module.is_none(),
        };
        let stack = LeakStack {
            share: 1.0,
            samples: 3,
            is_cut: false,
            frames: vec![
                frame("list_resize", Some("listobject.c"), Some("python3.11")),
                frame("PyList_Append", None, Some("python3.11")),
                frame("Session.__init__", Some("/srv/leak.py"), None),
                frame("<module>", Some("/srv/leak.py"), None),
            ],
            proof: None,
        };
        assert_eq!(
            lines(&stack),
            [
                "≈ Session.__init__  leak.py:4",
                "≈ <module>  leak.py:4",
                "(2 frames of the interpreter and of libraries, in list_resize)"
            ]
        );
    }
}
