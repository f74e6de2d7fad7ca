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

/// Formats a report of some records, with the tables of others beside them.
pub fn render(records: &[LoadedRecord], beside: &[LoadedRecord], screen: Screen) -> String {
    let mut out = String::new();
    for (record, name) in records.iter().zip(names(records)) {
        if records.len() > 1 {
            out += &format!("{}\n", bold(&printable(&name), screen));
        }
        out += &grid(&table::summary(&record.study), screen);
        out.push('\n');
        for more in table::more(&record.study) {
            out += &grid(&more, screen);
            out.push('\n');
        }
        if let Some(text) = table::incomplete(&record.study) {
            out += &format!("{}\n", wrapped(&text, screen.width));
        }
        for warning in &record.study.warnings {
            out += &format!("{}\n", wrapped(&format!("warning: {warning}."), screen.width));
        }
        for note in &record.notes {
            out += &format!("note: {}\n", printable(note));
        }
    }
    out += &chart(&View::new(records), screen);
    for record in beside {
        out += &format!(
            "\n{}\n",
            bold(&printable(&format!("For comparison: {}", record.study.name)), screen)
        );
        out += &grid(&table::summary(&record.study), screen);
        if let Some(source) = &record.source {
            out += &format!("{}\n", wrapped(&format!("Source: {source}"), screen.width));
        }
    }
    for (record, name) in records.iter().zip(names(records)) {
        if let Some(text) = table::conclusion(&record.study) {
            let text = if records.len() > 1 { format!("{name}: {text}") } else { text };
            out += &format!("\n{}\n", bold(&wrapped(&text, screen.width), screen));
        }
    }
    out
}
