//! A report as Markdown: for pull requests and job summaries.

use std::fmt::Write as _;

use lowtide_analysis::study_report::StudyReport;

use crate::read::LoadedRecord;
use crate::table::{self, Table};
use crate::text::steers;
use crate::view::names;

/// Formats the tables and recommendations of some records.
pub fn render(records: &[LoadedRecord]) -> String {
    let mut out = String::new();
    for (record, name) in records.iter().zip(names(records)) {
        let study = &record.study;
        let _ = writeln!(out, "### lowtide: {}\n", escaped(&name));
        let folded =
            table::versions(study).map(|versions| put_versions(&mut out, study, &versions));
        if let Some(about) = &study.plan.about {
            let _ = writeln!(out, "{}\n", escaped(about));
        }
        put(&mut out, &table::summary(study));
        if let Some(text) = table::incomplete(study) {
            let _ = writeln!(out, "{}\n", escaped(&text));
        }
        if let Some(text) = table::conclusion(study).filter(|_| folded.is_none()) {
            let _ = writeln!(out, "**{}**\n", escaped(&text));
        }
        for more in table::more(study).skip(usize::from(folded.is_some())) {
            put(&mut out, &more);
        }
        if let Some(source) = &record.source {
            let _ = writeln!(out, "Source: {}\n", escaped(source));
        }
        for warning in &study.warnings {
            let _ = writeln!(out, "- Warning: {}.", escaped(warning));
        }
        for note in &record.notes {
            let _ = writeln!(out, "- {}", escaped(note));
        }
        if folded.is_some() {
            let _ = writeln!(out, "\n</details>");
        }
    }
    out
}

/// Puts the comparison of two versions on the first screen, and folds the rest.
fn put_versions(out: &mut String, study: &StudyReport, versions: &Table) {
    if let Some(text) = table::conclusion(study) {
        let _ = writeln!(out, "**{}**\n", escaped(&text));
    }
    put(out, versions);
    let _ = writeln!(out, "<details><summary>All tables</summary>\n");
}

fn put(out: &mut String, table: &Table) {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let heads: Vec<String> = table.heads.iter().map(|h| escaped(h)).collect();
    let _ = writeln!(out, "{}", line(&heads));
    let rules: Vec<String> = (0..table.heads.len())
        .map(|i| if i == 0 { "---".to_owned() } else { "---:".to_owned() })
        .collect();
    let _ = writeln!(out, "{}", line(&rules));
    for row in &table.rows {
        let mut cells: Vec<String> = row.cells.iter().map(|c| escaped(&c.full)).collect();
        if row.recommended {
            cells[0] = format!("**{}**", cells[0]);
        }
        if let Some(warning) = &row.warning {
            cells[0] = format!("{} ⚠ {}", cells[0], escaped(warning));
        }
        let _ = writeln!(out, "{}", line(&cells));
    }
    let _ = writeln!(out, "\n{}\n", escaped(&table.caption));
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '*' | '_' | '`' | '<' | '[' | ']' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if steers(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
