//! An inspection in one line, for several processes.

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::{Ledger, Owner};
use lowtide_model::verdict::VerdictKind;

use crate::screen::Screen;
use crate::text::{printable, shortened, without_directory};

/// Returns the line of headings above the lines of processes.
pub fn heading() -> String {
    format!("{:>8} {:>10} {:>11}  {:<13}  command\n", "PID", "RSS", "reclaimable", "verdict")
}

/// Formats an inspection as one line. The command is cut off at the width of the screen.
pub fn line(inspection: &Inspection, screen: Screen) -> String {
    let observation = &inspection.observation;
    let verdict = outside_heap(inspection.verdict.kind, &observation.ledger);
    let numbers = format!(
        "{:>8} {:>10} {:>11}  {verdict:<13}  ",
        observation.pid,
        Human(observation.rss_bytes).to_string(),
        Human(observation.ledger.bytes(Owner::Reclaimable)).to_string(),
    );
    let command = printable(without_directory(&observation.command.join(" ")));
    let room = usize::from(screen.width).saturating_sub(numbers.chars().count()).max(8);
    format!("{numbers}{}\n", shortened(&command, room))
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
    fn memory_outside_of_the_heap_has_the_name_of_its_largest_part() {
        let mut ledger = Ledger::default();
        ledger.add(Owner::File, 2);
        ledger.add(Owner::Shared, 3);
        assert_eq!(outside_heap(VerdictKind::OutsideHeap, &ledger), "shared memory");
        assert_eq!(outside_heap(VerdictKind::Hoard, &ledger), "hoard");
        assert_eq!(outside_heap(VerdictKind::OutsideHeap, &Ledger::default()), "outside_heap");
    }
}
