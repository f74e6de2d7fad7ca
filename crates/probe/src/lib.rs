//! Observes processes without touching them.
//!
//! - [`target`]: one process, held by a pidfd.
//! - [`inspect`]: resident memory of a process by owner.
//! - [`detect`]: who manages its memory: allocator, runtimes, sanitizers, stacks.
//! - [`program`]: what the files of a process define, and which of them serves `malloc`.
//! - [`heap`]: where in a process a heap can be.
//! - [`memory`]: the memory of a live process, for walkers of its heap.
//! - [`mapped`]: the files that it has mapped, opened safely.
//! - [`patience`]: work that the process could block forever.
//! - [`process`], [`proc`]: `/proc/PID`, read and parsed.
//! - [`tree`]: a process and its descendants.
//! - [`sampler`]: one reading of such a tree at every tick.
//! - [`sockets`]: TCP connections.
//! - [`permission`]: permission to inspect another process.
//! - [`selection`]: processes by their program, name or control group.
//! - [`machine`]: the machine, as far as it concerns memory.
//!
//! Nothing here stops a process, writes to it, or makes a page of it resident.

pub mod detect;
pub mod heap;
pub mod inspect;
pub mod machine;
pub mod mapped;
pub mod memory;
pub mod patience;
pub mod permission;
pub mod pressure;
pub mod proc;
pub mod process;
pub mod program;
pub mod sampler;
pub mod selection;
pub mod sockets;
pub mod target;
pub mod tree;
