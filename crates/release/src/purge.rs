//! The purge of an allocator: its own function that returns free memory, which a borrowed thread
//! calls.
//!
//! The thread waits in a system call in which no allocator waits, so it is not inside the allocator
//! and holds none of its locks. It calls the function with its own thread-local storage, as the
//! program could.

use lowtide_heap::layout::HeapLayout;
use lowtide_model::allocator_facts::PurgeCalls;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_probe::proc::maps::Mapping;

use crate::refusal::Refusal;
use crate::symbol;

/// The function to call, and the calls to make, to purge a heap.
#[derive(Debug)]
pub(crate) struct Purge {
    /// The heap.
    pub(crate) layout: HeapLayout,
    /// The address of the function.
    pub(crate) function: u64,
    calls: PurgeCalls,
    /// The numbers of the heap's arenas.
    arenas: Vec<u64>,
}

/// The reason why an allocator without a purge function is not purged.
pub(crate) const NO_FUNCTION: &str = "its allocator has no function that returns free memory";

/// The argument of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PurgeArgument {
    /// A number.
    Number(u64),
    /// The address of a text that ends with a zero byte.
    Text(Vec<u8>),
}

impl Purge {
    /// Finds the purge function of an allocator in `file`. `arenas` are the numbers of its arenas.
    ///
    /// # Errors
    /// Refuses if there is no such function.
    pub(crate) fn find(
        pid: u32,
        maps: &[Mapping],
        file: &Mapping,
        kind: &AllocatorKind,
        layout: HeapLayout,
        arenas: Vec<u64>,
    ) -> Result<Self, Refusal> {
        let purge = kind.facts().purge.ok_or(Refusal::NoPurge { why: NO_FUNCTION })?;
        let address = |name: &&str| symbol::address(pid, maps, file, name).ok().flatten();
        let mut found = purge.functions.iter().filter_map(address);
        let why = "its allocator does not export the function that returns free memory";
        let function = found.next().ok_or(Refusal::NoPurge { why })?;
        Ok(Self { layout, function, calls: purge.calls, arenas })
    }

    /// Returns the argument of each call, in order. `bytes` is the size of the memory that the
    /// function can return.
    pub(crate) fn arguments(&self, bytes: u64) -> Vec<PurgeArgument> {
        match self.calls {
            PurgeCalls::EachArena => {
                let arenas = self.arenas.iter();
                arenas.map(|id| PurgeArgument::Text(format!("arena.{id}.purge\0").into())).collect()
            }
            PurgeCalls::Parts { min_bytes } => {
                let parts = (0..bytes / min_bytes).map(|_| min_bytes);
                // The last call returns the memory that rounding has left.
                parts.chain([bytes]).map(PurgeArgument::Number).collect()
            }
            PurgeCalls::Once { argument } => vec![PurgeArgument::Number(argument)],
        }
    }
}
