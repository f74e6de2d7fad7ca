//! The terminal as a medium: its width and colours, and text with attributes.

use ratatui_core::style::Color as Ink;

use crate::text::{printable, shortened, wrapped};

/// The width of a terminal, and whether it shows colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Columns.
    pub width: u16,
    /// Whether it shows colours.
    pub colour: bool,
}

/// Returns bold text.
pub(crate) fn bold(text: &str, screen: Screen) -> String {
    if screen.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// Returns dim text.
pub(crate) fn dim(text: &str, screen: Screen) -> String {
    if screen.colour { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

/// Returns a command and its PID, on one line.
pub(crate) fn title(command: &[String], pid: u32, screen: Screen) -> String {
    let command = printable(&command.join(" "));
    let room = usize::from(screen.width).saturating_sub(16);
    let short = shortened(&command, room);
    // Of a core that was cut off, it may not be known.
    let pid = if pid == 0 { "not known".to_owned() } else { pid.to_string() };
    bold(&format!("{short}  PID {pid}"), screen)
}

/// Minimum width of text beside the beginning of its first line, in columns.
const MIN_HANGING_WIDTH: u16 = 24;
/// Indentation of text below its beginning, in columns.
const BELOW: u16 = 4;

/// Wraps text after the beginning of its first line, and indents further lines to the same column.
/// If that leaves little room, the text starts on the next line.
pub(crate) fn hanging(begin: &str, text: &str, screen: Screen) -> String {
    let length = u16::try_from(begin.chars().count()).unwrap_or(u16::MAX);
    let beside = screen.width.saturating_sub(length);
    let (begin, indent) = match beside < MIN_HANGING_WIDTH {
        false => (begin.to_owned(), length),
        true => (format!("{begin}\n{:1$}", "", usize::from(BELOW)), BELOW),
    };
    let text = wrapped(text, screen.width.saturating_sub(indent));
    format!("{begin}{}\n", text.replace('\n', &format!("\n{:1$}", "", usize::from(indent))))
}

/// Returns the escape sequence of a colour.
pub(crate) fn escape_of(ink: Ink) -> &'static str {
    match ink {
        Ink::Blue => "\x1b[34m",
        Ink::Red => "\x1b[31m",
        Ink::Green => "\x1b[32m",
        Ink::Magenta => "\x1b[35m",
        Ink::Yellow => "\x1b[33m",
        Ink::Cyan => "\x1b[36m",
        Ink::LightRed => "\x1b[91m",
        Ink::LightBlue => "\x1b[94m",
        Ink::LightGreen => "\x1b[92m",
        Ink::Gray => "\x1b[37m",
        Ink::DarkGray => "\x1b[90m",
        Ink::LightYellow => "\x1b[93m",
        Ink::LightMagenta => "\x1b[95m",
        Ink::LightCyan => "\x1b[96m",
        _ => "\x1b[0m",
    }
}
