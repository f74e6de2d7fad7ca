//! The black box of `run` and `attach`.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use lowtide_analysis::black_box::conclude;
use lowtide_model::number::HumanCount;
use lowtide_record::black_box::read;
use lowtide_record::files::UnsafePath;
use lowtide_report::text::printable;
use lowtide_supervise::black_box::{BlackBox, BlackBoxHandle, BoxSize, Notice};

use super::metrics::MetricsFile;
use crate::args::PolicyArgs;
use crate::console::output::note;
use crate::failure::exit::Failure;

/// The owner of memory if no record shows it, and the program that was killed if it is not known.
const UNKNOWN: &str = "unknown";

/// A black box, and the thread that counts the kills that it has recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Dropped first: its end ends the thread.
    black_box: Option<BlackBox>,
    counter: Option<JoinHandle<()>>,
}

/// Kills of one program: its name, their number, and the file that shows what held the memory.
type Kills = (String, u64, String);

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
    let (kills, inbox) = channel::<Kills>();
    let report = Box::new(move |notice: Notice<'_>| {
        note!("lowtide: {}", printable(&sentence(notice)));
        for one in kills_of(notice) {
            let _ = kills.send(one);
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
fn count_kills(kills: &Receiver<Kills>, directory: &Path, metrics: &MetricsFile) {
    for (program, count, file) in kills {
        let record = read(&directory.join(&file)).ok();
        let dominant = record.and_then(|record| conclude(&record, &file).dominant);
        let owner = dominant.map_or_else(|| UNKNOWN.to_owned(), |dominant| dominant.owner);
        metrics.change(|textfile| textfile.count_oom_kills(&program, &owner, count));
    }
}

/// Returns the kills of a notice. Each victim counts once.
fn kills_of(notice: Notice<'_>) -> Vec<Kills> {
    match notice {
        Notice::Problem(_) => Vec::new(),
        Notice::OomKill { program, file, .. } => vec![(program.to_owned(), 1, file.to_owned())],
        Notice::GroupOomKill { count, victims, file, .. } => {
            let named = victims.iter().map(|(_, name)| ((*name).to_owned(), 1, file.to_owned()));
            let unnamed = count.saturating_sub(victims.len() as u64);
            let unnamed = (unnamed > 0).then(|| (UNKNOWN.to_owned(), unnamed, file.to_owned()));
            named.chain(unnamed).collect()
        }
    }
}

fn sentence(notice: Notice<'_>) -> String {
    match notice {
        Notice::Problem(problem) => problem.to_owned(),
        Notice::OomKill { pid, command, file, .. } => format!(
            "the kernel has killed process {pid} ({command}) for lack of memory: {file} shows what it held"
        ),
        Notice::GroupOomKill { cgroup, count, victims, pid, file } => {
            let whom = match (count, victims) {
                (1, []) => "a process, it is not known which,".to_owned(),
                (1, [(victim, name), ..]) => {
                    format!("{name} (PID {victim}), which was not recorded,")
                }
                (_, []) => format!("{} processes, it is not known which,", HumanCount(count)),
                (_, [.., (victim, name)]) => format!(
                    "{} processes, of which the last that is known is {name} (PID {victim}),",
                    HumanCount(count)
                ),
            };
            format!(
                "the kernel has killed {whom} in the cgroup {cgroup} for lack of memory: {file} shows the \
                 cgroup, and what process {pid} in it held"
            )
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_victim_is_counted_once_and_only_those_that_are_known_are_named() {
        let notice = |count, victims| Notice::GroupOomKill {
            cgroup: "/a",
            count,
            victims,
            pid: 7,
            file: "x.box",
        };
        let counted = |notice: Notice<'_>| {
            kills_of(notice)
                .into_iter()
                .map(|(program, count, _)| (program, count))
                .collect::<Vec<_>>()
        };
        let known = notice(3, &[(8, "x")]);
        assert_eq!(counted(known), [("x".to_owned(), 1), (UNKNOWN.to_owned(), 2)]);
        assert!(
            sentence(known).contains("3 processes, of which the last that is known is x (PID 8)")
        );
        assert!(
            sentence(notice(1, &[])).contains("a process, it is not known which, in the cgroup /a")
        );
        let sentence = sentence(notice(1, &[(8, "x")]));
        assert!(sentence.contains("killed x (PID 8), which was not recorded,"), "{sentence}");
        assert!(!sentence.contains("killed process 7"), "{sentence}");
    }
}
