//! Observes processes without touching them.
//!
//! - [`target`]: one process, held by a pidfd.
//! - [`inspect`]: resident memory of a process by owner.
//! - [`detect`]: the managers of its memory: allocator, runtimes, sanitizers, stacks.
//! - [`program`]: the definitions in a process's files, and the file that serves `malloc`.
//! - [`heap`]: the places in a process where a heap can be.
//! - [`memory`]: the memory of a live process, for walkers of its heap.
//! - [`mapped`]: its mapped files, opened safely.
//! - [`patience`]: work that the process could block forever.
//! - [`process`], [`proc`]: `/proc/PID`, read and parsed.
//! - [`tree`]: a process and its descendants.
//! - [`sampler`]: one sample of such a tree per tick.
//! - [`sockets`]: TCP connections.
//! - [`permission`]: permission to inspect another process.
//! - [`selection`]: processes by their program, name or control group.
//! - [`machine`]: the properties of the machine that matter for memory.
//!
//! Nothing here stops a process, writes to it, or makes any of its pages resident.

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
