//! The resident bytes of a trial at one event, by owner: the rows of its ledger, with each runtime
//! and allocator in the row `runtime` by name.

use std::collections::BTreeMap;

use lowtide_model::inspection::Manager;
use lowtide_model::ledger::{Ledger, Owner, State};

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

impl BytesByOwner {
    /// Divides a ledger; `managers` are those in its row `runtime`.
    pub fn new(ledger: &Ledger, managers: &[Manager]) -> Self {
        let mut owners: BTreeMap<NamedOwner, (u64, bool)> = BTreeMap::new();
        let mut add = |owner, bytes: u64, estimated| {
            let (sum, is_estimate) = owners.entry(owner).or_default();
            *sum += bytes;
            *is_estimate |= estimated;
        };
        for row in ledger.rows() {
            let owner = match (row.manager.map(|manager| manager.kind().name()), row.state) {
                (Some(name), Some(State::Free)) => NamedOwner::Manager(format!("{name}, free")),
                (Some(name), _) => NamedOwner::Manager(name.to_owned()),
                (None, _) => NamedOwner::Owner(row.owner),
            };
            add(owner, row.bytes, row.estimated);
        }
        let others = Manager::outside_of_walked(managers, ledger);
        let named: u64 = others.iter().map(|manager| manager.bytes).sum();
        for manager in others {
            add(NamedOwner::Manager(manager.name), manager.bytes, manager.estimated);
        }
        if let Some((bytes, _)) = owners.get_mut(&NamedOwner::Owner(Owner::Runtime)) {
            *bytes = bytes.saturating_sub(named);
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
