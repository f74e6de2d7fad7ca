//! Text that is printed as it is: without control characters, in lines of a width, with grouped
//! digits.

use lowtide_model::bytes::Human;
use lowtide_model::number::HumanCount;
pub use lowtide_model::text::{printable, printable_lines, steers};

/// Formats `1204` as `1,204`.
pub(crate) fn thousands(count: u64) -> String {
    HumanCount(count).to_string()
}

/// Formats a change of bytes: `+1.20 MiB`.
pub fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "" } else { "+" };
    format!("{sign}{}", with_minus(bytes))
}

/// Formats bytes that may be negative: `-512 B`.
pub(crate) fn with_minus(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", Human(bytes.unsigned_abs()))
}

/// Returns a command line whose first word is only the name of the program: a path would hide it in
/// a narrow column.
pub fn without_directory(command: &str) -> &str {
    let end = command.find(' ').unwrap_or(command.len());
    match command[..end].rfind('/') {
        // The short name of a process without a command is in brackets.
        Some(slash) if slash + 1 < end && !command.starts_with('[') => &command[slash + 1..],
        _ => command,
    }
}

/// Returns a text of at most `room` characters, of which the last is `…` if it was longer.
pub fn shortened(text: &str, room: usize) -> String {
    match text.chars().count() > room {
        true => text.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Breaks lines between words.
pub fn wrapped(text: &str, width: u16) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in printable(text).split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > usize::from(width) {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{shortened, without_directory};

    #[test]
    fn a_longer_text_ends_with_an_ellipsis() {
        assert_eq!(shortened("über", 4), "über");
        assert_eq!(shortened("über", 3), "üb…");
    }

    #[test]
    fn a_command_begins_with_the_name_of_its_program() {
        for (command, short) in [
            ("/usr/bin/python3 /srv/app.py", "python3 /srv/app.py"),
            ("./server", "server"),
            ("nginx: worker process /etc/nginx", "nginx: worker process /etc/nginx"),
            ("[a/b]", "[a/b]"),
            ("/", "/"),
            ("", ""),
        ] {
            assert_eq!(without_directory(command), short);
        }
    }
}
