//! Pointers to blocks, found from outside while the process runs.
//!
//! - [`index`]: finds the block that contains an address.
//! - [`roots`]: memory outside of blocks from which the program reaches them.
//! - `unread`: resident memory that a search could not read.
//! - [`registers`]: those of threads that wait.
//! - [`waiting`]: the registers and stacks of threads, of one moment for those that wait.
//! - [`scan`]: finds all pointers to blocks.
//! - [`words`]: words in memory, which may be links of free chunks.
//! - `remnants`: links of former free chunks, which are no pointers of the program.
//! - [`doubts`]: tells such links from pointers that look like them.
//! - `paths`: what leads to some blocks, by a search that is limited in time and memory.
//! - [`graph`]: the pointers between blocks, and the blocks that no root leads to.
//! - `reading`: reads that graph.
//! - `search`: follows the roots through blocks and new blocks.
//! - `new_blocks`: memory that was in no block at the time of the walk.
//! - `sources`: the addresses of pointers to some blocks.
//!
//! A word counts as a pointer if its low 47 bits are an address in a block, at its start or
//! anywhere inside. The program keeps running during the search, so a pointer that moves may be
//! missed. A block is therefore called unreachable only if all searches agree.

mod block_set;
pub(crate) mod doubts;
pub(crate) mod graph;
pub(crate) mod index;
mod new_blocks;
pub(crate) mod paths;
pub(crate) mod reading;
pub(crate) mod registers;
mod remnants;
pub(crate) mod roots;
pub(crate) mod scan;
mod search;
pub(crate) mod sources;
pub(crate) mod unread;
pub(crate) mod waiting;
pub(crate) mod words;
