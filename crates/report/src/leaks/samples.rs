//! The stacks of `lowtide leaks` for flame graphs, with the bytes of the blocks that were allocated
//! by them, and for pprof.

use lowtide_model::leaks::LeakReport;

use crate::stacks::{self, Profile, StackSample};

const PROFILE: Profile =
    Profile { values: &[("inuse_objects", "count"), ("inuse_space", "bytes")], label: "verdict" };

/// Formats the stacks of all groups: a line for each.
pub fn folded(report: &LeakReport) -> String {
    stacks::folded(samples(report))
}

/// Encodes the stacks of all groups. Each has two values: blocks, and their bytes.
pub fn pprof(report: &LeakReport) -> Vec<u8> {
    stacks::pprof(&PROFILE, samples(report))
}

fn samples(report: &LeakReport) -> impl Iterator<Item = StackSample> {
    report.groups.iter().flat_map(|group| {
        group.stacks.iter().map(|stack| StackSample {
            frames: stack.frames.clone(),
            values: [group.count, group.bytes]
                .map(|all| (all as f64 * stack.share).round() as u64)
                .to_vec(),
            label: group.verdict.name().to_owned(),
        })
    })
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
