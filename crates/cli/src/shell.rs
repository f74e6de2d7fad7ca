//! Words for a shell.

use lowtide_report::text::steers;

/// Returns a word as a shell reads it, quoted if necessary.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Stands for a command that cannot be shown to be copied.
pub(crate) const PLACEHOLDER: &str = "CMD";

/// Returns a command to copy, on one line; `None` if it is too long, or would not be printed as it
/// is.
pub(crate) fn copyable(command: &[String]) -> Option<String> {
    const MAX_LENGTH: usize = 200;
    let text: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    let text = text.join(" ");
    (text.len() <= MAX_LENGTH && !text.contains(steers)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_preserves_any_word() {
        assert_eq!(quoted("/a b/it's"), "'/a b/it'\\''s'");
        assert_eq!(quoted("--port=80"), "--port=80");
        assert_eq!(quoted(""), "''");
        for word in ["a b", "$(x)", "`x`", "a;b", "*", "~", "a\"b", "#", "é"] {
            assert_eq!(shlex::split(&quoted(word)).unwrap(), [word]);
        }
    }

    #[test]
    fn a_command_that_is_too_long_or_not_printable_is_not_shown() {
        let command = |word: &str| vec!["java".to_owned(), word.to_owned()];
        assert_eq!(copyable(&command("a b")).as_deref(), Some("java 'a b'"));
        assert_eq!(copyable(&command(&"x".repeat(300))), None);
        for word in ["a\nb", "\x1b[2J", "a\u{202e}b"] {
            assert_eq!(copyable(&command(word)), None);
        }
        let hostile = "x'; $(reboot) `reboot` </script>\"";
        let words = ["java".to_owned(), hostile.to_owned()];
        assert_eq!(shlex::split(&copyable(&words).unwrap()).unwrap(), words);
    }
}
