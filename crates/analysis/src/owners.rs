//! The resident bytes of a trial at one event, by owner: the rows of its ledger, with each runtime
//! and allocator in the row `runtime` by name.

use std::collections::BTreeMap;

use lowtide_model::inspection::Manager;
use lowtide_model::ledger::{Ledger, Owner, Row, State};

/// An owner of memory: a row of the ledger, or one of the managers in its row `runtime`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedOwner {
    /// A row of the ledger.
    Owner(Owner),
    /// A runtime or an allocator.
    Manager(String),
}

impl NamedOwner {
    /// Returns the name for reports.
    pub fn name(&self) -> &str {
        match self {
            Self::Owner(owner) => owner.name(),
            Self::Manager(name) => name,
        }
    }

    /// Returns the row of the ledger.
    pub fn owner(&self) -> Owner {
        match self {
            Self::Owner(owner) => *owner,
            Self::Manager(_) => Owner::Runtime,
        }
    }

    /// Returns the name of the manager.
    pub fn manager(&self) -> Option<&str> {
        match self {
            Self::Owner(_) => None,
            Self::Manager(name) => Some(name),
        }
    }
}

/// The resident bytes of a trial at one event, by owner, and whether each is an estimate.
#[derive(Debug, Clone, Default)]
pub struct BytesByOwner {
    /// All of them, in bytes.
    pub total: u64,
    /// Those of each owner, in bytes, and whether they are an estimate.
    pub owners: BTreeMap<NamedOwner, (u64, bool)>,
}

/// A part of a ledger: a row, or one manager of its row `runtime`.
pub(crate) struct LedgerPart {
    pub(crate) owner: Owner,
    /// The name of the manager.
    pub(crate) manager: Option<String>,
    /// The state of the memory, if the manager's heap was walked.
    pub(crate) state: Option<State>,
    pub(crate) bytes: u64,
    pub(crate) estimated: bool,
}

/// Divides a ledger into parts that add up to it. `managers` are those in its row `runtime`, whose
/// rest is a part as well.
pub(crate) fn parts(ledger: &Ledger, managers: &[Manager]) -> Vec<LedgerPart> {
    let is_divided = |row: &Row| row.owner == Owner::Runtime && row.manager.is_none();
    let mut rest: u64 =
        ledger.rows().iter().filter(|row| is_divided(row)).map(|row| row.bytes).sum();
    let managers = Manager::outside_of_walked(managers, ledger).into_iter();
    let mut parts: Vec<LedgerPart> = managers
        .map(|manager| {
            let bytes = manager.bytes.min(rest);
            rest -= bytes;
            LedgerPart {
                owner: Owner::Runtime,
                manager: Some(manager.name),
                state: None,
                bytes,
                estimated: manager.estimated,
            }
        })
        .collect();
    parts.extend(ledger.rows().iter().map(|row| LedgerPart {
        owner: row.owner,
        manager: row.manager.map(|manager| manager.kind().name().to_owned()),
        state: row.state,
        bytes: if is_divided(row) { rest } else { row.bytes },
        estimated: row.estimated,
    }));
    parts
}

impl BytesByOwner {
    /// Divides a ledger; `managers` are those in its row `runtime`.
    pub fn new(ledger: &Ledger, managers: &[Manager]) -> Self {
        let mut owners: BTreeMap<NamedOwner, (u64, bool)> = BTreeMap::new();
        for part in parts(ledger, managers) {
            let owner = match (part.manager, part.state) {
                (Some(name), Some(State::Free)) => NamedOwner::Manager(format!("{name}, free")),
                (Some(name), _) => NamedOwner::Manager(name),
                (None, _) => NamedOwner::Owner(part.owner),
            };
            let (sum, is_estimate) = owners.entry(owner).or_default();
            *sum += part.bytes;
            *is_estimate |= part.estimated;
        }
        Self { total: ledger.total(), owners }
    }

    /// Returns the bytes of an owner, and whether they are an estimate.
    pub fn of(&self, owner: &NamedOwner) -> (u64, bool) {
        self.owners.get(owner).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_model::ledger::WalkedRuntime;

    #[test]
    fn a_walked_runtime_has_an_owner_for_its_free_memory() {
        let mut ledger = Ledger::default();
        ledger.add_walked(WalkedRuntime::CPython, State::Allocated, 5);
        ledger.add_walked(WalkedRuntime::CPython, State::Free, 7);
        ledger.add(Owner::Runtime, 4);
        let manager =
            |name: &str, bytes| Manager { name: name.to_owned(), bytes, estimated: false };
        let found = BytesByOwner::new(&ledger, &[manager("CPython", 12), manager("InnoDB", 3)]);
        let of = |name: &str| found.of(&NamedOwner::Manager(name.to_owned())).0;
        assert_eq!((of("CPython"), of("CPython, free"), of("InnoDB")), (5, 7, 3));
        assert_eq!(found.of(&NamedOwner::Owner(Owner::Runtime)).0, 1);
    }
}
