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
//! - [`machine`]: the machine, as far as it bears on memory.
//!
//! Nothing here stops a process, writes to it, or makes a page of it present.

pub mod allocator;
pub mod heap;
pub mod inspect;
pub mod machine;
pub mod memory;
pub mod proc;
pub mod process;
pub mod recognise;
pub mod sampler;
pub mod sockets;
pub mod tree;
