//! The blocks in use, for people.

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::pins::{BlockCensus, BlockGroup};

use crate::pins::{described, size};
use crate::screen::{Screen, bold, dim, hanging};
use crate::text::{printable, thousands, wrapped};

/// Formats the blocks in use of a process.
pub(crate) fn render(census: &BlockCensus, screen: Screen) -> String {
    let about = if census.estimated { "≈" } else { "" };
    let head = format!(
        "{about}{} in {about}{} blocks in use, resident or not",
        Human(census.bytes),
        thousands(census.blocks)
    );
    let mut out = format!("\n{}\n", bold(&wrapped(&head, screen.width), screen));
    if census.blocks > 0 {
        let heads = format!(" {:>9}  {:>7}  {:>10}  block", "bytes", "share", "blocks");
        let _ = writeln!(out, "{}", dim(&heads, screen));
    }
    for group in &census.groups {
        let begin = format!(
            " {:>9}  {:>5.1} %  {:>10}  ",
            format!("{about}{}", Human(group.bytes)),
            group.share * 100.0,
            thousands(group.blocks)
        );
        out += &hanging(&begin, &name(group), screen);
    }
    for note in &census.notes {
        let _ = writeln!(out, "{}", wrapped(&format!("note: {}", printable(note)), screen.width));
    }
    out
}

fn name(group: &BlockGroup) -> String {
    match group.size_bytes {
        [0, 0] => "all other blocks".to_owned(),
        [bytes, _] => described(size(bytes), &group.block_type, &group.allocator, &group.holder),
    }
}
