//! The live view of `lowtide watch`: [`state`] holds the history of the process, [`view`] draws it,
//! [`terminal`] owns the terminal; this is the loop between them and the watcher.

mod arenas;
pub(crate) mod canvas;
mod chart;
mod help;
mod history;
mod keys;
mod leaks;
mod policy;
pub(crate) mod state;
pub(crate) mod terminal;
#[cfg(test)]
pub(crate) mod tests;
mod time_series;
mod view;

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;

use lowtide_probe::target::Target;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use crate::failure::exit::Failure;
use crate::watcher::leaks::LeakWatch;
use crate::watcher::record::WatchRecord;
use crate::watcher::{self, Watcher};
use keys::Key;
use state::{KeyRequest, State};
use terminal::{Input, Terminal};

/// Options of the view.
pub(crate) struct ViewOptions<'a> {
    /// Whether the terminal shows colours.
    pub(crate) colour: bool,
    /// Number of inspections after which the view ends.
    pub(crate) max_inspections: Option<u64>,
    /// Set when lowtide is to end.
    pub(crate) interrupt: &'a AtomicBool,
    /// The process.
    pub(crate) target: &'a Target,
}

/// Shows the process until a key or a signal ends the view, the process ends, or the terminal is
/// gone.
pub(crate) fn run(
    options: &ViewOptions<'_>,
    watcher: &Watcher,
    state: &mut State,
    mut record: Option<&mut WatchRecord>,
) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::failed(format!(
            "cannot draw on the terminal: {error}; pipe the output to get lines instead"
        ))
    };
    // Keys are read from stdin alone.
    let terminal = Terminal::open(io::stdin().is_terminal()).map_err(failed)?;
    let mut drawn_on = Rect::ZERO;
    let mut is_stale = true;
    let mut leaks: Option<LeakWatch> = None;
    loop {
        let area = terminal.area();
        if std::mem::take(&mut is_stale) || area != drawn_on {
            state.page = arenas::fitting_on(area.height);
            let mut picture = Buffer::empty(area);
            view::draw(state, options.colour, area, &mut picture);
            terminal.show(picture);
            drawn_on = area;
        }
        let is_enough = options.max_inspections.is_some_and(|most| state.inspections() >= most);
        let is_over = state.ended_s.is_some() || terminal.is_gone();
        if is_enough || is_over || options.interrupt.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut input = terminal.input();
        while let Some(event) = input {
            is_stale = true;
            match event {
                Input::Failed(_) if terminal.is_gone() => return Ok(()),
                Input::Failed(error) => return Err(failed(error)),
                Input::Key(key) => match Key::from_event(key).and_then(|key| state.press(key)) {
                    Some(KeyRequest::Quit) => return Ok(()),
                    Some(KeyRequest::Interval(interval)) => watcher.set_interval(interval),
                    Some(KeyRequest::Leaks) if leaks.is_none() => {
                        let target = options.target.try_clone();
                        match target.and_then(LeakWatch::start) {
                            Ok(started) => leaks = Some(started),
                            Err(error) => state.trouble = Some(error.to_string()),
                        }
                    }
                    Some(KeyRequest::Leaks) => {}
                    Some(KeyRequest::Seek) => leaks.iter().for_each(LeakWatch::seek),
                    None => {}
                },
            }
            input = terminal.more_input();
        }
        if let Some(found) = leaks.as_ref().and_then(LeakWatch::latest) {
            state.see_leaks(found);
            is_stale = true;
        }
        is_stale |= process_events(watcher, state, record.as_deref_mut(), options.max_inspections)?;
    }
}

/// Processes and records the pending events of the watcher. Returns whether there were any.
fn process_events(
    watcher: &Watcher,
    state: &mut State,
    mut record: Option<&mut WatchRecord>,
    max_inspections: Option<u64>,
) -> Result<bool, Failure> {
    let mut has_changed = false;
    while max_inspections.is_none_or(|most| state.inspections() < most) {
        match watcher.events().try_recv() {
            Ok(event) => {
                if let Some(record) = &mut record {
                    record.write(&event);
                }
                state.see(event);
                has_changed = true;
            }
            Err(TryRecvError::Empty) => break,
            Err(TryRecvError::Disconnected) if state.ended_s.is_some() => break,
            Err(TryRecvError::Disconnected) => {
                return Err(watcher::broke_off());
            }
        }
    }
    match record.and_then(|record| record.failure()) {
        Some(failure) => Err(failure),
        None => Ok(has_changed),
    }
}
