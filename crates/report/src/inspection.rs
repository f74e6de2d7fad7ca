//! An inspection for people, readable at night: one bar, a table, the verdict in a sentence, and
//! the next step.

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::inspection::Inspection;

use crate::heaps;
use crate::owners::{facts, ink, meaning, places};
use crate::pins;
use crate::screen::{Screen, bold, dim, escape_of, hanging, title};
use crate::text::{printable, wrapped};

/// Minimum part of RSS that was walked, below which the report says how much it was.
const COVERED: f64 = 0.9;
/// Maximum width of the bar of RSS, in columns.
const MAX_BAR_WIDTH: usize = 100;

/// Formats an inspection. `arenas` shows each of them instead of their sum.
pub fn render(inspection: &Inspection, arenas: bool, screen: Screen) -> String {
    let mut out = head(inspection, screen);
    out += &bar(inspection, screen);
    out.push('\n');
    out += &rows(inspection, screen);
    out += &beside(inspection, screen);
    out += &heaps::render(&inspection.observation, arenas, screen);
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
    if let Some(pins) = &inspection.pins {
        out += &pins::render(pins, screen);
    }
    out
}

fn head(inspection: &Inspection, screen: Screen) -> String {
    format!(
        "{}\n{}\n\n",
        title(&inspection.observation.command, inspection.observation.pid, screen),
        wrapped(&facts(inspection).join(" · "), screen.width)
    )
}

/// Formats RSS as one bar, split by owner. An owner above a negligible size has at least one
/// column.
fn bar(inspection: &Inspection, screen: Screen) -> String {
    let width = usize::from(screen.width).min(MAX_BAR_WIDTH);
    let total = inspection.observation.ledger.total();
    let mut out = format!("RSS {}", Human(inspection.observation.rss_bytes));
    if let Some(kernel) = inspection
        .observation
        .kernel_rss_bytes
        .filter(|k| differs(*k, inspection.observation.rss_bytes))
    {
        let _ = write!(out, " (the kernel reports {})", Human(kernel));
    }
    out.push('\n');
    for (row, places) in places(inspection.observation.ledger.rows(), total, width) {
        let (colour, letter) = ink(&row);
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
        let (colour, letter) = ink(row);
        let sign = if screen.colour {
            format!("{}██\x1b[0m", escape_of(colour))
        } else {
            format!("{letter} ")
        };
        let share = row.bytes as f64 / total as f64 * 100.0;
        let about = if row.estimated { "≈" } else { " " };
        let meaning = meaning(inspection, row);
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
    if inspection.observation.unreadable.is_none() && inspection.coverage.share() < COVERED {
        parts.push(format!("walked: {:.0} % of RSS", inspection.coverage.share() * 100.0));
    }
    if inspection.observation.swap_bytes > 0 {
        parts.push(format!("swapped out: {}", Human(inspection.observation.swap_bytes)));
    }
    let amounts = [
        ("freed lazily, still counted", inspection.observation.lazyfree_bytes),
        ("in huge pages", inspection.observation.anon_huge_bytes),
        ("page tables, not counted", inspection.observation.page_tables_bytes),
        ("not walked", Some(inspection.observation.unwalked_bytes)),
    ];
    for (what, bytes) in amounts {
        parts.extend(bytes.filter(|b| *b > 0).map(|b| format!("{what}: {}", Human(b))));
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("{}\n", dim(&wrapped(&parts.join(" · "), screen.width), screen))
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
