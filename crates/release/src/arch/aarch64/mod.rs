//! aarch64.
//!
//! A release of glibc's heap only, of processes without seccomp filters: what else is supported on
//! x86-64 was not tested here.

mod code;
mod frame;
mod registers;
mod state;

pub(crate) use code::*;
pub(crate) use frame::*;
pub(crate) use registers::*;
pub(crate) use state::{hazard, vectors};
