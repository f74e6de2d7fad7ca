//! A shell command that runs to completion: set-up, prepare, load, cleanup.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use lowtide_record::Recorder;

use super::TrialStop;
use crate::capture::{self, OutputTail};
use crate::keeper::{ExitReport, KeeperCommand, KeeperMessage, KeptProgram, Launch};

/// Polling interval of waits. Events of the command wake them immediately.
const STEP: Duration = Duration::from_millis(100);

/// Maximum time to wait for its last output, after it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A shell command.
#[derive(Debug)]
pub(crate) struct Shell<'a> {
    /// Its name in messages: `the load`, `--prepare`.
    pub(crate) what: &'a str,
    /// The command.
    pub(crate) line: &'a str,
    /// Its working directory.
    pub(crate) directory: Option<PathBuf>,
    /// Additional environment variables.
    pub(crate) variables: Vec<(String, String)>,
    /// The file for its output.
    pub(crate) log: &'a Path,
    /// A separate file for its stdout, if any.
    pub(crate) stdout: Option<Stdout>,
}

/// A file for the stdout of a command.
#[derive(Debug)]
pub(crate) struct Stdout {
    /// The file.
    pub(crate) path: PathBuf,
    /// The key of the reason of a failure in the last printed object.
    pub(crate) reason: &'static str,
}

impl Stdout {
    fn reason(&self) -> Option<String> {
        Some(read_last_object(&self.path)?.get(self.reason)?.as_str()?.to_owned())
    }
}

impl Shell<'_> {
    /// Runs it, and ends the processes that it leaves. `watch` is called while it runs, and can
    /// stop it.
    ///
    /// # Errors
    /// Fails if it cannot be started or does not succeed, or if `watch` stops it. The message ends
    /// with the reason that it printed, if there is one.
    pub(crate) fn run(
        self,
        keeper: &KeeperCommand,
        recorder: &Recorder,
        watch: impl FnMut() -> Result<(), TrialStop>,
    ) -> Result<(), TrialStop> {
        let mut tail = None;
        match self.conduct(keeper, recorder, watch, &mut tail) {
            Err(TrialStop::Failed(because)) => {
                let reason = self.stdout.as_ref().and_then(Stdout::reason);
                Err(TrialStop::Failed(format!("{because}{}", why(tail.as_ref(), reason))))
            }
            ended => ended,
        }
    }

    /// Runs it. If it fails by itself, sets `printed` to the end of its output.
    fn conduct(
        &self,
        keeper: &KeeperCommand,
        recorder: &Recorder,
        mut watch: impl FnMut() -> Result<(), TrialStop>,
        printed: &mut Option<OutputTail>,
    ) -> Result<(), TrialStop> {
        let what = self.what;
        let failed =
            |error: io::Error| TrialStop::Failed(format!("{what} could not be started: {error}"));
        let (reader, writer) = io::pipe().map_err(failed)?;
        let variables = self.variables.clone();
        let mut launch = Launch::shell(self.line, self.directory.clone(), variables);
        launch.stdout = self.stdout.as_ref().map(|stdout| stdout.path.clone());
        let (tail, capture) = capture::capture(reader, self.log, recorder, None).map_err(failed)?;
        let mut kept = KeptProgram::start(keeper, launch, writer).map_err(failed)?;
        let exit: ExitReport = loop {
            match kept.next_event(STEP).map(|event| event.report) {
                Some(KeeperMessage::Exited(exit)) => break exit,
                Some(KeeperMessage::CannotStart { because }) => {
                    return Err(TrialStop::Failed(format!(
                        "{what} could not be started: {because}"
                    )));
                }
                None if kept.is_gone() => {
                    return Err(TrialStop::Failed(format!("{what} was ended by another process")));
                }
                _ => watch()?,
            }
        };
        let ended = kept.end();
        drop(kept);
        capture.finish(LAST_WORDS);
        if !exit.is_success() {
            *printed = Some(tail);
            return Err(TrialStop::Failed(format!("{what} failed with {exit}")));
        }
        match ended.complaint() {
            Some(complaint) => Err(TrialStop::Failed(format!("{what} has ended, but {complaint}"))),
            None => Ok(()),
        }
    }
}

/// Returns the reason of a failure, as the end of a sentence: the end of the output, and the reason
/// in its object.
fn why(tail: Option<&OutputTail>, reason: Option<String>) -> String {
    match (tail, reason) {
        (Some(tail), None) => tail.quoted(),
        (None, None) => String::new(),
        (tail, Some(reason)) => {
            format!("{}; {reason}", tail.and_then(OutputTail::lines).unwrap_or_default())
        }
    }
}

/// Maximum number of bytes that are read from the end of the output to find an object.
const MOST_READ: u64 = 8 << 20;
/// Maximum total size of the response bodies of a load in the record, in bytes: larger ones are
/// left out.
const MOST_BODIES: usize = 64 << 10;

/// Returns the metrics of a load from the file with its output: those of its last round.
pub(super) fn read_load_report(path: &Path) -> Option<Value> {
    let mut report = load_report(&end_of(path)?)?;
    if let Some(bodies) = report.get_mut("responses").and_then(|r| r.as_object_mut())
        && bodies.keys().map(String::len).sum::<usize>() > MOST_BODIES
    {
        bodies.clear();
    }
    Some(report)
}

/// Returns the last JSON object in the file with the output of a command.
pub(super) fn read_last_object(path: &Path) -> Option<Value> {
    objects(&end_of(path)?).next()
}

fn end_of(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_READ))).ok()?;
    let mut bytes = Vec::new();
    file.take(MOST_READ).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the text as one object, or its lines that are objects, the last first.
fn objects(text: &str) -> impl Iterator<Item = Value> {
    let lines = text.lines().rev().map(str::trim).filter(|l| l.starts_with('{'));
    let candidates = std::iter::once(text.trim()).chain(lines);
    candidates.filter_map(|text| serde_json::from_str(text).ok()).filter(Value::is_object)
}

/// Returns the metrics of a load that printed a `lowtide.load/1` object: those of its last round.
fn load_report(text: &str) -> Option<Value> {
    objects(text).find_map(|mut object| {
        if object.get("schema")?.as_str()? != lowtide_model::load::SCHEMA {
            return None;
        }
        object.get_mut("rounds")?.as_array_mut()?.pop()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_replaces_the_note_that_nothing_was_printed() {
        let tail = OutputTail::default();
        let reason = || Some("127.0.0.1:1 refuses the connection".to_owned());
        assert_eq!(why(Some(&tail), reason()), "; 127.0.0.1:1 refuses the connection");
        assert_eq!(why(None, reason()), "; 127.0.0.1:1 refuses the connection");
        assert_eq!(why(None, None), "");
        assert_eq!(why(Some(&tail), None), "; it printed nothing");
        tail.push(b"oh\n");
        assert_eq!(why(Some(&tail), Some("why".to_owned())), "; it printed:\n    oh; why");
    }

    #[test]
    fn the_load_report_is_found_among_other_output_lines() {
        let text = "hello\n{\"schema\":\"lowtide.load/1\",\"rounds\":[{\"round\":1,\"failed\":0},{\"round\":2,\"failed\":3}]}\n";
        assert_eq!(load_report(text).unwrap()["failed"], 3);
        assert_eq!(load_report("{\"schema\":\"other\"}"), None);
        assert_eq!(load_report(""), None);
    }
}
