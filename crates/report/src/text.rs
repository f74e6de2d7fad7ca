//! Text that is printed as it is: without control characters, in lines of a width, with grouped
//! digits.

pub use lowtide_model::text::{printable, printable_lines, steers};

/// Formats `1204` as `1,204`.
pub(crate) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
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
    use super::without_directory;

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
