//! Records as a report: read from disk, and laid out for a terminal, a page or a picture.

use std::path::Path;

use lowtide_report::read::{self, LoadError, LoadedRecord};
use lowtide_report::svg::{self, Charts};
use lowtide_report::terminal::Details;
use lowtide_report::text::shortened;
use lowtide_report::{View, html, markdown, terminal};

use crate::args::Chart;
use crate::console::output::Output;
use crate::failure::exit::Failure;

/// Maximum length of the subtitle, which stands on one line of a picture.
const MAX_SUBTITLE: usize = 150;

/// Loads the record of a study, or one of its files.
pub(crate) fn load(path: &Path) -> Result<LoadedRecord, Failure> {
    read::load(path).map_err(|error| unread(path, &error))
}

/// Returns the failure for a record that cannot be read.
pub(crate) fn unread(path: &Path, error: &LoadError) -> Failure {
    let failure = Failure::failed(error);
    if path.exists() { failure } else { failure.next("lowtide study -- CMD") }
}

/// Records that are laid over each other, and others that are drawn beside them because the study
/// asks for it.
pub(crate) struct Report {
    records: Vec<LoadedRecord>,
    beside: Vec<LoadedRecord>,
}

impl Report {
    /// Returns the report of some records. Reads those that are drawn beside them.
    pub(crate) fn new(mut records: Vec<LoadedRecord>) -> Self {
        let mut beside = Vec::new();
        for record in &mut records {
            for path in &record.beside {
                if path.exists() && !path.is_file() && !path.is_dir() {
                    continue;
                }
                match read::load(path) {
                    Ok(other) => beside.push(other),
                    Err(error) => record.notes.push(format!("not drawn for comparison: {error}")),
                }
            }
        }
        Self { records, beside }
    }

    /// Returns the HTML page.
    pub(crate) fn page(&self) -> Result<String, Failure> {
        html::render(&self.records, &self.beside, &subtitle(&self.records)).map_err(Failure::failed)
    }

    /// Returns the report for a terminal.
    pub(crate) fn for_terminal(&self, details: Details, output: &Output) -> String {
        terminal::render(&self.records, &self.beside, details, output.screen())
    }

    /// Returns the tables of all records as Markdown.
    pub(crate) fn markdown(&self) -> String {
        markdown::render(&self.all())
    }

    /// Returns all records.
    pub(crate) fn all(&self) -> Vec<LoadedRecord> {
        self.records.iter().chain(&self.beside).cloned().collect()
    }

    /// Returns a picture with these charts; with all, if there are none.
    pub(crate) fn sheet(&self, charts: &[Chart]) -> svg::Picture {
        let wanted = |chart| charts.is_empty() || charts.contains(&chart);
        let charts = Charts {
            course: wanted(Chart::Course),
            bars: wanted(Chart::Bars),
            panels: wanted(Chart::Panels),
        };
        let views = View::with_those_beside(&self.records, &self.beside);
        svg::sheet(&views, &subtitle(&self.records), charts)
    }
}

/// Returns the command and the machine.
fn subtitle(records: &[LoadedRecord]) -> String {
    let Some(first) = records.first() else { return String::new() };
    let study = &first.study;
    let mut words = vec![short_paths(&study.command.join(" "))];
    words.extend(study.machine.kernel.as_ref().map(|k| format!("kernel {k}")));
    words.extend(study.machine.libc.clone());
    words.extend(study.machine.cpus.map(|n| format!("{n} CPUs")));
    shortened(&words.join(" · "), MAX_SUBTITLE)
}

/// Returns a command with the home directory as `~`, and the current one as `.`.
fn short_paths(command: &str) -> String {
    let mut text = command.to_owned();
    let places = [(std::env::current_dir().ok(), "."), (std::env::home_dir(), "~")];
    for (place, sign) in places {
        let path = place.map(|p| p.display().to_string()).filter(|p| p.len() > 1);
        if let Some(path) = path {
            text = text.replace(&format!("{path}/"), &format!("{sign}/"));
        }
    }
    text
}
