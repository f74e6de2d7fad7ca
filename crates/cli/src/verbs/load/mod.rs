//! `lowtide load URL…`.

mod display;
mod plan;

use clap::Parser;
use lowtide_analysis::threshold::{Crossing, Threshold};
use lowtide_load::{
    Available, LimitError, OtherProtocol, RequestFailure, RunError, TlsFailure, ephemeral_ports,
    max_open_files, raise_open_files,
};
use lowtide_model::load::LoadReport;
use lowtide_record::v1::Machine;
use lowtide_report::load as picture;

use crate::args::{Cli, LoadArgs, Verb};
use crate::console::interrupt;
use crate::console::output::{Output, annotate, note};
use crate::failure::exit::{Exit, Failure};
use display::ProgressDisplay;

pub(crate) fn run(args: &LoadArgs, output: &Output) -> Result<Exit, Failure> {
    let plan = plan::plan(args)?;
    let machine = lowtide_probe::machine::detect();
    let available = available(&machine, raise_open_files());
    let mut display = ProgressDisplay::new(args, &plan, &machine, output)?;
    let interrupt = interrupt::flag();
    let done = lowtide_load::run(&plan, &available, &mut display, &interrupt);
    display.finish()?;
    let report = done.map_err(|error| failure(error, args))?;
    if output.json {
        output.object(&report)?;
    } else {
        output.text(&picture::end(&report, output.screen()))?;
    }
    let is_crossed = show_crossings(&args.fail_on, &report);
    Ok(match (report.interrupted, is_crossed) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::Crossed,
        (false, false) => Exit::Done,
    })
}

/// Prints a sentence for each crossing of a threshold, and returns whether there is one.
fn show_crossings(thresholds: &[Threshold], report: &LoadReport) -> bool {
    let crossings: Vec<Crossing> =
        thresholds.iter().flat_map(|threshold| threshold.crossings_of_load(report)).collect();
    for crossing in &crossings {
        annotate(&crossing.to_string());
        note!("crossed: {crossing}");
    }
    for threshold in thresholds.iter().filter(|threshold| threshold.is_void_of_load(report)) {
        note!("note: --fail-on {threshold} was not checked: no round has that metric");
    }
    !crossings.is_empty()
}

/// Returns the resources of this machine, `files` being the limit on open files.
fn available(machine: &Machine, files: u64) -> Available {
    let memory = [machine.memory_available_bytes, machine.cgroup_limit_bytes];
    let memory_bytes = memory.into_iter().flatten().min();
    Available { files, memory_bytes, ports: ephemeral_ports() }
}

/// Checks that this machine permits the load that a study starts with this command line. Returns
/// its number of connections, or `None` for a line that is not a plain `lowtide load`.
pub(crate) fn check(line: &str) -> Result<Option<u64>, Failure> {
    let Some(args) = parse_line(line) else { return Ok(None) };
    // The shell may expand the words, so an invalid one is left for the load itself to report.
    let Ok(plan) = plan::plan(&args) else { return Ok(None) };
    let available = available(&lowtide_probe::machine::detect(), max_open_files());
    match plan.check(&available) {
        Ok(()) => Ok(Some(plan.connections as u64)),
        Err(error @ LimitError::Memory { .. }) => {
            Err(Failure::failed(format!("the load: {error}")))
        }
        Err(error) => Err(Failure::new(Exit::NotPermitted, format!("the load: {error}"))),
    }
}

/// Parses a shell command line that is a plain `lowtide load`.
fn parse_line(line: &str) -> Option<LoadArgs> {
    let words = shlex::split(line)?;
    let is_before_redirection = |word: &&str| {
        !word
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .starts_with(['>', '<', '|', ';', '&'])
    };
    let words = words.iter().map(String::as_str).skip_while(|word| *word == "exec");
    let mut words = words.take_while(is_before_redirection).collect::<Vec<&str>>();
    let first = words.first_mut()?;
    if !["$LOWTIDE", "${LOWTIDE}"].contains(first) && !first.ends_with("lowtide") {
        return None;
    }
    *first = "lowtide";
    match Cli::try_parse_from(words).ok()?.verb {
        Verb::Load(args) => Some(*args),
        _ => None,
    }
}

/// Converts the error of a load, and adds the next command.
fn failure(error: RunError, args: &LoadArgs) -> Failure {
    let failure = match &error {
        RunError::Limit(_) | RunError::Tls(_) => Failure::usage(&error),
        _ => Failure::failed(&error),
    };
    let RunError::NoConnection { target, failure: reason } = &error else { return failure };
    let again = |flag: &str| format!("lowtide load {} {flag}", crate::shell::quoted(target));
    match reason {
        RequestFailure::NotTrusted(_) => failure.next(again("-k")),
        RequestFailure::NotHttp1(OtherProtocol::Http2) => failure.next(again("--http2")),
        RequestFailure::NotHttp1(OtherProtocol::Tls) => {
            failure.next(again("").trim().replacen("http:", "https:", 1))
        }
        // Many servers just close the connection if they do not support the requested protocol.
        RequestFailure::Closed | RequestFailure::Reset if args.http2 || args.streams > Some(1) => {
            failure.next(again("--http1"))
        }
        RequestFailure::NotHttp2(_) | RequestFailure::NoProtocol if !args.http1 => {
            failure.next(again("--http1"))
        }
        RequestFailure::NoProtocol => failure.next(again("--http2")),
        RequestFailure::Tls(TlsFailure::NotTls) => {
            let plain = again("").replacen("https:", "http:", 1).replacen("tls:", "tcp:", 1);
            failure.next(plain.trim())
        }
        RequestFailure::Refused => {
            Failure::failed(format!("{error}: is the server running there?"))
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lowtide_load_command_in_a_study_is_recognized() {
        let connections = |line: &str| parse_line(line).map(|args| args.connections);
        assert_eq!(connections("exec \"$LOWTIDE\" --json load tcp:h:1 -c 3000"), Some(3000));
        assert_eq!(connections("lowtide load http://h/ -c 7 2>&1 > /dev/null"), Some(7));
        assert_eq!(connections("lowtide inspect 1"), None);
        assert_eq!(connections("wrk -c 10 http://h/"), None);
        assert_eq!(connections("'"), None);
    }
}
