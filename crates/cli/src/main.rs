//! lowtide: memory rises with the load; this shows why it does not fall again, and brings it down.

mod args;
mod console;
mod failure;
mod keeper;
mod present;
mod proc_mount;
mod select;
mod shell;
mod supervision;
mod top;
mod tui;
mod verbs;
mod watcher;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;
use lowtide_probe::mapped;

use args::{Cli, Verb};
use failure::exit::{Exit, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(args::typed::typed()) {
        Ok(cli) => cli,
        Err(error) => return failure::usage::report(&error, is_run()),
    };
    let output = console::output::Output::new(cli.json, cli.color);
    match run(cli.verb, &output) {
        Ok(exit) => exit.into(),
        Err(failure) => output.fail(&failure),
    }
}

/// Returns whether the verb is `run`, whose exit codes are not those of the other verbs.
fn is_run() -> bool {
    failure::usage::typed_verb(std::env::args_os()).is_some_and(|verb| verb == "run")
}

fn run(verb: Verb, output: &console::output::Output) -> Result<Exit, Failure> {
    if verb.reads_processes() {
        proc_mount::check_mounted()?;
        // The exporter forbids itself to start programs.
        if !matches!(verb, Verb::Exporter(_)) {
            mapped::read_remote_files_by(remote_reader);
        }
    }
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
        Verb::ReadMapped { pid, start, inode } => {
            let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
            // lowtide, which reads the output, may have ended.
            let _ = mapped::serve(pid, start, inode, input, output);
            Ok(Exit::Passed(ExitCode::SUCCESS))
        }
        Verb::DemoServer(args) => verbs::demo::server(&args),
    }
}

/// Returns the command of a process that reads a mapped file: lowtide itself, with a hidden verb.
fn remote_reader() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("lowtide").arg("read-mapped");
    command
}
