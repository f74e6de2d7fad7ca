//! The memory of the descendants of a process: it may be one of them that grows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use lowtide_model::growth::{DescendantGrowth, ProcessGrowth};

use crate::machine::thread_cpu_s;
use crate::proc::rollup::Rollup;
use crate::proc::status::Status;
use crate::tree::descendants_of;

/// Maximum number of descendants: the default `pid_max` of the kernel. More are not read.
const MAX_PROCESSES: usize = 1 << 15;
/// Maximum RSS of a descendant whose PSS is read, in bytes: the kernel walks its page tables
/// meanwhile, and lets it map nothing. Of larger ones, the anonymous memory is read.
const MAX_BYTES: u64 = 512 << 20;
/// Maximum sum of the RSS of all descendants whose PSS is read, in bytes, and the maximum CPU time
/// and elapsed time for it. Of the others, the anonymous memory is read.
const MAX_SUM_BYTES: u64 = 8 << 30;
const MAX_CPU_S: f64 = 2.0;
const MAX_TIME: Duration = Duration::from_secs(10);

/// The memory of the descendants of a process.
pub type Descendants = BTreeMap<u32, DescendantMemory>;

/// The memory of one descendant, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescendantMemory {
    name: String,
    rss_bytes: u64,
    /// Its anonymous memory, including what it shares with the process that forked it.
    anon_bytes: u64,
    pss_bytes: Option<u64>,
}

/// Reads the memory of all descendants of a process; `None` if there are too many. `before` are
/// those of an earlier call: the PSS of newer ones is read first, since their anonymous memory may
/// be that of the process that forked them.
pub fn descendants(pid: u32, before: Option<&Descendants>) -> Option<Descendants> {
    let pids = descendants_of(pid);
    if pids.len() > MAX_PROCESSES {
        return None;
    }
    let mut found: Vec<(u32, DescendantMemory)> =
        pids.into_iter().filter_map(|pid| Some((pid, counted(pid)?))).collect();
    let is_known = |pid: &u32| before.is_some_and(|before| before.contains_key(pid));
    found.sort_by_key(|(pid, memory)| (is_known(pid), memory.rss_bytes));
    let (end, end_cpu_s) = (Instant::now() + MAX_TIME, thread_cpu_s() + MAX_CPU_S);
    let mut sum_bytes = 0;
    for (pid, memory) in found.iter_mut().filter(|(_, memory)| memory.rss_bytes <= MAX_BYTES) {
        sum_bytes += memory.rss_bytes;
        if sum_bytes > MAX_SUM_BYTES || thread_cpu_s() > end_cpu_s || Instant::now() > end {
            break;
        }
        memory.pss_bytes = pss(*pid);
    }
    Some(found.into_iter().collect())
}

/// Returns the kernel's counts of a process; `None` if it has ended.
fn counted(pid: u32) -> Option<DescendantMemory> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned();
    let status = Status::read(pid).ok()?;
    let (rss_bytes, anon_bytes) = (status.rss_bytes(), status.anon_bytes);
    Some(DescendantMemory { name, rss_bytes, anon_bytes, pss_bytes: None })
}

fn pss(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Rollup::parse(&text).ok().map(|rollup| rollup.pss_bytes)
}

/// Returns the growth of descendants in `elapsed_s` seconds; `None` if they did not grow.
pub fn growth_of_descendants(
    before: &Descendants,
    after: &Descendants,
    elapsed_s: f64,
) -> Option<DescendantGrowth> {
    let pids: BTreeSet<u32> = before.keys().chain(after.keys()).copied().collect();
    let share = pss_share(after);
    let pair = |pid| pair(before.get(&pid), after.get(&pid), share);
    let pairs: BTreeMap<u32, [u64; 2]> = pids.into_iter().map(|pid| (pid, pair(pid))).collect();
    let pss_bytes = [0, 1].map(|place| pairs.values().map(|pair| pair[place]).sum::<u64>());
    let rise = pss_bytes[1].checked_sub(pss_bytes[0]).filter(|rise| *rise > 0)?;
    let grown = after.iter().map(|(pid, memory)| ProcessGrowth {
        pid: *pid,
        name: memory.name.clone(),
        pss_bytes: pairs[pid],
    });
    Some(DescendantGrowth {
        processes: [before.len() as u64, after.len() as u64],
        pss_bytes,
        estimated: before.values().chain(after.values()).any(|memory| memory.pss_bytes.is_none()),
        bytes_per_hour: if elapsed_s > 0.0 { (rise as f64 * 3600.0 / elapsed_s) as u64 } else { 0 },
        shares_limit: false,
        most: grown.max_by_key(|grown| grown.pss_bytes[1].saturating_sub(grown.pss_bytes[0]))?,
    })
}

/// Returns the memory of a process before and after, counted in the same way. `share` is the part
/// of anonymous memory that is estimated to be PSS.
fn pair(
    before: Option<&DescendantMemory>,
    after: Option<&DescendantMemory>,
    share: f64,
) -> [u64; 2] {
    if let (Some(before), Some(after)) = (before, after) {
        return match (before.pss_bytes, after.pss_bytes) {
            (Some(before), Some(after)) => [before, after],
            _ => [before.anon_bytes, after.anon_bytes],
        };
    }
    let estimate = |memory: &DescendantMemory| (memory.anon_bytes as f64 * share) as u64;
    let bytes = |memory: &DescendantMemory| memory.pss_bytes.unwrap_or_else(|| estimate(memory));
    [before, after].map(|memory| memory.map_or(0, bytes))
}

/// Returns the PSS of the processes of which it was read, as a part of their anonymous memory: a
/// process shares most of it with the one that forked it. At most 1, also if none was read.
fn pss_share(all: &Descendants) -> f64 {
    let read = all.values().filter_map(|memory| Some((memory.pss_bytes?, memory.anon_bytes)));
    let (pss, anon) = read.fold((0, 0), |sum, memory| (sum.0 + memory.0, sum.1 + memory.1));
    if anon > 0 { (pss as f64 / anon as f64).min(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns descendants, by PID, anonymous memory and PSS.
    fn of(all: &[(u32, u64, Option<u64>)]) -> Descendants {
        let memory = |(pid, anon_bytes, pss_bytes): &(u32, u64, Option<u64>)| {
            let name = "worker".to_owned();
            let rss_bytes = 2 * anon_bytes;
            let (anon_bytes, pss_bytes) = (*anon_bytes, *pss_bytes);
            (*pid, DescendantMemory { name, rss_bytes, anon_bytes, pss_bytes })
        };
        all.iter().map(memory).collect()
    }

    #[test]
    fn the_descendant_that_grew_most_is_named_whether_it_is_new_or_not() {
        let pss = |all: &[(u32, u64)]| {
            of(&all.iter().map(|(pid, pss)| (*pid, 999, Some(*pss))).collect::<Vec<_>>())
        };
        let before = pss(&[(7, 100), (8, 50), (9, 30)]);
        let growth = |after: &[(u32, u64)]| growth_of_descendants(&before, &pss(after), 10.0);
        let grown = growth(&[(7, 110), (8, 90), (10, 30)]).unwrap();
        assert_eq!((grown.processes, grown.pss_bytes), ([3, 3], [180, 230]));
        assert_eq!((grown.most.pid, grown.most.pss_bytes), (8, [50, 90]));
        assert_eq!((grown.bytes_per_hour, grown.estimated), (50 * 360, false));
        let new = growth(&[(7, 100), (8, 50), (9, 30), (11, 5)]);
        assert_eq!(new.unwrap().most.pss_bytes, [0, 5]);
        assert_eq!(growth(&[(7, 120)]), None);
        assert_eq!(growth(&[(7, 100), (8, 50), (9, 30)]), None);
    }

    #[test]
    fn a_descendant_is_counted_in_the_same_way_before_and_after() {
        // It shares 300 bytes with its parent, and grew by 20.
        let before = of(&[(7, 500, Some(200))]);
        let grown = growth_of_descendants(&before, &of(&[(7, 520, None)]), 10.0).unwrap();
        assert_eq!((grown.pss_bytes, grown.estimated), ([500, 520], true));
    }

    #[test]
    fn a_new_descendant_of_unknown_pss_shares_as_much_as_the_others() {
        let before = of(&[(7, 500, Some(50))]);
        let after = of(&[(7, 500, Some(50)), (8, 700, None)]);
        let grown = growth_of_descendants(&before, &after, 10.0).unwrap();
        assert_eq!((grown.pss_bytes, grown.estimated), ([50, 120], true));
    }

    #[test]
    fn all_children_of_a_process_are_read_however_many_they_are() {
        let own = std::process::id();
        let mut children: Vec<_> = (0..70)
            .map(|_| std::process::Command::new("sleep").arg("1000").spawn().unwrap())
            .collect();
        let found = descendants(own, None).unwrap();
        let missing = children.iter().filter(|child| !found.contains_key(&child.id())).count();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(missing, 0);
    }
}
