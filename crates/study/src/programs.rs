//! Checks whether the programs that a study names exist.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Finds a program as `execvp` does: in the directories of `PATH` (`list`, or our own), unless its
/// name contains a slash.
pub(crate) fn find_program(
    name: &str,
    directory: Option<&Path>,
    list: Option<&str>,
) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        let path = directory.map_or_else(|| PathBuf::from(name), |d| d.join(name));
        return Some(path).filter(is_program);
    }
    let list = list.map(Into::into).or_else(|| env::var_os("PATH"));
    let list = list.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    env::split_paths(&list).map(|d| d.join(name)).find(is_program)
}

/// Returns the first word of a shell command, if it can be determined without a shell.
pub(crate) fn first_word(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        let end = rest.find(|c: char| c.is_whitespace() || ";|&<>()".contains(c));
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let is_plain = !word.is_empty()
            && !word.starts_with('-')
            && !word.contains(|c: char| "$`\"'\\*?[]{}!~#".contains(c));
        // `2>file` is not a word of the command, and `f()` defines one.
        let is_number = behind.starts_with(['<', '>']) && word.chars().all(|c| c.is_ascii_digit());
        let is_function = behind.trim_start().starts_with('(');
        // The shell would search for it elsewhere.
        if !is_plain || is_number || is_function || word.starts_with("PATH=") {
            return None;
        }
        if word != "exec" && !word.contains('=') {
            return Some(word);
        }
        rest = behind.trim_start();
    }
}

/// Returns whether the shell would find it: a program, a builtin, or a keyword.
pub(crate) fn is_command(word: &str, directory: Option<&Path>) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", "command -v \"$0\"", word]).stdin(Stdio::null());
    if let Some(directory) = directory.filter(|directory| directory.is_dir()) {
        shell.current_dir(directory);
    }
    // If there is no shell, the command is not the problem.
    let asked = shell.stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.map_or(true, |status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unambiguous_first_word_of_a_shell_line_is_looked_up() {
        assert_eq!(first_word("wrk -c 10 http://h/"), Some("wrk"));
        assert_eq!(first_word("  exec sh '/a b/load.sh'"), Some("sh"));
        assert_eq!(first_word("A=1 B=2 exec ./load --fast"), Some("./load"));
        assert_eq!(first_word("true; false"), Some("true"));
        assert_eq!(first_word("wrk 2>&1"), Some("wrk"));
        assert_eq!(first_word("for i in 1 2; do x; done"), Some("for"));
        for line in [
            "",
            "$LOWTIDE load",
            "\"$LOWTIDE\" load",
            "(x)",
            "{ x; }",
            "A=$(x) y",
            "! x",
            "#",
            "exec 2>&1; true",
            "2>/dev/null true",
            "f() { sleep 0.1; }; f; f",
            "f () { true; }; f",
            "PATH=/x/bin:/bin wrkx",
        ] {
            assert_eq!(first_word(line), None, "{line}");
        }
    }
}
