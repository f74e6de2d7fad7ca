//! The terminal of a live view, on a thread of its own: reading keys and drawing can both block
//! forever, or spin, once the other end of a terminal is gone or stalled. The view itself never
//! waits for either.
//!
//! The terminal is restored on every exit path, including a panic.

use std::io::{self, Stdout, Write};
use std::os::fd::AsFd;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time between two checks for keys and for a new picture.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time to wait for a terminal that accepts no output before it is left as it is.
const RESTORE_TIMEOUT: Duration = Duration::from_millis(300);
const RESTORE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// State of the terminal: free, taken (must be restored), or being restored.
static TERMINAL: AtomicU8 = AtomicU8::new(FREE);
const FREE: u8 = 0;
const TAKEN: u8 = 1;
const RESTORING: u8 = 2;

/// Input from the terminal.
#[derive(Debug)]
pub(crate) enum Input {
    /// A key was pressed.
    Key(KeyEvent),
    /// Drawing or reading keys failed.
    Failed(io::Error),
}

/// The alternate screen, and keys as they are pressed.
#[derive(Debug)]
pub(crate) struct Terminal {
    has_keys: bool,
    shared: Arc<KeyQueue>,
    input: Receiver<Input>,
}

#[derive(Debug, Default)]
struct KeyQueue {
    /// The picture to draw next.
    picture: Mutex<Option<Buffer>>,
    /// Set to request that the terminal is restored.
    stop: AtomicBool,
}

impl Terminal {
    /// Takes the terminal. Without `has_keys` it is only drawn on.
    pub(crate) fn open(has_keys: bool) -> io::Result<Self> {
        restore_on_panic();
        let shared = Arc::new(KeyQueue::default());
        let (sender, input) = channel();
        let worker = KeyReader { has_keys, shared: Arc::clone(&shared), sender };
        TERMINAL.store(TAKEN, Ordering::SeqCst);
        thread::Builder::new().name("terminal".to_owned()).spawn(move || worker.run())?;
        Ok(Self { has_keys, shared, input })
    }

    /// Returns the area of the terminal, in cells.
    pub(crate) fn area(&self) -> Rect {
        let size = rustix::termios::tcgetwinsize(io::stdout());
        size.map_or(Rect::ZERO, |size| Rect::new(0, 0, size.ws_col, size.ws_row))
    }

    /// Shows a picture. Replaces a picture that has not been drawn yet.
    pub(crate) fn show(&self, picture: Buffer) {
        *self.shared.picture.lock().unwrap_or_else(PoisonError::into_inner) = Some(picture);
    }

    /// Waits up to [`POLL_INTERVAL`] for input.
    pub(crate) fn input(&self) -> Option<Input> {
        self.input.recv_timeout(POLL_INTERVAL).ok()
    }

    /// Returns pending input without waiting.
    pub(crate) fn more_input(&self) -> Option<Input> {
        self.input.try_recv().ok()
    }

    /// Returns whether the other end of the terminal is closed or hung up.
    pub(crate) fn is_gone(&self) -> bool {
        has_hung_up(io::stdout()) || (self.has_keys && has_hung_up(io::stdin()))
    }
}

impl Drop for Terminal {
    /// Restores the terminal, unless it accepts no output.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + RESTORE_TIMEOUT;
        while TERMINAL.load(Ordering::SeqCst) != FREE {
            if Instant::now() >= deadline {
                // The thread is stuck. The line mode can be restored without output.
                let _ = disable_raw_mode();
                return;
            }
            thread::sleep(RESTORE_POLL_INTERVAL);
        }
    }
}

fn has_hung_up(terminal: impl AsFd) -> bool {
    const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR).union(PollFlags::NVAL);
    let mut polled = [PollFd::new(&terminal, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(GONE)
}

/// The thread that owns the terminal.
struct KeyReader {
    has_keys: bool,
    shared: Arc<KeyQueue>,
    sender: Sender<Input>,
}

impl KeyReader {
    fn run(self) {
        let ended = take(self.has_keys).and_then(|()| self.serve());
        restore();
        if let Err(error) = ended {
            // If the view has ended, its receiver is gone.
            let _ = self.sender.send(Input::Failed(error));
        }
    }

    fn serve(&self) -> io::Result<()> {
        let mut terminal =
            ratatui_core::terminal::Terminal::new(CrosstermBackend::new(io::stdout()))?;
        while !self.shared.stop.load(Ordering::SeqCst) {
            let picture = self.shared.picture.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(picture) = picture {
                draw(&mut terminal, &picture)?;
            }
            if !self.has_keys {
                thread::sleep(POLL_INTERVAL);
            } else if has_hung_up(io::stdin()) {
                // Reading events of a terminal that has hung up never returns.
                return Ok(());
            } else if event::poll(POLL_INTERVAL)?
                && let Event::Key(event) = event::read()?
                && event.kind != KeyEventKind::Release
                && self.sender.send(Input::Key(event)).is_err()
            {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Draws the part of a picture that fits: the terminal may have become smaller.
fn draw(
    terminal: &mut ratatui_core::terminal::Terminal<CrosstermBackend<Stdout>>,
    picture: &Buffer,
) -> io::Result<()> {
    terminal.draw(|frame| {
        let area = picture.area.intersection(frame.area());
        let buffer = frame.buffer_mut();
        for position in area.positions() {
            buffer[position] = picture[position].clone();
        }
    })?;
    Ok(())
}

fn take(has_keys: bool) -> io::Result<()> {
    if has_keys {
        enable_raw_mode()?;
    }
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal on a panic: the message would otherwise be lost with the alternate screen.
fn restore_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}

/// Restores the terminal. Errors are ignored: the terminal may be gone.
fn restore() {
    let is_ours = TERMINAL.compare_exchange(TAKEN, RESTORING, Ordering::SeqCst, Ordering::SeqCst);
    if is_ours.is_ok() {
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = io::stdout().flush();
        let _ = disable_raw_mode();
        TERMINAL.store(FREE, Ordering::SeqCst);
    }
}
