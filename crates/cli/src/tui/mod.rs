//! The live view of `lowtide watch`: [`state`] is what was seen, [`view`] draws it; here is the thin loop
//! between them, the terminal and the watcher.

mod arenas;
mod chart;
mod help;
mod history;
mod screen;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use ratatui_crossterm::crossterm::event::{
    self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers,
};

use crate::exit::Failure;
use crate::watcher::Watcher;
use crate::watcher::record::Record;
use screen::Screen;
use state::{Key, State, Wish};

/// So soon the picture follows what was seen.
const STEP: Duration = Duration::from_millis(50);

/// What the view needs to know.
pub(crate) struct Show<'a> {
    pub(crate) colour: bool,
    /// After so many looks it ends by itself.
    pub(crate) looks: Option<u64>,
    /// Set when lowtide is to end.
    pub(crate) interrupt: &'a AtomicBool,
}

/// Shows what is seen until somebody quits, or, where nobody can, until the process ends.
pub(crate) fn run(
    show: &Show<'_>,
    watcher: &Watcher,
    state: &mut State,
    mut record: Option<&mut Record>,
) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::failed(format!(
            "the terminal cannot be drawn on: {error}; without one, lines are printed"
        ))
    };
    // Keys come from the standard input alone: where that is something else, nobody can press one.
    let has_keys = io::stdin().is_terminal();
    let mut screen = Screen::enter(has_keys).map_err(failed)?;
    let mut is_stale = true;
    loop {
        if std::mem::take(&mut is_stale) {
            state.page = arenas::shown_on(screen.draw(state, show.colour).map_err(failed)?);
        }
        let is_enough = show.looks.is_some_and(|most| state.looks() >= most);
        let is_over = state.ended_s.is_some() && !has_keys;
        if is_enough || is_over || show.interrupt.load(Ordering::Relaxed) {
            return Ok(());
        }
        if has_keys {
            for key in pressed(STEP, &mut is_stale).map_err(failed)? {
                match state.press(key) {
                    Some(Wish::Quit) => return Ok(()),
                    Some(Wish::Interval(interval)) => watcher.set_interval(interval),
                    None => {}
                }
            }
        } else {
            std::thread::sleep(STEP);
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

/// What was pressed within some time. A terminal of another size is to be drawn on anew.
fn pressed(within: Duration, is_stale: &mut bool) -> io::Result<Vec<Key>> {
    let mut keys = Vec::new();
    let mut wait = within;
    while event::poll(wait)? {
        wait = Duration::ZERO;
        *is_stale = true;
        if let Event::Key(event) = event::read()?
            && event.kind != KeyEventKind::Release
        {
            keys.extend(key(event));
        }
    }
    Ok(keys)
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
