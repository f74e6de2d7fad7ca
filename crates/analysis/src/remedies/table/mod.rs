//! The table of remedies: who holds the memory, and in which state it is; what lowers it, by which
//! setting, and where that is set; the documentation that it rests on.
//!
//! The gain of each row was measured with a real program, or the row says why not:
//! `bench/remedies` has the programs, and `.ci/matrix` runs them again. In a text, a word in braces
//! stands for a value of the process.

mod forks;
mod heaps;
mod huge_pages;
mod runtimes;
mod unwalked;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::Allocator;
use lowtide_model::remedy::RemedyKind;

use super::major_and_minor;
use crate::evidence::Evidence;

/// The state of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryState {
    /// Free, in whole pages.
    Free,
    /// Free, and kept by threads for themselves.
    Cached,
    /// Free, between blocks in use.
    Scattered,
    /// In use.
    InUse,
    /// Free or in use: lowtide does not divide it.
    Undivided,
}

/// Where a setting is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the environment of the program.
    Environment,
    /// On its command line.
    CommandLine,
    /// In its configuration.
    Configuration,
}

/// A setting that applies a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowSetting {
    /// Its name.
    pub(super) name: &'static str,
    /// Its value.
    pub(super) value: &'static str,
    /// Where it is set.
    pub(super) place: Place,
}

const fn environment(name: &'static str, value: &'static str) -> Option<RowSetting> {
    Some(RowSetting { name, value, place: Place::Environment })
}

const fn command_line(name: &'static str, value: &'static str) -> Option<RowSetting> {
    Some(RowSetting { name, value, place: Place::CommandLine })
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Its name, which `bench/remedies` uses as well.
    pub(super) name: &'static str,
    /// Who holds the memory: the name of an allocator or of a runtime.
    pub(super) holder: &'static str,
    /// In which state it is.
    pub(super) state: MemoryState,
    /// The kind of the remedy.
    pub(super) kind: RemedyKind,
    /// A condition besides holder and state.
    pub(super) when: fn(&Evidence<'_>) -> bool,
    /// What to do, in a few words.
    pub(super) brief: &'static str,
    /// What to do, and what it does.
    pub(super) how: &'static str,
    /// The setting that does it.
    pub(super) setting: Option<RowSetting>,
    /// The page of documentation, or the file of the source, that it rests on, and what that says.
    pub(super) source: (&'static str, &'static str),
    /// Whether its prediction was within a quarter of the measured gain; a prediction of any other
    /// row is marked as an estimate.
    pub(super) is_exact: bool,
}

const fn always(_: &Evidence<'_>) -> bool {
    true
}

/// Returns whether `malloc` is mimalloc 2.0, in which the setting has another name.
fn has_old_mimalloc(facts: &Evidence<'_>) -> bool {
    let is_mimalloc = |allocator: &&Allocator| allocator.kind == AllocatorKind::Mimalloc;
    let version = facts.allocator.as_ref().filter(is_mimalloc).and_then(|a| a.version.as_deref());
    version.is_some_and(|version| major_and_minor(version) == (2, 0))
}

/// Whose memory a row is about, in which state it is, and of which kind the remedy is.
#[derive(Debug, Clone, Copy)]
struct Case(&'static str, MemoryState, RemedyKind);

/// Returns a row without a setting and without a further condition.
const fn row(
    name: &'static str,
    case: Case,
    brief: &'static str,
    how: &'static str,
    source: (&'static str, &'static str),
) -> Row {
    let Case(holder, state, kind) = case;
    let (setting, is_exact) = (None, false);
    Row { name, holder, state, kind, when: always, brief, how, setting, source, is_exact }
}

/// The holder of memory that processes shared after a fork.
pub(super) const FORKED: &str = "forked processes";
/// The holder of memory that only huge pages made resident.
pub(super) const HUGE_PAGES: &str = "huge pages";

/// Returns the rows of the table, in its order.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    let parts = [heaps::ROWS, runtimes::ROWS, forks::ROWS, huge_pages::ROWS, unwalked::ROWS];
    parts.into_iter().flatten()
}

/// Returns the row with a name.
pub(super) fn named(name: &str) -> &'static Row {
    rows().find(|row| row.name == name).expect("a name in the table")
}

/// Returns the row for the free memory of a walked heap, of an allocator with a purge.
pub(super) fn of_purge(allocator: &str, facts: &Evidence<'_>) -> Option<&'static Row> {
    let is_of = |row: &&Row| row.kind == RemedyKind::Purge && row.holder == allocator;
    rows().filter(is_of).find(|row| (row.when)(facts))
}

/// Returns the row for the freed blocks that threads of an allocator keep for themselves.
pub(super) fn of_caches(allocator: &str) -> Option<&'static Row> {
    rows().find(|row| row.state == MemoryState::Cached && row.holder == allocator)
}

/// Returns the rows for memory that a runtime, or an allocator that is not walked, manages.
pub(super) fn of_manager(name: &str) -> impl Iterator<Item = &'static Row> {
    let is_managed = |row: &&Row| {
        matches!(row.state, MemoryState::Undivided | MemoryState::InUse)
            || row.kind == RemedyKind::Runtime
    };
    rows().filter(is_managed).filter(move |row| row.holder == name)
}
