//! x86-64.

mod code;
mod counter;
mod frame;
mod registers;
mod vectors;

pub(crate) use code::*;
pub(crate) use counter::{counter, may_read_counter};
pub(crate) use frame::*;
pub(crate) use registers::*;
pub(crate) use vectors::vectors;
