//! The split of a process's resident bytes by owner.

use serde::{Deserialize, Serialize};

use crate::runtime_kind::RuntimeKind;

/// The owner of resident bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// Memory that the program allocated and has not freed.
    Allocated,
    /// Freed memory in whole pages. Whether anything returns it to the kernel is a remedy.
    Reclaimable,
    /// Freed memory in whole pages that the program has locked (`mlock`). The kernel refuses to
    /// drop them.
    Locked,
    /// Freed memory in pages that also hold allocated bytes.
    Fragmented,
    /// Freed memory that the allocator caches for a thread.
    Cached,
    /// The allocator's own memory: its structures, and pages that only the header of a free block
    /// keeps resident.
    Metadata,
    /// Memory that a runtime or another allocator manages: V8's, CPython's, Go's, jemalloc's.
    Runtime,
    /// Stacks of threads.
    Stacks,
    /// Writable data of programs and libraries.
    ProgramData,
    /// Pages of files: program text, libraries, mapped data.
    File,
    /// Shared memory: tmpfs, shared anonymous mappings, System V segments.
    Shared,
    /// Memory of a device's driver that the program has mapped (GPU, RDMA); the driver pins it.
    Device,
    /// Anonymous memory that the program mapped by itself.
    AnonymousOther,
    /// Memory whose owner could not be determined.
    Unattributed,
}

impl Owner {
    /// All owners, in the order of a ledger.
    pub const ALL: [Self; 14] = [
        Self::Allocated,
        Self::Reclaimable,
        Self::Locked,
        Self::Fragmented,
        Self::Cached,
        Self::Metadata,
        Self::Runtime,
        Self::Stacks,
        Self::ProgramData,
        Self::File,
        Self::Shared,
        Self::Device,
        Self::AnonymousOther,
        Self::Unattributed,
    ];

    /// Returns the name in JSON and metrics: `program_data`.
    pub fn key(self) -> &'static str {
        match self {
            Self::ProgramData => "program_data",
            Self::File => "file",
            Self::AnonymousOther => "anonymous_other",
            _ => self.name(),
        }
    }

    /// Returns the name for reports: `program data`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reclaimable => "reclaimable",
            Self::Locked => "locked",
            Self::Fragmented => "fragmented",
            Self::Cached => "cached",
            Self::Metadata => "metadata",
            Self::Runtime => "runtime",
            Self::Stacks => "stacks",
            Self::ProgramData => "program data",
            Self::File => "files",
            Self::Shared => "shared",
            Self::Device => "device",
            Self::AnonymousOther => "other anonymous",
            Self::Unattributed => "unattributed",
        }
    }

    /// Returns its meaning in a few words, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Allocated => "in use by the program",
            Self::Reclaimable => "freed, in whole pages",
            Self::Locked => "freed, whole pages, but locked in memory (mlock)",
            Self::Fragmented => "freed, on pages with blocks in use",
            Self::Cached => "freed, kept for one thread",
            Self::Metadata => "the allocator's structures",
            Self::Runtime => "of a runtime or another allocator",
            Self::Stacks => "stacks of threads",
            Self::ProgramData => "data of programs, changed pages of files",
            Self::File => "program text, libraries, mapped files",
            Self::Shared => "shared memory",
            Self::Device => "mapped from a device (GPU, RDMA), pinned by its driver",
            Self::AnonymousOther => "mapped by the program itself",
            Self::Unattributed => "could not be attributed",
        }
    }
}

/// A runtime whose own heap lowtide walks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WalkedRuntime {
    /// CPython: the arenas of its allocator `obmalloc`.
    CPython,
    /// HotSpot: the heap of Java's objects.
    HotSpot,
    /// V8: its chunks.
    V8,
}

impl WalkedRuntime {
    /// Returns the runtime.
    pub fn kind(self) -> RuntimeKind {
        match self {
            Self::CPython => RuntimeKind::Python,
            Self::HotSpot => RuntimeKind::HotSpot,
            Self::V8 => RuntimeKind::V8,
        }
    }
}

/// The state of a part of a runtime's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In use by the program.
    Allocated,
    /// Free. For HotSpot: all memory that was not in use after the last collection, including newer
    /// objects.
    Free,
    /// Unknown, because it could not be walked.
    Unknown,
}

/// A row of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The owner.
    pub owner: Owner,
    /// The runtime whose heap was walked; only in rows of [`Owner::Runtime`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager: Option<WalkedRuntime>,
    /// The state of this memory; only in rows with a manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Number of bytes.
    pub bytes: u64,
    /// Whether that is an estimate from the appearance of mappings, without a heap walk.
    pub estimated: bool,
}

impl Row {
    /// Returns the row of an owner.
    pub fn new(owner: Owner, bytes: u64) -> Self {
        Self { owner, manager: None, state: None, bytes, estimated: false }
    }

    /// Returns the row of a state of a walked runtime.
    fn walked(manager: WalkedRuntime, state: State, bytes: u64) -> Self {
        let row = Self::new(Owner::Runtime, bytes);
        Self { manager: Some(manager), state: Some(state), ..row }
    }

    /// Returns the key of the row. The rows of a ledger have distinct keys and are sorted by them.
    fn key(&self) -> (Owner, Option<WalkedRuntime>, Option<State>) {
        (self.owner, self.manager, self.state)
    }
}

/// The split of resident bytes by owner. The rows are disjoint and add up to the total. Each owner
/// has a row. The row of [`Owner::Runtime`] holds the bytes that were not walked; after it come the
/// rows of each walked runtime, one for each state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ledger(Vec<Row>);

impl Default for Ledger {
    fn default() -> Self {
        Self(Owner::ALL.map(|owner| Row::new(owner, 0)).to_vec())
    }
}

impl Ledger {
    /// Adds bytes to an owner's row.
    pub fn add(&mut self, owner: Owner, bytes: u64) {
        self.add_row(Row::new(owner, bytes));
    }

    /// Adds bytes whose owner is an estimate.
    pub fn add_estimate(&mut self, owner: Owner, bytes: u64) {
        self.add_row(Row { estimated: bytes > 0, ..Row::new(owner, bytes) });
    }

    /// Adds bytes of a runtime whose heap was walked.
    pub fn add_walked(&mut self, manager: WalkedRuntime, state: State, bytes: u64) {
        self.add_row(Row::walked(manager, state, bytes));
    }

    /// Adds bytes of a runtime whose division into states is an estimate.
    pub fn add_walked_estimate(&mut self, manager: WalkedRuntime, state: State, bytes: u64) {
        self.add_row(Row { estimated: bytes > 0, ..Row::walked(manager, state, bytes) });
    }

    /// Adds the rows of another process.
    pub fn join(&mut self, other: &Self) {
        self.extend(&other.0);
    }

    /// Adds rows.
    pub fn extend(&mut self, rows: &[Row]) {
        rows.iter().for_each(|row| self.add_row(*row));
    }

    fn add_row(&mut self, row: Row) {
        if let Some(same) = self.0.iter_mut().find(|r| r.key() == row.key()) {
            same.bytes = same.bytes.saturating_add(row.bytes);
            same.estimated |= row.estimated;
        } else {
            let place = self.0.partition_point(|r| r.key() < row.key());
            self.0.insert(place, row);
        }
    }

    /// Marks all bytes as estimates, as those of a core are: it does not show which pages were
    /// resident.
    pub fn mark_estimated(&mut self) {
        self.0.iter_mut().for_each(|row| row.estimated = row.bytes > 0);
    }

    /// Returns the bytes of an owner.
    pub fn bytes(&self, owner: Owner) -> u64 {
        self.sum(|row| row.owner == owner)
    }

    /// Returns the bytes of a walked runtime in one state.
    pub fn bytes_of(&self, manager: WalkedRuntime, state: State) -> u64 {
        self.sum(|row| row.manager == Some(manager) && row.state == Some(state))
    }

    /// Returns the bytes of the row with the same owner, runtime and state.
    pub fn bytes_like(&self, row: &Row) -> u64 {
        self.sum(|r| r.key() == row.key())
    }

    /// Returns how much of the memory was walked.
    pub fn coverage(&self) -> Coverage {
        let is_not_walked = |row: &Row| match row.owner {
            Owner::Runtime => matches!(row.state, None | Some(State::Unknown)),
            Owner::AnonymousOther | Owner::Unattributed => true,
            _ => false,
        };
        let of_bytes = self.total();
        Coverage { walked_bytes: of_bytes - self.sum(is_not_walked), of_bytes }
    }

    fn sum(&self, wanted: impl Fn(&Row) -> bool) -> u64 {
        self.0.iter().filter(|row| wanted(row)).map(|row| row.bytes).sum()
    }

    /// Returns the total.
    pub fn total(&self) -> u64 {
        self.sum(|_| true)
    }

    /// Returns the rows, in the order of [`Owner::ALL`].
    pub fn rows(&self) -> &[Row] {
        &self.0
    }
}

/// How much of RSS was walked: divided into what is in use and what is free, or of a kind that
/// needs no division, such as files, stacks and shared memory. Heaps that were not walked do not
/// count, nor does memory that the program mapped itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// The bytes that were walked.
    pub walked_bytes: u64,
    /// RSS, in bytes.
    pub of_bytes: u64,
}

impl Coverage {
    /// Returns the part that was walked, from 0 to 1; 1 of nothing.
    pub fn share(self) -> f64 {
        match self.of_bytes {
            0 => 1.0,
            all => self.walked_bytes as f64 / all as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_that_were_not_walked_are_not_covered() {
        let mut ledger = Ledger::default();
        assert_eq!((ledger.coverage(), ledger.coverage().share()), (Coverage::default(), 1.0));
        for (owner, bytes) in [
            (Owner::Allocated, 100),
            (Owner::File, 50),
            (Owner::Stacks, 10),
            (Owner::Runtime, 200),
            (Owner::AnonymousOther, 30),
            (Owner::Unattributed, 5),
        ] {
            ledger.add(owner, bytes);
        }
        ledger.add_walked(WalkedRuntime::CPython, State::Free, 40);
        ledger.add_walked(WalkedRuntime::CPython, State::Unknown, 7);
        assert_eq!(ledger.coverage(), Coverage { walked_bytes: 200, of_bytes: 442 });
    }

    #[test]
    fn the_key_of_an_owner_is_its_name_in_json() {
        for owner in Owner::ALL {
            assert_eq!(serde_json::to_value(owner).unwrap(), owner.key());
        }
    }

    #[test]
    fn joined_ledgers_add_up_rows_and_preserve_estimate_marks() {
        let mut ledger = Ledger::default();
        ledger.add(Owner::Allocated, 10);
        ledger.add_estimate(Owner::Runtime, 5);
        let mut both = ledger.clone();
        both.join(&ledger);
        assert_eq!((both.total(), both.bytes(Owner::Allocated)), (30, 20));
        let estimated: Vec<Owner> =
            both.rows().iter().filter(|r| r.estimated).map(|r| r.owner).collect();
        assert_eq!(estimated, [Owner::Runtime]);
    }

    #[test]
    fn a_ledger_is_written_with_every_row_and_read_back() {
        let mut ledger = Ledger::default();
        ledger.add(Owner::AnonymousOther, 7);
        let text = serde_json::to_string(&ledger).unwrap();
        assert!(text.starts_with(r#"[{"owner":"allocated","bytes":0,"estimated":false},"#));
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
    }

    #[test]
    fn the_rows_of_a_walked_runtime_follow_the_row_of_unwalked_memory() {
        let mut ledger = Ledger::default();
        ledger.add_walked(WalkedRuntime::CPython, State::Free, 3);
        ledger.add_walked(WalkedRuntime::CPython, State::Allocated, 2);
        ledger.add_estimate(Owner::Runtime, 1);
        let mut both = ledger.clone();
        both.join(&ledger);
        assert_eq!(
            (both.bytes(Owner::Runtime), both.bytes_of(WalkedRuntime::CPython, State::Free)),
            (12, 6)
        );
        let text = serde_json::to_string(&both).unwrap();
        let rows = r#"{"owner":"runtime","bytes":2,"estimated":true},{"owner":"runtime","manager":"cpython","state":"allocated","bytes":4,"estimated":false},{"owner":"runtime","manager":"cpython","state":"free","bytes":6,"estimated":false},{"owner":"stacks","#;
        assert!(text.contains(rows), "{text}");
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), both);
    }
}
