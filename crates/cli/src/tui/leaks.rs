//! The panel of leaks: the report of `lowtide leaks` so far.

use lowtide_report::Screen;
use lowtide_report::leaks::render;
use ratatui_core::style::Style;

use super::canvas::{ScreenCanvas, dim};
use super::state::State;

/// Draws the report from the scroll position on.
pub(super) fn draw(state: &State, canvas: &mut ScreenCanvas<'_>) {
    canvas.split_top(1);
    let Some(report) = &state.leaks else {
        canvas.line("taking the first snapshot …", dim());
        return;
    };
    let text = render(report, Screen { width: canvas.area.width.max(1), colour: false });
    // The first line is the command, which the head already shows.
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let room = usize::from(canvas.area.height);
    let first = state.scroll.min(lines.len().saturating_sub(room));
    for line in lines.iter().skip(first).take(room) {
        canvas.line(line, Style::new());
    }
}
