//! A rectangle of the picture that is drawn from top to bottom.

use lowtide_model::duration::HumanSeconds;
use lowtide_report::text::printable;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::widgets::Widget;

/// The rectangle that is left to draw on.
pub(crate) struct ScreenCanvas<'a> {
    pub(crate) area: Rect,
    /// Whether the terminal shows colours.
    pub(crate) colour: bool,
    buffer: &'a mut Buffer,
}

pub(crate) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

pub(crate) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(crate) fn reversed() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

impl<'a> ScreenCanvas<'a> {
    pub(crate) fn new(area: Rect, colour: bool, buffer: &'a mut Buffer) -> Self {
        Self { area, colour, buffer }
    }

    /// Splits off up to `lines` lines at the top.
    pub(crate) fn split_top(&mut self, lines: u16) -> ScreenCanvas<'_> {
        let lines = lines.min(self.area.height);
        let top = Rect { height: lines, ..self.area };
        self.area.y += lines;
        self.area.height -= lines;
        ScreenCanvas { area: top, colour: self.colour, buffer: &mut *self.buffer }
    }

    /// Splits off the last line; `None` if no line is left.
    pub(crate) fn split_last_line(&mut self) -> Option<ScreenCanvas<'_>> {
        let rest = self.area.height.checked_sub(1)?;
        let last = Rect { y: self.area.y + rest, height: 1, ..self.area };
        self.area.height = rest;
        Some(ScreenCanvas { area: last, colour: self.colour, buffer: &mut *self.buffer })
    }

    /// Writes a line at the top and splits it off.
    pub(crate) fn line(&mut self, text: &str, style: Style) {
        self.split_top(1).write(0, text, style);
    }

    /// Writes in the first line from a column on, as far as there is room. Returns the column after
    /// the text.
    pub(crate) fn write(&mut self, column: u16, text: &str, style: Style) -> u16 {
        let room = self.area.width.saturating_sub(column);
        if self.area.height == 0 || room == 0 {
            return column;
        }
        let x = self.area.x.saturating_add(column);
        let text = printable(text);
        let (end, _) = self.buffer.set_stringn(x, self.area.y, text, usize::from(room), style);
        end.saturating_sub(self.area.x)
    }

    /// Draws a widget on the whole rectangle.
    pub(crate) fn render(&mut self, widget: impl Widget) {
        widget.render(self.area, self.buffer);
    }
}

/// Joins the first parts, as many as fit into a width: a cut number would be a wrong one.
pub(crate) fn fitting(parts: &[String], separator: &str, width: u16) -> String {
    let mut text = parts.first().cloned().unwrap_or_default();
    for part in parts.iter().skip(1) {
        let length =
            [&text, separator, part].iter().map(|part| part.chars().count()).sum::<usize>();
        if length > usize::from(width) {
            break;
        }
        text += separator;
        text += part;
    }
    text
}

/// Formats a time in whole seconds.
pub(super) fn whole(seconds: f64) -> String {
    if seconds < 59.5 {
        format!("{:.0} s", seconds.max(1.0))
    } else {
        HumanSeconds(seconds).to_string()
    }
}
