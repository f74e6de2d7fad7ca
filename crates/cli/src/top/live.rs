//! The live view of `lowtide top`: what the survey has found, and the actions that keys request.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use lowtide_probe::target::Target;
use lowtide_release::{Options, release};
use lowtide_report::release::sentence;
use lowtide_survey::Survey;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::crossterm::event::KeyEvent;

use super::rows;
use super::state::{KeyRequest, State};
use super::view;
use crate::failure::exit::Failure;
use crate::tui::live::{self, LiveView};

/// The end of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By a key or a signal.
    Quit,
    /// By a request to watch this process.
    Watch(u32),
}

/// Shows the host until a key or a signal ends the view, or the terminal is gone.
pub(crate) fn run(
    survey: &Survey,
    state: &mut State,
    colour: bool,
    interrupt: &AtomicBool,
) -> Result<End, Failure> {
    let cannot_draw = |error: io::Error| {
        Failure::failed(format!("cannot draw on the terminal: {error}")).next("lowtide top --once")
    };
    let mut view = TopView { survey, state, colour, release: None, drawn: None };
    live::show(&mut view, interrupt, cannot_draw)
}

/// The live view of the host.
struct TopView<'a> {
    survey: &'a Survey,
    state: &'a mut State,
    colour: bool,
    /// The outcome of a release that is running.
    release: Option<Receiver<String>>,
    /// The scan and the inspections of the survey that are drawn.
    drawn: Option<Seen>,
}

/// The time of a scan, and the number of inspections.
type Seen = (Option<Instant>, u64);

impl TopView<'_> {
    fn seen(&self) -> Seen {
        self.survey.read(|host| (host.scanned, host.inspections))
    }
}

impl LiveView for TopView<'_> {
    type End = End;
    const QUIT: End = End::Quit;

    fn draw(&mut self, area: Rect, picture: &mut Buffer) {
        let seen = self.seen();
        if seen.0.is_some() {
            let top = |host: &_| rows::top(host, self.state.sort, self.state.by);
            let top = self.survey.read(top);
            self.state.see(top);
        }
        view::draw(self.state, self.colour, area, picture);
        self.drawn = Some(seen);
    }

    fn update(&mut self) -> Result<bool, Failure> {
        let message = self.release.as_ref().and_then(|receiver| receiver.try_recv().ok());
        let has_message = message.is_some();
        if has_message {
            self.state.message = message;
            self.release = None;
        }
        Ok(has_message || self.drawn != Some(self.seen()))
    }

    fn press(&mut self, key: KeyEvent) -> Option<End> {
        match self.state.press(key)? {
            KeyRequest::Quit => return Some(End::Quit),
            KeyRequest::Watch(pid) => return Some(End::Watch(pid)),
            KeyRequest::Release(_) if self.release.is_some() => {
                self.state.message = Some("another release is still running".to_owned());
            }
            KeyRequest::Release(pid) => {
                self.state.message = Some(format!("releasing free memory of process {pid} …"));
                self.release = start_release(pid);
            }
        }
        None
    }

    fn end(&self) -> Option<End> {
        None
    }
}

/// Releases memory of a process on a thread of its own, and sends a sentence about the result.
fn start_release(pid: u32) -> Option<Receiver<String>> {
    let (sender, receiver) = channel();
    let work = move || {
        let released = Target::open(pid).map_err(|error| error.to_string()).and_then(|target| {
            release(&target, &Options::default()).map_err(|error| error.to_string())
        });
        let text = match released {
            Ok(done) => format!("process {pid}: {}", sentence(&done)),
            Err(error) => format!("process {pid}: {error}"),
        };
        // The view may have ended.
        let _ = sender.send(text);
    };
    thread::Builder::new().name("release".to_owned()).spawn(work).ok().map(|_| receiver)
}
