//! `lowtide completions SHELL`.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::args::Cli;
use crate::exit::{Exit, Failure};
use crate::output::Output;

pub(crate) fn run(shell: Shell, output: &Output) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "lowtide", &mut script);
    output.text(&String::from_utf8_lossy(&script));
    Ok(Exit::Done)
}
