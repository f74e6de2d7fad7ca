//! How lowtide ends, and the sentence that goes with it.

use std::fmt::Display;
use std::process::ExitCode;

use lowtide_report::terminal::printable_lines;
use serde::Serialize;

use crate::output::{Output, note};

/// The exit codes. They are promises to scripts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Exit {
    /// 0: done.
    Done,
    /// 1: failed.
    Failed,
    /// 2: what was asked for cannot be done as it was written.
    Usage,
    /// 3: not permitted.
    NotPermitted,
    /// 4: the target is gone.
    Gone,
    /// 5: acting would not have been safe, and nothing was done.
    Refused,
    /// 99: a threshold was crossed.
    Crossed,
    /// 130: ended by Ctrl-C, as shells count it.
    Interrupted,
    /// Whatever a part that ends by itself says.
    Passed(ExitCode),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::SUCCESS,
            Exit::Failed => Self::FAILURE,
            Exit::Usage => 2.into(),
            Exit::NotPermitted => 3.into(),
            Exit::Gone => 4.into(),
            Exit::Refused => 5.into(),
            Exit::Crossed => 99.into(),
            Exit::Interrupted => 130.into(),
            Exit::Passed(code) => code,
        }
    }
}

impl Exit {
    /// The word for it in an error object.
    fn code(self) -> &'static str {
        match self {
            Self::Done | Self::Passed(_) => "done",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::NotPermitted => "not_permitted",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Crossed => "threshold_crossed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Something went wrong: a sentence, how lowtide ends, and a command that helps.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    next: Option<String>,
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        match &self.next {
            Some(next) => write!(f, "\n  next: {next}"),
            None => Ok(()),
        }
    }
}

/// The object that is printed with `--json`.
#[derive(Serialize)]
struct ErrorObject<'a> {
    schema: &'static str,
    code: &'static str,
    message: &'a str,
    next: Option<&'a str>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Display) -> Self {
        Self { exit, message: message.to_string(), next: None }
    }

    /// What was asked for cannot be done as it was written.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// It was tried and did not work.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// A file could not be written.
    pub(crate) fn io(path: &std::path::Path, error: &std::io::Error) -> Self {
        let exit = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::NotPermitted,
            _ => Exit::Failed,
        };
        let reason = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "permission denied to this user",
            _ => &error.to_string(),
        };
        let path = path.display();
        Self::new(
            exit,
            format!("{path} could not be written ({reason}): name another place for it"),
        )
    }

    /// How lowtide ends by it.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// A command to type next.
    pub(crate) fn next(mut self, command: impl Into<String>) -> Self {
        self.next = Some(command.into());
        self
    }

    /// Tells it, and gives the exit code.
    pub(crate) fn tell(&self, output: &Output) -> ExitCode {
        if output.json {
            let object = ErrorObject {
                schema: "lowtide.error/1",
                code: self.exit.code(),
                message: &self.message,
                next: self.next.as_deref(),
            };
            // When not even this can be printed, the exit code has to say it.
            if let Err(failure) = output.object(&object) {
                note!("lowtide: {failure}");
            }
        } else {
            note!("lowtide: {}", printable_lines(&self.to_string()));
        }
        self.exit.into()
    }
}

/// What clap found wrong with the command line, or the help that was asked for.
pub(crate) fn wrong_usage(error: &clap::Error) -> ExitCode {
    let is_error = error.use_stderr();
    // Whether an object is wanted can only be guessed from words that were not understood.
    if is_error && std::env::args_os().any(|word| word == "--json") {
        let text = error.render().to_string();
        let message = text.trim().trim_start_matches("error: ");
        let message = message.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        let failure = Failure::usage(message).next("lowtide --help");
        return failure.tell(&Output::new(true, clap::ColorChoice::Never));
    }
    let _ = error.print();
    if is_error { Exit::Usage.into() } else { Exit::Done.into() }
}
