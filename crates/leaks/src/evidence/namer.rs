//! The names of blocks and of what holds them.

use std::collections::HashMap;
use std::ops::Range;

use lowtide_analysis::leaks::Reachability;
use lowtide_heap::memory::Memory;
use lowtide_heap::ranges::hold;
use lowtide_model::leaks::{BlockType, Holder};
use lowtide_model::ledger::WalkedRuntime;
use lowtide_model::number::HumanCount;
use lowtide_probe::detect::Area;
use lowtide_probe::inspect::BlockWalk;
use lowtide_probe::proc::maps::Mapping;

use super::described::{Described, UNTYPED, most_frequent};
use crate::book::Survivor;
use crate::files::Image;
use crate::group::GroupKey;
use crate::pointers::index::BlockIndex;
use crate::pointers::roots::Roots;
use crate::pointers::sources::Pointers;
use crate::types::{rust, type_of};
use crate::variables::VariableFinder;

/// Maximum number of blocks of a group whose type is read.
const MAX_TYPED: usize = 300;
/// Maximum number of blocks of a group that are followed to a variable of Python.
const MAX_FOLLOWED: usize = 16;

/// Names blocks and their holders.
pub(super) struct Namer<'n, M> {
    pub(super) image: &'n Image<'n>,
    pub(super) memory: &'n M,
    pub(super) index: Option<&'n BlockIndex>,
    /// The roots of the paths to the sampled blocks, as far as they are known: the addresses of
    /// the pointers, by the address of the block.
    pub(super) roots_of: HashMap<u64, u64>,
    pub(super) roots: &'n Roots,
    pub(super) walk: &'n BlockWalk,
    /// Memory of runtimes and of other allocators, in order.
    pub(super) areas: Vec<Area>,
}

impl<M: Memory> Namer<'_, M> {
    pub(super) fn describe(
        &self,
        key: GroupKey,
        sample: &[Survivor],
        pointers: &Pointers,
        reachability: Option<Reachability>,
        with_text: bool,
    ) -> Described {
        let step = sample.len().div_ceil(MAX_TYPED).max(1);
        let typed: Vec<u64> = sample.iter().step_by(step).map(|survivor| survivor.at).collect();
        let types = sample.iter().step_by(step).filter_map(|survivor| {
            let (at, bytes) = (survivor.at, survivor.bytes);
            type_of(self.image, self.memory, &(at..at.saturating_add(bytes)), with_text)
                .or_else(|| self.type_from_pointers(at, pointers.get(&at)?))
        });
        let types = most_frequent(types, typed.len());
        let mut names: HashMap<u64, String> = HashMap::new();
        let holders = typed.iter().flat_map(|block| {
            let from = pointers.get(block).into_iter().flatten();
            let mut of_block: Vec<String> = from
                .map(|at| names.entry(*at).or_insert_with(|| self.holder(*at)).clone())
                .collect();
            of_block.sort_unstable();
            of_block.dedup();
            of_block
        });
        let holders = most_frequent(holders, typed.len());
        let roots = typed.iter().filter_map(|at| match self.roots_of.get(at)? {
            0 => Some("a system call or an epoll instance".to_owned()),
            root => Some(names.entry(*root).or_insert_with(|| self.holder(*root)).clone()),
        });
        let holder = |(what, share)| Holder { what, share };
        Described {
            key,
            types: types.into_iter().map(|(name, share)| BlockType { name, share }).collect(),
            roots: most_frequent(roots, typed.len()).into_iter().map(holder).collect(),
            holders: holders.into_iter().map(holder).collect(),
            reachability,
            stacks: Vec::new(),
            calls: None,
        }
    }

    /// Adds the variables of Python that lead to the blocks of some samples.
    pub(super) fn name_variables(
        &self,
        described: &mut [Described],
        samples: &[Vec<Survivor>],
        pointers: &Pointers,
    ) {
        let Some(index) = self.index else { return };
        // Memory of objects, such as their attributes, has no type of its own.
        let most = if described.iter().any(Described::is_of_python) { MAX_FOLLOWED } else { 0 };
        let first =
            |sample: &Vec<Survivor>| sample.iter().take(most).map(|block| block.at).collect();
        let followed: Vec<Vec<u64>> = samples.iter().map(first).collect();
        let all = followed.concat();
        if all.is_empty() {
            return;
        }
        let Self { image, memory, roots, walk, .. } = *self;
        let names = VariableFinder { image, memory, index, roots, walk }.of(&all, pointers);
        for (described, followed) in described.iter_mut().zip(&followed) {
            described.name_variables(followed, &names);
        }
    }

    /// Returns the type of a trait object, by the vtable pointer beside a pointer to it.
    fn type_from_pointers(&self, at: u64, pointers: &[u64]) -> Option<String> {
        pointers.iter().find_map(|from| {
            let to = self.image.word(*from)?;
            let table = self.image.word(from.checked_add(8)?)?;
            (to == at).then(|| rust(self.image, table)).flatten().map(|name| format!("Rust {name}"))
        })
    }

    /// Names memory by its manager.
    fn memory_of_no_file(&self, at: u64) -> String {
        let place = self.areas.partition_point(|area| area.range.end <= at);
        if let Some(area) = self.areas.get(place).filter(|area| area.range.contains(&at)) {
            return format!("memory of {}", area.owner.name());
        }
        let engines = &self.walk.heaps.without_blocks;
        let place = engines.partition_point(|claim| claim.range.end <= at);
        if let Some(claim) = engines.get(place).filter(|claim| claim.range.contains(&at)) {
            return match claim.owner {
                WalkedRuntime::HotSpot => "the heap of Java objects".to_owned(),
                engine => format!("the heap of {}", engine.kind().name()),
            };
        }
        match self.image.mapping(at) {
            Some(mapping) if !mapping.name.is_empty() => mapping.name.clone(),
            _ => "anonymous memory".to_owned(),
        }
    }

    /// Names the memory at an address that holds a pointer.
    fn holder(&self, at: u64) -> String {
        if let Some(range) = self.index.and_then(|index| index.range(index.containing(at)?)) {
            return match type_of(self.image, self.memory, &range, false) {
                Some(name) => name,
                None => untyped(at, range),
            };
        }
        if self.roots.is_in_stack(at) {
            return "a stack".to_owned();
        }
        // Memory after that of a file is the file's only as far as the file requests it.
        let is_of_file = |mapping: &&Mapping| {
            mapping.contains(at) || hold(&self.walk.detected.zeroed_data, &(at..at + 1))
        };
        let Some(mapping) = self.image.mapping_of_file(at).filter(is_of_file) else {
            return self.memory_of_no_file(at);
        };
        let file = mapping.name.rsplit('/').next().unwrap_or_default();
        match self.image.symbol(at) {
            Some(symbol) => format!("variable {} of {file}", symbol.name),
            None => format!("data of {file}"),
        }
    }
}

/// Names a block without a type that contains a pointer at an address.
fn untyped(at: u64, range: Range<u64>) -> String {
    /// Maximum size of a block whose name includes the offset of the pointer, in bytes: in a larger
    /// block, the offset differs from pointer to pointer.
    const MAX_RECORD: u64 = 512;
    match range.end - range.start {
        bytes @ 0..=MAX_RECORD => format!("{UNTYPED}{bytes} bytes, at +{:#x}", at - range.start),
        bytes => format!("{UNTYPED}{} bytes", HumanCount(bytes)),
    }
}
