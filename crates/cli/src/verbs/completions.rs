//! `lowtide completions SHELL`.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::args::Cli;
use crate::exit::{Exit, Failure};

pub(crate) fn run(shell: Shell) -> Result<Exit, Failure> {
    generate(shell, &mut Cli::command(), "lowtide", &mut std::io::stdout());
    Ok(Exit::Done)
}
