//! Why a study cannot be run: its settings are wrong, something is in the way, or its record cannot be made.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use lowtide_analysis::threshold::ThresholdError;
use lowtide_model::number::NumberError;
use lowtide_record::ReadError;

use crate::allocator::AllocatorError;
use crate::ready::ReadyError;
use crate::tune::TuneError;

/// Why a study cannot be run as it was asked for.
#[derive(Debug, Error)]
pub enum PlanError {
    /// There is nothing to run.
    #[error(
        "there is no command: write it behind `--`, as in `lowtide study -- python3 app.py`, or in a study file"
    )]
    NoCommand,
    /// The command does not exist.
    #[error(
        "there is no command `{0}`: it is not in PATH, or not executable; check the name, or give its path"
    )]
    NoSuchCommand(String),
    /// Something about the allocators.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// Something about their settings.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// Two treatments would have one name.
    #[error("two treatments are called `{0}`: give one of them another label")]
    SameLabel(String),
    /// Something about the condition of being ready.
    #[error("--ready: {0}")]
    Ready(#[from] ReadyError),
    /// A number or a time is wrong.
    #[error("--{flag}: {error}")]
    Number {
        /// The flag, or the key of the file.
        flag: &'static str,
        /// What is wrong.
        error: NumberError,
    },
    /// Something else about a value.
    #[error("--{flag}: {reason}")]
    Value {
        /// The flag, or the key of the file.
        flag: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// What is to be gone on with was not said.
    #[error("--resume goes on with a record: name its directory with --output")]
    ResumeWhat,
    /// A command for the shell does not exist.
    #[error(transparent)]
    NoShellCommand(Obstacle),
    /// Something about a threshold.
    #[error("--fail-on: {0}")]
    Threshold(#[from] ThresholdError),
    /// A setting cannot be written into a record.
    #[error("the settings cannot be recorded: {0}")]
    Unrecordable(serde_json::Error),
}

/// Something is in the way of every trial.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// Somebody else answers where the subject is to.
    #[error("something answers at {0} before the command is started: end it, or use another port")]
    PortInUse(String),
    /// Too few files may be open.
    #[error(
        "the study asks for {needed} open files (open-files), and {limit} are permitted at most: raise the \
         limit (as root: ulimit -Hn {needed}; for a service: LimitNOFILE={needed}), or ask for less"
    )]
    OpenFiles {
        /// What was asked for.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// A command for the shell begins with what is no command.
    #[error(
        "there is no command `{word}`, with which {what} begins: it is not in PATH, or not executable; \
         check the name, or give its path"
    )]
    NoShellCommand {
        /// Which command: a flag, or a key of the file.
        what: &'static str,
        /// Its first word.
        word: String,
    },
    /// The set-up did not make the command under study.
    #[error(
        "the set-up ended well, but there is no command `{0}`: it should have made it; check the name, and \
         what the set-up does"
    )]
    NotMade(String),
}

/// Why a study could not be run.
#[derive(Debug, Error)]
pub enum StudyError {
    /// The directory for the record holds something else.
    #[error("{} is not an empty directory: name another directory with --output, or remove it", .0.display())]
    OutputNotEmpty(PathBuf),
    /// It holds this very study, and nobody said to go on with it.
    #[error(
        "{} is not an empty directory: it holds this study, with {done} of {of} trials done; go on with it \
         by --resume, or name another directory with --output", directory.display()
    )]
    OutputHoldsIt {
        /// The directory.
        directory: PathBuf,
        /// The trials that are done.
        done: usize,
        /// The trials that there are.
        of: usize,
    },
    /// It holds another study.
    #[error(
        "{} is not an empty directory: it holds a study whose `{what}` is {there}, and here it is {here}; \
         nothing was changed: ask for the same, or name another directory with --output",
        directory.display()
    )]
    OtherPlan {
        /// The directory.
        directory: PathBuf,
        /// What is different: the name of a flag or of a key.
        what: String,
        /// What it is in the record.
        there: String,
        /// What was asked for.
        here: String,
    },
    /// Somebody else is writing to the record.
    #[error(
        "another lowtide is writing to {}: wait until it has ended, or name another directory with --output",
        .0.display()
    )]
    InUse(PathBuf),
    /// The record that is to be gone on with cannot be read.
    #[error("{} {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: ReadError,
    },
    /// The record could not be made.
    #[error("the record could not be written: {}: {error}", path.display())]
    Record {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The record could not be written any more.
    #[error("the record could not be written: {0}; what was recorded before is kept")]
    Recording(String),
    /// Something is in the way of every trial.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// The command that sets the study up failed.
    #[error("{0}")]
    Setup(String),
    /// Ctrl-C, before the first trial.
    #[error("interrupted before the first trial")]
    Interrupted,
}
