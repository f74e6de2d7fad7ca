//! RSS as one bar, split by owner, and a row for each owner.

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::{Owner, Row};
use ratatui_core::style::Color;

use crate::owners::{ink, meaning, places};
use crate::screen::{Screen, dim, escape_of, hanging};

/// Maximum width of the bar of RSS, in columns.
pub(crate) const MAX_BAR_WIDTH: usize = 100;
/// Minimum part of RSS of a row. Smaller ones are shown together in one row.
const MIN_SHARE: f64 = 0.01;
/// Maximum number of rows of their own. Of more, the smallest are shown together.
const MAX_ROWS: usize = 6;
/// Colour and letter of the small rows.
const SMALL: (Color, char) = (Color::DarkGray, '.');

/// Formats the bar and the rows: all of them, or the large ones and one for the others.
pub(super) fn render(inspection: &Inspection, is_whole: bool, screen: Screen) -> String {
    let ledger = &inspection.observation.ledger;
    let rows = match is_whole {
        true => LedgerRows::whole(ledger.rows()),
        false => LedgerRows::new(ledger.rows()),
    };
    let mut out = bar(&rows, ledger.total(), screen);
    for row in &rows.large {
        let about = if row.estimated { '≈' } else { ' ' };
        let text = meaning(inspection, row);
        let share = row.bytes as f64 / ledger.total().max(1) as f64;
        out += &line(ink(row), (row.owner.name(), about, row.bytes, share), &text, screen);
    }
    if !rows.small.is_empty() {
        let bytes: u64 = rows.small.iter().map(|row| row.bytes).sum();
        let share = bytes as f64 / ledger.total().max(1) as f64;
        let about = if rows.small.iter().any(|row| row.estimated) { '≈' } else { ' ' };
        out += &line(SMALL, ("others", about, bytes, share), &rows.names(), screen);
    }
    out
}

/// The rows of a ledger that hold memory.
#[derive(Debug, Clone)]
pub struct LedgerRows {
    /// Those that hold a noticeable part of RSS, in the order of the ledger.
    pub large: Vec<Row>,
    /// The others, if there are several.
    pub small: Vec<Row>,
}

impl LedgerRows {
    /// Divides the rows of a ledger.
    pub fn new(rows: &[Row]) -> Self {
        let total: u64 = rows.iter().map(|row| row.bytes).sum();
        let rows: Vec<Row> = rows.iter().copied().filter(|row| row.bytes > 0).collect();
        let mut sizes: Vec<u64> = rows.iter().map(|row| row.bytes).collect();
        sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        let least = sizes.get(MAX_ROWS - 1).copied().unwrap_or(0);
        let is_large = |row: &Row| {
            let is_one = row.bytes >= least || row.owner == Owner::Unattributed;
            is_one && row.bytes as f64 >= total as f64 * MIN_SHARE
        };
        let (mut large, mut small): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(is_large);
        if small.len() == 1 {
            large.append(&mut small);
        }
        Self { large, small }
    }

    /// Returns all rows that hold memory as rows of their own.
    fn whole(rows: &[Row]) -> Self {
        let large = rows.iter().copied().filter(|row| row.bytes > 0).collect();
        Self { large, small: Vec::new() }
    }

    /// Returns the names of the small rows, the largest first; those after the second are only
    /// counted.
    pub fn names(&self) -> String {
        let mut rows: Vec<&Row> = self.small.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        first_names(rows.into_iter().map(|row| row.owner.name()))
    }
}

/// Returns the first names, and how many more there are.
pub(crate) fn first_names(all: impl Iterator<Item = &'static str>) -> String {
    const MAX_NAMES: usize = 2;
    let mut names: Vec<&str> = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let rest = names.len().saturating_sub(MAX_NAMES);
    let shown = names[..names.len() - rest].join(", ");
    if rest > 0 { format!("{shown} and {rest} more") } else { shown }
}

/// Formats RSS as one bar, split by owner.
fn bar(rows: &LedgerRows, total: u64, screen: Screen) -> String {
    let width = usize::from(screen.width).min(MAX_BAR_WIDTH);
    let shown = places(&rows.large, total, width);
    let filled: usize = shown.iter().map(|shown| shown.1).sum();
    let small = if rows.small.is_empty() { 0 } else { width.saturating_sub(filled) };
    let parts = shown.iter().map(|(row, places)| (ink(row), *places)).chain([(SMALL, small)]);
    let mut out: String = parts.map(|(ink, places)| cells(ink, places, screen)).collect();
    out.push('\n');
    out
}

pub(crate) fn cells((colour, letter): (Color, char), places: usize, screen: Screen) -> String {
    match (places, screen.colour) {
        (0, _) => String::new(),
        (_, true) => format!("{}{}\x1b[0m", escape_of(colour), "█".repeat(places)),
        (_, false) => letter.to_string().repeat(places),
    }
}

/// Formats a row: its ink, its name, whether it is an estimate, its bytes and share, and what it
/// is.
pub(crate) fn line(
    ink: (Color, char),
    (name, about, bytes, share): (&str, char, u64, f64),
    text: &str,
    screen: Screen,
) -> String {
    let sign = if screen.colour { cells(ink, 2, screen) } else { format!("{} ", ink.1) };
    let size = Human(bytes).to_string();
    let numbers = format!(" {name:<15}{about}{size:>9}  {:>5.1} %  ", share * 100.0);
    // The escape sequences of the sign and the text take no columns.
    let indent = " ".repeat(3);
    let text = hanging(&format!("{indent}{numbers}"), text, screen);
    let (first, rest) = text.split_at(indent.len() + numbers.len());
    let rest: Vec<String> = rest.trim_end().split('\n').map(|line| dim(line, screen)).collect();
    format!(" {sign}{}{}\n", &first[indent.len()..], rest.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_model::ledger::Owner;

    #[test]
    fn small_rows_are_one_row_unless_there_is_only_one() {
        let rows = |sizes: &[u64]| -> LedgerRows {
            let owners = [Owner::Allocated, Owner::File, Owner::Stacks, Owner::Metadata];
            let rows = owners.iter().zip(sizes).map(|(owner, bytes)| Row::new(*owner, *bytes));
            LedgerRows::new(&rows.collect::<Vec<_>>())
        };
        let counts = |rows: &LedgerRows| (rows.large.len(), rows.small.len());
        assert_eq!(counts(&rows(&[980, 10, 5, 5])), (2, 2));
        assert_eq!(counts(&rows(&[980, 15, 0, 5])), (3, 0));
        assert_eq!(counts(&rows(&[0, 0, 0, 0])), (0, 0));
    }

    #[test]
    fn of_many_large_rows_the_smallest_are_one_row() {
        let owners = Owner::ALL.iter().take(9).zip(1..);
        let rows: Vec<Row> = owners.map(|(owner, bytes)| Row::new(*owner, 10 + bytes)).collect();
        let divided = LedgerRows::new(&rows);
        let sizes = |rows: &[Row]| rows.iter().map(|row| row.bytes).collect::<Vec<_>>();
        assert_eq!(sizes(&divided.large), [14, 15, 16, 17, 18, 19]);
        assert_eq!(sizes(&divided.small), [11, 12, 13]);
    }
}
