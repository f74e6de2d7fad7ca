//! The charges of cgroups, read a few at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use lowtide_model::cgroup::CgroupCharge;
use lowtide_probe::cgroup::{MemoryHierarchy, read_charge};

/// Maximum time for which charges are read after a scan.
const MAX_TIME: Duration = Duration::from_millis(20);
/// Maximum number of cgroups.
const MAX_GROUPS: usize = 20_000;

/// The charges of cgroups, by path.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    hierarchy: Option<MemoryHierarchy>,
    all: BTreeMap<String, CgroupCharge>,
    /// The path that was read last: the next scan continues after it.
    last: Option<String>,
}

impl Charges {
    /// Reads the charges of the cgroups that are wanted, as many as there is time for, and forgets
    /// the others. One that cannot be read has none.
    pub(crate) fn read(&mut self, wanted: &BTreeSet<String>) -> BTreeMap<String, CgroupCharge> {
        self.all.retain(|path, _| wanted.contains(path));
        if self.hierarchy.is_none() {
            self.hierarchy = MemoryHierarchy::read().ok();
        }
        let Some(hierarchy) = &self.hierarchy else { return BTreeMap::new() };
        let end = Instant::now() + MAX_TIME;
        for path in in_turn(wanted, self.last.as_ref()).take(MAX_GROUPS) {
            let read = hierarchy.find(path).and_then(|group| read_charge(&group));
            match read {
                Ok(charge) => drop(self.all.insert(path.clone(), charge)),
                Err(_) => drop(self.all.remove(path)),
            }
            self.last = Some(path.clone());
            if Instant::now() > end {
                break;
            }
        }
        self.all.clone()
    }
}

/// Returns all paths once, those after the last one first.
fn in_turn<'w>(
    wanted: &'w BTreeSet<String>,
    last: Option<&String>,
) -> impl Iterator<Item = &'w String> + use<'w> {
    let last = last.cloned().unwrap_or_default();
    let after = wanted.range::<String, _>((Excluded(last.clone()), Unbounded));
    let before = wanted.range::<String, _>(..=last);
    after.chain(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_take_turns() {
        let wanted: BTreeSet<String> = ["/a", "/b", "/c"].map(str::to_owned).into();
        let order = |last: Option<&str>| {
            let last = last.map(str::to_owned);
            in_turn(&wanted, last.as_ref()).cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order(None), "/a /b /c");
        assert_eq!(order(Some("/b")), "/c /a /b");
        assert_eq!(order(Some("/z")), "/a /b /c");
    }

    #[test]
    fn a_cgroup_that_does_not_exist_has_no_charge() {
        let wanted = BTreeSet::from(["/lowtide-no-such-group".to_owned()]);
        assert!(Charges::default().read(&wanted).is_empty());
    }
}
