//! Errors of command lines that clap rejects.

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lowtide_probe::cgroup::CgroupNameError;
use lowtide_report::text::printable;

use crate::args::Cli;
use crate::args::values::InvalidValue;
use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};
use crate::shell::{PLACEHOLDER, copyable};

/// Prints the error of the command line, or the requested help, and returns the exit code. An error
/// of `run` has an exit code that a command is unlikely to have.
pub(crate) fn report(error: &clap::Error, is_run: bool) -> ExitCode {
    let exit = if is_run { Exit::RunFailed } else { Exit::Usage };
    let is_error = error.use_stderr();
    // clap did not understand the whole line, so whether --json was given can only be guessed.
    // What follows `--` are words of a program.
    let mut own = std::env::args_os().take_while(|word| word != "--");
    let json = is_error && own.any(|word| word == "--json");
    let invalid = error.source().and_then(|source| source.downcast_ref::<InvalidValue>());
    let output = Output::new(json, clap::ColorChoice::Auto);
    if let Some(failure) = ended_process(error) {
        return output.fail(&failure);
    }
    let unknown = unknown_verb(error);
    // Without any word, the help is the answer.
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && !json;
    if is_error && !is_help {
        let failure = match (invalid, unknown) {
            (Some(invalid), _) => Failure::usage(invalid),
            (None, Some(unknown)) => unknown,
            (None, None) => Failure::usage(sentence(error)).next(next()),
        };
        return output.fail(&failure.with_exit(exit));
    }
    let _ = error.print();
    if is_help { exit.into() } else { Exit::Done.into() }
}

/// Returns the verb of the command line, which may follow flags.
pub(crate) fn typed_verb(words: impl Iterator<Item = OsString>) -> Option<OsString> {
    let mut words = words.skip(1);
    while let Some(word) = words.next() {
        if word == "--color" {
            words.next();
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            return Some(word);
        }
    }
    None
}

/// Returns the command to run next: `run` with its program behind `--`, or the help of the typed
/// verb.
fn next() -> String {
    let typed = typed_verb(std::env::args_os()).unwrap_or_default();
    let words = std::env::args_os().skip_while(|word| *word != typed).skip(1);
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    if typed == "run" && words.first().is_some_and(|word| !word.starts_with('-')) {
        let command = copyable(&words).unwrap_or_else(|| PLACEHOLDER.to_owned());
        return format!("lowtide run -- {command}");
    }
    match Cli::command().find_subcommand(&typed).filter(|verb| !verb.is_hide_set()) {
        Some(verb) => format!("lowtide {} --help", verb.get_name()),
        None => "lowtide --help".to_owned(),
    }
}

/// Returns the failure for the cgroup of a process that has ended.
fn ended_process(error: &clap::Error) -> Option<Failure> {
    let name = error.source()?.downcast_ref::<CgroupNameError>()?;
    let is_gone = matches!(name, CgroupNameError::NoProcess(_));
    is_gone.then(|| Failure::new(Exit::Gone, name.to_string()).next("ps -eo pid,comm,args"))
}

/// Returns clap's message and its tips, on one line, without its usage.
fn sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    one_line(&text)
}

fn one_line(text: &str) -> String {
    let message = text.trim().trim_start_matches("error: ");
    let (first, rest) = message.split_once("\n\n").unwrap_or((message, ""));
    let tips = rest.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let sentence = first.split_whitespace().collect::<Vec<_>>().join(" ");
    // What Rust's parser says of a number.
    let sentence = sentence.replace("invalid digit found in string", "not a whole number");
    std::iter::once(sentence.as_str()).chain(tips).collect::<Vec<_>>().join("; ")
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

#[cfg(test)]
mod tests {
    use super::{one_line, typed_verb};

    #[test]
    fn the_verb_is_found_behind_the_flags_before_it() {
        let verb = |line: &str| typed_verb(line.split(' ').map(Into::into));
        assert_eq!(verb("lowtide --json run --bad inspect"), Some("run".into()));
        assert_eq!(verb("lowtide --color never run"), Some("run".into()));
        assert_eq!(verb("lowtide --json"), None);
    }

    #[test]
    fn a_message_of_clap_is_one_line_with_its_tips_and_without_its_usage() {
        let text = "error: unexpected argument '--pin' found\n\n  tip: a similar argument exists: '--pins'\n\n\
            Usage: lowtide inspect --pins [PID]...\n\nFor more information, try '--help'.\n";
        let line = "unexpected argument '--pin' found; a similar argument exists: '--pins'";
        assert_eq!(one_line(text), line);
        let number = "error: invalid value 'x' for '--top <COUNT>': invalid digit found in string";
        assert_eq!(one_line(number), "invalid value 'x' for '--top <COUNT>': not a whole number");
        let missing = "error: the following required arguments were not provided:\n  <URL>...\n\nUsage: lowtide load";
        assert_eq!(
            one_line(missing),
            "the following required arguments were not provided: <URL>..."
        );
    }
}
