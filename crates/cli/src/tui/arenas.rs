//! The arenas of the heap, as a table that can be scrolled.

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Arena;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::state::State;
use super::view::{bold, dim, take, write};

struct Column {
    head: &'static str,
    width: usize,
    /// The largest are left out first where there is no room.
    spare: u8,
    text: fn(&Arena) -> String,
}

fn bytes(count: u64) -> String {
    Human(count).to_string()
}

const COLUMNS: [Column; 9] = [
    Column { head: "arena", width: 6, spare: 0, text: |a| a.id.to_string() },
    Column { head: "heaps", width: 6, spare: 5, text: |a| a.heaps.to_string() },
    Column { head: "system", width: 11, spare: 2, text: |a| bytes(a.system_bytes) },
    Column { head: "allocated", width: 11, spare: 1, text: |a| bytes(a.allocated_bytes) },
    Column { head: "free", width: 11, spare: 3, text: |a| bytes(a.free_bytes + a.fast_bytes) },
    Column {
        head: "in blocks",
        width: 10,
        spare: 6,
        text: |a| (a.free_count + a.fast_count).to_string(),
    },
    Column { head: "largest", width: 11, spare: 4, text: |a| bytes(a.largest_free_bytes) },
    Column { head: "top", width: 11, spare: 7, text: |a| bytes(a.top_bytes) },
    Column { head: "reclaimable", width: 12, spare: 0, text: |a| bytes(a.reclaimable_bytes) },
];

/// How many of them a screen of so many lines shows: all but those for head, footer and the table's own.
pub(super) fn shown_on(height: u16) -> usize {
    usize::from(height.saturating_sub(8))
}

/// Draws the table from the line on to which it was scrolled.
pub(super) fn draw(state: &State, mut area: Rect, buffer: &mut Buffer) {
    take(&mut area, 1);
    let arenas = state.course().latest.as_ref().map(|found| found.observation.arenas.as_slice());
    let Some(arenas) = arenas.filter(|arenas| !arenas.is_empty()) else {
        write("no arenas: it has no heap of glibc's that was walked", dim(), area, buffer);
        return;
    };
    let columns = fitting(usize::from(area.width));
    let head: String = columns.iter().map(|c| format!("{:>1$}", c.head, c.width)).collect();
    write(&head, dim(), take(&mut area, 1), buffer);
    let room = usize::from(area.height).saturating_sub(1);
    let first = state.scroll.min(arenas.len().saturating_sub(room));
    for arena in arenas.iter().skip(first).take(room) {
        let cell = |c: &&Column| format!("{:>1$}", (c.text)(arena), c.width);
        let mut text: String = columns.iter().map(cell).collect();
        if !arena.whole {
            text += " ?";
        }
        write(&text, Style::new(), take(&mut area, 1), buffer);
    }
    let last = (first + room).min(arenas.len());
    let count = arenas.len();
    let mut shown = format!(" {} to {last} of {count}", (first + 1).min(last));
    if arenas.iter().any(|a| !a.whole) {
        shown += "; ? was not walked whole";
    }
    write(&shown, bold(), area, buffer);
}

fn fitting(width: usize) -> Vec<&'static Column> {
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    while columns.iter().map(|c| c.width).sum::<usize>() > width {
        let Some(spare) = columns.iter().map(|c| c.spare).max().filter(|s| *s > 0) else { break };
        columns.retain(|c| c.spare != spare);
    }
    columns
}
