//! The panel of the heap's arenas: a table that can be scrolled.

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Arena;
use ratatui_core::style::Style;

use super::canvas::{ScreenCanvas, bold, dim};
use super::state::State;

struct ArenaColumn {
    head: &'static str,
    width: usize,
    /// Columns with the highest number are omitted first if there is not enough room; 0 is never
    /// omitted.
    spare: u8,
    text: fn(&Arena) -> String,
}

fn bytes(count: u64) -> String {
    Human(count).to_string()
}

const COLUMNS: [ArenaColumn; 9] = [
    ArenaColumn { head: "arena", width: 6, spare: 0, text: |a| a.id.to_string() },
    ArenaColumn { head: "heaps", width: 6, spare: 5, text: |a| a.heaps.to_string() },
    ArenaColumn { head: "system", width: 11, spare: 2, text: |a| bytes(a.system_bytes) },
    ArenaColumn { head: "allocated", width: 11, spare: 1, text: |a| bytes(a.allocated_bytes) },
    ArenaColumn { head: "free", width: 11, spare: 3, text: |a| bytes(a.all_free_bytes()) },
    ArenaColumn {
        head: "in blocks",
        width: 10,
        spare: 6,
        text: |a| a.all_free_count().to_string(),
    },
    ArenaColumn { head: "largest", width: 11, spare: 4, text: |a| bytes(a.largest_free_bytes) },
    ArenaColumn { head: "top", width: 11, spare: 7, text: |a| bytes(a.top_bytes()) },
    ArenaColumn { head: "reclaimable", width: 12, spare: 0, text: |a| bytes(a.reclaimable_bytes) },
];

/// Returns the number of arenas that fit on a screen of `height` lines, beside head, footer and the
/// table's head.
pub(super) fn fitting_on(height: u16) -> usize {
    usize::from(height.saturating_sub(8))
}

/// Draws the table from the scroll position on.
pub(super) fn draw(state: &State, canvas: &mut ScreenCanvas<'_>) {
    canvas.split_top(1);
    let arenas = state.history().latest.as_ref().map(|found| found.observation.arenas.as_slice());
    let Some(arenas) = arenas.filter(|arenas| !arenas.is_empty()) else {
        canvas.write(0, "no arenas: no heap was walked", dim());
        return;
    };
    let columns = fitting(usize::from(canvas.area.width));
    let head: String = columns.iter().map(|c| format!("{:>1$}", c.head, c.width)).collect();
    canvas.line(&head, dim());
    let room = usize::from(canvas.area.height).saturating_sub(1);
    let first = state.scroll.min(arenas.len().saturating_sub(room));
    for arena in arenas.iter().skip(first).take(room) {
        let cell = |c: &&ArenaColumn| format!("{:>1$}", (c.text)(arena), c.width);
        let mut text: String = columns.iter().map(cell).collect();
        if !arena.whole {
            text += " ?";
        }
        canvas.line(&text, Style::new());
    }
    let last = (first + room).min(arenas.len());
    let count = arenas.len();
    let mut shown = format!(" {} to {last} of {count}", (first + 1).min(last));
    if arenas.iter().any(|a| !a.whole) {
        shown += "; ? marks an incomplete walk";
    }
    canvas.write(0, &shown, bold());
}

fn fitting(width: usize) -> Vec<&'static ArenaColumn> {
    let mut columns: Vec<&ArenaColumn> = COLUMNS.iter().collect();
    while columns.iter().map(|c| c.width).sum::<usize>() > width {
        let Some(spare) = columns.iter().map(|c| c.spare).max().filter(|s| *s > 0) else { break };
        columns.retain(|c| c.spare != spare);
    }
    columns
}
