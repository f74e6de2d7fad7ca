//! lowtide: memory rises with the load; this shows why it does not fall again, and brings it down.

mod args;
mod bar;
mod exit;
mod group;
mod help;
mod interrupt;
mod keeper;
mod output;
mod patient_finder;
mod present;
mod progress;
mod rerun;
mod selector;
mod shell;
mod stream;
mod supervision;
mod target_error;
mod top;
mod tui;
mod usage;
mod values;
mod verbs;
mod wait;
mod watcher;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Verb};
use exit::{Exit, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error, is_run()),
    };
    let output = output::Output::new(cli.json, cli.color);
    match run(cli.verb, &output) {
        Ok(exit) => exit.into(),
        Err(failure) => output.fail(&failure),
    }
}

/// Returns whether the verb is `run`, whose exit codes are not those of the other verbs.
fn is_run() -> bool {
    std::env::args_os().nth(1).is_some_and(|verb| verb == "run")
}

fn run(verb: Verb, output: &output::Output) -> Result<Exit, Failure> {
    match verb {
        Verb::Demo(args) => verbs::demo::run(&args, output),
        Verb::Study(args) => verbs::study::run(*args, output),
        Verb::Inspect(args) => verbs::inspect::run(&args, output),
        Verb::Release(args) => verbs::release::run(&args, output),
        Verb::Run(args) => verbs::run::run(args),
        Verb::Attach(args) => verbs::attach::run(&args, output),
        Verb::Load(args) => verbs::load::run(&args, output),
        Verb::Leaks(args) => verbs::leaks::run(&args, output),
        Verb::Watch(args) => verbs::watch::run(&args, output),
        Verb::Top(args) => verbs::top::run(&args, output),
        Verb::Exporter(args) => verbs::exporter::run(&args, output),
        Verb::Report(args) => verbs::report::run(&args, output),
        Verb::Completions { shell } => verbs::completions::run(shell, output),
        Verb::Man { verb } => verbs::man::run(verb.as_deref(), output),
        Verb::Keep => Ok(Exit::Passed(lowtide_study::keep())),
        Verb::DemoServer(args) => verbs::demo::server(&args),
    }
}
