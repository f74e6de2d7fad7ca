//! stdout and stderr: data as JSON or text, notes, and failures.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use clap::ColorChoice;
use lowtide_record::files;
use lowtide_report::Screen;
use lowtide_report::text::{printable_lines, with_whole_commands, wrapped};
use serde::Serialize;

use crate::console::stream::write_to_stdout;
use crate::failure::exit::Failure;

/// Prints a line for people on stderr; a terminal does not break its words. It is not an error if
/// no process reads it any more.
macro_rules! note {
    ($($part:tt)*) => {{
        let text = $crate::console::output::broken(format!("{}\n", format_args!($($part)*)));
        let _ = $crate::console::stream::write_to_stderr(text.as_bytes());
    }};
}
pub(crate) use note;

/// Returns text for stderr: on a terminal, broken between words.
pub(crate) fn broken(text: String) -> String {
    match columns(&io::stderr()) {
        Some(columns) => broken_at(&text, columns),
        None => text,
    }
}

/// Breaks long lines between words, and commands so that they can be pasted.
fn broken_at(text: &str, columns: u16) -> String {
    let text = with_whole_commands(text, columns);
    let line = |line: &str| -> String {
        let is_long = line.chars().count() > usize::from(columns);
        let is_command = line.trim_start().starts_with("next:") || line.starts_with("      ");
        let is_plain = !line.contains('\x1b');
        let line = if is_long && !is_command && is_plain {
            wrapped(line, columns)
        } else {
            line.to_owned()
        };
        line + "\n"
    };
    text.lines().map(line).collect()
}

/// Returns whether lowtide runs in a job of GitHub Actions.
pub(crate) fn is_on_github() -> bool {
    std::env::var_os("GITHUB_ACTIONS").is_some()
}

/// Prints an error as an annotation of GitHub, if lowtide runs there.
pub(crate) fn annotate(line: &str) {
    if is_on_github() {
        note!("::error::lowtide: {}", line.replace('%', "%25"));
    }
}

/// What is said of the mode of a written report.
pub(crate) const MODE_REMARK: &str = "mode 0640: chmod o+r, if a web server is to show it";

/// The form in which results are printed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// Whether to print data as JSON.
    pub(crate) json: bool,
    color: ColorChoice,
}

/// Returns the number of columns of a terminal; `None` if it is none, or has no size.
fn columns(terminal: &impl AsFd) -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(terminal).ok();
    size.map(|size| size.ws_col).filter(|columns| *columns > 0)
}

/// Width of tables if that of the terminal is unknown, in columns.
const DEFAULT_WIDTH: u16 = 110;

impl Output {
    pub(crate) fn new(json: bool, color: ColorChoice) -> Self {
        let choice = match color {
            ColorChoice::Always => anstream::ColorChoice::Always,
            ColorChoice::Never => anstream::ColorChoice::Never,
            ColorChoice::Auto => anstream::ColorChoice::Auto,
        };
        choice.write_global();
        Self { json, color }
    }

    /// Prints one object, on a line of its own.
    pub(crate) fn object(&self, object: &impl Serialize) -> Result<(), Failure> {
        self.line_of(object).map(drop)
    }

    /// Prints one object of many. Returns whether stdout is still read.
    pub(crate) fn line_of(&self, object: &impl Serialize) -> Result<bool, Failure> {
        let mut line = serde_json::to_vec(object).map_err(Failure::failed)?;
        line.push(b'\n');
        self.put(&line)
    }

    /// Prints one line of many. Returns whether stdout is still read.
    pub(crate) fn line(&self, text: &str) -> Result<bool, Failure> {
        self.put(format!("{text}\n").as_bytes())
    }

    /// Prints text for people. A terminal does not break its commands.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        match columns(&io::stdout()) {
            Some(width) => self.bytes(with_whole_commands(text, width).as_bytes()),
            None => self.bytes(text.as_bytes()),
        }
    }

    /// Writes the contents of a file. A reader that has closed its end (`lowtide … | head`) is not
    /// an error.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.put(bytes).map(drop)
    }

    /// Writes a file, or to stdout for `-`.
    pub(crate) fn file(&self, path: &Path, bytes: &[u8], force: bool) -> Result<(), Failure> {
        if path.as_os_str() == "-" {
            return self.bytes(bytes);
        }
        files::write_whole(path, bytes, force).map_err(|error| Failure::io(path, &error))?;
        note!("wrote {} ({MODE_REMARK})", path.display());
        Ok(())
    }

    /// Prints a failure, and returns the exit code.
    pub(crate) fn fail(&self, failure: &Failure) -> ExitCode {
        if self.json {
            // If not even this can be printed, only the exit code is left to report it.
            if let Err(failure) = self.object(&failure.object()) {
                note!("lowtide: {failure}");
            }
        } else {
            note!("lowtide: {}", printable_lines(&failure.to_string()));
        }
        failure.exit().into()
    }

    fn put(&self, bytes: &[u8]) -> Result<bool, Failure> {
        match write_to_stdout(bytes) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(
                format!("cannot write to stdout: {error}; redirect it to a file"),
            )),
            written => Ok(written.is_ok()),
        }
    }

    /// Returns the width of stdout and whether to print colours.
    pub(crate) fn screen(&self) -> Screen {
        let stdout = io::stdout();
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => stdout.is_terminal() && !dumb && !plain,
        };
        let wished = || std::env::var("COLUMNS").ok()?.parse().ok();
        let width = columns(&stdout).or_else(wished).unwrap_or(DEFAULT_WIDTH);
        Screen { width: width.clamp(40, 200), colour }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_broken_between_words_and_commands_can_be_pasted() {
        let text = "10 MiB were returned to the system\n  next: lowtide inspect 4711 --pins\n\n";
        let lines = "10 MiB were\nreturned to the\nsystem\n";
        let command = "  next: lowtide inspect 4711 --pins\n\n";
        assert_eq!(broken_at(text, 16), format!("{lines}{command}"));
        assert_eq!(broken_at(text, 80), text);
    }
}
