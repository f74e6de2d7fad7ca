//! The table as text: for `lowtide top --once`, and line by line for the live view.

use lowtide_model::bytes::Human;
use lowtide_model::number::HumanCount;
use lowtide_model::top::{Top, TopGroup, TopProcess};
use lowtide_report::group::same_memory;
use lowtide_report::text::{printable, shortened, signed, without_directory, wrapped};

use super::rows::{GroupKey, SortKey, total};

/// Minimum growth that is not shown as 0, in bytes per hour.
const MIN_GROWTH: u64 = 64 << 10;

/// Minimum width of the last column, the name of a process or a group.
const MIN_NAME_WIDTH: usize = 26;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Pid,
    Processes,
    Charged,
    Rss,
    InUse,
    Reclaimable,
    Fragmented,
    Growth,
    Verdict,
    Allocator,
}

impl Column {
    /// The columns from left to right.
    const ALL: [Self; 10] = [
        Self::Pid,
        Self::Processes,
        Self::Charged,
        Self::Rss,
        Self::InUse,
        Self::Reclaimable,
        Self::Fragmented,
        Self::Growth,
        Self::Verdict,
        Self::Allocator,
    ];

    /// The columns that a wide terminal also shows, the most important first.
    const OPTIONAL: [Self; 4] = [Self::Growth, Self::InUse, Self::Fragmented, Self::Allocator];

    /// Returns its width with the space before the next column.
    fn width(self) -> usize {
        match self {
            Self::Pid => 9,
            Self::Processes | Self::Charged | Self::Rss | Self::InUse | Self::Growth => 10,
            Self::Reclaimable => 12,
            Self::Fragmented => 11,
            Self::Verdict => 15,
            Self::Allocator => 17,
        }
    }

    /// Formats a value, or a heading.
    fn cell(self, text: &str) -> String {
        let width = self.width();
        match self {
            Self::Verdict => format!(" {text:<0$}", width - 1),
            Self::Allocator => format!("{text:<width$}"),
            _ => format!("{text:>0$} ", width - 1),
        }
    }

    /// Returns whether lines of processes or of groups have it.
    fn is_of(self, by: GroupKey) -> bool {
        match self {
            Self::Pid | Self::Verdict | Self::Allocator => by == GroupKey::Process,
            Self::Processes => by != GroupKey::Process,
            Self::Charged => by == GroupKey::Cgroup,
            _ => true,
        }
    }
}

impl From<SortKey> for Column {
    fn from(sort: SortKey) -> Self {
        match sort {
            SortKey::Reclaimable => Self::Reclaimable,
            SortKey::Rss => Self::Rss,
            SortKey::Allocated => Self::InUse,
            SortKey::Growth => Self::Growth,
        }
    }
}

/// The columns of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Columns {
    columns: Vec<Column>,
    by: GroupKey,
}

impl Columns {
    /// Returns the columns that fit into a width beside the name. The column that orders the table
    /// is always one of them.
    pub(crate) fn fitting(by: GroupKey, sort: SortKey, width: usize) -> Self {
        let of_key = Column::ALL.into_iter().filter(|column| column.is_of(by));
        let is_optional =
            |column: &Column| Column::OPTIONAL.contains(column) && *column != sort.into();
        let (optional, mut shown): (Vec<Column>, Vec<Column>) = of_key.partition(is_optional);
        let mut rest = shown.iter().map(|column| column.width()).sum::<usize>() + MIN_NAME_WIDTH;
        for column in Column::OPTIONAL.iter().filter(|column| optional.contains(column)) {
            rest += column.width();
            if rest > width {
                break;
            }
            shown.push(*column);
        }
        shown.sort_by_key(|column| Column::ALL.iter().position(|other| other == column));
        Self { columns: shown, by }
    }

    /// Leaves out a column.
    fn without(mut self, column: Column) -> Self {
        self.columns.retain(|shown| *shown != column);
        self
    }

    fn line(&self, text: impl Fn(Column) -> String, name: &str) -> String {
        let cells = self.columns.iter().map(|column| column.cell(&text(*column)));
        cells.collect::<String>() + name
    }

    /// Returns the line of headings.
    pub(crate) fn heading(&self) -> String {
        let name = if self.by == GroupKey::Process { "command" } else { self.by.name() };
        let text = |column| match column {
            Column::Pid => "PID",
            Column::Processes => "processes",
            Column::Charged => "charged",
            Column::Rss => "RSS",
            Column::InUse => "in use",
            Column::Reclaimable => "reclaimable",
            Column::Fragmented => "fragmented",
            Column::Growth => "growth/h",
            Column::Verdict => "verdict",
            Column::Allocator => "allocator",
        };
        self.line(|column| text(column).to_owned(), name)
    }

    /// Returns the line of a process.
    pub(crate) fn process(&self, process: &TopProcess) -> String {
        let unknown = if process.unread.is_some() { "-" } else { "…" };
        let bytes =
            |bytes: Option<u64>| bytes.map_or(unknown.to_owned(), |bytes| Human(bytes).to_string());
        let in_use = process.allocated_bytes.zip(process.runtime_bytes).map(|(a, r)| a + r);
        let text = |column| match column {
            Column::Pid => process.pid.to_string(),
            Column::Rss => Human(process.rss_bytes).to_string(),
            Column::InUse => bytes(in_use),
            Column::Reclaimable => bytes(process.reclaimable_bytes),
            Column::Fragmented => bytes(process.fragmented_bytes),
            Column::Growth => growth(process.rss_bytes_per_hour),
            Column::Verdict => {
                process.unread.or(process.verdict_name).unwrap_or("…").replace('_', " ")
            }
            Column::Allocator => process.allocator.as_deref().unwrap_or(unknown).to_owned(),
            Column::Processes | Column::Charged => String::new(),
        };
        self.line(text, without_directory(&process.command))
    }

    /// Returns the line of a group.
    pub(crate) fn group(&self, group: &TopGroup) -> String {
        let text = |column| match column {
            Column::Processes => group.processes.to_string(),
            Column::Charged => match &group.charge {
                Some(charge) => Human(charge.charged_bytes).to_string(),
                None => "-".to_owned(),
            },
            Column::Rss => Human(group.rss_bytes).to_string(),
            Column::InUse => Human(group.allocated_bytes + group.runtime_bytes).to_string(),
            Column::Reclaimable => Human(group.reclaimable_bytes).to_string(),
            Column::Fragmented => Human(group.fragmented_bytes).to_string(),
            Column::Growth => growth(group.rss_bytes_per_hour),
            Column::Pid | Column::Verdict | Column::Allocator => String::new(),
        };
        self.line(text, group.label.as_ref().unwrap_or(&group.name))
    }
}

/// Formats a growth, which is unknown at first.
fn growth(bytes_per_hour: Option<i64>) -> String {
    match bytes_per_hour {
        None => "…".to_owned(),
        Some(bytes) if bytes.unsigned_abs() < MIN_GROWTH => "0".to_owned(),
        Some(bytes) => signed(bytes),
    }
}

/// Returns the totals of all processes in a sentence. The last totals are left out where they do
/// not fit.
pub(crate) fn summary(top: &Top, width: usize) -> String {
    let total = total(top);
    let waiting = match top.uninspected {
        0 => String::new(),
        count => format!("; {} not inspected yet", HumanCount(count)),
    };
    let mut text =
        format!("{} processes: RSS {}", HumanCount(total.processes), Human(total.rss_bytes));
    // Of processes that may not be read, only the size is known.
    let is_read = top.processes.iter().any(|process| process.unread.is_none());
    let parts = [
        ("reclaimable", total.reclaimable_bytes),
        ("in use", total.allocated_bytes + total.runtime_bytes),
        ("fragmented", total.fragmented_bytes),
    ];
    for (what, bytes) in parts.into_iter().filter(|_| is_read) {
        let part = format!(", {what} {}", Human(bytes));
        if text.chars().count() + part.chars().count() + waiting.chars().count() > width {
            break;
        }
        text += &part;
    }
    text + &waiting
}

/// Returns how many processes use the memory of another one, how many could not be read, and why;
/// `None` if there are none.
pub(crate) fn remarks(top: &Top) -> Option<String> {
    let required = top.required.as_deref().unwrap_or("another permission");
    counts(top, &format!("may not be read: this requires {required}"))
}

/// Returns the same without what would permit to read them.
pub(crate) fn remarks_in_short(top: &Top) -> Option<String> {
    counts(top, "may not be read (? explains it)")
}

fn counts(top: &Top, not_permitted: &str) -> Option<String> {
    let of = |reason| top.processes.iter().filter(|process| process.unread == Some(reason)).count();
    let parts = [
        (of("not_permitted"), not_permitted.to_owned()),
        (of("blocked"), "blocked a read".to_owned()),
        (of("slow"), "took too long to read".to_owned()),
        (of("failed"), "could not be read".to_owned()),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let unread = parts.map(|(count, what)| format!("{count} {what}"));
    let text: Vec<String> = same_memory(total(top).same_memory).into_iter().chain(unread).collect();
    (!text.is_empty()).then(|| text.join("; "))
}

/// Returns the whole table. Names longer than the rest of `width` are cut off. Growth has no column
/// if it is not known of any process yet.
pub(crate) fn render(top: &Top, by: GroupKey, sort: SortKey, width: u16) -> String {
    let columns = Columns::fitting(by, sort, usize::from(width));
    let is_growth_known = top.processes.iter().any(|one| one.rss_bytes_per_hour.is_some());
    let columns = match is_growth_known || sort == SortKey::Growth {
        true => columns,
        false => columns.without(Column::Growth),
    };
    let lines: Vec<String> = match by {
        GroupKey::Process => top.processes.iter().map(|one| columns.process(one)).collect(),
        _ => top.groups.iter().map(|one| columns.group(one)).collect(),
    };
    let mut text = columns.heading() + "\n";
    for line in lines {
        text += &(shortened(&printable(&line), usize::from(width)) + "\n");
    }
    text += &format!("\n{}\n", wrapped(&summary(top, usize::MAX), width));
    text.extend(remarks(top).map(|line| wrapped(&line, width) + "\n"));
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
            required: Some("CAP_SYS_PTRACE".to_owned()),
        }
    }

    #[test]
    fn a_table_of_processes() {
        insta::assert_snapshot!(render(&top(), GroupKey::Process, SortKey::Reclaimable, 120));
    }

    #[test]
    fn a_narrow_table_keeps_rss_reclaimable_verdict_and_the_name() {
        insta::assert_snapshot!(
            "narrow",
            render(&top(), GroupKey::Process, SortKey::Reclaimable, 80)
        );
    }

    #[test]
    fn a_table_of_groups() {
        // The third one uses the memory of the first.
        let same = TopProcess { same_memory_as: Some(1), ..row(4, 300, Some(100)) };
        let processes = [row(1, 300, Some(100)), row(3, 50, None), same];
        let mut sum =
            TopGroup { name: "/usr/bin/server1".to_owned(), ..TopGroup::of(&processes[..2]) };
        let counted_once =
            TopGroup { processes: 3, same_memory: 1, ..TopGroup::of(&processes[..2]) };
        assert_eq!(TopGroup::of(&processes), counted_once);
        sum.rss_bytes_per_hour = Some(-(5 << 30));
        insta::assert_snapshot!(render(
            &Top { groups: vec![sum], ..top() },
            GroupKey::Exe,
            SortKey::Reclaimable,
            120
        ));
    }

    #[test]
    fn a_command_is_shown_without_control_characters_and_truncated() {
        let mut bad = row(1, 300, Some(100));
        bad.command = "evil \u{1b}[2J\n".to_owned();
        let text = render(
            &Top { processes: vec![bad.clone()], ..top() },
            GroupKey::Process,
            SortKey::Reclaimable,
            120,
        );
        assert!(!text.contains('\u{1b}'), "{text}");
        bad.command = "x".repeat(500);
        let text = render(
            &Top { processes: vec![bad], ..top() },
            GroupKey::Process,
            SortKey::Reclaimable,
            120,
        );
        assert!(text.lines().nth(1).unwrap().ends_with("x…"), "{text}");
    }
}
