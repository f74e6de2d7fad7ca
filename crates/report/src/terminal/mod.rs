//! A report for a terminal: tables, memory over time, the recommendation.

mod chart;
mod grid;

use crate::read::LoadedRecord;
use crate::screen::{Screen, bold};
use crate::table;
use crate::text::{printable, wrapped};
use crate::view::{View, names};
use chart::chart;
use grid::grid;

/// What a report has below its chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Details {
    /// Nothing.
    Hidden,
    /// The tables of owners, pins and heaps.
    Shown,
}

/// Formats a report of some records: the conclusion, the table of treatments and the chart come
/// first, and the details last. Records beside them are shown for comparison.
pub fn render(
    records: &[LoadedRecord],
    beside: &[LoadedRecord],
    details: Details,
    screen: Screen,
) -> String {
    let mut out = String::new();
    let names = names(records);
    for (record, name) in records.iter().zip(&names) {
        out += &heading(records, name, screen);
        out += &answer(record, screen);
    }
    out += &chart(&View::new(records), screen);
    for record in beside {
        let title = printable(&format!("For comparison: {}", record.study.name));
        out += &format!("\n{}\n", bold(&title, screen));
        out += &grid(&table::summary(&record.study), screen);
        if let Some(source) = &record.source {
            out += &format!("{}\n", wrapped(&format!("Source: {source}"), screen.width));
        }
    }
    if details == Details::Shown {
        for (record, name) in records.iter().zip(&names) {
            let tables: String =
                table::more(&record.study).map(|more| grid(&more, screen) + "\n").collect();
            if !tables.is_empty() {
                out += &format!("\n{}{tables}", heading(records, name, screen));
            }
        }
    }
    out
}

/// Returns the name of one of several records.
fn heading(records: &[LoadedRecord], name: &str, screen: Screen) -> String {
    match records.len() {
        ..=1 => String::new(),
        _ => format!("{}\n", bold(&printable(name), screen)),
    }
}

/// Formats the conclusion of a record, its treatments, and what is missing.
fn answer(record: &LoadedRecord, screen: Screen) -> String {
    let mut out = String::new();
    if let Some(text) = table::conclusion(&record.study) {
        out += &format!("{}\n\n", bold(&wrapped(&text, screen.width), screen));
    }
    out += &grid(&table::summary(&record.study), screen);
    out.push('\n');
    if let Some(text) = table::incomplete(&record.study) {
        out += &format!("{}\n", wrapped(&text, screen.width));
    }
    for warning in &record.study.warnings {
        out += &format!("{}\n", wrapped(&format!("warning: {warning}."), screen.width));
    }
    for note in &record.notes {
        out += &wrapped(&format!("note: {note}"), screen.width);
        out.push('\n');
    }
    out
}
