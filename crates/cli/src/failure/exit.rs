//! Exit codes, and failures with a message and a next step.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::ExitCode;

use lowtide_model::text::without_error_numbers;
use serde::Serialize;

/// The exit codes. They are promises to scripts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Exit {
    /// 0: done.
    Done,
    /// 1: failed.
    Failed,
    /// 2: the command line cannot be carried out as written.
    Usage,
    /// 3: not permitted.
    NotPermitted,
    /// 4: the target process has ended.
    Gone,
    /// 5: refused because it would not have been safe; nothing was changed.
    Refused,
    /// 99: a threshold was crossed.
    Crossed,
    /// 130: ended by Ctrl-C, 128 + SIGINT as in shells.
    Interrupted,
    /// 125: `run` itself failed.
    RunFailed,
    /// 126: the command of `run` could not be started.
    NotExecutable,
    /// 127: the command of `run` was not found.
    NotFound,
    /// The exit code of a hidden verb, passed on.
    Passed(ExitCode),
}

impl Exit {
    /// Returns the worse of the codes of two processes: an error is worse than a release that was
    /// refused.
    pub(crate) fn or(self, other: Self) -> Self {
        const FROM_BAD_TO_WORSE: [Exit; 7] = [
            Exit::Done,
            Exit::Gone,
            Exit::Refused,
            Exit::NotPermitted,
            Exit::Usage,
            Exit::Failed,
            Exit::Interrupted,
        ];
        let place = |exit| FROM_BAD_TO_WORSE.iter().position(|e| *e == exit);
        if place(other) > place(self) { other } else { self }
    }
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
            Exit::RunFailed => 125.into(),
            Exit::NotExecutable => 126.into(),
            Exit::NotFound => 127.into(),
            Exit::Passed(code) => code,
        }
    }
}

impl Exit {
    /// Returns its name in an error object.
    fn code(self) -> &'static str {
        match self {
            Self::Done | Self::Passed(_) => "done",
            Self::Failed => "failed",
            Self::RunFailed => "run_failed",
            Self::NotExecutable => "not_executable",
            Self::NotFound => "not_found",
            Self::Usage => "usage",
            Self::NotPermitted => "not_permitted",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Crossed => "threshold_crossed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// An error of lowtide: its message, the exit code, and a command that helps.
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

/// A `lowtide.error/1` object.
#[derive(Serialize)]
struct ErrorObject<'a> {
    schema: &'static str,
    code: &'static str,
    message: &'a str,
    next: Option<&'a str>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Display) -> Self {
        Self { exit, message: without_error_numbers(&message.to_string()), next: None }
    }

    /// Returns the failure for a command line that cannot be carried out as written.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Returns the failure for an operation that was attempted and failed.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// Returns the failure for a record that could not be created.
    pub(crate) fn record_not_created(path: &Path, error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::AlreadyExists => Self::usage(format!(
                "{} already exists, and may be a record: name another file",
                path.display()
            )),
            _ => Self::io(path, error),
        }
    }

    /// Returns the failure for a file that could not be written.
    pub(crate) fn io(path: &Path, error: &io::Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::PermissionDenied => Exit::NotPermitted,
            _ => Exit::Failed,
        };
        let reason = match error.kind() {
            ErrorKind::PermissionDenied => "permission denied to this user",
            _ => &error.to_string(),
        };
        let path = path.display();
        Self::new(exit, format!("{path} could not be written ({reason}): name another path"))
    }

    /// Returns the failure for a log of acts that could not be read.
    pub(crate) fn log_not_read(path: &Path, error: &io::Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::PermissionDenied => Exit::NotPermitted,
            _ => Exit::Failed,
        };
        let path = path.display();
        Self::new(
            exit,
            format!(
                "{path} could not be read ({error}): name the log of lowtide run or lowtide attach"
            ),
        )
    }

    /// Returns the exit code.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Replaces the exit code.
    pub(crate) fn with_exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Adds the command to run next.
    pub(crate) fn next(mut self, command: impl std::fmt::Display) -> Self {
        self.next = Some(command.to_string());
        self
    }

    /// Returns the object that is printed with `--json`.
    pub(crate) fn object(&self) -> impl Serialize {
        ErrorObject {
            schema: "lowtide.error/1",
            code: self.exit.code(),
            message: &self.message,
            next: self.next.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_several_exit_codes_is_returned() {
        let all = [Exit::Done, Exit::Gone, Exit::Refused, Exit::NotPermitted, Exit::Failed];
        for (place, bad) in all.iter().enumerate() {
            for worse in &all[place..] {
                assert_eq!(bad.or(*worse), *worse);
                assert_eq!(worse.or(*bad), *worse);
            }
        }
    }
}
