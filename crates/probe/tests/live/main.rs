//! Running programs are recognised.

mod allocators;
mod runtimes;
mod support;
