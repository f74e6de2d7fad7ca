//! The page in HTML.

use lowtide_model::black_box::BlackBoxReport;
use minijinja::{Value, context};

use super::facts;
use super::sections::{PageSection, sections};
use crate::html::{HtmlError, process_page};
use crate::text::printable;

/// Rules for this page.
const STYLE: &str = "\
main td.what { min-width: 30em; text-align: left; white-space: normal; overflow-wrap: anywhere; }";

/// Renders a report.
///
/// # Errors
/// Fails if the template fails, which would be a defect of lowtide.
pub fn render(report: &BlackBoxReport) -> Result<String, HtmlError> {
    let context = context! {
        title => format!("{}: {}", report.cause.replace('_', " "), printable(&report.command)),
        pid => report.pid,
        facts => facts(report),
        is_bad => report.cause == "oom_kill" || report.cause == "signal",
        summary => printable(&report.summary),
        sections => sections(report).iter().map(section).collect::<Vec<Value>>(),
        notes => report.notes.iter().map(|note| printable(note)).collect::<Vec<String>>(),
    };
    process_page(include_str!("../../assets/black_box.html"), STYLE, context)
}

fn section(section: &PageSection) -> Value {
    let row = |row: &super::sections::Row| {
        context! { name => &row.name, amount => &row.amount, text => &row.text }
    };
    context! { title => &section.title, rows => section.rows.iter().map(row).collect::<Vec<Value>>() }
}
