//! The help panel: keys, and the origin of the numbers.

use ratatui_core::style::Style;

use super::canvas::ScreenCanvas;

const TEXT: &[&str] = &[
    "",
    " q, Ctrl-C     quit; Esc: back, or quit",
    " p, space      hold the picture; what happens is still followed",
    " a             the arenas of the heap",
    " l             what grows in the heap, from now on; s seeks what holds it",
    " j, k, arrows  scroll; PgUp, PgDn, Home, End",
    " +, -          longer or shorter interval",
    " ?             this help",
    "",
    " RSS and the line of it come from the kernel, at every interval. Whose",
    " the bytes are comes from looks at the process, which take a tenth of",
    " the time at most. Nothing is stopped. Changes are since the first look.",
    " ≈ is an estimate: by what mappings look like. ▼ is a release, from the",
    " log that --log names; the CPU time there is lowtide's for the releases.",
];

/// Draws the panel.
pub(super) fn draw(canvas: &mut ScreenCanvas<'_>) {
    for line in TEXT {
        canvas.line(line, Style::new());
    }
}
