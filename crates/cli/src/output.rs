//! Where data goes, and in which form.

use std::io::{self, IsTerminal};

use clap::ColorChoice;
use lowtide_report::terminal::Screen;
use serde::Serialize;

use crate::exit::Failure;
use crate::stream::write_to_stdout;

/// A line for people, on stderr. It is not an error if no process reads it any more.
macro_rules! note {
    ($($part:tt)*) => {{
        let _ = $crate::stream::write_to_stderr(format!("{}\n", format_args!($($part)*)).as_bytes());
    }};
}
pub(crate) use note;

/// Whether lowtide runs in a job of GitHub Actions.
pub(crate) fn is_on_github() -> bool {
    std::env::var_os("GITHUB_ACTIONS").is_some()
}

/// Prints an error that GitHub shows where a reviewer sees it, if lowtide runs there.
pub(crate) fn annotate(line: &str) {
    if is_on_github() {
        note!("::error::lowtide: {}", line.replace('%', "%25"));
    }
}

/// How the user wants to be told things.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// Data as JSON.
    pub(crate) json: bool,
    color: ColorChoice,
}

/// How wide a table is when nobody knows how wide the terminal is.
const USUAL_WIDTH: u16 = 110;

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

    /// One object on a line of the standard output.
    pub(crate) fn object(&self, object: &impl Serialize) -> Result<(), Failure> {
        self.line_of(object).map(drop)
    }

    /// One object of many. Says whether anybody still reads.
    pub(crate) fn line_of(&self, object: &impl Serialize) -> Result<bool, Failure> {
        let mut line = serde_json::to_vec(object).map_err(Failure::failed)?;
        line.push(b'\n');
        self.put(&line)
    }

    /// One line of many. Says whether anybody still reads.
    pub(crate) fn line(&self, text: &str) -> Result<bool, Failure> {
        self.put(format!("{text}\n").as_bytes())
    }

    /// Text for people.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// The contents of a file. When nobody reads any more (`lowtide … | head`), that is no error.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.put(bytes).map(drop)
    }

    fn put(&self, bytes: &[u8]) -> Result<bool, Failure> {
        match write_to_stdout(bytes) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(
                format!("stdout could not be written: {error}; redirect it to another place"),
            )),
            written => Ok(written.is_ok()),
        }
    }

    /// What the standard output can show.
    pub(crate) fn screen(&self) -> Screen {
        let stdout = io::stdout();
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => stdout.is_terminal() && !dumb && !plain,
        };
        let columns = rustix::termios::tcgetwinsize(&stdout).map(|size| size.ws_col);
        let wished = || std::env::var("COLUMNS").ok()?.parse().ok();
        let width = columns.ok().filter(|c| *c > 0).or_else(wished).unwrap_or(USUAL_WIDTH);
        Screen { width: width.clamp(40, 200), colour }
    }
}
