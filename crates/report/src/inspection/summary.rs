//! An inspection in one line, for several processes.

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::{Ledger, Owner};
use lowtide_model::verdict::VerdictKind;

use crate::screen::Screen;
use crate::text::{printable, shortened, without_directory};

/// One process in the list of several.
#[derive(Debug, Clone)]
pub struct SummaryRow {
    /// Its PID.
    pub pid: u32,
    /// Its resident bytes.
    pub rss_bytes: u64,
    /// What it costs by itself, in bytes, if it shares memory with processes that were forked.
    own_bytes: Option<u64>,
    /// `None` if its heap may not be read.
    reclaimable_bytes: Option<u64>,
    verdict: &'static str,
    command: String,
}

impl SummaryRow {
    /// Returns the row of an inspected process.
    pub fn new(inspection: &Inspection) -> Self {
        let observation = &inspection.observation;
        Self {
            pid: observation.pid,
            rss_bytes: observation.rss_bytes,
            own_bytes: observation.forked.as_ref().map(|forked| forked.private_bytes),
            reclaimable_bytes: (observation.unreadable.is_none())
                .then(|| observation.ledger.bytes(Owner::Reclaimable)),
            verdict: outside_heap(inspection.verdict.kind, &observation.ledger),
            command: printable(without_directory(&observation.command.join(" "))),
        }
    }

    /// Formats it as one line. The command is cut off at the width of the screen.
    fn line(&self, has_own: bool, screen: Screen) -> String {
        let own = match (has_own, self.own_bytes) {
            (false, _) => String::new(),
            (true, None) => format!("{:>10} ", ""),
            (true, Some(bytes)) => format!("{:>10} ", Human(bytes).to_string()),
        };
        let numbers = format!(
            "{:>8} {:>10} {own}{:>11}  {:<13}  ",
            self.pid,
            Human(self.rss_bytes).to_string(),
            known(self.reclaimable_bytes),
            self.verdict,
        );
        let room = usize::from(screen.width).saturating_sub(numbers.chars().count()).max(8);
        format!("{numbers}{}\n", shortened(&self.command, room))
    }
}

/// Formats bytes that may be unknown.
fn known(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| Human(bytes).to_string())
}

/// Formats several processes below a line of headings: a line for each of the `most` largest, the
/// largest first, and one for all others. If some of them share memory after a fork, a column has
/// what each costs by itself.
pub fn list(rows: &[SummaryRow], most: usize, screen: Screen) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let has_own = rows.iter().any(|row| row.own_bytes.is_some());
    let own = if has_own { format!("{:>10} ", "its own") } else { String::new() };
    let heading = format!(
        "{:>8} {:>10} {own}{:>11}  {:<13}  command\n",
        "PID", "RSS", "reclaimable", "verdict"
    );
    let mut sizes: Vec<(u64, u32)> = rows.iter().map(|row| (row.rss_bytes, row.pid)).collect();
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    // A line for a single other one would be no shorter.
    let least =
        if rows.len() > most.saturating_add(1) { sizes[most.saturating_sub(1)] } else { (0, 0) };
    let is_large = |row: &&SummaryRow| (row.rss_bytes, row.pid) >= least;
    let (mut large, small): (Vec<&SummaryRow>, Vec<&SummaryRow>) = rows.iter().partition(is_large);
    large.sort_by_key(|row| (std::cmp::Reverse(row.rss_bytes), row.pid));
    let lines: String = large.iter().map(|row| row.line(has_own, screen)).collect();
    if small.is_empty() {
        return heading + &lines;
    }
    // If all values are unknown, so is their sum.
    let sum = |of: fn(&SummaryRow) -> Option<u64>| {
        known(small.iter().filter_map(|row| of(row)).reduce(|sum, bytes| sum + bytes))
    };
    let own = if has_own { format!("{:>10} ", "") } else { String::new() };
    let others = format!(
        "{:>8} {:>10} {own}{:>11}  {:<13}  {} more (--each)\n",
        "others",
        sum(|row| Some(row.rss_bytes)),
        sum(|row| row.reclaimable_bytes),
        "",
        small.len()
    );
    heading + &lines + &others
}

/// Returns the name of a verdict in a table. Memory outside of any heap has the name of its largest
/// part.
pub fn outside_heap(kind: VerdictKind, ledger: &Ledger) -> &'static str {
    let parts = [
        (Owner::File, "files"),
        (Owner::Shared, "shared memory"),
        (Owner::AnonymousOther, "own mappings"),
        (Owner::Stacks, "stacks"),
        (Owner::ProgramData, "program data"),
        (Owner::Device, "device memory"),
    ];
    if kind != VerdictKind::OutsideHeap {
        return kind.name();
    }
    let largest = parts.iter().max_by_key(|(owner, _)| ledger.bytes(*owner));
    largest.filter(|(owner, _)| ledger.bytes(*owner) > 0).map_or(kind.name(), |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_forked_process_costs_by_itself_has_a_column() {
        use lowtide_model::inspection::{ForkedMemory, Observation};
        let row = |pid, private_bytes: Option<u64>| {
            let forked = private_bytes
                .map(|bytes| ForkedMemory { private_bytes: bytes, ..ForkedMemory::default() });
            let command = vec!["/usr/bin/worker".to_owned(), "-a".to_owned()];
            let found =
                Observation { pid, rss_bytes: 90 << 20, command, forked, ..Observation::default() };
            SummaryRow::new(&lowtide_analysis::diagnose::diagnose(found))
        };
        let screen = Screen { width: 80, colour: false };
        let text = list(&[row(7, Some(12 << 20)), row(8, None)], usize::MAX, screen);
        let expected = [
            "     PID        RSS    its own reclaimable  verdict        command",
            "       7   90.0 MiB   12.0 MiB         0 B  inconclusive   worker -a",
            "       8   90.0 MiB                    0 B  inconclusive   worker -a",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        assert!(!list(&[row(8, None)], usize::MAX, screen).contains("its own"));
        assert_eq!(list(&[], usize::MAX, screen), "");
    }

    #[test]
    fn all_but_the_largest_processes_are_one_row() {
        use lowtide_model::inspection::Observation;
        let row = |pid: u32, mib: u64| {
            let (rss_bytes, command) = (mib << 20, vec![format!("worker-{pid}")]);
            let found = Observation { pid, rss_bytes, command, ..Observation::default() };
            SummaryRow::new(&lowtide_analysis::diagnose::diagnose(found))
        };
        let screen = Screen { width: 80, colour: false };
        let rows = [row(1, 3), row(2, 90), row(3, 3), row(4, 50), row(5, 2)];
        let text = list(&rows, 2, screen);
        let first = text.lines().map(|line| line.split_whitespace().next().unwrap_or_default());
        assert_eq!(first.collect::<Vec<_>>(), ["PID", "2", "4", "others"]);
        assert!(
            text.contains("  others   8.00 MiB") && text.ends_with("  3 more (--each)\n"),
            "{text}"
        );
        // A row for one process has its name.
        assert!(!list(&rows[..3], 2, screen).contains("others"));
    }

    #[test]
    fn memory_outside_of_the_heap_has_the_name_of_its_largest_part() {
        let mut ledger = Ledger::default();
        ledger.add(Owner::File, 2);
        ledger.add(Owner::Shared, 3);
        assert_eq!(outside_heap(VerdictKind::OutsideHeap, &ledger), "shared memory");
        assert_eq!(outside_heap(VerdictKind::Hoard, &ledger), "hoard");
        assert_eq!(outside_heap(VerdictKind::OutsideHeap, &Ledger::default()), "outside_heap");
    }
}
