//! The keys of the live view.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The command of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    /// Leaves the panel, or the view.
    Back,
    Pause,
    Arenas,
    Leaks,
    /// Reads what pins memory, and shows it.
    Pins,
    /// Asks for a search for pointers, in the panel of leaks.
    Seek,
    Help,
    /// Chooses the next longer interval.
    Longer,
    /// Chooses the next shorter interval.
    Shorter,
    /// Scrolls by a number of lines.
    Scroll(isize),
    /// Scrolls by a number of pages.
    Page(isize),
    Top,
    Bottom,
}

impl Key {
    /// Returns the command of a key of the terminal; `None` if it has none.
    pub(super) fn from_event(event: KeyEvent) -> Option<Self> {
        let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
        Some(match event.code {
            KeyCode::Char('c' | 'd') if is_control => Self::Quit,
            KeyCode::Char(_) if is_control => return None,
            KeyCode::Char('q' | 'Q') => Self::Quit,
            KeyCode::Esc => Self::Back,
            KeyCode::Char('p' | ' ') => Self::Pause,
            KeyCode::Char('a') => Self::Arenas,
            KeyCode::Char('l') => Self::Leaks,
            KeyCode::Char('f') => Self::Pins,
            KeyCode::Char('s') => Self::Seek,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => Self::Help,
            KeyCode::Char('+' | '=') => Self::Longer,
            KeyCode::Char('-') => Self::Shorter,
            KeyCode::Char('j') | KeyCode::Down => Self::Scroll(1),
            KeyCode::Char('k') | KeyCode::Up => Self::Scroll(-1),
            KeyCode::PageDown => Self::Page(1),
            KeyCode::PageUp => Self::Page(-1),
            KeyCode::Home | KeyCode::Char('g') => Self::Top,
            KeyCode::End | KeyCode::Char('G') => Self::Bottom,
            _ => return None,
        })
    }
}
