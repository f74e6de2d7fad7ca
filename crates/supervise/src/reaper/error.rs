//! Errors that prevent a service from starting.

use std::ffi::OsString;
use std::io;

use thiserror::Error;

use super::OWN_FAILURE;

/// Errors of a command and its environment that cannot be passed to a program.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// There is no program.
    #[error("the command is empty")]
    Empty,
    /// An argument or a variable cannot be a C string.
    #[error("{0:?} contains a NUL byte")]
    Nul(OsString),
    /// A variable would be read as another one.
    #[error("{0:?} is not a valid name of an environment variable")]
    Variable(OsString),
}

/// Errors of a service that was not started.
#[derive(Debug, Error)]
pub enum ReaperError {
    /// The program was not found.
    #[error(
        "{program:?} was not found, or the interpreter that it names (#!, ELF) was not: check its path"
    )]
    NotFound {
        /// The program as given.
        program: OsString,
    },
    /// The program cannot be executed.
    #[error("{program:?} cannot be executed: {source}: check its mode and its format")]
    NotExecutable {
        /// The program as given.
        program: OsString,
        /// The error of execve(2).
        source: io::Error,
    },
    /// The calling process must not fork.
    #[error("a service can only be started from a process with one thread; this one has {0}")]
    Threads(usize),
    /// Another system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that was attempted.
        action: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

impl ReaperError {
    /// Returns the exit code: 127 for a program that was not found, 126 for one that cannot be
    /// executed, and [`OWN_FAILURE`] otherwise, as `env` and `timeout` do.
    pub fn code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::Threads(_) | Self::System { .. } => OWN_FAILURE,
        }
    }
}

/// Returns a function that creates the error of a failed system call.
pub(super) fn system<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> ReaperError {
    move |source| ReaperError::System { action, source: source.into() }
}
