//! Pinned memory, and blocks in use, by the code that allocates them: for flame graphs and for
//! pprof.
//!
//! The outermost frame of each stack is the group of blocks. The values of all stacks add up to
//! those of all groups: memory whose code is not known has a frame that says so.

use lowtide_model::leaks::{LeakFrame, LeakStack};
use lowtide_model::pins::{BlockCensus, Pins};

use super::name;
use crate::blocks;
use crate::stacks::{self, Profile, StackSample};

const PINNED: Profile = Profile {
    values: &[("blocks", "count"), ("bytes", "bytes"), ("pinned", "bytes")],
    label: "group",
};
const IN_USE: Profile =
    Profile { values: &[("inuse_objects", "count"), ("inuse_space", "bytes")], label: "group" };

/// Formats pinned memory by allocating code: a line for each stack.
pub fn folded(pins: &Pins) -> String {
    stacks::folded(of_pins(pins))
}

/// Encodes pinned memory by allocating code. Each stack has three values: blocks, their bytes, and
/// the memory that they pin.
pub fn pprof(pins: &Pins) -> Vec<u8> {
    stacks::pprof(&PINNED, of_pins(pins))
}

/// Formats the blocks in use by allocating code: a line for each stack.
pub fn folded_blocks(census: &BlockCensus) -> String {
    stacks::folded(of_blocks(census))
}

/// Encodes the blocks in use by allocating code. Each stack has two values: blocks, and their
/// bytes.
pub fn pprof_blocks(census: &BlockCensus) -> Vec<u8> {
    stacks::pprof(&IN_USE, of_blocks(census))
}

fn of_pins(pins: &Pins) -> impl Iterator<Item = StackSample> {
    pins.groups.iter().flat_map(|group| {
        let values = [group.blocks, group.bytes, group.pinned_bytes];
        divided(&name(group), &group.stacks, &values)
    })
}

fn of_blocks(census: &BlockCensus) -> impl Iterator<Item = StackSample> {
    census.groups.iter().flat_map(|group| {
        divided(&blocks::name(group), &group.stacks, &[group.blocks, group.bytes])
    })
}

/// Divides the values of a group among its stacks, and the rest to unknown code.
fn divided(group: &str, stacks: &[LeakStack], values: &[u64]) -> Vec<StackSample> {
    let mut left = values.to_vec();
    let root = frame(group);
    let sample = |frames: Vec<LeakFrame>, values| StackSample {
        frames: frames.into_iter().chain([root.clone()]).collect(),
        values,
        label: group.to_owned(),
    };
    let mut samples: Vec<StackSample> = stacks
        .iter()
        .map(|stack| {
            let parts = values.iter().zip(&mut left).map(|(all, left)| {
                let part = ((*all as f64 * stack.share).round() as u64).min(*left);
                *left -= part;
                part
            });
            sample(stack.frames.clone(), parts.collect())
        })
        .collect();
    if left.iter().any(|left| *left > 0) {
        samples.push(sample(vec![frame("code unknown")], left));
    }
    samples
}

fn frame(name: &str) -> LeakFrame {
    LeakFrame { function: name.to_owned(), file: None, line: None, module: None, estimated: false }
}

#[cfg(test)]
mod tests {
    use lowtide_model::pins::{PinGroup, PinKind};

    use super::*;

    #[test]
    fn a_flame_graph_of_pins_adds_up_to_all_pinned_memory() {
        let stack = |name: &str, share| LeakStack {
            share,
            samples: 3,
            is_cut: false,
            frames: vec![frame(name), frame("main")],
            proof: None,
        };
        let group = |kind, pinned_bytes, stacks| PinGroup {
            kind,
            allocator: Some("glibc".to_owned()),
            size_bytes: Some([64, 64]),
            block_type: None,
            age: None,
            holder: None,
            blocks: 10,
            bytes: 640,
            pages: 10,
            pinned_bytes,
            gain_bytes: 0,
            gain_free_bytes: 0,
            gain_with_previous_bytes: 0,
            estimated: false,
            remedy: None,
            stacks,
        };
        let known = vec![stack("a", 2.0 / 3.0), stack("b;c", 0.25)];
        let groups =
            vec![group(PinKind::Blocks, 1000, known), group(PinKind::Cached, 7, Vec::new())];
        let pins = Pins { groups, ..Pins::default() };
        assert_eq!(
            folded(&pins),
            "64 B, glibc;main;a 667\n64 B, glibc;main;b:c 250\n64 B, glibc;code unknown 83\n\
             free blocks in the caches of threads;code unknown 7\n"
        );
        assert!(!pprof(&pins).is_empty());
    }
}
