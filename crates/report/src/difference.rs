//! The difference between two heap files, for people.

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::heap_file::{ComparedHeap, GroupDifference, HeapDifference, RowDifference};

use crate::inspection::time;
use crate::pins::{described, size};
use crate::screen::{Screen, bold, dim, hanging};
use crate::text::{printable, signed, thousands, wrapped};

/// Formats a difference: the two files, memory by owner, and the blocks that differ most.
pub fn render(found: &HeapDifference, screen: Screen) -> String {
    let mut out = side("before", &found.before, screen) + &side("after", &found.after, screen);
    let head = format!("RSS {}", signed(found.difference_bytes));
    let _ = writeln!(out, "\n{}", bold(&head, screen));
    let rows = found.ledger.iter().filter(|row| row.before_bytes.max(row.after_bytes) > 0);
    let (changed, same): (Vec<_>, Vec<_>) = rows.partition(|row| row.difference_bytes != 0);
    changed.iter().for_each(|row| out += &line(row, screen));
    match (changed.len(), same.len()) {
        (_, 0) => {}
        (0, _) => out += "no row changed\n",
        (_, same) => {
            let _ = writeln!(out, "{}", dim(&format!("{same} more did not change"), screen));
        }
    }
    if found.blocks.is_empty() {
        out += "\nno group of blocks differs\n";
    } else {
        let heads =
            format!(" {:>11}  {:>11}  {:>11}  block", "change", "blocks then", "blocks now");
        let _ = writeln!(out, "\n{}", dim(&heads, screen));
    }
    found.blocks.iter().for_each(|group| out += &blocks(group, screen));
    for note in &found.notes {
        let _ = writeln!(out, "{}", wrapped(&format!("note: {}", printable(note)), screen.width));
    }
    out
}

fn side(name: &str, heap: &ComparedHeap, screen: Screen) -> String {
    let text = format!(
        "{}: {}, PID {}, RSS {}, {}",
        heap.file,
        heap.command.join(" "),
        heap.pid,
        Human(heap.rss_bytes),
        time(heap.unix_s)
    );
    hanging(&format!("{name:<7}"), &printable(&text), screen)
}

fn line(row: &RowDifference, screen: Screen) -> String {
    let about = if row.estimated { "≈" } else { "" };
    let of = row.manager.map(|manager| format!("{}, ", manager.kind().name()));
    let state = row.state.map(|state| format!("{state:?} ").to_lowercase());
    let text = format!(
        "{}{}{} ({} → {})",
        of.unwrap_or_default(),
        state.unwrap_or_default(),
        row.owner.name(),
        Human(row.before_bytes),
        Human(row.after_bytes)
    );
    let change = format!("{about}{}", signed(row.difference_bytes));
    hanging(&format!(" {change:>11}  "), &text, screen)
}

fn blocks(group: &GroupDifference, screen: Screen) -> String {
    let about = if group.estimated { "≈" } else { "" };
    let begin = format!(
        " {:>11}  {:>11}  {:>11}  ",
        format!("{about}{}", signed(group.difference_bytes)),
        thousands(group.before_blocks),
        thousands(group.after_blocks)
    );
    let name =
        described(size(group.size_bytes), &group.block_type, &group.allocator, &group.holder, None);
    hanging(&begin, &name, screen)
}
