//! The table as text: for `lowtide top --once`, and line by line for the live view.

use lowtide_model::bytes::Human;
use lowtide_model::top::{Top, TopGroup, TopProcess};
use lowtide_report::text::printable;

use super::rows::{GroupKey, total};

/// Minimum growth that is not shown as 0, in bytes per hour.
const MIN_GROWTH: u64 = 64 << 10;

/// Returns the line of headings.
pub(crate) fn heading(by: GroupKey) -> String {
    let numbers = numbers(["RSS", "in use", "reclaimable", "fragmented", "growth/h"]);
    match by {
        GroupKey::Process => {
            format!("{:>8} {numbers}  {:<13} {:<16} command", "PID", "verdict", "allocator")
        }
        _ => format!("{:>9} {numbers}  {}", "processes", by.name()),
    }
}

fn numbers(texts: [&str; 5]) -> String {
    let [rss, in_use, reclaimable, fragmented, growth] = texts;
    format!("{rss:>9} {in_use:>9} {reclaimable:>11} {fragmented:>10} {growth:>9}")
}

/// Returns the line of a process.
pub(crate) fn process(process: &TopProcess) -> String {
    let unknown = match process.unread {
        Some(_) => "-",
        None => "…",
    };
    let bytes =
        |bytes: Option<u64>| bytes.map_or(unknown.to_owned(), |bytes| Human(bytes).to_string());
    let in_use = process.allocated_bytes.zip(process.runtime_bytes).map(|(a, r)| a + r);
    let numbers = numbers([
        &Human(process.rss_bytes).to_string(),
        &bytes(in_use),
        &bytes(process.reclaimable_bytes),
        &bytes(process.fragmented_bytes),
        &process.rss_bytes_per_hour.map_or("…".to_owned(), growth),
    ]);
    let verdict = match (process.verdict, process.unread) {
        (_, Some(reason)) => reason,
        (Some(verdict), None) => verdict.name(),
        (None, None) => "…",
    };
    let allocator = process.allocator.as_deref().unwrap_or(unknown);
    format!("{:>8} {numbers}  {verdict:<13} {allocator:<16} {}", process.pid, process.command)
}

/// Returns the line of a group.
pub(crate) fn group(group: &TopGroup) -> String {
    let numbers = numbers([
        &Human(group.rss_bytes).to_string(),
        &Human(group.allocated_bytes + group.runtime_bytes).to_string(),
        &Human(group.reclaimable_bytes).to_string(),
        &Human(group.fragmented_bytes).to_string(),
        &growth(group.rss_bytes_per_hour),
    ]);
    format!("{:>9} {numbers}  {}", group.processes, group.name)
}

fn growth(bytes_per_hour: i64) -> String {
    let bytes = bytes_per_hour.unsigned_abs();
    let sign = if bytes_per_hour < 0 { "-" } else { "+" };
    if bytes < MIN_GROWTH { "0".to_owned() } else { format!("{sign}{}", Human(bytes)) }
}

/// Returns the totals of all processes in a sentence.
pub(crate) fn summary(top: &Top) -> String {
    let total = total(top);
    let mut text = format!(
        "{} processes: RSS {}, in use {}, reclaimable {}, fragmented {}",
        total.processes,
        Human(total.rss_bytes),
        Human(total.allocated_bytes + total.runtime_bytes),
        Human(total.reclaimable_bytes),
        Human(total.fragmented_bytes),
    );
    if top.uninspected > 0 {
        text += &format!("; {} not inspected yet", top.uninspected);
    }
    text
}

/// Returns how many processes could not be read, and the remedy; `None` if all could be read.
pub(crate) fn unread(top: &Top) -> Option<String> {
    let of = |reason| top.processes.iter().filter(|process| process.unread == Some(reason)).count();
    let parts = [
        (of("not_permitted"), "may not be read: run lowtide as root with CAP_SYS_PTRACE"),
        (of("blocked"), "blocked a read"),
        (of("slow"), "took too long to read"),
        (of("failed"), "could not be read"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let text: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    (!text.is_empty()).then(|| text.join("; "))
}

/// Returns the whole table. Lines longer than `width` are cut off.
pub(crate) fn render(top: &Top, by: GroupKey, width: u16) -> String {
    let lines: Vec<String> = match by {
        GroupKey::Process => top.processes.iter().map(process).collect(),
        _ => top.groups.iter().map(group).collect(),
    };
    let mut text = heading(by) + "\n";
    for line in lines {
        let line = printable(&line);
        text += &match line.chars().count() > usize::from(width) {
            true => line.chars().take(usize::from(width) - 1).chain(['…']).collect(),
            false => line,
        };
        text += "\n";
    }
    text += &format!("\n{}\n", summary(top));
    text.extend(unread(top).map(|line| line + "\n"));
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::rows::tests::process as row;
    use super::*;
    use lowtide_model::top::SCHEMA;

    pub(crate) fn top() -> Top {
        let mut waiting = row(4, 20, None);
        waiting.unread = None;
        Top {
            schema: SCHEMA,
            elapsed_s: 3.0,
            processes: vec![
                row(1, 300, Some(100)),
                row(2, 100, Some(1)),
                row(3, 50, None),
                waiting,
            ],
            groups: Vec::new(),
            unreadable: 1,
            uninspected: 1,
        }
    }

    #[test]
    fn a_table_of_processes() {
        insta::assert_snapshot!(render(&top(), GroupKey::Process, 120));
    }

    #[test]
    fn a_table_of_groups() {
        let mut sum = TopGroup { name: "/usr/bin/server1".to_owned(), ..TopGroup::default() };
        sum.add(&row(1, 300, Some(100)));
        sum.add(&row(3, 50, None));
        sum.rss_bytes_per_hour = -(5 << 30);
        insta::assert_snapshot!(render(&Top { groups: vec![sum], ..top() }, GroupKey::Exe, 120));
    }

    #[test]
    fn a_command_is_shown_without_control_characters_and_truncated() {
        let mut bad = row(1, 300, Some(100));
        bad.command = "evil \u{1b}[2J\n".to_owned();
        let text = render(&Top { processes: vec![bad.clone()], ..top() }, GroupKey::Process, 120);
        assert!(!text.contains('\u{1b}'), "{text}");
        bad.command = "x".repeat(500);
        let text = render(&Top { processes: vec![bad], ..top() }, GroupKey::Process, 120);
        assert!(text.lines().nth(1).unwrap().ends_with("x…"), "{text}");
    }
}
