//! The blocks in use, for people.

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::pins::{BlockCensus, BlockGroup};

use crate::pins::{code, described, size};
use crate::screen::{Screen, bold, dim, hanging};
use crate::text::{printable, thousands, wrapped};

/// Formats the blocks in use of a process.
pub(crate) fn render(census: &BlockCensus, screen: Screen) -> String {
    let mut out = format!("\n{}\n", bold(&wrapped(&head(census), screen.width), screen));
    if census.blocks > 0 {
        let heads = format!(" {:>9}  {:>7}  {:>10}  block", "bytes", "share", "blocks");
        let _ = writeln!(out, "{}", dim(&heads, screen));
    }
    for group in &census.groups {
        let [bytes, share, blocks] = values(group, census);
        let begin = format!(" {bytes:>9}  {share:>7}  {blocks:>10}  ");
        out += &hanging(&begin, &name(group), screen);
        out += &code(&group.stacks, group.age, screen);
    }
    for note in &census.notes {
        let _ = writeln!(out, "{}", wrapped(&format!("note: {}", printable(note)), screen.width));
    }
    out
}

/// Returns the sentence with all blocks.
pub(crate) fn head(census: &BlockCensus) -> String {
    let about = if census.estimated { "≈" } else { "" };
    format!(
        "{about}{} in {about}{} blocks in use, resident or not",
        Human(census.bytes),
        thousands(census.blocks)
    )
}

/// Returns the values of a group: its bytes, its share, and its blocks.
pub(crate) fn values(group: &BlockGroup, census: &BlockCensus) -> [String; 3] {
    let about = if census.estimated { "≈" } else { "" };
    [
        format!("{about}{}", Human(group.bytes)),
        format!("{:.1} %", group.share * 100.0),
        thousands(group.blocks),
    ]
}

/// Names the blocks of a group.
pub(crate) fn name(group: &BlockGroup) -> String {
    match group.size_bytes {
        [0, 0] => "all other blocks".to_owned(),
        [bytes, _] => {
            let BlockGroup { block_type, allocator, holder, age, .. } = group;
            described(size(bytes), block_type, allocator, holder, *age)
        }
    }
}
