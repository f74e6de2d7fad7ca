//! The purge of an allocator: its own function that returns free memory, which a borrowed thread
//! calls.
//!
//! The thread waits in a system call in which no allocator waits, so it is not inside the allocator
//! and holds none of its locks. It calls the function with its own thread-local storage, as the
//! program could.

use lowtide_heap::layout::HeapLayout;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_probe::proc::maps::Mapping;

use crate::refusal::Refusal;
use crate::symbol;

/// Minimum number of bytes that one call of gperftools' function returns.
const BYTES_AT_ONCE: u64 = 1 << 20;

/// The function to call, and the calls to make, to purge a heap.
#[derive(Debug)]
pub(crate) struct Purge {
    /// The heap.
    pub(crate) layout: HeapLayout,
    /// The address of the function.
    pub(crate) function: u64,
    calls: Calls,
}

/// The reason why an allocator without a purge function is not purged.
pub(crate) const NO_FUNCTION: &str = "its allocator has no function that returns free memory";

/// The calls of one purge.
#[derive(Debug)]
enum Calls {
    /// jemalloc's `mallctl("arena.N.purge")`, for each arena.
    Arenas(Vec<u64>),
    /// gperftools' `MallocExtension_ReleaseToSystem(bytes)`. It credits bytes that a call has
    /// returned in excess to the next call.
    Slices,
    /// mimalloc's `mi_collect(true)`: free memory of the arenas, and of the heap of the thread that
    /// calls it.
    Once,
}

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
        let calls = match kind {
            AllocatorKind::Jemalloc => Calls::Arenas(arenas),
            AllocatorKind::Mimalloc => Calls::Once,
            AllocatorKind::Gperftools => Calls::Slices,
            _ => return Err(Refusal::NoPurge { why: NO_FUNCTION }),
        };
        let names = kind.facts().purge_functions;
        let address = |name: &&str| symbol::address(pid, maps, file, name).ok().flatten();
        let mut found = names.iter().filter_map(address);
        let why = "its allocator does not export the function that returns free memory";
        let function = found.next().ok_or(Refusal::NoPurge { why })?;
        Ok(Self { layout, function, calls })
    }

    /// Returns the argument of each call, in order. `bytes` is the size of the memory that the
    /// function can return.
    pub(crate) fn arguments(&self, bytes: u64) -> Vec<PurgeArgument> {
        match &self.calls {
            Calls::Arenas(arenas) => arenas
                .iter()
                .map(|arena| PurgeArgument::Text(format!("arena.{arena}.purge\0").into_bytes()))
                .collect(),
            Calls::Slices => {
                let slices = (0..bytes / BYTES_AT_ONCE).map(|_| BYTES_AT_ONCE);
                // The last call returns the memory that rounding has left.
                slices.chain([bytes]).map(PurgeArgument::Number).collect()
            }
            Calls::Once => vec![PurgeArgument::Number(1)],
        }
    }
}
