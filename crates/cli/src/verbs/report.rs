//! `lowtide report RECORD…`.

use std::path::{Path, PathBuf};

use lowtide_record::ReadError;
use lowtide_record::files;
use lowtide_report::lay::lay;
use lowtide_report::parts::join;
use lowtide_report::read::{self, LoadError, Loaded, Opened};
use lowtide_report::svg::{self, Parts};
use lowtide_report::view::View;
use lowtide_report::{csv, html, markdown, png, terminal};

use crate::args::{Chart, ReportArgs};
use crate::exit::{Exit, Failure};
use crate::output::{Output, note};

pub(crate) fn run(args: &ReportArgs, output: &Output) -> Result<Exit, Failure> {
    check(args, output)?;
    let records = open(&args.records)?;
    if let [first, others @ ..] = records.as_slice()
        && let Some(other) = others.iter().find(|r| r.study.metric != first.study.metric)
    {
        let by = |r: &Loaded| format!("{} is judged by {}", r.study.record, r.study.metric.name());
        return Err(Failure::usage(format!(
            "{}, {}: they cannot be laid over each other; report each by itself",
            by(first),
            by(other)
        )));
    }
    let shown = Shown::of(records.clone());
    let mut told = false;
    if let Some(path) = &args.html {
        write(path, shown.page()?.as_bytes(), args.force, output)?;
        told = true;
    }
    if let Some(path) = &args.svg {
        write(path, shown.sheet(&args.chart).svg.as_bytes(), args.force, output)?;
        told = true;
    }
    if let Some(path) = &args.png {
        let bytes = png::render(&shown.sheet(&args.chart)).map_err(Failure::failed)?;
        write(path, &bytes, args.force, output)?;
        told = true;
    }
    if let Some(path) = &args.markdown {
        write(path, shown.markdown().as_bytes(), args.force, output)?;
        told = true;
    }
    if let Some(path) = &args.csv {
        write(path, csv::render(&shown.all()).as_bytes(), args.force, output)?;
        told = true;
    }
    if output.json {
        for record in &records {
            output.object(&record.study)?;
        }
    } else if !told {
        output.text(&shown.for_terminal(output))?;
    }
    Ok(Exit::Done)
}

/// Refuses what would destroy a record, or mix two kinds of data.
fn check(args: &ReportArgs, output: &Output) -> Result<(), Failure> {
    let files = [&args.html, &args.svg, &args.png, &args.markdown, &args.csv];
    let files: Vec<&PathBuf> = files.into_iter().flatten().collect();
    let to_stdout = files.iter().filter(|f| f.as_os_str() == "-").count();
    if to_stdout > 1 || (to_stdout == 1 && output.json) {
        return Err(Failure::usage(
            "only one kind of data can go to the standard output: name a file for the others",
        ));
    }
    for file in files {
        if file.is_dir() || file.extension().is_some_and(|e| e == "jsonl") {
            return Err(Failure::usage(format!(
                "{} is a record, or may be, and would be overwritten: put the records first, or name \
                 another file",
                file.display()
            )));
        }
        let there = file.symlink_metadata().ok().filter(|_| file.as_os_str() != "-");
        if there.as_ref().is_some_and(|there| !there.is_file() && !there.is_dir()) {
            return Err(Failure::usage(format!(
                "{} is not a regular file: name another file, or write - for the standard output",
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

/// Reads what was named, joins the parts of a study, and lays loads onto what they loaded.
fn open(paths: &[PathBuf]) -> Result<Vec<Loaded>, Failure> {
    let mut records = Vec::new();
    let mut loads = Vec::new();
    for path in paths {
        match read::open(path).map_err(|error| unread(path, &error))? {
            Opened::Study(record) => records.push(*record),
            Opened::Load(record) => loads.push((path, record)),
        }
    }
    if let ([], [(path, _), ..]) = (records.as_slice(), loads.as_slice()) {
        let path = (*path).clone();
        return Err(Failure::usage(LoadError { path, error: ReadError::OnlyALoad }));
    }
    let mut records = join(records);
    for (path, record) in loads {
        lay(&record, &path.display().to_string(), &mut records);
    }
    Ok(records)
}

pub(crate) fn load(path: &Path) -> Result<Loaded, Failure> {
    read::load(path).map_err(|error| unread(path, &error))
}

fn unread(path: &Path, error: &LoadError) -> Failure {
    let failure = Failure::failed(error);
    if path.exists() { failure } else { failure.next("lowtide study -- CMD") }
}

/// What a report shows: records that are laid over each other, and others that are drawn beside them,
/// because a study of theirs asks for it.
pub(crate) struct Shown {
    records: Vec<Loaded>,
    beside: Vec<Loaded>,
}

impl Shown {
    pub(crate) fn of(mut records: Vec<Loaded>) -> Self {
        let mut beside = Vec::new();
        for record in &mut records {
            for path in record.study.plan.beside.clone() {
                let path = Path::new(&path);
                if path.exists() && !path.is_file() && !path.is_dir() {
                    continue;
                }
                match read::load(path) {
                    Ok(other) => beside.push(other),
                    Err(error) => record.notes.push(format!("not drawn beside it: {error}")),
                }
            }
        }
        Self { records, beside }
    }

    /// The HTML page.
    pub(crate) fn page(&self) -> Result<String, Failure> {
        html::render(&self.records, &self.beside, &subtitle(&self.records)).map_err(Failure::failed)
    }

    pub(crate) fn for_terminal(&self, output: &Output) -> String {
        terminal::render(&self.records, &self.beside, output.screen())
    }

    /// The tables of all of them, for a page of a job.
    pub(crate) fn markdown(&self) -> String {
        markdown::render(&self.all())
    }

    fn all(&self) -> Vec<Loaded> {
        self.records.iter().chain(&self.beside).cloned().collect()
    }

    fn sheet(&self, charts: &[Chart]) -> svg::Picture {
        let wanted = |chart| charts.is_empty() || charts.contains(&chart);
        let parts = Parts {
            course: wanted(Chart::Course),
            bars: wanted(Chart::Bars),
            panels: wanted(Chart::Panels),
        };
        let views = View::with_those_beside(&self.records, &self.beside);
        svg::sheet(&views, &subtitle(&self.records), parts)
    }
}

/// What was run, on what.
fn subtitle(records: &[Loaded]) -> String {
    let Some(first) = records.first() else { return String::new() };
    let study = &first.study;
    let mut words = vec![short_paths(&study.command.join(" "))];
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

/// A command without what everybody on this machine knows: the home directory and the current one.
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

/// Writes a file, or to the standard output for `-`.
fn write(path: &Path, bytes: &[u8], force: bool, output: &Output) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return output.bytes(bytes);
    }
    files::write_whole(path, bytes, force).map_err(|error| Failure::io(path, &error))?;
    note!("wrote {}", path.display());
    Ok(())
}
