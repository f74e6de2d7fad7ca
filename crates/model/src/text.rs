//! Text from a process, a file or the system, made fit to print.

use std::io;

/// Returns whether a character has an effect beyond its display: control characters, and those that
/// change the writing direction, so that a line reads as a different one.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces the characters of untrusted text that would steer the terminal by spaces.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if steers(c) { ' ' } else { c }).collect()
}

/// Does the same for text of several lines, and keeps the line breaks.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Removes the numbers that the system's errors end with, such as ` (os error 13)`: people have no
/// use for them.
pub fn without_error_numbers(text: &str) -> String {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.parse::<u32>().is_ok() => out += rest,
            _ => out += &format!("{BEGIN}{part}"),
        }
    }
    out
}

/// Describes an error of the system, with a remedy where there is one.
pub fn reason(error: &io::Error) -> String {
    /// `EMFILE`.
    const FILES_OF_PROCESS: i32 = 24;
    /// `ENFILE`.
    const FILES_OF_MACHINE: i32 = 23;
    match error.raw_os_error() {
        Some(FILES_OF_PROCESS) => {
            "lowtide has reached its limit of open files: raise it, as with ulimit -n 1024"
                .to_owned()
        }
        Some(FILES_OF_MACHINE) => {
            "the machine has reached its limit of open files (fs.file-max)".to_owned()
        }
        _ => without_error_numbers(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_and_characters_that_change_the_direction_become_spaces() {
        let text = "a\u{1b}[2J\u{7}b\u{9b}c\u{202e}d\u{2066}e\u{61c}f\r\n\t\u{7f}é";
        assert_eq!(printable(text), "a [2J b c d e f    é");
        assert_eq!(printable_lines("a\u{1b}\nb"), "a \nb");
    }

    #[test]
    fn errors_of_the_system_have_no_numbers() {
        let denied = io::Error::from_raw_os_error(13);
        assert_eq!(reason(&denied), "Permission denied");
        let text = format!("a ({denied}), b (os error x) and {denied}");
        assert_eq!(
            without_error_numbers(&text),
            "a (Permission denied), b (os error x) and Permission denied"
        );
        assert!(reason(&io::Error::from_raw_os_error(24)).contains("ulimit -n"));
    }
}
