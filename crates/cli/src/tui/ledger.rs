//! The ledger of the live view: a row for each owner, with its change since the first inspection.

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::Row;
use lowtide_report::inspection::LedgerRows;
use lowtide_report::owners::{ink, meaning};
use lowtide_report::text::wrapped;
use ratatui_core::style::{Color, Style};

use super::canvas::{ScreenCanvas, dim, fitting};
use super::history::History;
use super::sign::{Ink, sign, signed};

/// Column at which the text of a row starts, after its sign.
const TEXT_COLUMN: u16 = 4;
/// Minimum width of the description of a row; a narrower terminal has none.
const MIN_MEANING_WIDTH: usize = 12;

/// One row, as text.
struct RowText {
    ink: Ink,
    /// Its bytes, by which the largest are found.
    bytes: u64,
    numbers: String,
    /// What the row is, in lines.
    meaning: Vec<String>,
}

/// The rows: those below the minimum share of RSS are one row.
pub(super) struct LedgerLines(Vec<RowText>);

impl LedgerLines {
    pub(super) fn new(history: &History, found: &Inspection, width: u16) -> Self {
        let rows = LedgerRows::new(found.observation.ledger.rows());
        let total = found.observation.ledger.total().max(1) as f64;
        let line = |ink, name: &str, rows: &[Row], text: &str| {
            let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
            let changes: Option<i64> = rows.iter().map(|row| history.change_of(row)).sum();
            let about = if rows.iter().any(|row| row.estimated) { "≈" } else { " " };
            let (share, change) =
                (bytes as f64 / total * 100.0, changes.map_or(String::new(), signed));
            let size = Human(bytes).to_string();
            let parts = [
                format!("{name:<15}{about}{size:>10}"),
                format!("{share:>5.1} %"),
                format!("{change:>11}  "),
            ];
            let room = width.saturating_sub(TEXT_COLUMN);
            let numbers = fitting(&parts, " ", room);
            let room = usize::from(room).saturating_sub(numbers.chars().count());
            let text = if room < MIN_MEANING_WIDTH { "" } else { text };
            let room = u16::try_from(room).unwrap_or(u16::MAX);
            let meaning = wrapped(text, room).lines().map(str::to_owned).collect();
            RowText { ink, bytes, numbers, meaning }
        };
        let large = rows.large.iter();
        let mut lines: Vec<RowText> = large
            .map(|row| line(ink(row), row.owner.name(), &[*row], &meaning(found, row)))
            .collect();
        if !rows.small.is_empty() {
            lines.push(line((Color::DarkGray, '.'), "others", &rows.small, &rows.names()));
        }
        Self(lines)
    }

    /// Returns the number of lines that the rows need.
    pub(super) fn height(&self) -> usize {
        self.0.iter().map(RowText::height).sum()
    }

    /// Draws the rows in this number of lines. If it is too small, each row has one line, and the
    /// smallest rows are left out.
    pub(super) fn draw(&self, room: u16, canvas: &mut ScreenCanvas<'_>) {
        let is_whole = self.height() <= usize::from(room);
        let mut order: Vec<&RowText> = self.0.iter().collect();
        order.sort_by_key(|line| std::cmp::Reverse(line.bytes));
        let least = order.get(usize::from(room).saturating_sub(1)).map_or(0, |line| line.bytes);
        let shown = self.0.iter().filter(|line| is_whole || line.bytes >= least);
        let lines = if is_whole { usize::MAX } else { usize::from(room) };
        for line in shown.take(lines) {
            line.draw(is_whole, canvas);
        }
    }
}

impl RowText {
    fn height(&self) -> usize {
        self.meaning.len().max(1)
    }

    fn draw(&self, is_whole: bool, canvas: &mut ScreenCanvas<'_>) {
        let mut line = canvas.split_top(1);
        let (sign, style) = sign(self.ink, if line.colour { 2 } else { 1 }, line.colour);
        line.write(1, &sign, style);
        let at = line.write(TEXT_COLUMN, &self.numbers, Style::new());
        let more = if is_whole || self.meaning.len() < 2 { "" } else { " …" };
        let first = self.meaning.first().map_or("", String::as_str);
        line.write(at, &format!("{first}{more}"), dim());
        for text in self.meaning.iter().skip(1).filter(|_| is_whole) {
            canvas.split_top(1).write(at, text, dim());
        }
    }
}
