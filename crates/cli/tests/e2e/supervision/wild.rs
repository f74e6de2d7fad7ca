//! `fixtures/wild.c`: a target that verifies its memory, whatever happens to its supervisor.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{acts, pid_of};
use crate::inspect::{Subject, plain};
use crate::support::{fixture, until};

/// Exit code of the program if all of its memory was intact.
pub(crate) const INTACT: i32 = 7;

/// Returns the program.
pub(crate) fn program() -> String {
    fixture("wild", &[])
}

/// Starts the program.
pub(crate) fn start(words: &[&str]) -> Subject {
    Subject::start(plain(&program()).args(words))
}

/// Ends a process by SIGTERM, and returns its exit code.
pub(crate) fn terminate(child: &mut Child) -> Option<i32> {
    kill_process(pid_of(child.id()), Signal::TERM).unwrap();
    child.wait().unwrap().code()
}

/// Returns whether code of lowtide is mapped in a process: no other executable mapping is
/// anonymous.
pub(crate) fn has_stub(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(5).copied().unwrap_or_default();
        words[1].contains('x') && (name.is_empty() || name.starts_with("[anon:"))
    })
}

/// Waits for the middle of a release, which lasts only some milliseconds.
pub(crate) fn until_stub(pid: u32) {
    let deadline = Instant::now() + Duration::from_secs(600);
    while !has_stub(pid) {
        assert!(Instant::now() < deadline, "no release of {pid} was seen");
    }
}

/// Returns the number of threads of a process.
pub(crate) fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// Returns the children of a process, the oldest first.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Returns the acts of a log that returned memory.
pub(crate) fn releases(log: &Path) -> Vec<Value> {
    let all = acts(log, "act");
    all.into_iter().filter(|act| act["returned_bytes"].as_u64() > Some(0)).collect()
}

/// Waits until a log has this many more releases than now.
pub(crate) fn until_released(log: &Path, more: usize) {
    let before = releases(log).len();
    until("releases", || (releases(log).len() >= before + more).then_some(()));
}
