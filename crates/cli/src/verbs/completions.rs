//! `lowtide completions SHELL`.

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};

use crate::args::Cli;
use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};

pub(crate) fn run(shell: Shell, output: &Output) -> Result<Exit, Failure> {
    let whole = Cli::command();
    // Hidden verbs are for lowtide itself.
    let verbs = whole.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
    // The flag for help is one of the arguments.
    let mut visible = Command::new("lowtide")
        .disable_help_flag(true)
        .args(whole.get_arguments().cloned())
        .subcommands(verbs);
    let mut script = Vec::new();
    generate(shell, &mut visible, "lowtide", &mut script);
    output.bytes(&script)?;
    Ok(Exit::Done)
}
