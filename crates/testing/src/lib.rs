//! Helpers that the tests of several crates share: they compile C programs, wait for conditions,
//! and end the processes that they have started.
//!
//! Only tests depend on this crate.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot continue has failed")]

mod compiler;
mod core;
mod musl;
mod running;
mod until;

pub use self::core::write_core;
pub use compiler::{compile, compile_if_older, compile_with, library_of_compiler};
pub use musl::{Musl, MuslLinkage};
pub use running::Running;
pub use until::{until, until_true};
