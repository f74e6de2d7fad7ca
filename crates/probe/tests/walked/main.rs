//! What lowtide reads of the heaps of other allocators than glibc's, beside what they and the program say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod blocks;
mod gperftools;
mod jemalloc;
mod library;
mod mimalloc;
mod subject;
