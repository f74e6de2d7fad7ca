//! The memory that a process shares with those that were forked from the same one, and have
//! executed no other program since.
//!
//! After a `fork`, both processes map the same pages; the kernel copies a page when one of them
//! writes to it. RSS counts shared pages in each process.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

use lowtide_heap::layout::{HeapLayout, Places};
use lowtide_heap::memory::Memory as _;
use lowtide_heap::ranges::{bytes, union};
use lowtide_model::inspection::{ForkedMemory, MAX_RELATIVES, Observation};
use lowtide_model::number::HumanCount;

use crate::detect::Detected;
use crate::heap;
use crate::memory::ProcessMemory;
use crate::proc::kcmp::{Resource, compare};
use crate::proc::maps::Mapping;
use crate::proc::stat::Stat;
use crate::target::Target;
use crate::tree::{children_of, descendants_of};

/// Maximum number of generations above a process that are searched for the first of its family.
const MAX_GENERATIONS: usize = 64;

/// Maximum number of children of another process that are searched for the family: that process may
/// be the first one of the machine.
const MAX_SIBLINGS: usize = 4096;

/// The processes that were forked from the same one as a process.
struct Family {
    /// The process from which it was forked, if that is known.
    parent: Option<u32>,
    /// All others, the parent included.
    others: BTreeSet<u32>,
    /// Those that use the same memory (`CLONE_VM`): it is not a copy. They are not in `others`.
    same: BTreeSet<u32>,
}

/// Adds what a process shares with its family, if it has one and that may be read, and a note about
/// processes that use the same memory.
pub(super) fn add(
    observation: &mut Observation,
    target: &Target,
    memory: &ProcessMemory,
    maps: &[Mapping],
    detected: &Detected,
) {
    let Some(family) = Family::find(target) else { return };
    if let Some(first) = family.same.first() {
        let count = family.same.len() as u64;
        let (others, use_it) = match count {
            1 => (format!("process {first}"), "uses"),
            _ => (format!("{} other processes (the first is {first})", HumanCount(count)), "use"),
        };
        observation.notes.push(format!(
            "{others} {use_it} the same memory (clone with CLONE_VM): the RSS of each is the same bytes"
        ));
    }
    let has_free = observation.heaps.iter().any(|heap| heap.reclaimable_bytes > 0);
    let free = has_free.then(|| free_pages(target.pid, memory, maps, detected));
    observation.forked = family.memory(memory, maps, free.as_deref());
}

/// Returns what a process shares with its family, without the part that is free; `None` if it has
/// none, or if that may not be read.
pub fn shared_after_fork(target: &Target) -> Option<ForkedMemory> {
    let family = Family::find(target)?;
    if family.others.is_empty() {
        return None;
    }
    let memory = ProcessMemory::pages_only(target.pid).ok()?;
    family.memory(&memory, &target.maps().ok()?, None)
}

/// Returns the whole free pages of the program's own heaps that a release returns, in order and
/// disjoint.
fn free_pages(
    pid: u32,
    memory: &ProcessMemory,
    maps: &[Mapping],
    detected: &Detected,
) -> Vec<Range<u64>> {
    let mappings = heap::mappings(maps);
    let mut free = Vec::new();
    for allocator in detected.allocators() {
        let library = heap::library(maps, &allocator.path.to_string_lossy());
        let Some(library) = library else { continue };
        let data = heap::data_of(maps, library.file);
        let zeroed_data = detected.zeroed_data_of(allocator, maps, memory.page_bytes());
        let places = Places { data: &data, zeroed_data: &zeroed_data, mappings: &mappings };
        let Some(layout) = HeapLayout::find(&allocator.kind, memory, &places) else { continue };
        let heap = heap::droppable(pid, maps, allocator, layout, memory, &mappings);
        let Ok(heap) = heap else { continue };
        // What it found before it failed is free.
        let _ = heap.walk(memory, &mappings, &mut |found| free.push(found.pages().clone()));
    }
    union(free)
}

/// Returns the ranges of an ordered, disjoint list that overlap another one.
fn overlapping<'r>(ranges: &'r [Range<u64>], range: &Range<u64>) -> &'r [Range<u64>] {
    let first = ranges.partition_point(|other| other.end <= range.start);
    let end = ranges.partition_point(|other| other.start < range.end);
    &ranges[first..end.max(first)]
}

impl Family {
    /// Divides the anonymous memory of the process. `free` are its free pages, if they are known.
    fn memory(
        self,
        memory: &ProcessMemory,
        maps: &[Mapping],
        free: Option<&[Range<u64>]>,
    ) -> Option<ForkedMemory> {
        let family = self;
        if family.others.is_empty() {
            return None;
        }
        let parent = family.parent.and_then(|pid| ProcessMemory::pages_only(pid).ok());
        let (mut private_bytes, mut shared_bytes, mut copied_bytes) = (0, 0, 0);
        let mut free_shared_bytes = 0;
        for mapping in maps.iter().filter(|mapping| mapping.may_be_copied()) {
            let range = mapping.start..mapping.end;
            let anonymous = memory.anonymous(range.clone()).ok()?;
            let private = memory.exclusive(&anonymous).ok()?;
            private_bytes += bytes(&private);
            shared_bytes += bytes(&anonymous) - bytes(&private);
            let free = overlapping(free.unwrap_or_default(), &range);
            let of_own = common_bytes(&private, free);
            free_shared_bytes += common_bytes(&anonymous, free).saturating_sub(of_own);
            if let Some(parent) = &parent {
                copied_bytes += common_bytes(&private, &parent.anonymous(range).ok()?);
            }
        }
        Some(ForkedMemory {
            private_bytes,
            shared_bytes,
            copied_bytes: parent.map(|_| copied_bytes),
            free_shared_bytes: free.map(|_| free_shared_bytes),
            parent: family.parent,
            processes: family.others.len() as u64,
            pids: family.others.into_iter().take(MAX_RELATIVES).collect(),
        })
    }

    fn find(target: &Target) -> Option<Self> {
        let own = target.stat().ok().filter(|stat| stat.image != (0, 0))?;
        let stat = |pid: u32| Target::open(pid).ok()?.stat().ok();
        let is_alike = |stat: &Stat| stat.image == own.image && !stat.has_ended();
        let mut first = (target.pid, own.clone());
        let mut parent = None;
        for _ in 0..MAX_GENERATIONS {
            let above = first.1.parent;
            let found = first.1.is_forked().then(|| stat(above)).flatten().filter(is_alike);
            let Some(found) = found else { break };
            parent = parent.or(Some(above));
            first = (above, found);
        }
        let is_member =
            |pid: &u32| stat(*pid).is_some_and(|stat| stat.is_forked() && is_alike(&stat));
        let mut others: BTreeSet<u32> = descendants_of(first.0);
        if first.1.is_forked() {
            // The process from which it was forked has ended: others of its children have the same
            // parent now.
            let beside = children_of(first.1.parent).unwrap_or_default().into_iter();
            let beside = beside.take(MAX_SIBLINGS).filter(is_member);
            let beside: Vec<u32> = beside.collect();
            others.extend(beside.iter().flat_map(|pid| descendants_of(*pid)));
            others.extend(beside);
        }
        others.retain(is_member);
        others.insert(first.0);
        others.remove(&target.pid);
        let is_same =
            |pid: &u32| compare(target.pid, *pid, Resource::Memory).is_ok_and(Ordering::is_eq);
        let same: BTreeSet<u32> = others.iter().copied().filter(is_same).collect();
        others.retain(|pid| !same.contains(pid));
        let parent = parent.filter(|parent| !same.contains(parent));
        Some(Self { parent, others, same })
    }
}

/// Returns the bytes that two lists of ranges, each in order and disjoint, have in common.
fn common_bytes(these: &[Range<u64>], others: &[Range<u64>]) -> u64 {
    let (mut these, mut others) = (these.iter().peekable(), others.iter().peekable());
    let mut common = 0;
    while let (Some(this), Some(other)) = (these.peek(), others.peek()) {
        common += this.end.min(other.end).saturating_sub(this.start.max(other.start));
        if this.end <= other.end {
            these.next()
        } else {
            others.next()
        };
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_shares_what_neither_has_written_since() {
        use crate::proc::rollup::Rollup;
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};

        // Both shells wait until their stdin is closed.
        let mut shell = Command::new("sh")
            .args(["-c", "exec 3<&0; (read line <&3) & echo $!; wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let child = Target::open(line.trim().parse().unwrap()).unwrap();
        let first = Target::open(shell.id()).unwrap();
        while [&first, &child].iter().any(|target| target.stat().unwrap().state != 'S') {
            std::thread::yield_now();
        }
        let found = |target: &Target| {
            let memory = ProcessMemory::open(target.pid).unwrap();
            let maps = target.maps().unwrap();
            let free: Vec<Range<u64>> = maps.iter().map(|m| m.start..m.end).collect();
            Family::find(target).unwrap().memory(&memory, &maps, Some(&free)).unwrap()
        };
        let (of_first, of_child) = (found(&first), found(&child));
        let text = std::fs::read_to_string(child.path("smaps_rollup")).unwrap();
        let rollup = Rollup::parse(&text).unwrap();
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!((of_child.parent, of_child.pids), (Some(first.pid), vec![first.pid]));
        assert_eq!((of_first.parent, of_first.pids), (None, vec![child.pid]));
        assert_eq!((of_first.copied_bytes, of_first.shared_bytes), (None, of_child.shared_bytes));
        assert!(of_child.copied_bytes.unwrap() <= of_child.private_bytes);
        assert!(of_child.shared_bytes > 0);
        // As if all of it were free.
        assert_eq!(of_child.free_shared_bytes, Some(of_child.shared_bytes));
        // Each of the two counts half of what both map.
        let proportional = of_child.private_bytes + of_child.shared_bytes / 2;
        let of_kernel = rollup.anon_pss_bytes.unwrap_or(proportional);
        assert!(proportional.abs_diff(of_kernel) <= 4096, "{proportional} {of_kernel}");
    }

    #[test]
    fn the_common_bytes_of_ranges_count_once() {
        assert_eq!(common_bytes(&[0..10, 20..30], &[5..25, 28..40]), 5 + 5 + 2);
        assert_eq!(common_bytes(&[0..10, 20..30], &[10..20, 30..40]), 0);
        assert_eq!(common_bytes(&[], &[10..20, 30..40]), 0);
        assert_eq!(common_bytes(&[0..40, 50..51], &[1..2, 3..4, 39..60]), 1 + 1 + 1 + 1);
    }
}
