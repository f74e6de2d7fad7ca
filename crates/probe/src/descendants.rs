//! The memory of the descendants of a process: it may be one of them that grows.

use std::collections::BTreeMap;
use std::fs;

use lowtide_model::growth::{DescendantGrowth, ProcessGrowth};

use crate::proc::is_gone;
use crate::proc::rollup::Rollup;
use crate::proc::status::Status;
use crate::tree::descendants_of;

/// Maximum number of descendants; more are not read.
const MAX_PROCESSES: usize = 64;
/// Maximum RSS of a descendant whose PSS is read, in bytes: the kernel walks its page tables
/// meanwhile, and lets it map nothing. Of larger ones, the anonymous memory is read.
const MAX_BYTES: u64 = 512 << 20;

/// The PSS of the descendants of a process (of large ones, their anonymous memory), in bytes, with
/// the name of each.
pub type Descendants = BTreeMap<u32, (String, u64)>;

/// Reads the memory of all descendants of a process; `None` if one of them cannot be read, or if
/// there are too many.
pub fn descendants(pid: u32) -> Option<Descendants> {
    let pids = descendants_of(pid);
    if pids.len() > MAX_PROCESSES {
        return None;
    }
    let mut found = Descendants::new();
    for pid in pids {
        match memory(pid) {
            Ok(Some(read)) => drop(found.insert(pid, read)),
            // It has ended.
            Ok(None) => {}
            Err(()) => return None,
        }
    }
    Some(found)
}

/// Returns the name and the memory of a process; `None` if it has ended.
fn memory(pid: u32) -> Result<Option<(String, u64)>, ()> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
    let (Ok(name), Ok(status)) = (read("comm"), Status::read(pid)) else { return Ok(None) };
    let name = name.trim_end().to_owned();
    if status.rss_bytes() > MAX_BYTES {
        return Ok(Some((name, status.anon_bytes)));
    }
    match read("smaps_rollup") {
        Ok(text) => Ok(Rollup::parse(&text).ok().map(|rollup| (name, rollup.pss_bytes))),
        Err(error) if is_gone(&error) => Ok(None),
        Err(_) => Err(()),
    }
}

/// Returns the growth of descendants; `None` if they did not grow.
pub fn growth_of_descendants(
    before: &Descendants,
    after: &Descendants,
) -> Option<DescendantGrowth> {
    let sum = |all: &Descendants| all.values().map(|(_, bytes)| bytes).sum::<u64>();
    let pss_bytes = [before, after].map(sum);
    let grown = after.iter().map(|(pid, (name, bytes))| ProcessGrowth {
        pid: *pid,
        name: name.clone(),
        pss_bytes: [before.get(pid).map_or(0, |(_, bytes)| *bytes), *bytes],
    });
    let most = grown.max_by_key(|grown| grown.pss_bytes[1].saturating_sub(grown.pss_bytes[0]))?;
    let processes = [before.len() as u64, after.len() as u64];
    (pss_bytes[1] > pss_bytes[0]).then_some(DescendantGrowth { processes, pss_bytes, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &[(u32, u64)]) -> Descendants {
        all.iter().map(|(pid, bytes)| (*pid, ("worker".to_owned(), *bytes))).collect()
    }

    #[test]
    fn the_descendant_that_grew_most_is_named_whether_it_is_new_or_not() {
        let before = of(&[(7, 100), (8, 50), (9, 30)]);
        let grown = growth_of_descendants(&before, &of(&[(7, 110), (8, 90), (10, 30)])).unwrap();
        assert_eq!((grown.processes, grown.pss_bytes), ([3, 3], [180, 230]));
        assert_eq!((grown.most.pid, grown.most.pss_bytes), (8, [50, 90]));
        let new = growth_of_descendants(&before, &of(&[(7, 100), (8, 50), (9, 30), (11, 5)]));
        assert_eq!(new.unwrap().most.pss_bytes, [0, 5]);
        assert_eq!(growth_of_descendants(&before, &of(&[(7, 120)])), None);
        assert_eq!(growth_of_descendants(&before, &before), None);
    }
}
