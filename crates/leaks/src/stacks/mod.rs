//! Call stacks of the allocations that survive.
//!
//! Return probes on the allocation functions sample allocations with their stacks, in short
//! windows. Functions that free memory are never probed. The sampled blocks are followed from
//! outside; the stacks of those that survive are reported.
//!
//! - [`sampler`]: the windows, and the blocks that are followed.
//! - `bpf`: the probes, and the program that runs in the kernel.
//! - `functions`: which functions are probed.
//! - `trial`: whether probes work, what a hit costs, and whether they are a danger under system
//!   call filters.
//! - `budget`: the limit on the time in which the process is probed.
//! - `followed`: blocks that are unchanged so far.
//! - `unwind`: the frames of a stack.
//! - `survivors`: blocks that are still in use, and their stacks.
//! - [`mappings`]: the code that maps memory beside the heap, by a tracepoint.
//! - `names`: functions, files and lines; `jit_names`: functions that the program has compiled.
//! - [`refusal`]: why stacks are not taken.

pub(crate) mod bpf;
mod budget;
mod followed;
mod functions;
mod jit_names;
pub mod mappings;
pub(crate) mod names;
mod numbered;
mod python;
mod python_frames;
pub mod refusal;
mod registers;
pub mod sampler;
pub(crate) mod survivors;
mod trial;
mod unwind;
