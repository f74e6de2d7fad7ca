//! `lowtide release`, on real processes.

mod acting;
mod bad_input;
mod collecting;
mod promises;

use std::process::Output;

use crate::support::lowtide;

/// Runs `lowtide release --json`.
pub(crate) fn release(flags: &[&str], pid: u32) -> Output {
    lowtide().args(["--json", "release"]).args(flags).arg(pid.to_string()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
