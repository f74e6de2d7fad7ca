//! What the keys do, and what is shown.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

use super::view::{take, write};

const TEXT: &[&str] = &[
    "",
    " q, Ctrl-C     quit; Esc: back, or quit",
    " p, space      hold the picture; what happens is still followed",
    " a             the arenas of the heap",
    " j, k, arrows  scroll; PgUp, PgDn, Home, End",
    " +, -          longer or shorter interval",
    " ?             this help",
    "",
    " RSS and the line of it come from the kernel, at every interval. Whose",
    " the bytes are comes from looks at the process, which take a tenth of",
    " the time at most. Nothing is stopped. Changes are since the first look.",
    " ≈ is an estimate: by what mappings look like.",
];

/// Draws it.
pub(super) fn draw(mut area: Rect, buffer: &mut Buffer) {
    for line in TEXT {
        write(line, Style::new(), take(&mut area, 1), buffer);
    }
}
