//! The live view of `lowtide watch`: [`state`] holds what was observed, [`view`] draws it, [`terminal`]
//! owns the terminal; this is the loop between them and the watcher.

mod arenas;
mod chart;
mod help;
mod history;
pub(crate) mod state;
mod terminal;
#[cfg(test)]
pub(crate) mod tests;
mod view;

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::exit::Failure;
use crate::watcher::Watcher;
use crate::watcher::record::Record;
use state::{Key, State, Wish};
use terminal::{Input, Terminal};

/// What the view needs to know.
pub(crate) struct Show<'a> {
    pub(crate) colour: bool,
    /// Number of inspections after which it ends.
    pub(crate) looks: Option<u64>,
    /// Set when lowtide is to end.
    pub(crate) interrupt: &'a AtomicBool,
}

/// Shows the process until a key or a signal ends the view, the process ends, or the terminal is gone.
pub(crate) fn run(
    show: &Show<'_>,
    watcher: &Watcher,
    state: &mut State,
    mut record: Option<&mut Record>,
) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::failed(format!(
            "the terminal cannot be drawn on: {error}; pipe the output to get lines instead"
        ))
    };
    // Keys are read from stdin alone.
    let terminal = Terminal::open(io::stdin().is_terminal()).map_err(failed)?;
    let mut drawn_on = Rect::ZERO;
    let mut is_stale = true;
    loop {
        let area = terminal.area();
        if std::mem::take(&mut is_stale) || area != drawn_on {
            state.page = arenas::shown_on(area.height);
            let mut picture = Buffer::empty(area);
            view::draw(state, show.colour, area, &mut picture);
            terminal.show(picture);
            drawn_on = area;
        }
        let is_enough = show.looks.is_some_and(|most| state.looks() >= most);
        let is_over = state.ended_s.is_some() || terminal.is_gone();
        if is_enough || is_over || show.interrupt.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut input = terminal.input();
        while let Some(event) = input {
            is_stale = true;
            match event {
                Input::Failed(_) if terminal.is_gone() => return Ok(()),
                Input::Failed(error) => return Err(failed(error)),
                Input::Key(key) => match state.press(key) {
                    Some(Wish::Quit) => return Ok(()),
                    Some(Wish::Interval(interval)) => watcher.set_interval(interval),
                    None => {}
                },
            }
            input = terminal.more_input();
        }
        is_stale |= hear(watcher, state, record.as_deref_mut(), show.looks)?;
    }
}

/// Takes in what was seen meanwhile, and writes it down. Says whether there was anything.
fn hear(
    watcher: &Watcher,
    state: &mut State,
    mut record: Option<&mut Record>,
    looks: Option<u64>,
) -> Result<bool, Failure> {
    let mut has_changed = false;
    while looks.is_none_or(|most| state.looks() < most) {
        match watcher.seen().try_recv() {
            Ok(seen) => {
                if let Some(record) = &mut record {
                    record.write(&seen);
                }
                state.see(seen);
                has_changed = true;
            }
            Err(TryRecvError::Empty) => break,
            Err(TryRecvError::Disconnected) if state.ended_s.is_some() => break,
            Err(TryRecvError::Disconnected) => {
                return Err(Failure::failed("watching broke off: start it again"));
            }
        }
    }
    match record.and_then(|record| record.failure()) {
        Some(failure) => Err(failure),
        None => Ok(has_changed),
    }
}

/// What a key of the terminal means here.
fn key(event: KeyEvent) -> Option<Key> {
    let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
    Some(match event.code {
        KeyCode::Char('c' | 'd') if is_control => Key::Quit,
        KeyCode::Char(_) if is_control => return None,
        KeyCode::Char('q' | 'Q') => Key::Quit,
        KeyCode::Esc => Key::Back,
        KeyCode::Char('p' | ' ') => Key::Pause,
        KeyCode::Char('a') => Key::Arenas,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Key::Help,
        KeyCode::Char('+' | '=') => Key::Longer,
        KeyCode::Char('-') => Key::Shorter,
        KeyCode::Char('j') | KeyCode::Down => Key::Scroll(1),
        KeyCode::Char('k') | KeyCode::Up => Key::Scroll(-1),
        KeyCode::PageDown => Key::Page(1),
        KeyCode::PageUp => Key::Page(-1),
        KeyCode::Home | KeyCode::Char('g') => Key::Top,
        KeyCode::End | KeyCode::Char('G') => Key::Bottom,
        _ => return None,
    })
}
