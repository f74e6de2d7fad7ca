//! The terminal while the live view has it. It is given back on every way out, a panic among them.

use std::io::{self, Stdout, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::state::State;
use super::view;

/// Whether there is something to give back.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The alternate screen, and keys as they are pressed.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal. Without keys it is only drawn on.
    pub(super) fn enter(has_keys: bool) -> io::Result<Self> {
        static HOOK: Once = Once::new();
        // What a panic says would otherwise be lost with the alternate screen.
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                give_back();
                before(info);
            }));
        });
        IS_TAKEN.store(true, Ordering::SeqCst);
        let entered =
            take(has_keys).and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match entered {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Draws the state. Gives the number of lines that there are.
    pub(super) fn draw(&mut self, state: &State, colour: bool) -> io::Result<u16> {
        let drawn = self.terminal.draw(|frame| {
            let area = frame.area();
            view::draw(state, colour, area, frame.buffer_mut());
        })?;
        Ok(drawn.area.height)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn take(has_keys: bool) -> io::Result<()> {
    if has_keys {
        enable_raw_mode()?;
    }
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// When the terminal is gone, there is nobody to give it back to.
fn give_back() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = io::stdout().flush();
        let _ = disable_raw_mode();
    }
}
