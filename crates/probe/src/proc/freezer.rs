//! The freezer of control groups.

use std::fs;

use super::cgroup::Groups;
use super::hierarchy::Hierarchy;

/// Returns whether a process in these groups is frozen by the freezer; `None` if the freezer's
/// files are not visible here.
pub fn is_frozen(groups: &Groups) -> Option<bool> {
    let read = |controller: &str, file: &str| {
        let path = groups.path(controller)?;
        let group = Hierarchy::read(controller)?.directory(path)?;
        fs::read_to_string(group.directory.join(file)).ok()
    };
    // A topmost group has no state: it cannot be frozen.
    let v1 = read("freezer", "freezer.state").map(|state| state.trim() != "THAWED");
    let v2 = read("", "cgroup.events");
    let v2 = v2.map(|events| events.lines().any(|line| line.trim() == "frozen 1"));
    match (v1, v2) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(false) || other.unwrap_or(false)),
    }
}
