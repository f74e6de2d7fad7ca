//! The black box of `run` and `attach`.

use std::io::ErrorKind;
use std::path::Path;

use lowtide_record::files::UnsafePath;
use lowtide_report::text::printable;
use lowtide_supervise::black_box::{BlackBox, BoxSize};

use crate::args::PolicyArgs;
use crate::console::output::note;
use crate::failure::exit::Failure;

/// Starts the black box that the user has asked for.
///
/// # Errors
/// Fails if its directory cannot be written to.
pub(crate) fn start(args: &PolicyArgs, size: BoxSize) -> Result<Option<BlackBox>, Failure> {
    let Some(path) = &args.black_box else { return Ok(None) };
    let report = Box::new(|text: &str| note!("lowtide: {}", printable(text)));
    let started = BlackBox::start(path, size, args.policy.to_string(), report);
    started.map(Some).map_err(|error| failure(path, &error))
}

fn failure(path: &Path, error: &std::io::Error) -> Failure {
    let shown = path.display();
    if let Some(reason) = UnsafePath::of(error) {
        return Failure::usage(format!(
            "{shown} is not safe to write to ({reason}): name a directory that only you may write to"
        ));
    }
    match error.kind() {
        ErrorKind::WouldBlock => Failure::usage(format!(
            "another lowtide records in {shown}: name another directory, or end it first"
        )),
        ErrorKind::NotADirectory => {
            Failure::usage(format!("{shown} is not a directory: name a directory"))
        }
        _ => Failure::io(path, error),
    }
}
