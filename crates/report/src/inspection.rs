//! An inspection for people, readable at night: one bar, a table, the verdict in a sentence, and
//! the next step.

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::inspection::{Arena, Bin, Inspection};

use crate::owners::{counted, facts, ink, meaning, places};
use crate::screen::{Screen, bold, dim, escape_of, hanging, title};
use crate::text::{printable, wrapped};

/// Maximum width of the bar of RSS, in columns.
const MAX_BAR_WIDTH: usize = 100;
/// Maximum number of arenas that are shown one by one.
const MAX_ARENAS: usize = 512;

/// Formats an inspection. `arenas` shows each of them instead of their sum.
pub fn render(inspection: &Inspection, arenas: bool, screen: Screen) -> String {
    let mut out = head(inspection, screen);
    out += &bar(inspection, screen);
    out.push('\n');
    out += &rows(inspection, screen);
    out += &beside(inspection, screen);
    out += &heap(inspection, arenas, screen);
    for note in &inspection.observation.notes {
        out += &wrapped(&printable(&format!("note: {note}")), screen.width);
        out.push('\n');
    }
    out.push('\n');
    let verdict = &inspection.verdict;
    let sentence = format!("{}: {}.", verdict.kind.name(), verdict.because.join("; "));
    out += &bold(&wrapped(&printable(&sentence), screen.width), screen);
    out.push('\n');
    out += &remedies(inspection, screen);
    out
}

fn head(inspection: &Inspection, screen: Screen) -> String {
    format!(
        "{}\n{}\n\n",
        title(&inspection.observation.command, inspection.observation.pid, screen),
        wrapped(&facts(inspection).join(" · "), screen.width)
    )
}

/// Formats RSS as one bar, split by owner. An owner above a negligible size has at least one column.
fn bar(inspection: &Inspection, screen: Screen) -> String {
    let width = usize::from(screen.width).min(MAX_BAR_WIDTH);
    let total = inspection.observation.ledger.total();
    let mut out = format!("RSS {}", Human(inspection.observation.rss_bytes));
    if let Some(kernel) = inspection
        .observation
        .kernel_rss_bytes
        .filter(|k| differs(*k, inspection.observation.rss_bytes))
    {
        let _ = write!(out, " (the kernel says {})", Human(kernel));
    }
    out.push('\n');
    for (owner, places) in places(inspection.observation.ledger.rows(), total, width) {
        let (colour, letter) = ink(owner);
        if screen.colour {
            let _ = write!(out, "{}{}\x1b[0m", escape_of(colour), "█".repeat(places));
        } else {
            out.extend(std::iter::repeat_n(letter, places));
        }
    }
    out.push('\n');
    out
}

/// Returns whether two values of RSS differ by more than the usual change between two readings.
fn differs(a: u64, b: u64) -> bool {
    a.abs_diff(b) > (b / 100).max(1 << 20)
}

fn rows(inspection: &Inspection, screen: Screen) -> String {
    let total = inspection.observation.ledger.total().max(1);
    let mut out = String::new();
    for row in inspection.observation.ledger.rows().iter().filter(|r| r.bytes > 0) {
        let (colour, letter) = ink(row.owner);
        let sign = if screen.colour {
            format!("{}██\x1b[0m", escape_of(colour))
        } else {
            format!("{letter} ")
        };
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

/// Formats memory that is not part of RSS, and details of parts that are.
fn beside(inspection: &Inspection, screen: Screen) -> String {
    let mut parts = Vec::new();
    if inspection.observation.swap_bytes > 0 {
        parts.push(format!("swapped out: {}", Human(inspection.observation.swap_bytes)));
    }
    let told = [
        ("given back lazily, still counted", inspection.observation.lazyfree_bytes),
        ("in huge pages", inspection.observation.anon_huge_bytes),
        ("page tables, not counted", inspection.observation.page_tables_bytes),
        ("not walked", Some(inspection.observation.unwalked_bytes)),
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
    if inspection.observation.arenas.is_empty() {
        return out;
    }
    out.push('\n');
    if each {
        let _ = writeln!(
            out,
            "{}",
            dim(
                " arena  heaps      system   allocated        free   in chunks     largest   top chunk    resident",
                screen
            )
        );
        for arena in inspection.observation.arenas.iter().take(MAX_ARENAS) {
            out += &arena_line(arena);
        }
        let rest = inspection.observation.arenas.len().saturating_sub(MAX_ARENAS);
        if rest > 0 {
            let _ = writeln!(out, " … and {rest} more; --json has them all");
        }
        let bins = bins(&inspection.observation.arenas);
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
        if let Some(tunables) = &inspection.observation.tunables_in_force {
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
    let sum =
        |of: &dyn Fn(&Arena) -> u64| inspection.observation.arenas.iter().map(of).sum::<u64>();
    let largest =
        inspection.observation.arenas.iter().map(|a| a.largest_free_bytes).max().unwrap_or(0);
    let mut line = format!(
        "{} with {} of address space: {} in use, {} free in {} (the largest {}), {} in top chunks; {} of \
         the free memory is resident",
        counted(inspection.observation.arenas.len() as u64, "arena"),
        Human(sum(&|a| a.system_bytes)),
        Human(sum(&|a| a.allocated_bytes)),
        Human(sum(&|a| a.free_bytes + a.fast_bytes)),
        counted(sum(&|a| a.free_count + a.fast_count), "chunk"),
        Human(largest),
        Human(sum(&|a| a.top_bytes)),
        Human(sum(&|a| a.free_resident_bytes)),
    );
    if inspection.observation.mmapped_count > 0 {
        let _ = write!(
            line,
            "; {}, {}",
            counted(inspection.observation.mmapped_count, "mmapped chunk"),
            Human(inspection.observation.mmapped_bytes)
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
        bytes(arena.free_resident_bytes),
    )
}

/// Formats the free chunks of all arenas by size.
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

fn remedies(inspection: &Inspection, screen: Screen) -> String {
    let mut out = String::new();
    let width =
        inspection.remedies.iter().map(|remedy| remedy.kind.name().len()).max().unwrap_or(0);
    for remedy in &inspection.remedies {
        let bytes = remedy.predicted_bytes.map_or(String::new(), |b| Human(b).to_string());
        let begin = format!(" {:<width$}  {bytes:>9}  ", remedy.kind.name());
        out += &hanging(&begin, &remedy.how, screen);
    }
    out
}
