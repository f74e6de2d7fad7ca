//! Text from a process or a file, made safe to print.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_and_characters_that_change_the_direction_become_spaces() {
        let text = "a\u{1b}[2J\u{7}b\u{9b}c\u{202e}d\u{2066}e\u{61c}f\r\n\t\u{7f}é";
        assert_eq!(printable(text), "a [2J b c d e f    é");
        assert_eq!(printable_lines("a\u{1b}\nb"), "a \nb");
    }
}
