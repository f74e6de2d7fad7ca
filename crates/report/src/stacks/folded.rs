//! Stacks in the format of flame graph tools: a line for each stack, outermost function first, with
//! its value.

use std::fmt::Write as _;

use lowtide_model::leaks::LeakFrame;

use super::{StackSample, name_of};

/// Formats stacks, each with its last value. Those without frames are left out.
pub(crate) fn folded(samples: impl IntoIterator<Item = StackSample>) -> String {
    let mut out = String::new();
    for StackSample { frames, values, .. } in samples {
        let names: Vec<String> = frames.iter().rev().map(name).collect();
        if let Some(value) = values.last().filter(|_| !names.is_empty()) {
            let _ = writeln!(out, "{} {value}", names.join(";"));
        }
    }
    out
}

/// Returns the name of a frame without the characters that separate frames.
fn name(frame: &LeakFrame) -> String {
    name_of(frame).replace(';', ":")
}
