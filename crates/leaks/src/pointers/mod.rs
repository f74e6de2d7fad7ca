//! Pointers to blocks, found from outside while the process runs.
//!
//! - [`index`]: the block that an address lies in.
//! - [`roots`]: memory outside of blocks from which the program reaches them.
//! - [`scan`]: gives all pointers to blocks.
//! - [`graph`]: which blocks point to which, and which of them no root leads to.
//!
//! A word is taken for a pointer if its low 48 bits are an address in a block: at its start, or anywhere inside. The program
//! runs meanwhile, so that a pointer that moves may be missed. What is said of a block is therefore said only after it was
//! found twice.

pub mod graph;
pub mod index;
pub mod roots;
pub mod scan;
