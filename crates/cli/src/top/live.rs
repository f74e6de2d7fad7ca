//! The loop between the survey, the terminal, and the actions that keys request.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use lowtide_probe::target::Target;
use lowtide_release::{Options, release};
use lowtide_report::release::sentence;
use lowtide_survey::Survey;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::rows;
use super::state::{KeyRequest, State};
use super::view;
use crate::failure::exit::Failure;
use crate::tui::terminal::{Input, Terminal};

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
    let failed = |error: io::Error| {
        Failure::failed(format!("cannot draw on the terminal: {error}")).next("lowtide top --once")
    };
    let terminal = Terminal::open(io::stdin().is_terminal()).map_err(failed)?;
    let mut release: Option<Receiver<String>> = None;
    let mut drawn = (Rect::ZERO, None);
    let mut is_stale = true;
    loop {
        let area = terminal.area();
        let seen = survey.read(|host| (host.scanned, host.inspections));
        if std::mem::take(&mut is_stale) || drawn != (area, Some(seen)) {
            if seen.0.is_some() {
                state.see(survey.read(|host| rows::top(host, state.sort, state.by)));
            }
            let mut picture = Buffer::empty(area);
            view::draw(state, colour, area, &mut picture);
            terminal.show(picture);
            drawn = (area, Some(seen));
        }
        if terminal.is_gone() || interrupt.load(Ordering::Relaxed) {
            return Ok(End::Quit);
        }
        let mut input = terminal.input();
        while let Some(event) = input {
            is_stale = true;
            match event {
                Input::Failed(_) if terminal.is_gone() => return Ok(End::Quit),
                Input::Failed(error) => return Err(failed(error)),
                Input::Key(key) => match state.press(key) {
                    Some(KeyRequest::Quit) => return Ok(End::Quit),
                    Some(KeyRequest::Watch(pid)) => return Ok(End::Watch(pid)),
                    Some(KeyRequest::Release(_)) if release.is_some() => {
                        state.message = Some("another release is still running".to_owned());
                    }
                    Some(KeyRequest::Release(pid)) => {
                        state.message = Some(format!("releasing free memory of process {pid} …"));
                        release = start_release(pid);
                    }
                    None => {}
                },
            }
            input = terminal.more_input();
        }
        if let Some(message) = release.as_ref().and_then(|receiver| receiver.try_recv().ok()) {
            state.message = Some(message);
            release = None;
            is_stale = true;
        }
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
