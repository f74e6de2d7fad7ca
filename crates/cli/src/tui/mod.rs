//! The live view of `lowtide watch`: [`state`] holds the history of the process, [`view`] draws it;
//! [`live`] is the loop between a view and the [`terminal`], also for `lowtide top`.

mod arenas;
pub(crate) mod canvas;
mod chart;
mod help;
mod history;
mod keys;
mod ledger;
pub(crate) mod live;
mod policy;
mod report;
mod sign;
pub(crate) mod state;
pub(crate) mod terminal;
#[cfg(test)]
pub(crate) mod tests;
mod time_series;
mod view;

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::TryRecvError;

use lowtide_probe::target::Target;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event::KeyEvent;

use crate::failure::exit::Failure;
use crate::watcher::leaks::LeakWatch;
use crate::watcher::pins::PinSearch;
use crate::watcher::record::WatchRecord;
use crate::watcher::{self, Watcher};
use keys::Key;
use live::LiveView;
use state::{KeyRequest, State};

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
    record: Option<&mut WatchRecord>,
) -> Result<(), Failure> {
    let cannot_draw = |error: io::Error| {
        Failure::failed(format!(
            "cannot draw on the terminal: {error}; pipe the output to get lines instead"
        ))
    };
    let mut view = WatchView { options, watcher, state, record, leaks: None, pins: None };
    live::show(&mut view, options.interrupt, cannot_draw)
}

/// The live view of one process.
struct WatchView<'a> {
    options: &'a ViewOptions<'a>,
    watcher: &'a Watcher,
    state: &'a mut State,
    record: Option<&'a mut WatchRecord>,
    /// The search for leaks, once a key has requested it.
    leaks: Option<LeakWatch>,
    /// The search for what pins memory that a key has requested.
    pins: Option<PinSearch>,
}

impl LiveView for WatchView<'_> {
    type End = ();
    const QUIT: () = ();

    fn draw(&mut self, area: Rect, picture: &mut Buffer) {
        self.state.page = arenas::fitting_on(area.height);
        view::draw(self.state, self.options.colour, area, picture);
    }

    fn update(&mut self) -> Result<bool, Failure> {
        let latest = self.leaks.as_ref().and_then(LeakWatch::latest);
        let has_leaks = latest.is_some();
        if let Some(found) = latest {
            self.state.see_leaks(found);
        }
        let pins = self.pins.as_ref().and_then(PinSearch::result);
        let has_pins = pins.is_some();
        if let Some(found) = pins {
            self.state.see_pins(found);
            self.pins = None;
        }
        Ok(self.process_events()? || has_leaks || has_pins)
    }

    fn press(&mut self, key: KeyEvent) -> Option<()> {
        match Key::from_event(key).and_then(|key| self.state.press(key))? {
            KeyRequest::Quit => return Some(()),
            KeyRequest::Interval(interval) => self.watcher.set_interval(interval),
            KeyRequest::Leaks if self.leaks.is_none() => {
                match self.options.target.try_clone().and_then(LeakWatch::start) {
                    Ok(started) => self.leaks = Some(started),
                    Err(error) => self.state.trouble = Some(error.to_string()),
                }
            }
            KeyRequest::Leaks => {}
            KeyRequest::Pins if self.pins.is_none() => {
                match self.options.target.try_clone().and_then(PinSearch::start) {
                    Ok(started) => self.pins = Some(started),
                    Err(error) => self.state.trouble = Some(error.to_string()),
                }
            }
            KeyRequest::Pins => {}
            KeyRequest::Seek => self.leaks.iter().for_each(LeakWatch::seek),
        }
        None
    }

    fn end(&self) -> Option<()> {
        (!self.needs_more() || self.state.ended_s.is_some()).then_some(())
    }
}

impl WatchView<'_> {
    /// Returns whether there are fewer inspections than were requested.
    fn needs_more(&self) -> bool {
        self.options.max_inspections.is_none_or(|most| self.state.inspections() < most)
    }

    /// Processes and records the pending events of the watcher. Returns whether there were any.
    fn process_events(&mut self) -> Result<bool, Failure> {
        let mut has_changed = false;
        while self.needs_more() {
            match self.watcher.events().try_recv() {
                Ok(event) => {
                    if let Some(record) = &mut self.record {
                        record.write(&event);
                    }
                    self.state.see(event);
                    has_changed = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if self.state.ended_s.is_some() => break,
                Err(TryRecvError::Disconnected) => return Err(watcher::broke_off()),
            }
        }
        match self.record.as_ref().and_then(|record| record.failure()) {
            Some(failure) => Err(failure),
            None => Ok(has_changed),
        }
    }
}
