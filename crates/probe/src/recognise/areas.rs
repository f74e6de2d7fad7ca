//! Which mappings belong to an allocator or a runtime.
//!
//! The kernel merges neighbouring mappings and, as a rule, does not know whose they are. So this is an
//! estimate, of what is left when that which is known for certain was taken away: files with their zeroed
//! data, stacks, and the ranges that a walker of the heap has claimed.
//!
//! | who is there | rule for what is left |
//! |---|---|
//! | a name (`PR_SET_VMA_ANON_NAME`) | whoever has named it; not estimated |
//! | a sanitizer | all of it is the sanitizer's |
//! | V8 | code, and what begins at a multiple of 256 KiB |
//! | CPython | what is as large as one of its arenas |
//! | Go, HotSpot | all of it |
//! | an allocator that is not glibc's | all of it, and the brk heap if `malloc` is that allocator's |
//!
//! Where an allocator that is not glibc's and a runtime share a process, a runtime gets only what
//! differs from that allocator's own mappings: V8 asks for its pages at addresses of its own choice,
//! far from where the kernel puts things; CPython's arenas lie at any page, an allocator's blocks at
//! multiples of their size. Go's and HotSpot's mappings near the libraries look like any others, and
//! are nobody's then.

use std::ops::Range;

use lowtide_heap::ranges::without;

use super::{OwnMemory, Recognition, Runtime, RuntimeKind, identity};
use crate::allocator::Sanitizer;
use crate::proc::maps::Mapping;

/// Memory that belongs to somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Where it is, in bytes.
    pub range: Range<u64>,
    /// Whose it is.
    pub owner: Owner,
    /// Whether that is an estimate.
    pub estimated: bool,
}

/// Who owns memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// An allocator, by its name: what of it is in use cannot be seen from here.
    Allocator(String),
    /// A runtime.
    Runtime(RuntimeKind),
    /// A sanitizer: shadow, and the heap that it has put in the place of the program's.
    Sanitizer(Sanitizer),
}

/// The kernel puts mappings close to each other, below the stack. What lies so far from the libraries
/// is where somebody has asked for it to be.
const FAR: u64 = 16 << 40;
/// mimalloc reserves its arenas in pieces of this size.
const MIMALLOC_ARENA: u64 = 1 << 30;
/// mimalloc's segments begin at multiples of it.
const MIMALLOC_SEGMENT: u64 = 32 << 20;

/// The owners of private memory that is of no file, in order of address. `stacks` (see
/// [`stacks`](super::stacks())) and what is `taken` already belong to others; what none of the rules
/// fits is not in the answer.
pub fn areas(
    recognition: &Recognition,
    maps: &[Mapping],
    stacks: &[Range<u64>],
    taken: &[Range<u64>],
) -> Vec<Area> {
    let known = stacks.iter().chain(taken).chain(&recognition.zeroed_data);
    let mut known: Vec<Range<u64>> = known.cloned().collect();
    known.sort_unstable_by_key(|range| range.start);
    let rules = Rules::new(recognition, maps);
    let mut found = Vec::new();
    for mapping in maps.iter().filter(|m| is_private_memory(m)) {
        for range in without(mapping.start..mapping.end, &known) {
            if let Some((owner, estimated)) = rules.owner(mapping, &range) {
                found.push(Area { range, owner, estimated });
            }
        }
    }
    found
}

/// Nothing is resident in a mapping that was never accessible; the kernel's own have names.
fn is_private_memory(mapping: &Mapping) -> bool {
    let is_unnamed = mapping.name.is_empty() || mapping.name.starts_with("[anon:");
    !mapping.has_file()
        && mapping.permissions.ends_with('p')
        && !mapping.permissions.starts_with("---")
        && (is_unnamed || mapping.name == "[heap]")
}

struct Rules<'r> {
    recognition: &'r Recognition,
    /// The allocator that is not glibc's.
    foreign: Option<&'r str>,
    /// Whether `malloc` itself is that allocator's.
    has_foreign_malloc: bool,
    /// Where the libraries are.
    libraries: u64,
}

impl<'r> Rules<'r> {
    fn new(recognition: &'r Recognition, maps: &[Mapping]) -> Self {
        let libraries = maps.iter().rfind(|m| m.has_file() && m.permissions.contains('x'));
        let foreign = recognition.allocator().map(|a| a.name.as_str());
        let malloc = recognition.malloc.as_ref().map(|a| a.name.as_str());
        Self {
            recognition,
            foreign: foreign.filter(|name| *name != identity::GLIBC),
            has_foreign_malloc: malloc.is_some_and(|name| name != identity::GLIBC),
            libraries: libraries.map_or(0, |m| m.start),
        }
    }

    /// Who owns a part of a mapping, and whether that is an estimate.
    fn owner(&self, mapping: &Mapping, range: &Range<u64>) -> Option<(Owner, bool)> {
        if let Some(name) = mapping.name.strip_prefix("[anon:") {
            return Some((self.owner_by_name(name.trim_start())?, false));
        }
        if let Some(sanitizer) = self.recognition.sanitizer {
            return Some((Owner::Sanitizer(sanitizer), true));
        }
        if mapping.name == "[heap]" {
            let malloc = self.recognition.malloc.as_ref().filter(|_| self.has_foreign_malloc)?;
            return Some((Owner::Allocator(malloc.name.clone()), true));
        }
        let fits = |runtime: &&Runtime| match self.foreign {
            None => self.fits(runtime.memory, mapping, range),
            Some(foreign) => self.differs(runtime.memory, mapping, range, foreign),
        };
        // Those with a shape of their own come before those that may have any.
        let (any, shaped): (Vec<_>, Vec<_>) =
            self.recognition.runtimes.iter().partition(|r| r.memory == OwnMemory::Any);
        if let Some(runtime) = shaped.into_iter().chain(any).find(fits) {
            return Some((Owner::Runtime(runtime.kind), true));
        }
        let has_any = self.recognition.runtimes.iter().any(|r| r.memory == OwnMemory::Any);
        let foreign = self.foreign.filter(|_| !has_any)?;
        Some((Owner::Allocator(foreign.to_owned()), true))
    }

    /// Whether a range can be of a runtime beside glibc, whose walker has claimed its own.
    fn fits(&self, memory: OwnMemory, mapping: &Mapping, range: &Range<u64>) -> bool {
        match memory {
            OwnMemory::None => false,
            OwnMemory::Any => true,
            OwnMemory::Blocks(bytes) => range.end - range.start >= bytes,
            OwnMemory::Aligned(bytes) => {
                mapping.permissions.contains('x') || range.start.is_multiple_of(bytes)
            }
        }
    }

    /// Whether a range can be of a runtime, and not of the allocator that is not glibc's.
    fn differs(
        &self,
        memory: OwnMemory,
        mapping: &Mapping,
        range: &Range<u64>,
        foreign: &str,
    ) -> bool {
        let size = range.end - range.start;
        let is_far = range.start.abs_diff(self.libraries) > FAR;
        let is_of_mimalloc = foreign == "mimalloc"
            && (size >= MIMALLOC_ARENA
                || (size >= MIMALLOC_SEGMENT && range.start.is_multiple_of(MIMALLOC_SEGMENT)));
        match memory {
            OwnMemory::None => false,
            OwnMemory::Any => is_far && !is_of_mimalloc,
            OwnMemory::Blocks(bytes) => {
                !is_far && size.is_multiple_of(bytes) && !range.start.is_multiple_of(bytes)
            }
            OwnMemory::Aligned(bytes) => {
                let is_block = is_far && range.start.is_multiple_of(bytes) && !is_of_mimalloc;
                mapping.permissions.contains('x') || is_block
            }
        }
    }

    /// Who gives such a name to mappings: glibc with its tunable `glibc.mem.decorate_maps`
    /// (sysdeps/unix/sysv/linux/setvmaname.c), Go (runtime/set_vma_name_linux.go), CPython in
    /// development mode (pycore_mmap.h), jemalloc (src/pages.c), mimalloc (src/prim/unix/prim.c),
    /// Google's tcmalloc (system-alloc.cc).
    fn owner_by_name(&self, name: &str) -> Option<Owner> {
        const ALLOCATORS: [(&str, &str); 6] = [
            ("glibc: malloc", identity::GLIBC),
            ("glibc: loader malloc", identity::GLIBC),
            ("jemalloc", "jemalloc"),
            ("mimalloc", "mimalloc"),
            ("tcmalloc_region", "tcmalloc"),
            ("scudo", "scudo"),
        ];
        let v8 = self.recognition.runtimes.iter().find(|r| r.kind.has_v8());
        if name.starts_with("Go: ") {
            return Some(Owner::Runtime(RuntimeKind::Go));
        } else if name.starts_with("cpython:") {
            return Some(Owner::Runtime(RuntimeKind::Python));
        } else if name.starts_with("v8") {
            return Some(Owner::Runtime(v8.map_or(RuntimeKind::V8, |r| r.kind)));
        }
        let found = ALLOCATORS.iter().find(|(prefix, _)| name.starts_with(prefix));
        found.map(|(_, allocator)| Owner::Allocator((*allocator).to_owned()))
    }
}
