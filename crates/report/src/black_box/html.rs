//! The page in HTML.

use lowtide_model::black_box::BlackBoxReport;
use minijinja::{AutoEscape, Environment, Value, context};

use super::facts;
use super::sections::{Section, sections};
use crate::html::{HtmlError, pairs};
use crate::svg::{PALETTE, PALETTE_ON_DARK};
use crate::text::printable;

/// Renders a report.
///
/// # Errors
/// Fails if the template fails, which would be a defect of lowtide.
pub fn render(report: &BlackBoxReport) -> Result<String, HtmlError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let template = include_str!("../../assets/black_box.html");
    environment.add_template("black_box.html", template).map_err(HtmlError::new)?;
    let page = environment.get_template("black_box.html").map_err(HtmlError::new)?;
    page.render(context! {
        css => include_str!("../../assets/report.css"),
        palette => pairs(&PALETTE),
        palette_on_dark => pairs(&PALETTE_ON_DARK),
        title => format!("{}: {}", report.cause.replace('_', " "), printable(&report.command)),
        pid => report.pid,
        facts => facts(report),
        is_bad => report.cause == "oom_kill" || report.cause == "signal",
        summary => printable(&report.summary),
        sections => sections(report).iter().map(section).collect::<Vec<Value>>(),
        notes => report.notes.iter().map(|note| printable(note)).collect::<Vec<String>>(),
        version => env!("CARGO_PKG_VERSION"),
    })
    .map_err(HtmlError::new)
}

fn section(section: &Section) -> Value {
    let row = |row: &super::sections::Row| {
        context! { name => &row.name, amount => &row.amount, text => &row.text }
    };
    context! { title => &section.title, rows => section.rows.iter().map(row).collect::<Vec<Value>>() }
}
