//! What would be in the way of every trial, and can be known before the first: told before hours are spent.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use thiserror::Error;

use crate::plan::Plan;
use crate::ready::Ready;
use crate::runner::RunError;
use crate::treatment::find_program;

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

/// After `kill -9`, what an earlier run had started is ended by its keepers: so long that may take.
const ENDING: Duration = Duration::from_secs(10);
const TRY: Duration = Duration::from_millis(50);

/// Looks for what needs no set-up.
///
/// # Errors
/// At the first thing that is in the way, or when it is interrupted.
pub fn before_set_up(plan: &Plan, interrupt: &AtomicBool) -> Result<(), RunError> {
    if let Some(needed) = plan.open_files {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        if needed > limit {
            return Err(Obstacle::OpenFiles { needed, limit }.into());
        }
    }
    // Otherwise that command may end who answers; each trial looks for itself behind it.
    match (&plan.course.ready, &plan.settings.prepare) {
        (Some(ready), None) => nobody_answers(ready, plan.settings.resume, interrupt),
        _ => Ok(()),
    }
}

fn nobody_answers(ready: &Ready, is_resumed: bool, interrupt: &AtomicBool) -> Result<(), RunError> {
    let deadline = Instant::now() + if is_resumed { ENDING } else { Duration::ZERO };
    while answers(ready) {
        if interrupt.load(Ordering::Relaxed) {
            return Err(RunError::Interrupted);
        }
        if Instant::now() >= deadline {
            return Err(Obstacle::PortInUse(ready.to_string()).into());
        }
        thread::sleep(TRY);
    }
    Ok(())
}

/// Whether somebody answers where a subject is to, of which nothing was started yet.
pub(crate) fn answers(ready: &Ready) -> bool {
    matches!(ready, Ready::Tcp(_) | Ready::Http(_)) && ready.attempt().is_ok()
}

/// Looks for what the set-up should have made.
///
/// # Errors
/// At the first thing that is not there.
pub fn after_set_up(plan: &Plan) -> Result<(), Obstacle> {
    match missing_program(plan) {
        Some(program) => Err(Obstacle::NotMade(program.to_owned())),
        None => commands(plan),
    }
}

/// The first program that a treatment would start, and that is not there.
pub(crate) fn missing_program(plan: &Plan) -> Option<&str> {
    let path = plan.settings.environment.get("PATH");
    plan.treatments.iter().find_map(|one| {
        let program = one.own_command().unwrap_or(&plan.command).first()?;
        let path = one.variable("PATH").or(path.map(String::as_str));
        let found = find_program(program, plan.settings.directory.as_deref(), path);
        found.is_none().then_some(program.as_str())
    })
}

/// Looks for the programs with which commands for the shell begin, as far as a glance at them tells. What
/// the command before each trial may make is not looked for.
///
/// # Errors
/// At the first that is not there.
pub fn commands(plan: &Plan) -> Result<(), Obstacle> {
    let later = [("the load", &plan.course.load), ("--cleanup", &plan.settings.cleanup)];
    let known = later.into_iter().filter(|_| plan.settings.prepare.is_none());
    for (what, line) in [("--prepare", &plan.settings.prepare)].into_iter().chain(known) {
        let word = line.as_deref().and_then(first_word);
        if let Some(word) = word.filter(|word| !is_command(word, plan)) {
            return Err(Obstacle::NoShellCommand { what, word: word.to_owned() });
        }
    }
    Ok(())
}

/// The word with which a line for the shell begins, where that can be told without being a shell.
fn first_word(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        let end = rest.find(|c: char| c.is_whitespace() || ";|&<>()".contains(c));
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let is_plain = !word.is_empty()
            && !word.starts_with('-')
            && !word.contains(|c: char| "$`\"'\\*?[]{}!~#".contains(c));
        // `2>file` is not a word of the command, and `f()` defines one.
        let is_number = behind.starts_with(['<', '>']) && word.chars().all(|c| c.is_ascii_digit());
        let is_function = behind.trim_start().starts_with('(');
        // It would be looked for elsewhere.
        if !is_plain || is_number || is_function || word.starts_with("PATH=") {
            return None;
        }
        if word != "exec" && !word.contains('=') {
            return Some(word);
        }
        rest = behind.trim_start();
    }
}

/// Whether the shell would find it: a program, a word of its own, or a keyword.
fn is_command(word: &str, plan: &Plan) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", "command -v \"$0\"", word]).stdin(Stdio::null());
    if let Some(directory) = plan.settings.directory.as_ref().filter(|directory| directory.is_dir())
    {
        shell.current_dir(directory);
    }
    // Without a shell, what is wrong is another thing than this.
    let asked = shell.stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.map_or(true, |status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_port_can_be_interrupted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ready = Ready::Tcp(listener.local_addr().unwrap().to_string());
        let waited = |interrupted| nobody_answers(&ready, interrupted, &interrupted.into());
        assert!(matches!(waited(true), Err(RunError::Interrupted)));
        assert!(matches!(waited(false), Err(RunError::Obstacle(Obstacle::PortInUse(_)))));
    }

    #[test]
    fn only_what_a_line_surely_begins_with_is_looked_for() {
        assert_eq!(first_word("wrk -c 10 http://h/"), Some("wrk"));
        assert_eq!(first_word("  exec sh '/a b/load.sh'"), Some("sh"));
        assert_eq!(first_word("A=1 B=2 exec ./load --fast"), Some("./load"));
        assert_eq!(first_word("true; false"), Some("true"));
        assert_eq!(first_word("wrk 2>&1"), Some("wrk"));
        assert_eq!(first_word("for i in 1 2; do x; done"), Some("for"));
        for line in [
            "",
            "$LOWTIDE load",
            "\"$LOWTIDE\" load",
            "(x)",
            "{ x; }",
            "A=$(x) y",
            "! x",
            "#",
            "exec 2>&1; true",
            "2>/dev/null true",
            "f() { sleep 0.1; }; f; f",
            "f () { true; }; f",
            "PATH=/x/bin:/bin wrkx",
        ] {
            assert_eq!(first_word(line), None, "{line}");
        }
    }
}
