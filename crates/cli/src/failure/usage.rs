//! Errors of command lines that clap rejects.

use std::error::Error;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use lowtide_probe::cgroup::CgroupNameError;
use lowtide_report::text::printable;

use crate::args::values::InvalidValue;
use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};

/// Prints the error of the command line, or the requested help, and returns the exit code. An error
/// of `run` has an exit code that a command is unlikely to have.
pub(crate) fn report(error: &clap::Error, is_run: bool) -> ExitCode {
    let exit = if is_run { Exit::RunFailed } else { Exit::Usage };
    let is_error = error.use_stderr();
    // clap did not understand the whole line, so whether --json was given can only be guessed.
    let json = is_error && std::env::args_os().any(|word| word == "--json");
    let invalid = error.source().and_then(|source| source.downcast_ref::<InvalidValue>());
    let output = Output::new(json, clap::ColorChoice::Auto);
    if let Some(failure) = ended_process(error) {
        return output.fail(&failure);
    }
    let unknown = unknown_verb(error);
    if invalid.is_some() || unknown.is_some() || json {
        let failure = match (invalid, unknown) {
            (Some(invalid), _) => Failure::usage(invalid),
            (None, Some(unknown)) => unknown,
            (None, None) => Failure::usage(sentence(error)).next("lowtide --help"),
        };
        return output.fail(&failure.with_exit(exit));
    }
    let _ = error.print();
    if is_error { exit.into() } else { Exit::Done.into() }
}

/// Returns the failure for the cgroup of a process that has ended.
fn ended_process(error: &clap::Error) -> Option<Failure> {
    let name = error.source()?.downcast_ref::<CgroupNameError>()?;
    let is_gone = matches!(name, CgroupNameError::NoProcess(_));
    is_gone.then(|| Failure::new(Exit::Gone, name.to_string()).next("ps -eo pid,comm,args"))
}

/// Returns the first paragraph of clap's message, on one line.
fn sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let message = text.trim().trim_start_matches("error: ");
    message.split("\n\n").next().unwrap_or_default().replace('\n', " ")
}

/// Returns the failure for a first word that names neither a verb nor a process. The next step is
/// the help of the most similar verb.
fn unknown_verb(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let word = match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(word) => printable(word),
        _ => return None,
    };
    let similar = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(verbs)) => verbs.first().map(String::as_str),
        _ => None,
    };
    let message = format!("lowtide has no command `{word}`, and no process has this name");
    let next = similar.map_or("lowtide --help".to_owned(), |verb| format!("lowtide {verb} --help"));
    Some(Failure::usage(message).next(next))
}
