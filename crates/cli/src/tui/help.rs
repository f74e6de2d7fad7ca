//! The help panel: keys, and the origin of the numbers.

use ratatui_core::style::Style;

use super::canvas::ScreenCanvas;

const TEXT: &[&str] = &[
    "",
    " q, Ctrl-C     quit; Esc: back, or quit",
    " p, space      freeze the display; sampling and recording continue",
    " a             the arenas of the heap",
    " f             what pins free memory: blocks on its pages; read when opened",
    " l             the growing blocks from now on; s searches for holders",
    " j, k, arrows  scroll; PgUp, PgDn, Home, End",
    " +, -          longer or shorter interval",
    " ?             this help",
    "",
    " RSS and its line come from the kernel, at every interval. Memory by",
    " owner comes from inspections of the process, which take a tenth of",
    " the time at most. Nothing is stopped. Changes are since the first one.",
    " ≈ is an estimate, by properties of mappings. ▼ is a release, from the",
    " file of --log; the CPU time there is that of lowtide for the releases.",
];

/// Draws the panel.
pub(super) fn draw(canvas: &mut ScreenCanvas<'_>) {
    for line in TEXT {
        canvas.line(line, Style::new());
    }
}
