//! Heaps of allocators other than glibc's, compared with the data of the allocators and the
//! program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../all_blocks/mod.rs"]
mod all_blocks;
mod blocks;
mod gperftools;
mod jemalloc;
mod library;
mod mimalloc;
mod musl;
mod subject;
