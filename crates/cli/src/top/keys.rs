//! The keys of the live view of `lowtide top`.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The command of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    /// Leaves the question, the filter, or the view.
    Back,
    /// Orders by the next column.
    Sort,
    /// Groups by the next property.
    Group,
    /// Starts typing a filter.
    Filter,
    /// Watches the selected process.
    Watch,
    /// Asks whether to release memory of the selected process.
    Release,
    Help,
    /// Moves the selection down by a number of lines.
    Move(isize),
    /// Moves the selection down by a number of pages.
    Page(isize),
    Top,
    Bottom,
}

impl Key {
    /// Returns the command of a key of the terminal; `None` if it has none.
    pub(crate) fn from_event(event: KeyEvent) -> Option<Self> {
        let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
        Some(match event.code {
            KeyCode::Char('c' | 'd') if is_control => Self::Quit,
            KeyCode::Char(_) if is_control => return None,
            KeyCode::Char('q' | 'Q') => Self::Quit,
            KeyCode::Esc => Self::Back,
            KeyCode::Char('s') => Self::Sort,
            KeyCode::Char('b') => Self::Group,
            KeyCode::Char('/' | 'f') => Self::Filter,
            KeyCode::Char('r') => Self::Release,
            KeyCode::Enter => Self::Watch,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => Self::Help,
            KeyCode::Char('j') | KeyCode::Down => Self::Move(1),
            KeyCode::Char('k') | KeyCode::Up => Self::Move(-1),
            KeyCode::PageDown => Self::Page(1),
            KeyCode::PageUp => Self::Page(-1),
            KeyCode::Home | KeyCode::Char('g') => Self::Top,
            KeyCode::End | KeyCode::Char('G') => Self::Bottom,
            _ => return None,
        })
    }
}
