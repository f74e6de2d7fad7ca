//! The managers of private memory that is not backed by a file.
//!
//! Proofs come first (see [`Claim`]): files with their zeroed data, stacks whose ends are known,
//! the memory that a heap walker has claimed, named mappings. Then memory is claimed by structure,
//! wherever it is and whatever `malloc` is in use: other allocators' extents, CPython's pools,
//! Ruby's pages and transient heap, PHP's chunks, the heap and the code of HotSpot,
//! PartitionAlloc's super pages. The kernel merges adjacent mappings and does not record who
//! requested them. The remaining memory is attributed by the form of its mappings, as an estimate.
//!
//! | manager | rule for the remaining memory |
//! |---|---|
//! | a name (`PR_SET_VMA_ANON_NAME`) | the manager that uses this name; not estimated |
//! | a sanitizer | all of it is the sanitizer's |
//! | V8 beside PartitionAlloc | reservations that start at a multiple of 4 GiB |
//! | V8 | code, and ranges that start at a multiple of 256 KiB |
//! | InnoDB | mappings of at least 1 MiB |
//! | Go, HotSpot, Erlang | all of it |
//! | an allocator other than glibc's whose structure was not found | all of it, and the brk heap if `malloc` is that allocator's |
//!
//! If such an allocator shares a process with a runtime: V8 requests its pages at addresses of its
//! own choice, far from where the kernel places mappings. The memory of other runtimes near the
//! libraries looks like the allocator's, and is attributed to no owner.

use std::ops::Range;

use lowtide_heap::hotspot::JavaHeap;
use lowtide_heap::layout::managed_areas;
use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::{joined, union, without};
use lowtide_heap::{mimalloc, pymalloc, ruby, zend};
use lowtide_model::allocator_kind::AllocatorKind;

use lowtide_model::ledger::WalkedRuntime;
use lowtide_model::runtime_kind::RuntimeKind;

use super::claims::{Claim, proven, ranges, resolve};
use super::{Detected, DetectedRuntime, OwnMemory, Stack, partition_alloc};
use crate::proc::maps::Mapping;
use crate::program::Sanitizer;

/// Memory of a manager.
pub type Area = Claim<AreaOwner>;

/// A manager of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AreaOwner {
    /// An allocator. The share of the memory in use is not known here.
    Allocator(AllocatorKind),
    /// A runtime.
    Runtime(RuntimeKind),
    /// A sanitizer: shadow memory, and the heap that replaces the program's.
    Sanitizer(Sanitizer),
}

impl AreaOwner {
    /// Returns the name for reports.
    pub fn name(&self) -> &str {
        match self {
            Self::Allocator(kind) => kind.name(),
            Self::Runtime(kind) => kind.name(),
            Self::Sanitizer(sanitizer) => sanitizer.name(),
        }
    }
}

/// The heaps that walkers have claimed.
#[derive(Debug, Clone, Default)]
pub struct WalkedHeaps {
    /// Their allocators.
    pub allocators: Vec<AllocatorKind>,
    /// Their addresses, in order and disjoint.
    pub areas: Vec<Range<u64>>,
    /// Those of engines whose blocks are not known, in order of address and disjoint.
    pub without_blocks: Vec<Claim<WalkedRuntime>>,
    /// Structures of the allocators whose pointers are to free memory.
    pub structures: Vec<Range<u64>>,
    /// The areas of glibc, in which the size of each block is in the word before it, in order and
    /// disjoint.
    pub chunks: Vec<Range<u64>>,
}

/// Minimum distance from the libraries of a mapping at an address that the program has requested,
/// in bytes. The kernel places mappings close to each other, below the stack.
const FAR: u64 = 16 << 40;

/// Returns the managers of private memory that is not backed by a file, in order of address.
/// `stacks` (see [`stacks`](super::stacks())) and the `walked` heaps already have owners, except
/// that a proof beats a stack that is an estimate. Memory that no rule matches is not included.
pub fn areas(
    memory: &impl Memory,
    detected: &Detected,
    maps: &[Mapping],
    stacks: &[Claim<Stack>],
    walked: &WalkedHeaps,
) -> Vec<Area> {
    let mappings: Vec<&Mapping> = maps.iter().filter(|m| is_accessible_memory(m)).collect();
    let mut known = proven(stacks);
    known.extend(walked.areas.iter().chain(&detected.zeroed_data).cloned());
    let known = union(known);
    let unnamed = mappings.iter().filter(|m| m.given_name().is_none());
    let left = unnamed.flat_map(|m| without(m.start..m.end, &known));
    let left = joined(left.collect());
    let mut structures = Structures { memory, detected, walked, left, found: Vec::new() };
    structures.claim(maps);
    let rules = Rules::new(detected, maps, &structures.found, walked);
    let mut found = structures.found;
    // The form of a mapping is that of the part that nothing else claims.
    let others = ranges(found.iter()).into_iter().chain(ranges(stacks.iter())).chain(known);
    let others = union(others.collect());
    for mapping in mappings {
        for range in without(mapping.start..mapping.end, &others) {
            if let Some((owner, estimated)) = rules.owner(mapping, &range) {
                found.push(Area { range, owner, estimated });
            }
        }
    }
    resolve(found)
}

/// Returns the heap of Java objects that HotSpot's variables contain; `None` if they do not prove
/// any, because they cannot be read, or because the process has not mapped all of the range.
pub fn java_heap(memory: &impl Memory, detected: &Detected, maps: &[Mapping]) -> Option<JavaHeap> {
    let heap = detected.hotspot?.heap(memory)?;
    let is_mapped = match &heap {
        JavaHeap::Reserved(range) => is_mapped(maps, range),
        JavaHeap::InFile => true,
    };
    is_mapped.then_some(heap)
}

/// Returns whether a mapping has the name of a Java heap in a file. ZGC keeps its heap in a memory
/// file, which it can map several times (zPhysicalMemoryBacking_linux.cpp).
pub(crate) fn is_java_heap_file(mapping: &Mapping) -> bool {
    mapping.has_file() && mapping.name.starts_with("/memfd:java_heap")
}

/// Returns whether all of a range is mapped as private memory or from files, outside of the heap of
/// `brk` and the first thread's stack.
fn is_mapped(maps: &[Mapping], range: &Range<u64>) -> bool {
    let first = maps.partition_point(|m| m.end <= range.start);
    let mut at = range.start;
    for mapping in maps[first..].iter().take_while(|m| m.start < range.end) {
        if mapping.start > at || mapping.name.starts_with('[') {
            return false;
        }
        at = mapping.end;
    }
    at >= range.end
}

/// Returns whether a mapping is accessible private memory: a mapping that was never accessible has
/// no resident pages.
fn is_accessible_memory(mapping: &Mapping) -> bool {
    is_private_memory(mapping) && !mapping.permissions.starts_with("---")
}

/// Returns whether a mapping is private memory of no file. The kernel's own mappings have names.
pub(crate) fn is_private_memory(mapping: &Mapping) -> bool {
    let is_unnamed = mapping.name.is_empty() || mapping.given_name().is_some();
    !mapping.has_file()
        && mapping.permissions.ends_with('p')
        && (is_unnamed || mapping.name == "[heap]")
}

/// Claims memory by its structure.
struct Structures<'a, M> {
    memory: &'a M,
    detected: &'a Detected,
    walked: &'a WalkedHeaps,
    /// Addresses that are not claimed yet, in order.
    left: Vec<Range<u64>>,
    found: Vec<Area>,
}

impl<M: Memory> Structures<'_, M> {
    fn claim(&mut self, maps: &[Mapping]) {
        if self.detected.sanitizer.is_some() {
            return;
        }
        // Heaps that a walker has found are not searched for again.
        let are_walked = self.walked.allocators.len() == self.detected.allocators().count();
        for allocator in self.detected.allocators().filter(|_| !are_walked) {
            let page = self.memory.page_bytes();
            let data = self.detected.zeroed_data_of(allocator, maps, page);
            let found = managed_areas(&allocator.kind, self.memory, &data, &self.left);
            self.take(&AreaOwner::Allocator(allocator.kind.clone()), found);
        }
        self.claim_hotspot(maps);
        for runtime in &self.detected.runtimes {
            let found = match runtime.memory {
                OwnMemory::Pools => pymalloc::pools(self.memory, &self.left),
                OwnMemory::Slots => ruby::pages(self.memory, &self.left),
                OwnMemory::Chunks => zend::chunks(self.memory, &self.left),
                _ => Vec::new(),
            };
            self.take(&AreaOwner::Runtime(runtime.kind), found);
            if runtime.memory == OwnMemory::Slots {
                let found = ruby::transient_heap(self.memory, &self.left);
                self.take(&AreaOwner::Runtime(runtime.kind), found.into_iter().collect());
            }
        }
        // Libraries contain it, with its names changed.
        let found = mimalloc::areas(self.memory, &self.left);
        self.take(&AreaOwner::Allocator(AllocatorKind::Mimalloc), found);
        let super_pages = partition_alloc::super_pages(maps);
        if !super_pages.is_empty() {
            self.take(&AreaOwner::Allocator(AllocatorKind::PartitionAlloc), super_pages);
            let cages = partition_alloc::cages_of_v8(maps);
            self.take_as(&AreaOwner::Runtime(RuntimeKind::V8), cages, true);
        }
    }

    /// Claims what HotSpot's variables contain. Its other memory, such as metaspace, is not proven.
    fn claim_hotspot(&mut self, maps: &[Mapping]) {
        let Some(variables) = self.detected.hotspot else { return };
        let owner = AreaOwner::Runtime(RuntimeKind::HotSpot);
        if let Some(JavaHeap::Reserved(heap)) = java_heap(self.memory, self.detected, maps) {
            self.take(&owner, vec![heap]);
        }
        for range in variables.code_and_archive(self.memory) {
            if is_mapped(maps, &range) {
                self.take(&owner, vec![range]);
            }
        }
    }

    /// Assigns the unclaimed parts of some ranges to an owner whose structures contain them.
    fn take(&mut self, owner: &AreaOwner, ranges: Vec<Range<u64>>) {
        self.take_as(owner, ranges, false);
    }

    fn take_as(&mut self, owner: &AreaOwner, ranges: Vec<Range<u64>>, estimated: bool) {
        if ranges.is_empty() {
            return;
        }
        for left in &self.left {
            let first = ranges.partition_point(|range| range.end <= left.start);
            let within = ranges[first..].iter().take_while(|range| range.start < left.end);
            self.found.extend(within.map(|range| Area {
                range: range.start.max(left.start)..range.end.min(left.end),
                owner: owner.clone(),
                estimated,
            }));
        }
        self.left = self.left.iter().flat_map(|left| without(left.clone(), &ranges)).collect();
    }
}

struct Rules<'r> {
    detected: &'r Detected,
    /// An allocator other than glibc's whose memory was not found by its structure.
    foreign: Option<&'r AllocatorKind>,
    /// Whether `malloc` is another allocator than glibc's.
    has_foreign_malloc: bool,
    /// Address of the libraries.
    libraries: u64,
}

impl<'r> Rules<'r> {
    fn new(detected: &'r Detected, maps: &[Mapping], found: &[Area], walked: &WalkedHeaps) -> Self {
        let libraries = maps.iter().rfind(|m| m.has_file() && m.permissions.contains('x'));
        let was_found = |kind: &AllocatorKind| {
            walked.allocators.contains(kind)
                || found.iter().any(|area| area.owner == AreaOwner::Allocator(kind.clone()))
        };
        let foreign = detected.allocator().map(|a| &a.kind);
        let malloc = detected.malloc.as_ref().map(|a| &a.kind);
        Self {
            detected,
            foreign: foreign.filter(|kind| **kind != AllocatorKind::Glibc && !was_found(kind)),
            has_foreign_malloc: malloc.is_some_and(|kind| *kind != AllocatorKind::Glibc),
            libraries: libraries.map_or(0, |m| m.start),
        }
    }

    /// Returns the manager of a part of a mapping, and whether that is an estimate.
    fn owner(&self, mapping: &Mapping, range: &Range<u64>) -> Option<(AreaOwner, bool)> {
        if let Some(name) = mapping.given_name() {
            return Some((self.owner_by_name(name)?, false));
        }
        if let Some(sanitizer) = self.detected.sanitizer {
            return Some((AreaOwner::Sanitizer(sanitizer), true));
        }
        if mapping.name == "[heap]" {
            let malloc = self.detected.malloc.as_ref().filter(|_| self.has_foreign_malloc)?;
            // jemalloc maps its memory. What its structures do not contain is not its own: glibc's
            // heap, which other paths than `malloc` lead to.
            if malloc.kind == AllocatorKind::Jemalloc && self.foreign.is_none() {
                return None;
            }
            return Some((AreaOwner::Allocator(malloc.kind.clone()), self.foreign.is_some()));
        }
        // Runtimes with mappings of a specific form come before those with any mappings.
        let (any, shaped): (Vec<_>, Vec<_>) =
            self.detected.runtimes.iter().partition(|r| r.memory == OwnMemory::Any);
        let fits = |runtime: &&DetectedRuntime| self.fits(runtime.memory, mapping, range);
        if let Some(runtime) = shaped.into_iter().chain(any).find(fits) {
            return Some((AreaOwner::Runtime(runtime.kind), true));
        }
        let has_any = self.detected.runtimes.iter().any(|r| r.memory == OwnMemory::Any);
        let foreign = self.foreign.filter(|_| !has_any)?;
        Some((AreaOwner::Allocator(foreign.clone()), true))
    }

    /// Returns whether a range can belong to a runtime, by its position and size.
    fn fits(&self, memory: OwnMemory, mapping: &Mapping, range: &Range<u64>) -> bool {
        let is_apart = self.foreign.is_none() || range.start.abs_diff(self.libraries) > FAR;
        match memory {
            OwnMemory::None | OwnMemory::Pools | OwnMemory::Slots | OwnMemory::Chunks => false,
            OwnMemory::Any => is_apart,
            OwnMemory::Large(bytes) => is_apart && range.end - range.start >= bytes,
            OwnMemory::Aligned(bytes) => {
                mapping.permissions.contains('x') || (is_apart && range.start.is_multiple_of(bytes))
            }
        }
    }

    /// Returns the owner of mappings with such a name. Names come from glibc with its tunable
    /// `glibc.mem.decorate_maps` (sysdeps/unix/sysv/linux/setvmaname.c), Go
    /// (runtime/set_vma_name_linux.go), CPython in development mode (pycore_mmap.h), jemalloc
    /// (src/pages.c), mimalloc (src/prim/unix/prim.c), Google's tcmalloc (system-alloc.cc),
    /// PartitionAlloc (page_allocator_internals_posix.h).
    fn owner_by_name(&self, name: &str) -> Option<AreaOwner> {
        let allocators = [
            ("glibc: malloc", AllocatorKind::Glibc),
            ("glibc: loader malloc", AllocatorKind::Glibc),
            ("jemalloc", AllocatorKind::Jemalloc),
            ("mimalloc", AllocatorKind::Mimalloc),
            ("tcmalloc_region", AllocatorKind::Tcmalloc),
            ("scudo", AllocatorKind::Scudo),
            ("partition_alloc", AllocatorKind::PartitionAlloc),
        ];
        let v8 = self.detected.runtimes.iter().find(|r| r.kind.has_v8());
        if name.starts_with("Go: ") {
            return Some(AreaOwner::Runtime(RuntimeKind::Go));
        } else if name.starts_with("cpython:") {
            return Some(AreaOwner::Runtime(RuntimeKind::Python));
        } else if name.starts_with("v8") {
            return Some(AreaOwner::Runtime(v8.map_or(RuntimeKind::V8, |r| r.kind)));
        }
        let found = allocators.into_iter().find(|(prefix, _)| name.starts_with(prefix));
        found.map(|(_, allocator)| AreaOwner::Allocator(allocator))
    }
}
