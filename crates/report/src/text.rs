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

/// Units that stay on the line of their number.
const UNITS: [&str; 11] = ["B", "KiB", "MiB", "GiB", "TiB", "%", "µs", "ms", "s", "min", "h"];

/// Breaks lines between words. A quoted command (`lowtide inspect 7`), a call of lowtide with its
/// flags and PIDs, and a number with its unit stay on one line, as far as one has room for them.
pub fn wrapped(text: &str, width: u16) -> String {
    let text = printable(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut lines = Lines::new(width);
    let mut rest = words.as_slice();
    while let Some((first, after)) = rest.split_first() {
        let length =
            |words: &[&str]| words.iter().map(|word| word.chars().count() + 1).sum::<usize>() - 1;
        let together = &rest[..=joined(first, after)];
        let has_room = length(together) <= usize::from(width);
        let unit = if has_room { together } else { &rest[..1] };
        lines.add(&unit.join(" "));
        rest = &rest[unit.len()..];
    }
    lines.text
}

/// Lines of limited width.
struct Lines {
    text: String,
    /// Length of the last line, in characters.
    column: usize,
    width: usize,
}

impl Lines {
    fn new(width: u16) -> Self {
        Self { text: String::new(), column: 0, width: width.into() }
    }

    /// Adds a part after a space, or on a new line if its first line has no room on the last one.
    fn add(&mut self, part: &str) {
        let mut lengths = part.lines().map(|line| line.chars().count());
        let first = lengths.next().unwrap_or(0);
        if self.column > 0 && self.column + 1 + first > self.width {
            self.text.push('\n');
            self.column = 0;
        } else if self.column > 0 {
            self.text.push(' ');
            self.column += 1;
        }
        self.text += part;
        self.column = lengths.next_back().unwrap_or(self.column + first);
    }
}

/// Joins facts by dots, and breaks lines between them: a fact is broken only if a line has no room
/// for it.
pub(crate) fn facts_in_lines(facts: &[String], width: u16) -> String {
    let mut lines = Lines::new(width);
    for (place, fact) in facts.iter().enumerate() {
        let dot = if place + 1 < facts.len() { " ·" } else { "" };
        lines.add(&wrapped(&format!("{fact}{dot}"), width));
    }
    lines.text
}

/// Returns how many of the words after a first one stay on its line.
fn joined(first: &str, after: &[&str]) -> usize {
    let has_odd_quotes = |word: &&str| word.matches('`').count() % 2 == 1;
    if has_odd_quotes(&first) {
        return after.iter().position(has_odd_quotes).map_or(0, |place| place + 1);
    }
    if first == "lowtide" && after.first().is_some_and(|verb| is_verb(verb)) {
        let is_argument = |word: &&&str| {
            word.starts_with('-') && word.len() > 1
                || word.starts_with(|c: char| c.is_ascii_digit())
        };
        // A word after a punctuation mark is not an argument.
        let arguments = after[1..].iter().take_while(is_argument);
        let ends = |word: &str| word.ends_with([',', ';', ':', ')', '.']);
        return match arguments.clone().position(|word| ends(word)) {
            _ if ends(after[0]) => 1,
            Some(last) => last + 2,
            None => arguments.count() + 1,
        };
    }
    let is_number = first.trim_start_matches(['(', '+', '-', '≈', '≤']);
    let is_number = is_number.starts_with(|c: char| c.is_ascii_digit());
    let is_unit = |word: &&str| UNITS.contains(&word.trim_end_matches([')', ',', ';', ':', '.']));
    usize::from(is_number && after.first().is_some_and(is_unit))
}

/// Returns whether a word is a verb of lowtide, with or without a punctuation mark.
fn is_verb(word: &str) -> bool {
    const VERBS: [&str; 13] = [
        "attach", "demo", "exporter", "inspect", "leaks", "load", "mcp", "release", "report",
        "run", "study", "top", "watch",
    ];
    VERBS.contains(&word.trim_end_matches([',', ';', ':', ')', '.']))
}

/// Breaks the lines of a text that hold a command, so that it can still be pasted: a command stays
/// on its line, whatever its length, because a program can choose its words. If the line has no
/// room for the remark after it, the remark gets the next line. The first command is after `next:`,
/// and others are indented below it.
pub fn with_whole_commands(text: &str, width: u16) -> String {
    let mut is_below = false;
    let mut line = |line: &str| {
        let is_next = line.trim_start().starts_with("next: ");
        is_below = is_next || is_below && line.starts_with("      ");
        let is_long = line.chars().count() > usize::from(width) && !line.contains('\x1b');
        if is_below && is_long { whole_command(line, width) } else { line.to_owned() }
    };
    let lines: Vec<String> = text.split('\n').map(&mut line).collect();
    lines.join("\n")
}

/// Puts the remark after a command on a line of its own: in parentheses, after wide space. Such
/// signs in a command are quoted, so that none ends with a parenthesis.
fn whole_command(line: &str, width: u16) -> String {
    const GAP: &str = "     (";
    const INDENT: &str = "      ";
    let below = |remark: &str| {
        let lines = wrapped(remark, width.saturating_sub(INDENT.len() as u16));
        format!("{INDENT}{}", lines.replace('\n', &format!("\n{INDENT}")))
    };
    if line.trim_start().starts_with('(') {
        return below(line.trim_start());
    }
    match line.rsplit_once(GAP).filter(|(_, remark)| remark.ends_with(')')) {
        Some((command, remark)) => format!("{command}\n{}", below(&format!("({remark}"))),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{facts_in_lines, shortened, with_whole_commands, without_directory, wrapped};

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

    #[test]
    fn commands_and_numbers_with_units_stay_on_one_line() {
        let text = "it returns 12 MiB: lowtide release --collect 4711 does, or `sysctl vm.x=1`";
        assert_eq!(
            wrapped(text, 30),
            "it returns 12 MiB:\nlowtide release --collect 4711\ndoes, or `sysctl vm.x=1`"
        );
        assert_eq!(wrapped("there are 100 % of them", 14), "there are\n100 % of them");
        assert_eq!(wrapped("see lowtide inspect 4711", 9), "see\nlowtide\ninspect\n4711");
        assert_eq!(wrapped("lowtide is here", 10), "lowtide is\nhere");
    }

    #[test]
    fn facts_are_not_broken_in_their_middle() {
        let facts = ["RSS 37.7 MiB", "page tables, not counted: 472 KiB", "swapped out: 1 B"];
        let facts = facts.map(str::to_owned);
        assert_eq!(
            facts_in_lines(&facts, 40),
            "RSS 37.7 MiB ·\npage tables, not counted: 472 KiB ·\nswapped out: 1 B"
        );
        assert_eq!(facts_in_lines(&facts, 20).lines().count(), 4);
    }

    #[test]
    fn a_long_command_stays_on_its_line_and_its_remark_gets_another() {
        let text = "RSS\nnext: lowtide study -t 'a/b: X=1 Y=2' -- server     (try it)\n      lowtide top\nend";
        assert_eq!(with_whole_commands(text, 80), text);
        let expected = "RSS\nnext: lowtide study -t 'a/b: X=1 Y=2' -- server\n      (try it)\n      lowtide top\n\
                        end";
        assert_eq!(with_whole_commands(text, 36), expected);
        let remark = "next: lowtide top\n      (--why: all reasons and remedies)";
        assert_eq!(
            with_whole_commands(remark, 30),
            "next: lowtide top\n      (--why: all reasons and\n      remedies)"
        );
    }

    #[test]
    fn no_word_of_a_program_ends_a_line_of_a_command() {
        for words in ["tune: echo 1", "'it'\\''s long     (1)' 2", "'a     (b)'", "a, b; c"] {
            let command = format!("next: lowtide study -- h.py {words} and still more words");
            assert_eq!(with_whole_commands(&command, 40), command);
            let with_remark = format!("{command}     (try it)");
            assert_eq!(with_whole_commands(&with_remark, 40), format!("{command}\n      (try it)"));
        }
    }
}
