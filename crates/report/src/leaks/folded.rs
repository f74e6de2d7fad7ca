//! The stacks of `lowtide leaks` in the format of flame graph tools: a line for each stack,
//! outermost function first, with the bytes of the blocks that were allocated by it.

use std::fmt::Write as _;

use lowtide_model::leaks::{LeakFrame, LeakReport};

use super::stacks::name_of;

/// Formats the stacks of all groups.
pub fn folded(report: &LeakReport) -> String {
    let mut out = String::new();
    for group in &report.groups {
        for stack in &group.stacks {
            let bytes = (group.bytes as f64 * stack.share).round();
            let names: Vec<String> = stack.frames.iter().rev().map(name).collect();
            if !names.is_empty() {
                let _ = writeln!(out, "{} {bytes:.0}", names.join(";"));
            }
        }
    }
    out
}

/// Returns the name of a frame without the characters that separate frames.
fn name(frame: &LeakFrame) -> String {
    name_of(frame).replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaks::tests::report;

    #[test]
    fn a_folded_stack_is_one_line_that_ends_with_its_bytes() {
        let mut report = report();
        let frames = &mut report.groups[0].stacks[0].frames;
        frames[0].function = "a;b\n".to_owned();
        frames[1].estimated = true;
        assert_eq!(folded(&report), "≈ server+0x1f30;a:b  96000\n");
    }
}
