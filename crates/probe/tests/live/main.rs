//! Detection on running programs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod allocators;
mod cpython;
mod hotspot;
mod owners;
mod runtimes;
mod support;
