//! Errors that prevent a study: invalid settings, an obstacle, or a record that cannot be written.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use lowtide_analysis::threshold::ThresholdError;
use lowtide_model::number::NumberError;
use lowtide_record::ReadError;

use crate::allocator::AllocatorError;
use crate::ready::ReadyError;
use crate::tune::TuneError;

/// The reason why a study cannot be run as requested.
#[derive(Debug, Error)]
pub enum PlanError {
    /// There is no command to run.
    #[error(
        "no command is given: write one after `--`, as in `lowtide study -- python3 app.py`, or in a study file"
    )]
    NoCommand,
    /// The command does not exist.
    #[error(
        "there is no command `{0}`: it is not in PATH, or not executable; check the name, or give its path"
    )]
    NoSuchCommand(String),
    /// An allocator cannot be used.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// A setting of an allocator is invalid.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// Two treatments would have the same name.
    #[error("two treatments have the label `{0}`: change one of them")]
    SameLabel(String),
    /// The ready condition is invalid.
    #[error("--ready: {0}")]
    Ready(#[from] ReadyError),
    /// A number or a duration is invalid.
    #[error("--{flag}: {error}")]
    Number {
        /// The flag, or the key of the file.
        flag: &'static str,
        /// The error.
        error: NumberError,
    },
    /// A value is invalid for another reason.
    #[error("--{flag}: {reason}")]
    Value {
        /// The flag, or the key of the file.
        flag: &'static str,
        /// The reason.
        reason: String,
    },
    /// `--resume` was given without the directory of a record.
    #[error("--resume continues a record: name its directory with --output")]
    ResumeWhat,
    /// A shell command does not exist.
    #[error(transparent)]
    NoShellCommand(Obstacle),
    /// A threshold is invalid.
    #[error("--fail-on: {0}")]
    Threshold(#[from] ThresholdError),
    /// A threshold on the difference between two versions was given without another version.
    #[error(
        "--fail-on {0} compares two versions of the command: name the other one with --against 'CMD'"
    )]
    NothingToCompare(String),
    /// A setting cannot be written into a record.
    #[error("the settings cannot be recorded: {0}")]
    Unrecordable(serde_json::Error),
}

/// An obstacle to every trial.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// Another process answers at the address of the subject.
    #[error(
        "another process listens at {0} before the command is started: end it, or use another port"
    )]
    PortInUse(String),
    /// The limit of open files is too low.
    #[error(
        "the study requires {needed} open files (the setting open-files), but at most {limit} are permitted: raise the \
         limit (as root: ulimit -Hn {needed}; for a service: LimitNOFILE={needed}), or require fewer"
    )]
    OpenFiles {
        /// The requested limit.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A shell command starts with a word that is not a command.
    #[error(
        "there is no command `{word}`, with which {what} begins: it is not in PATH, or not executable; \
         check the name, or give its path"
    )]
    NoShellCommand {
        /// The flag, or the key of the file, that has the command.
        what: &'static str,
        /// Its first word.
        word: String,
    },
    /// The set-up did not create the command under study.
    #[error(
        "the set-up succeeded, but did not create the command `{0}`; check the name, and \
         the set-up"
    )]
    NotMade(String),
}

/// The reason why a study could not be run.
#[derive(Debug, Error)]
pub enum StudyError {
    /// The directory for the record contains something else.
    #[error("{} is not an empty directory: name another directory with --output, or remove it", .0.display())]
    OutputNotEmpty(PathBuf),
    /// It contains this study, and the user did not ask to resume it.
    #[error(
        "{} is not an empty directory: it contains this study, with {done} of {of} trials done; continue it \
         with --resume, or name another directory with --output", directory.display()
    )]
    OutputHoldsIt {
        /// The directory.
        directory: PathBuf,
        /// Number of trials that are done.
        done: usize,
        /// Total number of trials.
        of: usize,
    },
    /// It contains another study.
    #[error(
        "{} is not an empty directory: it contains a study whose `{what}` is {there}, but here it is {here}; \
         nothing was changed: use the same value, or name another directory with --output",
        directory.display()
    )]
    OtherPlan {
        /// The directory.
        directory: PathBuf,
        /// The name of the flag or key that differs.
        what: String,
        /// Its value in the record.
        there: String,
        /// The requested value.
        here: String,
    },
    /// Another process is writing to the record.
    #[error(
        "another lowtide is writing to {}: wait until it has ended, or name another directory with --output",
        .0.display()
    )]
    InUse(PathBuf),
    /// The record to be resumed cannot be read.
    #[error("{} {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: ReadError,
    },
    /// The record could not be created.
    #[error("the record could not be written: {}: {error}", path.display())]
    Record {
        /// The path.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The record could not be written any longer.
    #[error("the record could not be written: {0}; what was recorded before is kept")]
    Recording(String),
    /// An obstacle prevents every trial.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// The set-up command failed.
    #[error("{0}")]
    Setup(String),
    /// Ctrl-C was pressed before the first trial.
    #[error("interrupted before the first trial")]
    Interrupted,
}
