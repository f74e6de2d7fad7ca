//! `lowtide report DIR` of a black box.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lowtide_analysis::black_box::conclude;
use lowtide_model::black_box::{BlackBoxReport, OtherRecord};
use lowtide_record::black_box::{
    self, BoxError, BoxLine, BoxRecord, Cause, is_ring, is_store, rings_in, time,
};
use lowtide_report::black_box::{page, render};

use crate::args::ReportArgs;
use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};

/// The file by which a directory is the record of a study.
const STUDY: &str = "study.jsonl";
/// Maximum number of other records that are named.
const MAX_OTHERS: usize = 50;

/// Returns the rings that the user has named: those of the first directory or the first file that
/// is of a black box, the most important first. `None` if none is.
///
/// # Errors
/// Fails if a directory cannot be read, or contains no record of any kind.
pub(super) fn rings(paths: &[PathBuf]) -> Result<Option<Vec<PathBuf>>, Failure> {
    for path in paths {
        let found = match path.is_dir() {
            true => rings_of(path)?,
            false if is_ring(path) => vec![path.clone()],
            false => Vec::new(),
        };
        if !found.is_empty() {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the rings of a directory; none if it has the record of a study.
fn rings_of(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let shown = directory.display();
    let unread = |error: std::io::Error| {
        let exit = match error.kind() {
            ErrorKind::PermissionDenied => Exit::NotPermitted,
            _ => Exit::Failed,
        };
        Failure::new(
            exit,
            format!("{shown} cannot be read ({error}): run this as its owner or root"),
        )
    };
    let rings = rings_in(directory).map_err(unread)?;
    if !rings.is_empty() || directory.join(STUDY).exists() {
        return Ok(rings);
    }
    Err(Failure::failed(match is_store(directory) {
        true => format!(
            "{shown} is the directory of a black box without a record: let lowtide attach \
             --black-box {shown} run until it has recorded a process"
        ),
        false => format!(
            "{shown} is not a record: it contains no {STUDY} and no .box file of a black box: name \
             the directory of lowtide study or of lowtide attach --black-box"
        ),
    }))
}

/// Shows the most important record, and names the others.
pub(super) fn run(args: &ReportArgs, rings: &[PathBuf], output: &Output) -> Result<Exit, Failure> {
    if args.records.len() > 1 {
        return Err(Failure::usage(
            "a black box cannot be overlaid on another record: report each separately",
        ));
    }
    if args.svg.is_some() || args.png.is_some() || args.markdown.is_some() || args.csv.is_some() {
        return Err(Failure::usage(
            "a black box can be shown as text, as --html FILE or as --json",
        ));
    }
    let report = read(rings)?;
    if let Some(path) = &args.html {
        let html = page(&report).map_err(Failure::failed)?;
        output.file(path, html.as_bytes(), args.force)?;
    }
    if output.json {
        output.object(&report)?;
    } else if args.html.is_none() {
        output.text(&render(&report, output.screen()))?;
    }
    Ok(Exit::Done)
}

/// Reads the first ring that is readable.
fn read(rings: &[PathBuf]) -> Result<BlackBoxReport, Failure> {
    let mut failed = None;
    let mut shown: Option<BlackBoxReport> = None;
    for path in rings {
        match black_box::read(path) {
            Ok(record) => match &mut shown {
                None => shown = Some(conclude(&record, &name(path))),
                Some(report) => report.other_records.push(other(&record, path)),
            },
            Err(error) => {
                failed.get_or_insert((path, error));
            }
        }
        if shown.as_ref().is_some_and(|report| report.other_records.len() >= MAX_OTHERS) {
            break;
        }
    }
    let unread = failed.map(|(path, error)| unread(path, &error));
    match (shown, unread) {
        (Some(mut report), unread) => {
            report.notes.extend(unread.map(|failure| failure.to_string()));
            Ok(report)
        }
        (None, Some(failure)) => Err(failure),
        (None, None) => Err(Failure::usage(
            "the black box has no record: let lowtide attach --black-box write one",
        )),
    }
}

fn unread(path: &Path, error: &BoxError) -> Failure {
    Failure::failed(format!(
        "{} cannot be read: {error}: name another file of the directory",
        path.display()
    ))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn other(record: &BoxRecord, path: &Path) -> OtherRecord {
    let end = record.lines.iter().rev().find_map(|line| match line {
        BoxLine::End(end) => Some((end.cause, end.t_s)),
        BoxLine::Reading(reading) => Some((Cause::Peak, reading.t_s)),
        _ => None,
    });
    let (cause, t_s) = end.unwrap_or_default();
    OtherRecord {
        file: name(path),
        cause: cause.name(),
        time: time(record.head.unix_s + t_s),
        pid: record.head.pid,
        name: record.head.name.clone(),
    }
}
