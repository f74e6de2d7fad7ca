//! The one loop of the live views, between the terminal, its keys, and what a view shows.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event::KeyEvent;

use super::terminal::{Input, Terminal};
use crate::failure::exit::Failure;

/// A live view: what it shows, and what it does with keys.
pub(crate) trait LiveView {
    /// The end of the view.
    type End;
    /// The end by a signal, or because the terminal is gone.
    const QUIT: Self::End;

    /// Draws the view.
    fn draw(&mut self, area: Rect, picture: &mut Buffer);

    /// Takes in what has happened. Returns whether the picture changes.
    fn update(&mut self) -> Result<bool, Failure>;

    /// Does what a key requests. Returns the end of the view if that is requested.
    fn press(&mut self, key: KeyEvent) -> Option<Self::End>;

    /// Returns the end of the view if there is nothing more to show.
    fn end(&self) -> Option<Self::End>;
}

/// Shows a view until it ends, until a signal, or until the terminal is gone. `cannot_draw` makes
/// the failure if the terminal cannot be drawn on.
pub(crate) fn show<V: LiveView>(
    view: &mut V,
    interrupt: &AtomicBool,
    cannot_draw: impl Fn(io::Error) -> Failure,
) -> Result<V::End, Failure> {
    // Keys are read from stdin alone.
    let terminal = Terminal::open(io::stdin().is_terminal()).map_err(&cannot_draw)?;
    let mut drawn_on = Rect::ZERO;
    let mut is_stale = true;
    loop {
        let area = terminal.area();
        if std::mem::take(&mut is_stale) || area != drawn_on {
            let mut picture = Buffer::empty(area);
            view.draw(area, &mut picture);
            terminal.show(picture);
            drawn_on = area;
        }
        if let Some(end) = view.end() {
            return Ok(end);
        }
        if terminal.is_gone() || interrupt.load(Ordering::Relaxed) {
            return Ok(V::QUIT);
        }
        let mut input = terminal.input();
        while let Some(event) = input {
            is_stale = true;
            match event {
                Input::Failed(_) if terminal.is_gone() => return Ok(V::QUIT),
                Input::Failed(error) => return Err(cannot_draw(error)),
                Input::Key(key) => {
                    if let Some(end) = view.press(key) {
                        return Ok(end);
                    }
                }
            }
            input = terminal.more_input();
        }
        is_stale |= view.update()?;
    }
}
