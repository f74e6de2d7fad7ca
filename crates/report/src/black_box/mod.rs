//! A black box for people: one page with the end of a process, who held what, who grew, and what
//! would have helped. [`page`] is the same in HTML.

mod html;
mod sections;

use lowtide_model::black_box::BlackBoxReport;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::number::counted;

use crate::screen::{Screen, bold, dim, hanging, title};
use crate::text::{facts_in_lines, printable, wrapped};

pub use html::render as page;
use sections::{PageSection, sections};

/// Formats a report.
pub fn render(report: &BlackBoxReport, screen: Screen) -> String {
    let command = std::slice::from_ref(&report.command);
    let mut out = format!(
        "{}\n{}\n\n{}\n",
        title(command, report.pid, screen),
        facts_in_lines(&facts(report), screen.width),
        bold(&wrapped(&printable(&report.summary), screen.width), screen)
    );
    for section in sections(report) {
        out += &format!("\n{}\n", dim(&wrapped(&section.title, screen.width), screen));
        out += &rows(&section, screen);
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        out += &format!("{}\n", wrapped(&printable(&format!("note: {note}")), screen.width));
    }
    out
}

fn rows(section: &PageSection, screen: Screen) -> String {
    let width = section.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let format = |row: &sections::Row| {
        let begin = format!(" {:<width$} {:>11}  ", row.name, row.amount);
        hanging(&begin, &row.text, screen).trim_end().to_owned() + "\n"
    };
    section.rows.iter().map(format).collect()
}

/// Returns the facts below the title.
fn facts(report: &BlackBoxReport) -> Vec<String> {
    let recorded = &report.recorded;
    let mut facts = vec![report.cause.replace('_', " "), report.time.clone()];
    facts.extend(report.cgroup.as_ref().map(|path| format!("cgroup {}", printable(path))));
    facts.push(format!("recorded for {}", HumanSeconds(recorded.elapsed_s)));
    facts.push(format!("{} left", counted(recorded.readings, "reading")));
    facts.push(counted(recorded.ledgers, "inspection"));
    facts
}

#[cfg(test)]
mod tests;
