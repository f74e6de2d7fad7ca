//! The sections of the page, for a terminal and for HTML.

use lowtide_model::black_box::{BlackBoxReport, OtherProcess};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::growth::Growth;
use lowtide_model::ledger::{Ledger, Owner, Row as LedgerRow, State};

use crate::text::{printable, signed};

/// Minimum part of RSS, or of the growth, of a row.
const MIN_SHARE: f64 = 0.01;
/// Maximum number of rows of growth, of other processes, and of other records.
const MAX_ROWS: usize = 8;

/// A part of the page.
pub(super) struct PageSection {
    pub(super) title: String,
    pub(super) rows: Vec<Row>,
}

/// A line of a section.
pub(super) struct Row {
    pub(super) name: String,
    /// Bytes, as people read them.
    pub(super) amount: String,
    pub(super) text: String,
}

impl Row {
    fn new(name: &str, amount: impl std::fmt::Display, text: impl Into<String>) -> Self {
        Self { name: printable(name), amount: amount.to_string(), text: printable(&text.into()) }
    }
}

/// Returns the sections that are not empty.
pub(super) fn sections(report: &BlackBoxReport) -> Vec<PageSection> {
    let all = [
        against_limit(report),
        growth(report),
        ledger(report),
        releases(report),
        others(report),
        remedies(report),
        other_records(report),
    ];
    all.into_iter().flatten().filter(|section| !section.rows.is_empty()).collect()
}

/// What counted against the limit.
fn against_limit(report: &BlackBoxReport) -> Option<PageSection> {
    let (limit, group) = (report.limit.as_ref()?, report.group?);
    let path = limit.path.clone().unwrap_or_default();
    let title = format!(
        "limit of {path}: {}; at the last reading, {} could not be dropped",
        Human(limit.limit_bytes),
        Human(limit.used_bytes)
    );
    let last = report.last;
    let of_process = |bytes: u64| format!("{} of this process", Human(bytes));
    let of_others = match group.anon.saturating_sub(last.anon) {
        0 => String::new(),
        bytes => format!(", {} only of others", Human(bytes)),
    };
    let rows = vec![
        Row::new("anonymous", Human(group.anon), of_process(last.anon) + &of_others),
        Row::new("shared, tmpfs", Human(group.shared), of_process(last.shared)),
        Row::new(
            "kernel",
            Human(group.kernel),
            format!("{} page tables of this process", Human(last.tables)),
        ),
        Row::new("page cache", Human(group.cache), "could be dropped"),
    ];
    Some(PageSection { title: printable(&title), rows })
}

/// Who grew.
fn growth(report: &BlackBoxReport) -> Option<PageSection> {
    let growth = report.growth.as_ref()?;
    let [before, after] = growth.rss_bytes;
    let title = format!(
        "growth in {} between inspections: RSS from {} to {}",
        HumanSeconds(growth.elapsed_s),
        Human(before),
        Human(after)
    );
    Some(PageSection { title, rows: growth_rows(growth) })
}

fn growth_rows(growth: &Growth) -> Vec<Row> {
    let [before, after] = growth.rss_bytes;
    let least = before.abs_diff(after) as f64 * MIN_SHARE;
    let parts = growth.by.iter().filter(|part| part.bytes.unsigned_abs() as f64 >= least);
    let row = |part: &lowtide_model::growth::GrowthPart| {
        let name = part.name.clone().unwrap_or_default();
        let owner = Owner::ALL.into_iter().find(|owner| owner.key() == part.owner);
        let owner = owner.map_or(part.owner.as_str(), |owner| owner.name());
        Row::new(owner, signed(part.bytes), name)
    };
    parts.take(MAX_ROWS).map(row).collect()
}

/// Who held what.
fn ledger(report: &BlackBoxReport) -> Option<PageSection> {
    let (ledger, age_s) = (report.ledger.as_ref()?, report.last_full_ledger_age_s?);
    let mut title = format!(
        "memory by owner {} before the end: RSS {}",
        HumanSeconds(age_s),
        Human(report.last_full_ledger_bytes.unwrap_or_else(|| ledger.total()))
    );
    if let Some(after) = report.after_ledger {
        let parts = [
            (after.anon_bytes, "anonymous"),
            (after.shared_bytes, "shared"),
            (after.file_bytes, "of files"),
        ];
        let changed = parts.into_iter().filter(|(bytes, _)| *bytes != 0);
        let changed: Vec<String> =
            changed.map(|(bytes, what)| format!("{} {what}", signed(bytes))).collect();
        if !changed.is_empty() {
            title += &format!("; after that {}", changed.join(", "));
        }
    }
    Some(PageSection { title, rows: ledger_rows(ledger) })
}

fn ledger_rows(ledger: &Ledger) -> Vec<Row> {
    let total = ledger.total().max(1) as f64;
    let is_large = |row: &&LedgerRow| row.bytes as f64 >= total * MIN_SHARE;
    let mut rows: Vec<&LedgerRow> = ledger.rows().iter().filter(is_large).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let row = |row: &LedgerRow| {
        let about = if row.estimated { "≈" } else { "" };
        let state = match row.state {
            Some(State::Allocated) => ", in use",
            Some(State::Free) => ", free",
            _ => "",
        };
        let text = match row.manager {
            Some(manager) => format!("{}{state}", manager.kind().name()),
            None => row.owner.meaning().to_owned(),
        };
        let amount = format!("{about}{}", Human(row.bytes));
        let text = format!("{:>4.0} %  {text}", row.bytes as f64 / total * 100.0);
        Row { name: row.owner.name().to_owned(), amount, text }
    };
    rows.into_iter().map(row).collect()
}

/// How much could have been returned, and was.
fn releases(report: &BlackBoxReport) -> Option<PageSection> {
    let reclaimable = report.reclaimable_bytes?;
    let mut rows = vec![
        Row::new("could be returned", Human(reclaimable), "at the last inspection"),
        Row::new("was returned", Human(report.released_before_bytes), "by releases before"),
    ];
    rows.extend(report.releases.iter().rev().take(3).map(|release| {
        let text = format!(
            "{} before the end: {} ({})",
            HumanSeconds(release.before_s),
            release.message,
            release.reason
        );
        Row::new("", Human(release.returned_bytes), text)
    }));
    Some(PageSection { title: "free memory".to_owned(), rows })
}

fn others(report: &BlackBoxReport) -> Option<PageSection> {
    let row = |other: &OtherProcess, text: &str| {
        let name = other.name.clone().unwrap_or_else(|| "unknown".to_owned());
        let pid = other.pid.map(|pid| format!(" {pid}")).unwrap_or_default();
        Row::new(&format!("{name}{pid}"), Human(other.bytes.rss()), text)
    };
    let victim = report.victim.as_ref().map(|victim| row(victim, "was killed"));
    let others = report.others.iter().take(MAX_ROWS).map(|other| row(other, ""));
    let rows = victim.into_iter().chain(others).collect();
    let when = report.others_before_s.map(|before_s| {
        format!(", {} before the end; what processes share counts in each", HumanSeconds(before_s))
    });
    let title = format!("other processes of the cgroup, by RSS{}", when.unwrap_or_default());
    Some(PageSection { title, rows })
}

/// What would have helped.
fn remedies(report: &BlackBoxReport) -> Option<PageSection> {
    let rss = report.last_full_ledger_bytes?.max(1) as f64;
    let is_large = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes as f64 >= rss * MIN_SHARE);
    let remedies = report.remedies.iter().filter(|remedy| is_large(remedy.predicted_bytes));
    let row = |remedy: &lowtide_model::remedy::Remedy| {
        let about = if remedy.estimated { "≈" } else { "" };
        let amount = remedy.predicted_bytes.map(|bytes| format!("{about}{}", Human(bytes)));
        Row::new(remedy.kind.name(), amount.unwrap_or_default(), remedy.how.clone())
    };
    let rows = remedies.map(row).collect();
    Some(PageSection { title: "what would have lowered it".to_owned(), rows })
}

fn other_records(report: &BlackBoxReport) -> Option<PageSection> {
    let row = |other: &lowtide_model::black_box::OtherRecord| {
        Row::new(&other.file, "", format!("{} {}", other.cause.replace('_', " "), other.name))
    };
    let rows = report.other_records.iter().take(MAX_ROWS).map(row).collect();
    Some(PageSection {
        title: "other records of this directory (lowtide report DIR/FILE)".to_owned(),
        rows,
    })
}
