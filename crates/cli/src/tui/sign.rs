//! The sign of an owner, and that of a change.

use lowtide_report::text;
use ratatui_core::style::{Color, Style};

/// A colour, and the letter for terminals without colours.
pub(super) type Ink = (Color, char);

/// Returns `count` places in a colour, or with a letter.
pub(super) fn sign((ink, letter): Ink, count: usize, colour: bool) -> (String, Style) {
    if colour {
        ("█".repeat(count), Style::new().fg(ink))
    } else {
        (letter.to_string().repeat(count), Style::new())
    }
}

/// Formats a change in bytes: `+12.3 MiB`, `-4.00 KiB`, `±0`.
pub(super) fn signed(change: i64) -> String {
    match change {
        0 => "±0".to_owned(),
        _ => text::signed(change),
    }
}
