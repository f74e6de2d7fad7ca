//! The panels that show a report of another verb as text that can be scrolled: the leaks so far,
//! and what pins memory.

use lowtide_report::Screen;
use lowtide_report::{leaks, pins};
use ratatui_core::style::Style;

use super::canvas::{ScreenCanvas, dim};
use super::state::State;

/// Draws the report of `lowtide leaks` so far.
pub(super) fn leaks(state: &State, canvas: &mut ScreenCanvas<'_>) {
    let report = state.leaks.as_ref();
    // The first line is the command, which the head already shows.
    let text = report.map(|report| leaks::render(report, screen(canvas)));
    draw(text.as_deref(), "taking the first snapshot …", state.scroll, canvas);
}

/// Draws what `lowtide inspect --pins` shows.
pub(super) fn pins(state: &State, canvas: &mut ScreenCanvas<'_>) {
    let text = state.pins.as_ref().map(|pins| pins::render(pins, screen(canvas)));
    draw(text.as_deref(), "reading the blocks of the heap …", state.scroll, canvas);
}

fn screen(canvas: &ScreenCanvas<'_>) -> Screen {
    Screen { width: canvas.area.width.max(1), colour: false }
}

/// Draws the lines after the first from the scroll position on, or what the view waits for.
fn draw(text: Option<&str>, waiting: &str, scroll: usize, canvas: &mut ScreenCanvas<'_>) {
    canvas.split_top(1);
    let Some(text) = text else {
        canvas.line(waiting, dim());
        return;
    };
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let room = usize::from(canvas.area.height);
    let first = scroll.min(lines.len().saturating_sub(room));
    for line in lines.iter().skip(first).take(room) {
        canvas.line(line, Style::new());
    }
}
