//! Looking at processes without touching them.
//!
//! - [`proc`]: what the kernel tells, parsed.
//! - [`tree`]: a process and everything that descends from it.
//! - [`sampler`]: one reading of such a tree at every tick.
//! - [`allocator`]: who serves a process's `malloc`.
//! - [`heap`]: where in a process glibc's heap is to be found.
//! - [`inspect`]: one look at whose its resident bytes are.
//! - [`recognise`]: who manages its memory: allocator, runtimes, sanitizers, stacks.
//! - [`memory`]: the memory of a live process, for those who walk its heap.
//! - [`mapped`]: the files that it has mapped, opened safely.
//! - [`patience`]: work that the process could hold up for ever.
//! - [`selection`]: processes by their program, name or control group.
//! - [`machine`]: the machine, as far as it bears on memory.
//!
//! Nothing here stops a process, writes to it, or makes a page of it present.

pub mod detect;
pub mod heap;
pub mod inspect;
pub mod machine;
pub mod mapped;
pub mod memory;
pub mod patience;
pub mod proc;
pub mod process;
pub mod program;
pub mod sampler;
pub mod selection;
pub mod sockets;
pub mod tree;
