//! Pointers to blocks, found from outside while the process runs.
//!
//! - [`index`]: finds the block that contains an address.
//! - [`roots`]: memory outside of blocks from which the program reaches them.
//! - [`scan`]: finds all pointers to blocks.
//! - `remnants`: links of former free chunks, which are no pointers of the program.
//! - [`graph`]: the pointers between blocks, and the blocks that no root leads to.
//!
//! A word counts as a pointer if its low 47 bits are an address in a block, at its start or
//! anywhere inside. The program keeps running during the search, so a pointer that moves may be
//! missed. A block is therefore called unreachable only if two searches agree.

pub mod graph;
pub mod index;
mod remnants;
pub mod roots;
pub mod scan;
