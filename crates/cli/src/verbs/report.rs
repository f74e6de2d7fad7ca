//! `lowtide report RECORD…`.

use std::path::{Path, PathBuf};

use lowtide_model::leaks::LeakReport;
use lowtide_record::ReadError;
use lowtide_report::read::{self, LoadError, LoadedRecord, ReportInput};
use lowtide_report::terminal::Details;
use lowtide_report::{csv, inspection, leaks, merge_shards, overlay, png};

use super::black_box;
use crate::args::ReportArgs;
use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};
use crate::present::{Report, unread};

use super::heap_files;

/// Number of groups of blocks in the report of a heap file.
const TOP: usize = 20;

pub(crate) fn run(args: &ReportArgs, output: &Output) -> Result<Exit, Failure> {
    check(args, output)?;
    if let Some(rings) = black_box::rings(&args.records)? {
        return black_box::run(args, &rings, output);
    }
    if let Some(reports) = args.records.iter().find_map(|path| leaks::read(path)) {
        return of_leaks(args, &reports, output);
    }
    if let Some(path) = args.records.iter().find(|path| heap_files::is_heap_file(path)) {
        return of_heap_file(args, path, output);
    }
    let records = open(&args.records)?;
    if let [first, others @ ..] = records.as_slice()
        && let Some(other) = others.iter().find(|r| r.study.metric != first.study.metric)
    {
        let by = |r: &LoadedRecord| format!("{} uses {}", r.study.record, r.study.metric.name());
        return Err(Failure::usage(format!(
            "{}, {}: they cannot be overlaid; report each separately",
            by(first),
            by(other)
        )));
    }
    let report = Report::new(records.clone());
    let mut is_written = false;
    if let Some(path) = &args.html {
        output.file(path, report.page()?.as_bytes(), args.force)?;
        is_written = true;
    }
    if let Some(path) = &args.svg {
        output.file(path, report.sheet(&args.chart).svg.as_bytes(), args.force)?;
        is_written = true;
    }
    if let Some(path) = &args.png {
        let bytes = png::render(&report.sheet(&args.chart)).map_err(Failure::failed)?;
        output.file(path, &bytes, args.force)?;
        is_written = true;
    }
    if let Some(path) = &args.markdown {
        output.file(path, report.markdown().as_bytes(), args.force)?;
        is_written = true;
    }
    if let Some(path) = &args.csv {
        output.file(path, csv::render(&report.all()).as_bytes(), args.force)?;
        is_written = true;
    }
    if output.json {
        for record in &records {
            output.object(&record.study)?;
        }
    } else if !is_written {
        output.text(&report.for_terminal(Details::Shown, output))?;
    }
    Ok(Exit::Done)
}

/// Reports the record of `lowtide leaks`.
fn of_leaks(args: &ReportArgs, reports: &[LeakReport], output: &Output) -> Result<Exit, Failure> {
    if args.records.len() > 1 {
        return Err(Failure::usage(
            "a record of `lowtide leaks` cannot be overlaid on another record: report each separately",
        ));
    }
    if args.svg.is_some() || args.png.is_some() || args.markdown.is_some() || args.csv.is_some() {
        return Err(Failure::usage(
            "a record of `lowtide leaks` can be shown as text, as --html FILE or as --json",
        ));
    }
    if let Some(path) = &args.html {
        output.file(path, leaks::page(reports).map_err(Failure::failed)?.as_bytes(), args.force)?;
    }
    if let Some(last) = reports.last() {
        if output.json {
            output.object(last)?;
        } else if args.html.is_none() {
            output.text(&leaks::render(last, output.screen()))?;
        }
    }
    Ok(Exit::Done)
}

/// Reports a file of `lowtide inspect --save`.
fn of_heap_file(args: &ReportArgs, path: &Path, output: &Output) -> Result<Exit, Failure> {
    if args.records.len() > 1 {
        return Err(Failure::usage(
            "a heap file cannot be overlaid on another record: report each separately, or compare two heap files with \
             lowtide inspect FILE FILE",
        ));
    }
    if args.markdown.is_some() || args.csv.is_some() {
        return Err(Failure::usage(
            "a heap file can be shown as text, as --html FILE, --svg FILE, --png FILE or as --json",
        ));
    }
    let found = heap_files::everything(path, TOP)?;
    if let Some(path) = &args.html {
        let page = inspection::page(&found).map_err(Failure::failed)?;
        output.file(path, page.as_bytes(), args.force)?;
    }
    if let Some(path) = &args.svg {
        output.file(path, inspection::chart(&found).svg.as_bytes(), args.force)?;
    }
    if let Some(path) = &args.png {
        let bytes = png::render(&inspection::chart(&found)).map_err(Failure::failed)?;
        output.file(path, &bytes, args.force)?;
    }
    if output.json {
        output.object(&heap_files::to_json(&found)?)?;
    } else if args.html.is_none() && args.svg.is_none() && args.png.is_none() {
        let details = inspection::Details { why: true, ..inspection::Details::default() };
        output.text(&inspection::render(&found, details, output.screen()))?;
    }
    Ok(Exit::Done)
}

/// Rejects output files that would overwrite a record, and two kinds of data on stdout.
fn check(args: &ReportArgs, output: &Output) -> Result<(), Failure> {
    let files = [&args.html, &args.svg, &args.png, &args.markdown, &args.csv];
    let files: Vec<&PathBuf> = files.into_iter().flatten().collect();
    let to_stdout = files.iter().filter(|f| f.as_os_str() == "-").count();
    if to_stdout > 1 || (to_stdout == 1 && output.json) {
        return Err(Failure::usage(
            "only one kind of data can go to stdout: name a file for the others",
        ));
    }
    for file in files {
        if file.is_dir() || file.extension().is_some_and(|e| e == "jsonl") {
            return Err(Failure::usage(format!(
                "{} is a record, or may be one, and would be overwritten: put the records before the options, or name \
                 another file",
                file.display()
            )));
        }
        let there = file.symlink_metadata().ok().filter(|_| file.as_os_str() != "-");
        if there.as_ref().is_some_and(|there| !there.is_file() && !there.is_dir()) {
            return Err(Failure::usage(format!(
                "{} is not a regular file: name another file, or write - for stdout",
                file.display()
            )));
        }
        if !args.force && there.is_some() {
            return Err(Failure::usage(format!(
                "{} already exists: name another file, or overwrite it with --force",
                file.display()
            )));
        }
    }
    Ok(())
}

/// Reads the records, merges the shards of a study, and overlays loads on the trials of the same
/// time.
fn open(paths: &[PathBuf]) -> Result<Vec<LoadedRecord>, Failure> {
    let mut records = Vec::new();
    let mut loads = Vec::new();
    for path in paths {
        match read::open(path).map_err(|error| unread(path, &error))? {
            ReportInput::Study(record) => records.push(*record),
            ReportInput::Load(record) => loads.push((path, record)),
        }
    }
    if let ([], [(path, _), ..]) = (records.as_slice(), loads.as_slice()) {
        let path = (*path).clone();
        return Err(Failure::usage(LoadError { path, error: ReadError::OnlyALoad }));
    }
    let mut records = merge_shards(records);
    for (path, record) in loads {
        overlay(&record, &path.display().to_string(), &mut records);
    }
    Ok(records)
}
