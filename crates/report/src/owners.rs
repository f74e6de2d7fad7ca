//! The owners of a ledger on every medium: their colours, letters and places in a bar, and the
//! facts of their process.

use lowtide_model::bytes::Human;
use lowtide_model::inspection::{Inspection, Manager};
use lowtide_model::ledger::{Owner, Row, State, WalkedRuntime};
use lowtide_model::number::counted;
use ratatui_core::style::Color;

use crate::text::printable;

/// Returns the colour of a row, and its letter for terminals without colours.
pub fn ink(row: &Row) -> (Color, char) {
    match row.state {
        Some(State::Free) => (Color::LightGreen, 'x'),
        _ => ink_of(row.owner),
    }
}

/// Returns the colour of an owner, and its letter for terminals without colours.
pub fn ink_of(owner: Owner) -> (Color, char) {
    match owner {
        Owner::Allocated => (Color::Blue, 'A'),
        Owner::Reclaimable => (Color::Green, 'R'),
        Owner::Locked => (Color::LightRed, 'L'),
        Owner::Fragmented => (Color::Yellow, 'F'),
        Owner::Cached => (Color::Cyan, 'c'),
        Owner::Metadata => (Color::LightBlue, 'm'),
        Owner::Runtime => (Color::Magenta, 'X'),
        Owner::Stacks => (Color::LightCyan, 's'),
        Owner::ProgramData => (Color::Gray, 'd'),
        Owner::File => (Color::DarkGray, 'f'),
        Owner::Shared => (Color::LightMagenta, 'h'),
        Owner::Device => (Color::White, 'v'),
        Owner::AnonymousOther => (Color::LightYellow, 'o'),
        Owner::Unattributed => (Color::Red, '?'),
    }
}

/// Returns how many of `width` columns each row has, by largest remainder.
pub fn places(rows: &[Row], total: u64, width: usize) -> Vec<(Row, usize)> {
    if total == 0 {
        return Vec::new();
    }
    let exact = |row: &Row| row.bytes as f64 / total as f64 * width as f64;
    let mut shown: Vec<(Row, usize, f64)> = rows
        .iter()
        .filter(|row| row.bytes > 0)
        .map(|row| (*row, exact(row) as usize, exact(row).fract()))
        .collect();
    let mut left = width - shown.iter().map(|s| s.1).sum::<usize>();
    let mut order: Vec<usize> = (0..shown.len()).collect();
    order.sort_by(|a, b| shown[*b].2.total_cmp(&shown[*a].2));
    for place in order {
        if left == 0 {
            break;
        }
        shown[place].1 += 1;
        left -= 1;
    }
    shown.into_iter().filter(|s| s.1 > 0).map(|s| (s.0, s.1)).collect()
}

/// Describes a row of this process's ledger, in a few words, which may include names chosen by the
/// process.
pub fn meaning(inspection: &Inspection, row: &Row) -> String {
    if let (Some(manager), Some(state)) = (row.manager, row.state) {
        return of_walked_runtime(manager, state);
    }
    let owner = row.owner;
    match owner {
        Owner::Runtime => {
            let observation = &inspection.observation;
            let managers = Manager::outside_of_walked(&observation.managers, &observation.ledger);
            let name = |manager: &Manager| match (managers.len() > 1, manager.estimated) {
                (false, _) => manager.name.clone(),
                (true, true) => format!("{} ≈ {}", manager.name, Human(manager.bytes)),
                (true, false) => format!("{} {}", manager.name, Human(manager.bytes)),
            };
            let names: Vec<String> = managers.iter().map(name).collect();
            match names.is_empty() {
                true => owner.meaning().to_owned(),
                false => format!("managed by {}, not walked", names.join(", ")),
            }
        }
        Owner::Shared => match inspection.observation.shared.first() {
            Some(largest) => printable(&format!("{}: {}", owner.meaning(), largest.name)),
            None => owner.meaning().to_owned(),
        },
        _ => owner.meaning().to_owned(),
    }
}

fn of_walked_runtime(manager: WalkedRuntime, state: State) -> String {
    let what = match (manager, state) {
        (WalkedRuntime::CPython, State::Allocated) => "blocks in use",
        (WalkedRuntime::CPython, State::Free) => "free blocks and pools",
        (WalkedRuntime::HotSpot, State::Allocated) => "in use after the last collection",
        (WalkedRuntime::HotSpot, State::Free) => "newer objects and free memory",
        (WalkedRuntime::V8, State::Allocated) => "objects, with uncollected garbage",
        (WalkedRuntime::V8, State::Free) => "free in its spaces and in its pool",
        (_, State::Unknown) => "not walked",
    };
    format!("{}: {what}", manager.kind().name())
}

/// Describes allocator, runtimes, threads, files and connections, in a few words each.
pub fn facts(inspection: &Inspection) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(allocator) = &inspection.observation.allocator {
        let version = allocator.version.as_ref().map(|v| format!(" {v}")).unwrap_or_default();
        let linkage = allocator.linkage.map(|l| format!(" ({})", l.name())).unwrap_or_default();
        parts.push(format!("{}{version}{linkage}", allocator.kind));
    }
    parts.extend(inspection.observation.runtimes.iter().map(|r| match &r.version {
        Some(version) => format!("{} {version}", r.name),
        None => r.name.clone(),
    }));
    // A core that was cut off may have lost them.
    if inspection.observation.threads > 0 {
        parts.push(counted(inspection.observation.threads, "thread"));
    }
    parts.extend(inspection.observation.open_files.map(|n| counted(n, "open file")));
    let connections = inspection.observation.sockets_established.filter(|count| *count > 0);
    parts.extend(connections.map(|count| counted(count, "connection")));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_cells_add_up_to_the_width_and_large_owners_come_first() {
        let rows = [
            Row::new(Owner::Allocated, 600),
            Row::new(Owner::Reclaimable, 399),
            Row::new(Owner::File, 1),
            Row::new(Owner::Stacks, 0),
        ];
        let found = places(&rows, 1000, 50);
        assert_eq!(found.iter().map(|f| f.1).sum::<usize>(), 50);
        assert_eq!(found, [(rows[0], 30), (rows[1], 20)]);
        assert_eq!(places(&rows, 0, 50), []);
    }
}
