//! Observes processes without touching them.
//!
//! - [`target`]: one process, held by its open `/proc/PID`.
//! - [`inspect`]: resident memory of a process by owner.
//! - [`detect`]: the managers of its memory: allocator, runtimes, sanitizers, stacks.
//! - [`program`]: the definitions in a process's files, and the file that serves `malloc`.
//! - [`heap`]: the places in a process where a heap can be.
//! - [`hotspot`]: the settings of HotSpot in force, and its performance data.
//! - [`libraries`]: allocators that libraries contain for their own use.
//! - [`locked`]: the memory of a process that the kernel refuses to drop.
//! - [`memory`]: the memory of a live process, for walkers of its heap.
//! - [`mapped`]: its mapped files, opened safely.
//! - [`patience`]: work that the process could block forever.
//! - [`process`], [`proc`]: `/proc/PID`, read and parsed.
//! - [`exit`]: the end of a process.
//! - [`tree`]: a process and its descendants.
//! - [`sampler`]: one sample of such a tree per tick.
//! - [`sockets`]: TCP connections.
//! - [`standstill`]: whether a process ran at all.
//! - [`permission`]: permission to inspect another process.
//! - [`cgroup`]: what a memory cgroup is charged for.
//! - [`selection`]: processes by their program, name or control group.
//! - [`machine`]: the properties of the machine that matter for memory.
//!
//! Nothing here stops a process, writes to it, or makes any of its pages resident.
//!
//! # How an inspection works
//!
//! 1. `Target::open` opens the directory `/proc/PID`, and reads the start time.
//! 2. `Inspector::inspect` reads the mappings, in a thread that is abandoned if the target delays
//!    it (see [`patience`]). All work that reads a process runs like this.
//! 3. [`detect`] finds the allocator, the runtimes, the sanitizer, the stacks and the zeroed data
//!    (`.bss`). It opens only files that are mapped, and never resolves their paths in lowtide's
//!    own mount namespace.
//! 4. `inspect/heaps.rs` walks the heaps. It starts with those of runtimes and of allocators that
//!    libraries contain for their own use, and recognises them by their structures: jemalloc in the
//!    zeroed data of each library, mimalloc in all anonymous memory. Their memory is then excluded
//!    from the search for glibc's chunks.
//! 5. `inspect/pages.rs` attributes each other resident page to one owner: files, shared memory,
//!    stacks, data. For the remaining pages it estimates the owner from the properties of their
//!    mapping. `detect/claims.rs` decides between two claims on the same memory: an estimate never
//!    beats a proof. Pages without an owner are a row of the ledger too, so the rows add up to the
//!    pages that were counted.
//!
//! The result is an `Observation`. `lowtide-analysis` adds the verdict and the remedies
//! (`diagnose`), and compares several observations (`growth`).

mod abandoned;
pub mod cgroup;
pub mod core_file;
pub mod counts;
pub mod descendants;
pub mod detect;
pub mod exit;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod heap;
pub mod hotspot;
pub mod inspect;
pub mod libraries;
pub mod locked;
pub mod machine;
pub mod mapped;
pub mod memory;
pub mod mounts;
mod open_memory;
pub mod patience;
pub mod permission;
pub mod pressure;
pub mod proc;
pub mod process;
pub mod program;
pub mod sampler;
pub mod selection;
mod sock_diag;
pub mod sockets;
pub mod source;
pub mod standstill;
pub mod target;
pub mod tree;
