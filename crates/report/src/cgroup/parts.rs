//! The parts of a row: owners of anonymous memory, and files.

use lowtide_model::bytes::Human;
use lowtide_model::cgroup::{
    CachedFile, CgroupAnon, CgroupFile, CgroupHolder, CgroupKind, CgroupLedger, HolderPart,
};
use lowtide_model::ledger::{Row, State};

use crate::inspection::ledger::first_names;
use crate::screen::{Screen, dim, hanging};
use crate::text::{printable, shortened};

/// Minimum part of the charge of a file or a process that is shown.
const MIN_SHARE: f64 = 0.01;
/// Minimum part of the charge of an owner that is shown.
const MIN_OWNER_SHARE: f64 = 0.03;
/// Maximum length of the path of a file, in characters.
const MAX_PATH: usize = 48;

/// How much of a ledger a page shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Shown {
    /// All rows, with all of their parts.
    All,
    /// The large rows, each with at most `most` parts, which have at least `min_share` of the
    /// charge.
    Large { most: usize, min_share: f64 },
}

/// The parts of rows, as many as there is room for.
pub(super) struct Parts<'l> {
    pub(super) ledger: &'l CgroupLedger,
    pub(super) shown: Shown,
    pub(super) screen: Screen,
}

impl Parts<'_> {
    /// Formats the parts of a row, one on each line.
    pub(super) fn of_row(&self, kind: CgroupKind) -> String {
        match kind {
            CgroupKind::Anon => self.ledger.anon.iter().map(|anon| self.owners(anon)).collect(),
            CgroupKind::ShmemMapped | CgroupKind::ShmemUnmapped => self.files(kind),
            CgroupKind::KernelOther | CgroupKind::FileOther | CgroupKind::Rest => {
                self.holders(kind)
            }
            _ => String::new(),
        }
    }

    /// Returns the maximum number of parts of a row.
    fn most(&self) -> usize {
        match self.shown {
            Shown::All => usize::MAX,
            Shown::Large { most, .. } => most,
        }
    }

    /// Returns whether bytes are a noticeable part of the charge, or all are shown.
    fn is_large(&self, bytes: u64, least: f64) -> bool {
        let share = bytes as f64 / self.ledger.charged_bytes.max(1) as f64;
        match self.shown {
            Shown::All => bytes > 0,
            Shown::Large { min_share, .. } => share >= least.max(min_share),
        }
    }

    fn part(&self, bytes: u64, about: bool, text: &str) -> String {
        let about = if about { "≈" } else { " " };
        let begin = format!("    {about}{:>10}  ", Human(bytes).to_string());
        let lines = hanging(&begin, text, self.screen);
        lines.lines().map(|line| dim(line, self.screen) + "\n").collect()
    }

    /// Formats the owners of anonymous memory, and the processes that could not be inspected.
    fn owners(&self, anon: &CgroupAnon) -> String {
        let mut largest: Vec<&Row> = anon.owners.iter().collect();
        largest.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        let large = largest.iter().filter(|row| self.is_large(row.bytes, MIN_OWNER_SHARE)).count();
        let (shown, rest) = largest.split_at(large.min(self.most()));
        let mut out: String =
            shown.iter().map(|row| self.part(row.bytes, row.estimated, &owner(row))).collect();
        let names = first_names(rest.iter().filter(|row| row.bytes > 0).map(|row| short_name(row)));
        let rest: u64 = rest.iter().map(|row| row.bytes).sum();
        if rest > 0 && !shown.is_empty() {
            out += &self.part(rest, false, &names);
        }
        let unread = anon.processes.iter().filter(|process| process.unread.is_some());
        for process in unread.take(self.most()) {
            let reason = process.unread.as_deref().unwrap_or_default().replace('_', " ");
            let name = printable(&process.name);
            let text = format!("{name} {}: not inspected ({reason})", process.pid);
            out += &self.part(process.bytes, process.estimated, &text);
        }
        let elsewhere = anon.other_bytes.min(0).unsigned_abs();
        let held: u64 = anon.owners.iter().map(|row| row.bytes).sum();
        if elsewhere > held / 20 {
            let text = "of these bytes are charged to another cgroup, or were returned meanwhile";
            out += &self.part(elsewhere, true, text);
        }
        out
    }

    fn files(&self, kind: CgroupKind) -> String {
        let of_row = self.ledger.files.iter().filter(|file| file.kind == kind);
        let describe = |file: &CgroupFile| {
            let path = shortened(&printable(&file.path), MAX_PATH);
            let deleted = if file.deleted { " (deleted)" } else { "" };
            let whose = if file.charged.is_none() { ", maybe of another cgroup" } else { "" };
            self.part(file.bytes, false, &format!("{path}{deleted}{whose}"))
        };
        let large = of_row.filter(|file| self.is_large(file.bytes, MIN_SHARE));
        large.take(self.most()).map(describe).collect()
    }

    /// Formats the files of the page cache, below its last row.
    pub(super) fn page_cache(&self) -> String {
        let cache = &self.ledger.page_cache;
        let describe = |file: &CachedFile| {
            let path = shortened(&printable(&file.path), MAX_PATH);
            let deleted = if file.deleted { " (deleted)" } else { "" };
            let dirty = file.dirty_bytes.filter(|bytes| self.is_large(*bytes, MIN_SHARE));
            let dirty = dirty.map_or(String::new(), |bytes| format!(", {} dirty", Human(bytes)));
            let whose = if file.charged_bytes.is_none() { ", maybe of another cgroup" } else { "" };
            let about = file.charged_bytes != Some(file.cached_bytes);
            self.part(file.bytes(), about, &format!("{path}{deleted}{dirty}{whose}"))
        };
        // The kernel drops page cache before it kills: its files matter half as much as others.
        let is_large = |bytes: u64| self.is_large(bytes / 2, MIN_SHARE / 2.0);
        let shown = cache.files.iter().filter(|file| is_large(file.bytes()));
        let mut out: String = shown.take(self.most()).map(describe).collect();
        if is_large(cache.closed_bytes) {
            let text = "files that were not found open in its processes";
            out += &self.part(cache.closed_bytes, cache.estimated, text);
        }
        out
    }

    /// Formats the processes with the largest parts of a row that has several kinds of memory.
    fn holders(&self, kind: CgroupKind) -> String {
        // The heads of messages are in another row of version 2.
        let most = self.ledger.bytes(kind).max(0).unsigned_abs();
        let describe = |holder: &CgroupHolder| {
            let what = match holder.part? {
                HolderPart::Pipes => "unread in pipes of",
                HolderPart::UnixSockets => "unread in unix sockets, written by",
                HolderPart::Pinned => "at most, of memory pinned (VmPin) by",
                HolderPart::Locked => "at most, of memory locked (VmLck) by",
            };
            let text = format!("{what} {} {}", printable(&holder.name), holder.pid);
            Some(self.part(holder.bytes.min(most), holder.bytes > most, &text))
        };
        let of_row = self.ledger.holders.iter().filter(|holder| holder.kind == kind);
        let large = of_row.filter(|holder| self.is_large(holder.bytes, MIN_SHARE));
        large.take(self.most().saturating_mul(2)).filter_map(describe).collect()
    }
}

/// Returns the name of an owner in a list of several.
fn short_name(row: &Row) -> &'static str {
    row.manager.map_or(row.owner.name(), |runtime| runtime.kind().name())
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
