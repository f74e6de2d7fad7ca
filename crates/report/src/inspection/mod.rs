//! An inspection for people, readable at night in a terminal of 80 × 24: the answer first, then
//! what it rests on.

mod html;
pub(crate) mod ledger;
mod origin;
mod sections;
mod summary;

use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::inspection::{Inspection, Observation};
use lowtide_model::number::HumanCount;
use lowtide_model::remedy::{Remedy, RemedyKind};
use lowtide_model::verdict::VerdictKind;

pub use html::{chart, page};
pub use ledger::LedgerRows;
pub(crate) use origin::time;
pub use summary::{SummaryRow, list, outside_heap};

use crate::blocks;
use crate::heaps;
use crate::owners::facts;
use crate::pins;
use crate::screen::{Screen, bold, hanging, title};
use crate::text::{facts_in_lines, printable, wrapped};

/// Minimum part of RSS that was walked, below which the report says how much it was.
const COVERED: f64 = 0.9;

/// Minimum part of RSS that a remedy gains, to be shown.
const MIN_GAIN: f64 = 0.01;

/// Maximum number of lines of the verdict on a page without its details, at 80 columns.
const MAX_VERDICT_LINES: usize = 3;

/// What a page shows beside its usual content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Details {
    /// Each arena, instead of a line for its heap.
    pub arenas: bool,
    /// All reasons of the verdict, each remedy in full, and every row of the ledger.
    pub why: bool,
}

/// Formats an inspection: the process, the verdict, the remedies with their gain, the ledger, and a
/// line for each heap with much free memory.
pub fn render(inspection: &Inspection, details: Details, screen: Screen) -> String {
    let mut out = head(inspection, screen);
    out.extend(inspection.saved.iter().map(|origin| origin::render(origin, screen)));
    out.push('\n');
    out += &bold(&verdict(inspection, details.why, screen), screen);
    out.push('\n');
    out += &remedies(inspection, details.why, screen);
    out.push('\n');
    out += &total(inspection, screen);
    out += &ledger::render(inspection, details.why, screen);
    out += &heaps::render(&inspection.observation, details.arenas, screen);
    out.extend(inspection.growth.iter().map(|growth| sections::growth(growth, screen)));
    let container = inspection.container.iter();
    out.extend(container.map(|container| sections::container(container, screen)));
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
        facts_in_lines(&facts(inspection), screen.width)
    )
}

/// Returns whether a page without details leaves out reasons of the verdict, or shows a remedy in a
/// few words.
pub fn is_abridged(inspection: &Inspection, screen: Screen) -> bool {
    verdict(inspection, false, screen) != verdict(inspection, true, screen)
        || remedies(inspection, false, screen) != remedies(inspection, true, screen)
}

/// Formats the verdict with its reasons: all of them, or the first one and those for which a few
/// lines have room. A verdict over time, and one on a process that could not be read completely,
/// keeps all.
fn verdict(inspection: &Inspection, why: bool, screen: Screen) -> String {
    let verdict = &inspection.verdict;
    let kind = verdict.kind.name().replace('_', " ");
    let text = |reasons: &[&str]| {
        wrapped(&printable(&format!("{kind}: {}.", reasons.join("; "))), screen.width)
    };
    let is_whole = why || inspection.growth.is_some() || verdict.kind == VerdictKind::Inconclusive;
    let most =
        MAX_VERDICT_LINES * usize::from(screen.width.max(80)) / usize::from(screen.width.max(1));
    let mut reasons: Vec<&str> = Vec::new();
    for reason in &verdict.because {
        reasons.push(reason);
        if !is_whole && reasons.len() > 1 && text(&reasons).lines().count() > most {
            reasons.pop();
        }
    }
    text(&reasons)
}

/// Formats RSS, memory that is not part of it, and details of parts that are.
fn total(inspection: &Inspection, screen: Screen) -> String {
    let observation = &inspection.observation;
    if inspection.saved.as_ref().is_some_and(|saved| saved.core.is_some()) {
        return format!("RSS not known · ≈ {} with content\n", Human(observation.rss_bytes));
    }
    let mut rss = format!("RSS {}", Human(observation.rss_bytes));
    let differs = |kernel: &u64| {
        let usual = (observation.rss_bytes / 100).max(1 << 20);
        kernel.abs_diff(observation.rss_bytes) > usual
    };
    if let Some(kernel) = observation.kernel_rss_bytes.filter(differs) {
        let _ = write!(rss, " (the kernel reports {})", Human(kernel));
    }
    let mut parts = vec![rss];
    parts.extend(beside(inspection));
    format!("{}\n", facts_in_lines(&parts, screen.width))
}

fn beside(inspection: &Inspection) -> Vec<String> {
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
    parts
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
/// `why` formats them in full.
pub fn remedies(inspection: &Inspection, why: bool, screen: Screen) -> String {
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
    list_remedies(&shown, why, screen)
}

/// Formats remedies, each with its kind and its gain: in a few words each, and in full with `why`.
pub fn list_remedies(shown: &[&Remedy], why: bool, screen: Screen) -> String {
    let width = shown.iter().map(|remedy| remedy.kind.name().len()).max().unwrap_or(0);
    let is_predicted = shown.iter().any(|remedy| remedy.predicted_bytes.is_some());
    let mut out = String::new();
    for remedy in shown {
        let bytes = remedy.predicted_bytes.map_or(String::new(), |b| Human(b).to_string());
        let about = if remedy.estimated { "≈" } else { " " };
        let gain = if is_predicted { format!("{about}{bytes:>9}  ") } else { " ".to_owned() };
        let begin = format!(" {:<width$} {gain}", remedy.kind.name());
        let brief = remedy.brief.as_deref().filter(|_| !why);
        out += &hanging(&begin, brief.unwrap_or(&remedy.how), screen);
    }
    out
}

#[cfg(test)]
mod tests {
    use lowtide_analysis::diagnose::diagnose;
    use lowtide_model::inspection::{HeapPrediction, Manager, Runtime};
    use lowtide_model::ledger::{Ledger, Owner};

    use super::*;

    const NARROW: Screen = Screen { width: 80, colour: false };

    /// Returns a process of Ruby with a hoard, and many owners.
    fn ruby() -> Inspection {
        let mut ledger = Ledger::default();
        for (owner, kib) in Owner::ALL.iter().zip([7_800_u64, 56_000, 0, 12_000, 400, 300]) {
            ledger.add(*owner, kib << 10);
        }
        ledger.add(Owner::Runtime, 26 << 20);
        ledger.add(Owner::Stacks, 2 << 20);
        ledger.add(Owner::ProgramData, 3 << 20);
        ledger.add(Owner::File, 5 << 20);
        ledger.add(Owner::AnonymousOther, 4 << 20);
        let heap = Some(HeapPrediction {
            trim_bytes: Some(56_000 << 10),
            release_bytes: Some(56_000 << 10),
            purge_bytes: None,
        });
        let managers = vec![Manager { name: "Ruby".to_owned(), bytes: 26 << 20, estimated: false }];
        let runtimes = vec![Runtime { name: "Ruby".to_owned(), version: Some("3.1.2".to_owned()) }];
        let rss_bytes = ledger.total();
        diagnose(Observation {
            pid: 14_420,
            command: vec!["ruby".to_owned(), "rb.rb".to_owned()],
            rss_bytes,
            ledger,
            heap,
            managers,
            runtimes,
            swap_bytes: 1 << 20,
            lazyfree_bytes: Some(0),
            anon_huge_bytes: Some(0),
            ..Observation::default()
        })
    }

    #[test]
    fn a_page_of_many_owners_and_reasons_leaves_room_for_the_next_step_on_80_by_24() {
        let page = render(&ruby(), Details::default(), NARROW);
        // Two lines for the heap, four for the next step.
        assert!(page.lines().count() <= 18, "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
        assert_eq!(page.lines().position(|line| line.starts_with("hoard: ")), Some(3), "{page}");
        let remedies = [
            " release   54.7 MiB  lowtide release 14420 returns whole free pages",
            " runtime             Ruby: GC.compact before a fork or after the start",
        ];
        for remedy in remedies {
            assert!(page.lines().any(|line| line.trim_end() == remedy), "{remedy}: {page}");
        }
        assert!(is_abridged(&ruby(), NARROW));
    }

    #[test]
    fn a_flag_shows_all_reasons_each_remedy_in_full_and_every_row() {
        let found = ruby();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let page = words(&render(&found, Details { why: true, arenas: false }, NARROW));
        for reason in &found.verdict.because {
            assert!(page.contains(reason.as_str()), "{reason}: {page}");
        }
        for remedy in found.remedies.iter().filter(|remedy| remedy.kind != RemedyKind::MallocTrim) {
            assert!(page.contains(remedy.how.as_str()), "{remedy:?}: {page}");
        }
        for row in found.observation.ledger.rows().iter().filter(|row| row.bytes > 0) {
            assert!(page.contains(row.owner.name()), "{row:?}: {page}");
        }
        assert!(!page.contains(" others "), "{page}");
    }

    #[test]
    fn a_verdict_that_is_not_certain_keeps_all_its_reasons() {
        let mut found = ruby();
        found.verdict.kind = VerdictKind::Inconclusive;
        assert_eq!(verdict(&found, false, NARROW), verdict(&found, true, NARROW));
    }
}
