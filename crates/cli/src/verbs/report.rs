//! `lowtide report RECORD…`.

use std::fs;
use std::path::{Path, PathBuf};

use lowtide_report::read::{self, Loaded};
use lowtide_report::svg::{self, Theme};
use lowtide_report::view::View;
use lowtide_report::{csv, html, markdown, png, terminal};

use crate::args::ReportArgs;
use crate::exit::{Exit, Failure};
use crate::output::{Output, note};

pub(crate) fn run(args: &ReportArgs, output: &Output) -> Result<Exit, Failure> {
    let records = args.records.iter().map(|path| load(path)).collect::<Result<Vec<_>, _>>()?;
    let shown = with_those_beside(records.clone());
    let mut told = false;
    if let Some(path) = &args.html {
        write(path, page(&shown)?.as_bytes(), output)?;
        told = true;
    }
    if let Some(path) = &args.svg {
        write(path, sheet(&shown).svg.as_bytes(), output)?;
        told = true;
    }
    if let Some(path) = &args.png {
        let bytes = png::render(&sheet(&shown)).map_err(Failure::failed)?;
        write(path, &bytes, output)?;
        told = true;
    }
    if let Some(path) = &args.markdown {
        write(path, markdown::render(&shown).as_bytes(), output)?;
        told = true;
    }
    if let Some(path) = &args.csv {
        write(path, csv::render(&shown).as_bytes(), output)?;
        told = true;
    }
    if output.json {
        for record in &records {
            output.object(&record.study);
        }
    } else if !told {
        output.text(&terminal::render(&shown, output.screen()));
    }
    Ok(Exit::Done)
}

pub(crate) fn load(path: &Path) -> Result<Loaded, Failure> {
    read::load(path).map_err(|error| {
        let failure = Failure::failed(&error);
        if path.exists() { failure } else { failure.next("lowtide study -- CMD") }
    })
}

/// Adds the records that a study wants to be drawn beside its own.
pub(crate) fn with_those_beside(records: Vec<Loaded>) -> Vec<Loaded> {
    let mut all = Vec::new();
    for mut record in records {
        let beside = record.study.plan.beside.clone();
        let mut others = Vec::new();
        for path in beside {
            match read::load(Path::new(&path)) {
                Ok(other) => others.push(other),
                Err(error) => record.notes.push(format!("left out: {error}")),
            }
        }
        all.push(record);
        all.extend(others);
    }
    all
}

/// The HTML page of some records.
pub(crate) fn page(records: &[Loaded]) -> Result<String, Failure> {
    html::render(records, &subtitle(records)).map_err(Failure::failed)
}

fn sheet(records: &[Loaded]) -> svg::Picture {
    svg::sheet(&View::of(records), &subtitle(records), Theme::Light)
}

/// What was run, on what.
fn subtitle(records: &[Loaded]) -> String {
    let Some(first) = records.first() else { return String::new() };
    let study = &first.study;
    let mut words = vec![study.command.join(" ")];
    words.extend(study.machine.kernel.as_ref().map(|k| format!("kernel {k}")));
    words.extend(study.machine.libc.clone());
    words.extend(study.machine.cpus.map(|n| format!("{n} CPUs")));
    let mut text = words.join(" · ");
    // It stands on one line of a picture.
    const MOST: usize = 150;
    if text.chars().count() > MOST {
        text = text.chars().take(MOST - 1).chain(['…']).collect();
    }
    text
}

/// Writes a file, or to the standard output for `-`.
fn write(path: &PathBuf, bytes: &[u8], output: &Output) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        output.text(&String::from_utf8_lossy(bytes));
        return Ok(());
    }
    fs::write(path, bytes).map_err(|error| Failure::io(path, &error))?;
    note!("wrote {}", path.display());
    Ok(())
}
