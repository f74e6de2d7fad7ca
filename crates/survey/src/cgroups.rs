//! The charges of cgroups, read a few at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, Instant};

use lowtide_model::cgroup::CgroupCharge;
use lowtide_probe::cgroup::{MemoryHierarchy, read_charge};
use lowtide_probe::machine::thread_cpu_s;

/// Maximum CPU time for which charges are read after a scan, in seconds. New groups can be
/// excepted.
const MAX_CPU_S: f64 = 0.02;
/// Maximum time for which charges are read after a scan.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of cgroups.
const MAX_GROUPS: usize = 20_000;

/// The charges of cgroups, by path.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    hierarchy: Option<MemoryHierarchy>,
    /// The charge of each group that was read; `None` if it has no account.
    all: BTreeMap<String, Option<CgroupCharge>>,
    /// The path that was read again last: the next scan continues after it.
    last: Option<String>,
}

impl Charges {
    /// Reads the charges of the cgroups that are wanted, as many as there is time for, and forgets
    /// the others. Those that were not read yet come first; if this `hurries`, all of them are
    /// read.
    pub(crate) fn read(
        &mut self,
        wanted: &BTreeSet<String>,
        hurries: bool,
    ) -> BTreeMap<String, CgroupCharge> {
        self.all.retain(|path, _| wanted.contains(path));
        if self.hierarchy.is_none() {
            self.hierarchy = MemoryHierarchy::read().ok();
        }
        let Some(hierarchy) = self.hierarchy.clone() else { return BTreeMap::new() };
        let (end, begin_s) = (Instant::now() + MAX_TIME, thread_cpu_s());
        for (path, is_new) in self.order(wanted) {
            let is_excepted = is_new && hurries;
            let has_time = is_excepted || thread_cpu_s() - begin_s < MAX_CPU_S;
            if !has_time || Instant::now() > end {
                break;
            }
            let read = hierarchy.find(path).and_then(|group| read_charge(&group));
            self.all.insert(path.clone(), read.ok());
            if !is_new {
                self.last = Some(path.clone());
            }
        }
        let known =
            self.all.iter().filter_map(|(path, charge)| Some((path.clone(), charge.clone()?)));
        known.collect()
    }

    /// Returns each path, and whether it was not read yet: these first, then the others in turn.
    fn order<'w>(&self, wanted: &'w BTreeSet<String>) -> Vec<(&'w String, bool)> {
        let is_new = |path: &String| !self.all.contains_key(path);
        let paths = in_turn(wanted, self.last.as_ref()).take(MAX_GROUPS);
        let mut order: Vec<_> = paths.map(|path| (path, is_new(path))).collect();
        order.sort_by_key(|(_, is_new)| !is_new);
        order
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
        assert!(Charges::default().read(&wanted, false).is_empty());
    }

    #[test]
    fn a_cgroup_that_was_not_read_yet_comes_before_those_whose_turn_it_is() {
        let wanted: BTreeSet<String> = ["/a", "/b", "/c", "/d"].map(str::to_owned).into();
        let known = |path: &str| (path.to_owned(), None);
        let all = ["/a", "/b", "/d"].map(known).into();
        let charges = Charges { all, last: Some("/a".to_owned()), ..Charges::default() };
        let order = charges.order(&wanted);
        let paths: Vec<&str> = order.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths.join(" "), "/c /b /d /a");
    }
}
