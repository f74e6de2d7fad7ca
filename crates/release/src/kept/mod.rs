//! The free ranges of a walk, kept for a later release: just before a process reaches a memory
//! limit, a walk would take longer than the time that is left.
//!
//! Only the walk is saved. The later release makes all checks of a process again, and the code in
//! the process verifies each range under its lock, as always: a range that is no longer free is
//! left alone.

mod making;

use std::ops::Range;
use std::sync::Arc;

use lowtide_heap::droppable_heap::FreeRange;
use lowtide_probe::detect::DetectedAllocator;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;

use crate::releasable::ReleasableHeap;
use crate::stub::Op;
use crate::target_code::TargetCode;

/// Maximum number of free ranges that are collected from one heap.
const MAX_COLLECTED: usize = 16_384;
/// Maximum number of those that are kept: the largest.
const MAX_KEPT: usize = 4096;

/// Where a release finds the free memory.
#[derive(Debug, Clone, Default)]
pub enum Walk {
    /// By a walk of its own.
    #[default]
    Own,
    /// By an earlier walk, as long as the process runs the same program with the same libraries. If
    /// this returns less than half of what was free then, a walk follows.
    Earlier(Arc<KeptWalk>),
    /// By a walk of its own, whose ranges are kept.
    Kept,
}

/// A walk over the heaps of a process, for a later release.
#[derive(Debug)]
pub struct KeptWalk {
    /// The memory of the program, which it leaves when it executes another one.
    program: ProcessMemory,
    /// The mappings of files with code: their places and files.
    code_mappings: Vec<Mapping>,
    /// The writable mappings without a file, in order of address.
    writable: Vec<Range<u64>>,
    heaps: Vec<KeptHeap>,
    cpu_s: f64,
}

/// A heap that was walked.
#[derive(Debug)]
pub(crate) struct KeptHeap {
    pub(crate) library: Option<String>,
    pub(crate) is_chosen: bool,
    pub(crate) allocator: DetectedAllocator,
    pub(crate) c_library: String,
    pub(crate) heap: Arc<ReleasableHeap>,
    pub(crate) areas: Vec<Range<u64>>,
    pub(crate) consolidations: Vec<Op>,
    pub(crate) ranges: Arc<[FreeRange]>,
    pub(crate) code: Arc<TargetCode>,
    pub(crate) predicted_bytes: u64,
}

impl KeptWalk {
    /// Returns what a release would have returned, in bytes.
    pub fn predicted_bytes(&self) -> u64 {
        self.heaps.iter().map(|heap| heap.predicted_bytes).sum()
    }

    /// Returns the mappings that the walk has not seen as they are now: a part of the heap may be
    /// in there.
    pub(crate) fn unseen(&self, maps: &[Mapping]) -> Vec<Range<u64>> {
        let is_seen = |now: &Range<u64>| {
            let place = self.writable.binary_search_by_key(&now.start, |before| before.start);
            place.is_ok_and(|place| self.writable[place] == *now)
        };
        writable(maps).filter(|now| !is_seen(now)).collect()
    }

    /// Returns the CPU time of the walk, in seconds.
    pub fn cpu_s(&self) -> f64 {
        self.cpu_s
    }

    /// Returns the heaps, if the process still runs the same program with the same code.
    pub(crate) fn heaps(&self, maps: &[Mapping]) -> Option<&[KeptHeap]> {
        (self.code_mappings == code_mappings(maps) && self.program.is_in_use())
            .then_some(&*self.heaps)
    }
}

/// Returns the mappings of files with code.
fn code_mappings(maps: &[Mapping]) -> Vec<Mapping> {
    maps.iter().filter(|m| m.has_file() && m.permissions.contains('x')).cloned().collect()
}

/// Returns the writable mappings without a file, except that of the first thread's stack, which
/// grows.
fn writable(maps: &[Mapping]) -> impl Iterator<Item = Range<u64>> {
    let is_it =
        |m: &&Mapping| !m.has_file() && m.permissions.starts_with("rw-p") && m.name != "[stack]";
    maps.iter().filter(is_it).map(|m| m.start..m.end)
}

/// Collects the free ranges of a walk, if they are to be kept.
#[derive(Debug, Default)]
pub(crate) struct RangeCollector {
    is_active: bool,
    /// Their resident bytes, and the ranges.
    ranges: Vec<(u64, FreeRange)>,
}

impl RangeCollector {
    /// Returns one that collects nothing unless the walk is kept.
    pub(crate) fn new(walk: &Walk) -> Self {
        Self { is_active: matches!(walk, Walk::Kept), ranges: Vec::new() }
    }

    /// Returns whether it collects.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Adds a range that the walk has found.
    pub(crate) fn add(&mut self, found: &FreeRange) {
        if self.is_active && self.ranges.len() < MAX_COLLECTED && found.resident_bytes() > 0 {
            self.ranges.push((found.resident_bytes(), found.clone().with_unknown_residency()));
        }
    }

    /// Forgets the ranges of a walk that is repeated.
    pub(crate) fn restart(&mut self) {
        self.ranges.clear();
    }

    /// Returns the largest ranges, the largest first.
    pub(crate) fn largest(mut self) -> Arc<[FreeRange]> {
        self.ranges.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        self.ranges.into_iter().take(MAX_KEPT).map(|(_, found)| found).collect()
    }
}
