//! An inspection for people, readable at night in a terminal of 80 × 24: the answer first, then
//! what it rests on.

mod html;
pub(crate) mod ledger;
mod origin;
mod summary;

use lowtide_model::bytes::Human;
use lowtide_model::inspection::{Inspection, Observation};
use lowtide_model::number::HumanCount;
use lowtide_model::remedy::{Remedy, RemedyKind};

pub use html::{chart, page};
pub use ledger::LedgerRows;
pub(crate) use origin::time;
pub use summary::{SummaryRow, list, outside_heap};

use crate::blocks;
use crate::heaps;
use crate::owners::facts;
use crate::pins;
use crate::screen::{Screen, bold, dim, hanging, title};
use crate::text::{printable, wrapped};

/// Minimum part of RSS that was walked, below which the report says how much it was.
const COVERED: f64 = 0.9;

/// Minimum part of RSS that a remedy gains, to be shown.
const MIN_GAIN: f64 = 0.01;

/// Formats an inspection: the process, the verdict, the remedies with their gain, the ledger, and a
/// line for each heap with free memory. `arenas` shows each arena instead of this line.
pub fn render(inspection: &Inspection, arenas: bool, screen: Screen) -> String {
    let mut out = head(inspection, screen);
    out.extend(inspection.saved.iter().map(|origin| origin::render(origin, screen)));
    out.push('\n');
    let verdict = &inspection.verdict;
    let kind = verdict.kind.name().replace('_', " ");
    let sentence = format!("{kind}: {}.", verdict.because.join("; "));
    out += &bold(&wrapped(&printable(&sentence), screen.width), screen);
    out.push('\n');
    out += &remedies(inspection, screen);
    out.push('\n');
    out += &ledger::render(inspection, screen);
    out += &beside(inspection, screen);
    out += &heaps::render(&inspection.observation, arenas, screen);
    for note in &inspection.observation.notes {
        out += &wrapped(&printable(&format!("note: {note}")), screen.width);
        out.push('\n');
    }
    out.extend(inspection.blocks.iter().map(|found| blocks::render(found, screen)));
    out.extend(inspection.pins.iter().map(|found| pins::render(found, screen)));
    out
}

fn head(inspection: &Inspection, screen: Screen) -> String {
    format!(
        "{}\n{}\n",
        title(&inspection.observation.command, inspection.observation.pid, screen),
        wrapped(&facts(inspection).join(" · "), screen.width)
    )
}

/// Formats memory that is not part of RSS, and details of parts that are.
fn beside(inspection: &Inspection, screen: Screen) -> String {
    let observation = &inspection.observation;
    let mut parts = Vec::new();
    if observation.unreadable.is_none() && inspection.coverage.share() < COVERED {
        parts.push(format!("walked: {:.0} % of RSS", inspection.coverage.share() * 100.0));
    }
    if observation.swap_bytes > 0 {
        parts.push(format!("swapped out: {}", Human(observation.swap_bytes)));
    }
    let is_notable = |bytes: &u64| *bytes > observation.rss_bytes / 100;
    let is_less = |bytes: &u64| *bytes < observation.rss_bytes - observation.rss_bytes / 10;
    parts.extend(lazily_freed(observation));
    parts.extend(in_huge_pages(observation));
    let amounts = [
        ("PSS, shared pages in part", observation.pss_bytes.filter(is_less)),
        // These two of a usual process are small beside RSS.
        ("counted again, mapped several times", observation.mapped_again_bytes.filter(is_notable)),
        ("page tables, not counted", observation.page_tables_bytes.filter(is_notable)),
        ("in huge pages of the kernel's pool, not counted", observation.hugetlb_bytes),
        ("not walked", Some(observation.unwalked_bytes)),
    ];
    if let Some(open) = observation.open_memory.as_ref().filter(|open| is_notable(&open.bytes)) {
        let name = open.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let files = if open.files == 1 { "file" } else { "files" };
        parts.push(printable(&format!(
            "open, not mapped, not counted: {} in {} {files} in memory{name}",
            Human(open.bytes),
            HumanCount(open.files)
        )));
    }
    for (what, bytes) in amounts {
        parts.extend(bytes.filter(|b| *b > 0).map(|b| format!("{what}: {}", Human(b))));
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("{}\n", dim(&wrapped(&parts.join(" · "), screen.width), screen))
}

/// Formats lazily freed memory; `None` if there is none.
fn lazily_freed(observation: &Observation) -> Option<String> {
    let about = if observation.lazyfree_estimated { "≈ " } else { "" };
    match (observation.lazyfree_bytes, observation.unreadable) {
        (Some(0), _) | (None, Some(_)) => None,
        (Some(bytes), _) => Some(format!("freed lazily, still counted: {about}{}", Human(bytes))),
        (None, None) => Some("freed lazily: not known (root sees it)".to_owned()),
    }
}

/// Formats memory in huge pages, and its unused part; `None` if there is none.
fn in_huge_pages(observation: &Observation) -> Option<String> {
    let unused = observation.huge_pages.as_ref().filter(|huge| huge.zero_bytes > 0);
    let unused = unused.map_or_else(String::new, |huge| {
        let about = if huge.estimated { "≈ " } else { "" };
        format!(" ({about}{} of it only zeros)", Human(huge.zero_bytes))
    });
    match (observation.anon_huge_bytes, observation.unreadable) {
        (Some(0), _) | (None, Some(_)) => None,
        (Some(bytes), _) => Some(format!("in huge pages: {}{unused}", Human(bytes))),
        (None, None) => Some("in huge pages: not known (Linux 6.7 shows it)".to_owned()),
    }
}

/// Formats the remedies that are worth a line: those whose gain is not predicted, and those that
/// gain a noticeable part of RSS. A second way to the same gain is left out; `--json` has all.
pub fn remedies(inspection: &Inspection, screen: Screen) -> String {
    let all = &inspection.remedies;
    let released_bytes = all.iter().filter(|remedy| remedy.kind == RemedyKind::Release);
    let released_bytes = released_bytes.filter_map(|remedy| remedy.predicted_bytes).max();
    let least = inspection.observation.ledger.total() as f64 * MIN_GAIN;
    let is_shown = |remedy: &&Remedy| {
        let Some(bytes) = remedy.predicted_bytes else { return true };
        let is_trim = remedy.kind == RemedyKind::MallocTrim;
        bytes as f64 >= least && !(is_trim && released_bytes >= Some(bytes))
    };
    let shown: Vec<&Remedy> = all.iter().filter(is_shown).collect();
    list_remedies(&shown, screen)
}

/// Formats remedies, each with its kind and its gain.
pub fn list_remedies(shown: &[&Remedy], screen: Screen) -> String {
    let width = shown.iter().map(|remedy| remedy.kind.name().len()).max().unwrap_or(0);
    let is_predicted = shown.iter().any(|remedy| remedy.predicted_bytes.is_some());
    let mut out = String::new();
    for remedy in shown {
        let bytes = remedy.predicted_bytes.map_or(String::new(), |b| Human(b).to_string());
        let about = if remedy.estimated { "≈" } else { " " };
        let gain = if is_predicted { format!("{about}{bytes:>9}  ") } else { " ".to_owned() };
        let begin = format!(" {:<width$} {gain}", remedy.kind.name());
        out += &hanging(&begin, &remedy.how, screen);
    }
    out
}
