//! The parts of a row: owners of anonymous memory, and files.

use lowtide_model::bytes::Human;
use lowtide_model::cgroup::{
    CachedFile, CgroupAnon, CgroupFile, CgroupHolder, CgroupKind, CgroupLedger, HolderPart,
};
use lowtide_model::ledger::{Row, State};

use crate::screen::{Screen, dim};
use crate::text::{printable, shortened};

/// Number of parts of a row that are shown.
const SHOWN: usize = 3;
/// Minimum part of the charge of a file or a process that is shown.
const MIN_SHARE: f64 = 0.01;
/// Minimum part of the charge of an owner that is shown.
const MIN_OWNER_SHARE: f64 = 0.03;
/// Maximum length of the path of a file, in characters.
const MAX_PATH: usize = 48;

/// Formats the parts of a row, one on each line.
pub(super) fn of_row(ledger: &CgroupLedger, kind: CgroupKind, screen: Screen) -> String {
    match kind {
        CgroupKind::Anon => ledger.anon.iter().map(|anon| owners(ledger, anon, screen)).collect(),
        CgroupKind::ShmemMapped | CgroupKind::ShmemUnmapped => files(ledger, kind, screen),
        CgroupKind::KernelOther | CgroupKind::Rest => holders(ledger, kind, screen),
        _ => String::new(),
    }
}

fn part(bytes: u64, about: bool, text: &str, screen: Screen) -> String {
    let about = if about { "≈" } else { " " };
    dim(&format!("    {about}{:>10}  {text}", Human(bytes).to_string()), screen) + "\n"
}

/// Formats the owners of anonymous memory, and the processes that could not be inspected.
fn owners(ledger: &CgroupLedger, anon: &CgroupAnon, screen: Screen) -> String {
    let mut largest: Vec<&Row> = anon.owners.iter().collect();
    largest.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let is_large = |row: &&Row| row.bytes as f64 >= ledger.charged_bytes as f64 * MIN_OWNER_SHARE;
    let large = largest.iter().filter(|row| is_large(row)).count();
    let (shown, rest) = largest.split_at(large.min(SHOWN));
    let mut out: String =
        shown.iter().map(|row| part(row.bytes, row.estimated, &owner(row), screen)).collect();
    let rest: u64 = rest.iter().map(|row| row.bytes).sum();
    if rest > 0 && !shown.is_empty() {
        out += &part(rest, false, "other owners", screen);
    }
    let unread = anon.processes.iter().filter(|process| process.unread.is_some());
    for process in unread.take(SHOWN) {
        let reason = process.unread.as_deref().unwrap_or_default().replace('_', " ");
        let name = printable(&process.name);
        let text = format!("{name} {}: not inspected ({reason})", process.pid);
        out += &part(process.bytes, process.estimated, &text, screen);
    }
    let elsewhere = anon.other_bytes.min(0).unsigned_abs();
    let held: u64 = anon.owners.iter().map(|row| row.bytes).sum();
    if elsewhere > held / 20 {
        let text = "of these bytes are charged to another cgroup, or were returned meanwhile";
        out += &part(elsewhere, true, text, screen);
    }
    out
}

/// Returns the name of an owner, and its meaning.
fn owner(row: &Row) -> String {
    let Some(runtime) = row.manager else {
        return format!("{}: {}", row.owner.name(), row.owner.meaning());
    };
    let state = match row.state {
        Some(State::Allocated) => "in use",
        Some(State::Free) => "free",
        _ => "not divided",
    };
    format!("heap of {}: {state}", runtime.kind().name())
}

fn files(ledger: &CgroupLedger, kind: CgroupKind, screen: Screen) -> String {
    let of_row = ledger.files.iter().filter(|file| file.kind == kind);
    let describe = |file: &CgroupFile| {
        let path = shortened(&printable(&file.path), MAX_PATH);
        let deleted = if file.deleted { " (deleted)" } else { "" };
        let whose = if file.charged.is_none() { ", maybe of another cgroup" } else { "" };
        part(file.bytes, false, &format!("{path}{deleted}{whose}"), screen)
    };
    of_row.take(SHOWN).map(describe).collect()
}

/// Formats the files of the page cache, below its last row.
pub(super) fn page_cache(ledger: &CgroupLedger, screen: Screen) -> String {
    let cache = &ledger.page_cache;
    let is_large = |bytes: u64| bytes as f64 >= ledger.charged_bytes as f64 * MIN_SHARE;
    let describe = |file: &CachedFile| {
        let path = shortened(&printable(&file.path), MAX_PATH);
        let deleted = if file.deleted { " (deleted)" } else { "" };
        let dirty = file.dirty_bytes.filter(|bytes| is_large(*bytes));
        let dirty = dirty.map_or(String::new(), |bytes| format!(", {} dirty", Human(bytes)));
        let whose = if file.charged_bytes.is_none() { ", maybe of another cgroup" } else { "" };
        let about = file.charged_bytes != Some(file.cached_bytes);
        part(file.bytes(), about, &format!("{path}{deleted}{dirty}{whose}"), screen)
    };
    let shown = cache.files.iter().filter(|file| is_large(file.bytes())).take(SHOWN);
    let mut out: String = shown.map(describe).collect();
    if is_large(cache.closed_bytes) {
        let text = "files that none of its processes has open";
        out += &part(cache.closed_bytes, cache.estimated, text, screen);
    }
    out
}

/// Formats the processes with the largest parts of a row that has several kinds of memory.
fn holders(ledger: &CgroupLedger, kind: CgroupKind, screen: Screen) -> String {
    // The heads of messages are in another row of version 2.
    let most = ledger.bytes(kind).max(0).unsigned_abs();
    let describe = |holder: &CgroupHolder| {
        let what = match holder.part? {
            HolderPart::Pipes => "unread in pipes of",
            HolderPart::UnixSockets => "unread in unix sockets, written by",
            HolderPart::Pinned => "at most, of memory pinned (VmPin) by",
        };
        let text = format!("{what} {} {}", printable(&holder.name), holder.pid);
        Some(part(holder.bytes.min(most), holder.bytes > most, &text, screen))
    };
    let is_large =
        |holder: &&CgroupHolder| holder.bytes as f64 >= ledger.charged_bytes as f64 * MIN_SHARE;
    let of_row = ledger.holders.iter().filter(|holder| holder.kind == kind).filter(is_large);
    of_row.take(2 * SHOWN).filter_map(describe).collect()
}
