//! What one look at a process found, as a tired person reads it at night: one bar, a table, the verdict
//! in a sentence, and what to type next.

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::inspection::{Arena, Bin, Inspection};
use lowtide_model::ledger::{Owner, Row};

use crate::terminal::{Screen, printable, wrapped};

/// How wide the bar of RSS is at most.
const WIDEST_BAR: usize = 100;
/// Arenas are shown one by one up to this many, when that is asked for.
const MOST_ARENAS: usize = 512;

/// How an owner is drawn: its escape sequence, and its letter where there are no colours.
fn ink(owner: Owner) -> (&'static str, char) {
    match owner {
        Owner::Allocated => ("\x1b[34m", 'A'),
        Owner::Reclaimable => ("\x1b[32m", 'R'),
        Owner::Fragmented => ("\x1b[33m", 'F'),
        Owner::Cached => ("\x1b[36m", 'c'),
        Owner::Metadata => ("\x1b[94m", 'm'),
        Owner::Runtime => ("\x1b[35m", 'X'),
        Owner::Stacks => ("\x1b[96m", 's'),
        Owner::ProgramData => ("\x1b[37m", 'd'),
        Owner::File => ("\x1b[90m", 'f'),
        Owner::Shared => ("\x1b[95m", 'h'),
        Owner::AnonymousOther => ("\x1b[93m", 'o'),
        Owner::Unattributed => ("\x1b[31m", '?'),
    }
}

/// The picture of one look. `arenas` shows each of them instead of their sum.
pub fn render(inspection: &Inspection, arenas: bool, screen: Screen) -> String {
    let mut out = head(inspection, screen);
    out += &bar(inspection, screen);
    out.push('\n');
    out += &rows(inspection, screen);
    out += &beside(inspection, screen);
    out += &heap(inspection, arenas, screen);
    for note in &inspection.notes {
        out += &wrapped(&format!("note: {note}"), screen.width);
        out.push('\n');
    }
    out.push('\n');
    let verdict = &inspection.verdict;
    let sentence = format!("{}: {}.", verdict.kind.name(), verdict.because.join("; "));
    out += &bold(&wrapped(&sentence, screen.width), screen);
    out.push('\n');
    out += &cures(inspection, screen);
    out
}

fn bold(text: &str, screen: Screen) -> String {
    if screen.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

fn dim(text: &str, screen: Screen) -> String {
    if screen.colour { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

fn head(inspection: &Inspection, screen: Screen) -> String {
    let command = printable(&inspection.command.join(" "));
    let room = usize::from(screen.width).saturating_sub(16);
    let short: String = if command.chars().count() > room {
        command.chars().take(room.saturating_sub(1)).chain(['…']).collect()
    } else {
        command
    };
    let title = format!("{short}  PID {}", inspection.pid);
    let mut parts = Vec::new();
    if let Some(allocator) = &inspection.allocator {
        let version = allocator.version.as_ref().map(|v| format!(" {v}")).unwrap_or_default();
        let linkage = allocator.linkage.map(|l| format!(" ({})", l.name())).unwrap_or_default();
        parts.push(format!("{}{version}{linkage}", allocator.name));
    }
    parts.extend(inspection.runtimes.iter().map(|r| match &r.version {
        Some(version) => format!("{} {version}", r.name),
        None => r.name.clone(),
    }));
    parts.push(counted(inspection.threads, "thread"));
    parts.extend(inspection.open_files.map(|n| counted(n, "open file")));
    parts.extend(inspection.sockets_established.map(|n| counted(n, "connection")));
    format!("{}\n{}\n\n", bold(&title, screen), wrapped(&parts.join(" · "), screen.width))
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// RSS as one bar, split by owner. Whoever has anything to speak of has at least one place.
pub fn bar(inspection: &Inspection, screen: Screen) -> String {
    let width = usize::from(screen.width).min(WIDEST_BAR);
    let total = inspection.ledger.total();
    let mut out = format!("RSS {}", Human(inspection.rss_bytes));
    if let Some(kernel) = inspection.kernel_rss_bytes.filter(|k| differs(*k, inspection.rss_bytes))
    {
        let _ = write!(out, " (the kernel says {})", Human(kernel));
    }
    out.push('\n');
    for (owner, places) in places(inspection.ledger.rows(), total, width) {
        let (colour, letter) = ink(owner);
        if screen.colour {
            let _ = write!(out, "{colour}{}\x1b[0m", "█".repeat(places));
        } else {
            out.extend(std::iter::repeat_n(letter, places));
        }
    }
    out.push('\n');
    out
}

/// Whether two figures of RSS differ by more than what changes between two readings.
fn differs(a: u64, b: u64) -> bool {
    a.abs_diff(b) > (b / 100).max(1 << 20)
}

/// How many of `width` places each owner has, by largest remainder.
fn places(rows: &[Row], total: u64, width: usize) -> Vec<(Owner, usize)> {
    if total == 0 {
        return Vec::new();
    }
    let exact = |row: &Row| row.bytes as f64 / total as f64 * width as f64;
    let mut shown: Vec<(Owner, usize, f64)> = rows
        .iter()
        .filter(|row| row.bytes > 0)
        .map(|row| (row.owner, exact(row) as usize, exact(row).fract()))
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

fn rows(inspection: &Inspection, screen: Screen) -> String {
    let total = inspection.ledger.total().max(1);
    let mut out = String::new();
    for row in inspection.ledger.rows().iter().filter(|r| r.bytes > 0) {
        let (colour, letter) = ink(row.owner);
        let sign =
            if screen.colour { format!("{colour}██\x1b[0m") } else { format!("{letter} ") };
        let share = row.bytes as f64 / total as f64 * 100.0;
        let about = if row.estimated { "≈" } else { " " };
        let meaning = meaning(inspection, row.owner);
        let room = usize::from(screen.width).saturating_sub(41);
        let meaning: String = meaning.chars().take(room).collect();
        let _ = writeln!(
            out,
            " {sign} {:<16}{about}{:>10}  {share:>5.1} %  {}",
            row.owner.name(),
            Human(row.bytes).to_string(),
            dim(&meaning, screen)
        );
    }
    out
}

fn meaning(inspection: &Inspection, owner: Owner) -> String {
    match owner {
        Owner::Runtime => {
            let mut names: Vec<&str> =
                inspection.runtimes.iter().map(|r| r.name.as_str()).collect();
            let glibc = |name: &&str| *name != "glibc";
            names.extend(inspection.allocator.iter().map(|a| a.name.as_str()).filter(glibc));
            if names.is_empty() {
                return owner.meaning().to_owned();
            }
            format!("managed by {}", names.join(", "))
        }
        _ => owner.meaning().to_owned(),
    }
}

/// What is not a part of RSS, or says more about it.
fn beside(inspection: &Inspection, screen: Screen) -> String {
    let mut parts = Vec::new();
    if inspection.swap_bytes > 0 {
        parts.push(format!("swapped out: {}", Human(inspection.swap_bytes)));
    }
    let told = [
        ("given back lazily, still counted", inspection.lazyfree_bytes),
        ("in huge pages", inspection.anon_huge_bytes),
        ("page tables, not counted", inspection.page_tables_bytes),
        ("not walked", Some(inspection.unwalked_bytes)),
    ];
    for (what, bytes) in told {
        parts.extend(bytes.filter(|b| *b > 0).map(|b| format!("{what}: {}", Human(b))));
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("{}\n", dim(&wrapped(&parts.join(" · "), screen.width), screen))
}

fn heap(inspection: &Inspection, each: bool, screen: Screen) -> String {
    let mut out = String::new();
    if inspection.arenas.is_empty() {
        return out;
    }
    out.push('\n');
    if each {
        let _ = writeln!(
            out,
            "{}",
            dim(
                " arena  heaps      system   allocated        free  in blocks     largest         top  reclaimable",
                screen
            )
        );
        for arena in inspection.arenas.iter().take(MOST_ARENAS) {
            out += &arena_line(arena);
        }
        let rest = inspection.arenas.len().saturating_sub(MOST_ARENAS);
        if rest > 0 {
            let _ = writeln!(out, " … and {rest} more; --json has them all");
        }
        let bins = bins(&inspection.arenas);
        if !bins.is_empty() {
            let _ = writeln!(out, "\n{}", dim(" free blocks of      count       bytes", screen));
            for bin in bins {
                let from = Human(bin.from).to_string();
                let _ = writeln!(
                    out,
                    " from {from:<10} {:>9} {:>11}",
                    bin.count,
                    Human(bin.bytes).to_string()
                );
            }
        }
        if let Some(tunables) = &inspection.tunables_in_force {
            let arena_max = tunables.arena_max.map_or("not set".to_owned(), |n| n.to_string());
            let dynamic = if tunables.mmap_threshold_dynamic { ", dynamic" } else { "" };
            let _ = writeln!(
                out,
                "\n settings in force: arena_max {arena_max} · trim_threshold {} · mmap_threshold {}{dynamic} · \
                 tcache_count {} up to {}",
                Human(tunables.trim_threshold_bytes),
                Human(tunables.mmap_threshold_bytes),
                tunables.tcache_count,
                Human(tunables.tcache_max_bytes)
            );
        }
    }
    let sum = |of: &dyn Fn(&Arena) -> u64| inspection.arenas.iter().map(of).sum::<u64>();
    let largest = inspection.arenas.iter().map(|a| a.largest_free_bytes).max().unwrap_or(0);
    let mut line = format!(
        "{} of {}: {} in use, {} free in {}, the largest {}; tops {}",
        counted(inspection.arenas.len() as u64, "arena"),
        Human(sum(&|a| a.system_bytes)),
        Human(sum(&|a| a.allocated_bytes)),
        Human(sum(&|a| a.free_bytes + a.fast_bytes)),
        counted(sum(&|a| a.free_count + a.fast_count), "block"),
        Human(largest),
        Human(sum(&|a| a.top_bytes)),
    );
    if inspection.mmapped_count > 0 {
        let _ = write!(
            line,
            "; {} mapped by themselves, {}",
            counted(inspection.mmapped_count, "block"),
            Human(inspection.mmapped_bytes)
        );
    }
    if !each {
        line += " (--arenas shows each)";
    }
    out += &wrapped(&line, screen.width);
    out.push('\n');
    out
}

fn arena_line(arena: &Arena) -> String {
    let bytes = |b: u64| Human(b).to_string();
    let doubt = if arena.whole { "" } else { "  not walked whole" };
    format!(
        " {:>5} {:>6} {:>11} {:>11} {:>11} {:>10} {:>11} {:>11} {:>12}{doubt}\n",
        arena.id,
        arena.heaps,
        bytes(arena.system_bytes),
        bytes(arena.allocated_bytes),
        bytes(arena.free_bytes + arena.fast_bytes),
        arena.free_count + arena.fast_count,
        bytes(arena.largest_free_bytes),
        bytes(arena.top_bytes),
        bytes(arena.reclaimable_bytes),
    )
}

/// The free blocks of all arenas by size.
fn bins(arenas: &[Arena]) -> Vec<Bin> {
    let mut all: Vec<Bin> = Vec::new();
    for bin in arenas.iter().flat_map(|a| &a.bins) {
        match all.iter_mut().find(|b| b.from == bin.from) {
            Some(same) => {
                same.count += bin.count;
                same.bytes += bin.bytes;
            }
            None => all.push(*bin),
        }
    }
    all.sort_by_key(|b| b.from);
    all
}

fn cures(inspection: &Inspection, screen: Screen) -> String {
    let mut out = String::new();
    let width = inspection.cures.iter().map(|c| c.cure.len()).max().unwrap_or(0);
    for cure in &inspection.cures {
        let bytes = cure.predicted_bytes.map_or(String::new(), |b| Human(b).to_string());
        let begin = format!(" {:<width$}  {bytes:>9}  ", cure.cure);
        let indent = begin.chars().count();
        let room = usize::from(screen.width).saturating_sub(indent).max(30);
        let text = wrapped(&cure.how, u16::try_from(room).unwrap_or(u16::MAX));
        let text = text.replace('\n', &format!("\n{}", " ".repeat(indent)));
        let _ = writeln!(out, "{begin}{text}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_a_bar_add_up_and_the_large_come_first() {
        let row = |owner, bytes| Row { owner, bytes, estimated: false };
        let rows = [
            row(Owner::Allocated, 600),
            row(Owner::Reclaimable, 399),
            row(Owner::File, 1),
            row(Owner::Stacks, 0),
        ];
        let found = places(&rows, 1000, 50);
        assert_eq!(found.iter().map(|f| f.1).sum::<usize>(), 50);
        assert_eq!(found, [(Owner::Allocated, 30), (Owner::Reclaimable, 20)]);
        assert_eq!(places(&rows, 0, 50), []);
    }
}
