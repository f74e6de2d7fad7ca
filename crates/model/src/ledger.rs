//! The split of a process's resident bytes by owner.

use serde::{Deserialize, Serialize};

/// Whose bytes they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// What the program asked for and has not freed.
    Allocated,
    /// What it freed, in whole pages: can go back to the kernel.
    Reclaimable,
    /// What it freed, in pages that also hold allocated bytes.
    Fragmented,
    /// What it freed and the allocator keeps for one thread.
    Cached,
    /// The allocator's own: structures, and pages that only a free block's head keeps.
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
    /// Anonymous memory that the program mapped by itself.
    AnonymousOther,
    /// What could not be told.
    Unattributed,
}

impl Owner {
    /// All, in the order in which a ledger lists them.
    pub const ALL: [Self; 12] = [
        Self::Allocated,
        Self::Reclaimable,
        Self::Fragmented,
        Self::Cached,
        Self::Metadata,
        Self::Runtime,
        Self::Stacks,
        Self::ProgramData,
        Self::File,
        Self::Shared,
        Self::AnonymousOther,
        Self::Unattributed,
    ];

    /// What people read: `program data`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reclaimable => "reclaimable",
            Self::Fragmented => "fragmented",
            Self::Cached => "cached",
            Self::Metadata => "metadata",
            Self::Runtime => "runtime",
            Self::Stacks => "stacks",
            Self::ProgramData => "program data",
            Self::File => "files",
            Self::Shared => "shared",
            Self::AnonymousOther => "other anonymous",
            Self::Unattributed => "unattributed",
        }
    }

    /// What it means, in a few words, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Allocated => "in use by the program",
            Self::Reclaimable => "freed, whole pages: can go back",
            Self::Fragmented => "freed, on pages that something else keeps",
            Self::Cached => "freed, kept for one thread",
            Self::Metadata => "the allocator's own",
            Self::Runtime => "managed by a runtime or another allocator",
            Self::Stacks => "stacks of threads",
            Self::ProgramData => "writable data of programs and libraries",
            Self::File => "program text, libraries, mapped files",
            Self::Shared => "shared memory",
            Self::AnonymousOther => "mapped by the program itself",
            Self::Unattributed => "could not be told",
        }
    }
}

/// A row of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Whose they are.
    pub owner: Owner,
    /// How many.
    pub bytes: u64,
    /// Whether that is an estimate: by what mappings look like, not by walking a heap.
    pub estimated: bool,
}

/// The split of resident bytes by owner: one row for each, disjoint, adding up to all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ledger(Vec<Row>);

impl Default for Ledger {
    fn default() -> Self {
        Self(Owner::ALL.map(|owner| Row { owner, bytes: 0, estimated: false }).to_vec())
    }
}

impl Ledger {
    /// Adds bytes to an owner's row.
    pub fn add(&mut self, owner: Owner, bytes: u64) {
        if let Some(row) = self.0.iter_mut().find(|r| r.owner == owner) {
            row.bytes = row.bytes.saturating_add(bytes);
        } else {
            self.0.push(Row { owner, bytes, estimated: false });
        }
    }

    /// Adds bytes whose owner is an estimate.
    pub fn add_estimate(&mut self, owner: Owner, bytes: u64) {
        self.add(owner, bytes);
        if let Some(row) = self.0.iter_mut().find(|r| r.owner == owner)
            && bytes > 0
        {
            row.estimated = true;
        }
    }

    /// Adds the rows of another process.
    pub fn join(&mut self, other: &Self) {
        for row in &other.0 {
            if row.estimated {
                self.add_estimate(row.owner, row.bytes);
            } else {
                self.add(row.owner, row.bytes);
            }
        }
    }

    /// The bytes of an owner.
    pub fn bytes(&self, owner: Owner) -> u64 {
        self.0.iter().filter(|r| r.owner == owner).map(|r| r.bytes).sum()
    }

    /// All bytes.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|r| r.bytes).sum()
    }

    /// The rows, in the order of [`Owner::ALL`].
    pub fn rows(&self) -> &[Row] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_add_up_and_estimates_stay_estimates() {
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
}
