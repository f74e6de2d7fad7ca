//! A progress line on stderr that never blocks: output that a stalled terminal does not accept is
//! dropped, so that neither a load nor a trial waits for it.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use crate::console::stream::try_write_to_stderr;

/// Maximum number of updates per second.
const REFRESH_RATE: u8 = 20;

/// Returns a progress line in a format of `indicatif`, if stderr is a terminal.
pub(crate) fn on_stderr(length: Option<u64>, template: &str) -> Option<ProgressBar> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let target = ProgressDrawTarget::term_like_with_hz(Box::<Stderr>::default(), REFRESH_RATE);
    let bar = ProgressBar::with_draw_target(length, target);
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"));
    Some(bar)
}

/// The terminal on stderr, written to when a line is complete.
#[derive(Debug, Default)]
struct Stderr {
    line: Mutex<String>,
}

impl Stderr {
    fn add(&self, text: &str) {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    /// Adds a control sequence that moves the cursor (ECMA-48, 8.3).
    fn move_cursor(&self, cells: usize, direction: char) -> io::Result<()> {
        if cells > 0 {
            self.add(&format!("\x1b[{cells}{direction}"));
        }
        Ok(())
    }
}

impl TermLike for Stderr {
    fn width(&self) -> u16 {
        let size = rustix::termios::tcgetwinsize(io::stderr());
        size.map_or(80, |size| size.ws_col).max(1)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(text);
        self.add("\n");
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add("\r\x1b[2K");
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let text = std::mem::take(&mut *self.line.lock().unwrap_or_else(PoisonError::into_inner));
        try_write_to_stderr(text.as_bytes());
        Ok(())
    }
}
