//! The black box of `run` and `attach`.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use lowtide_analysis::black_box::conclude;
use lowtide_record::black_box::read;
use lowtide_record::files::UnsafePath;
use lowtide_report::text::printable;
use lowtide_supervise::black_box::{BlackBox, BlackBoxHandle, BoxSize, Notice};

use super::metrics::MetricsFile;
use crate::args::PolicyArgs;
use crate::console::output::note;
use crate::failure::exit::Failure;

/// The owner of the memory of a process whose record cannot be read.
const UNKNOWN: &str = "unknown";

/// A black box, and the thread that counts the kills that it has recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Dropped first: its end ends the thread.
    black_box: Option<BlackBox>,
    counter: Option<JoinHandle<()>>,
}

/// A kill: the program, and the file that shows what it held.
type Kill = (String, String);

/// Starts the black box that the user has asked for.
///
/// # Errors
/// Fails if its directory cannot be written to.
pub(super) fn start(
    args: &PolicyArgs,
    size: BoxSize,
    metrics: Option<MetricsFile>,
) -> Result<Option<Recording>, Failure> {
    let Some(path) = &args.black_box else { return Ok(None) };
    let (kills, inbox) = channel::<Kill>();
    let report = Box::new(move |notice: Notice<'_>| {
        note!("lowtide: {}", printable(&sentence(notice)));
        if let Notice::OomKill { program, file, .. } = notice {
            let _ = kills.send((program.to_owned(), file.to_owned()));
        }
    });
    let black_box = BlackBox::start(path, size, args.policy.to_string(), report)
        .map_err(|error| failure(path, &error))?;
    let directory = path.clone();
    // The thread that reads the processes must not wait for an analysis.
    let counter = metrics.and_then(|metrics| {
        let count = move || count_kills(&inbox, &directory, &metrics);
        thread::Builder::new().name("kills".to_owned()).spawn(count).ok()
    });
    Ok(Some(Recording { black_box: Some(black_box), counter }))
}

impl Recording {
    /// Returns a handle for the supervision.
    pub(crate) fn handle(&self) -> Option<BlackBoxHandle> {
        self.black_box.as_ref().map(BlackBox::handle)
    }
}

/// Ends the recording, and waits until all kills are counted.
impl Drop for Recording {
    fn drop(&mut self) {
        drop(self.black_box.take());
        let _ = self.counter.take().map(JoinHandle::join);
    }
}

/// Counts the kills with what held most of the memory, until the recording ends.
fn count_kills(kills: &Receiver<Kill>, directory: &Path, metrics: &MetricsFile) {
    for (program, file) in kills {
        let record = read(&directory.join(&file)).ok();
        let dominant = record.and_then(|record| conclude(&record, &file).dominant);
        let owner = dominant.map_or_else(|| UNKNOWN.to_owned(), |dominant| dominant.owner);
        metrics.change(|textfile| textfile.count_oom_kill(&program, &owner));
    }
}

fn sentence(notice: Notice<'_>) -> String {
    match notice {
        Notice::Problem(problem) => problem.to_owned(),
        Notice::OomKill { pid, command, file, .. } => format!(
            "the kernel has killed process {pid} ({command}) for lack of memory: {file} shows what it held"
        ),
    }
}

fn failure(path: &Path, error: &std::io::Error) -> Failure {
    let shown = path.display();
    if let Some(reason) = UnsafePath::of(error) {
        return Failure::usage(format!(
            "{shown} is not safe to write to ({reason}): name a directory that only you may write to"
        ));
    }
    match error.kind() {
        ErrorKind::WouldBlock => Failure::usage(format!(
            "another lowtide records in {shown}: name another directory, or end it first"
        )),
        ErrorKind::NotADirectory => {
            Failure::usage(format!("{shown} is not a directory: name a directory"))
        }
        _ => Failure::io(path, error),
    }
}
