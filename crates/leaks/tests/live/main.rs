//! Programs that leak and programs that do not, watched from outside, beside their own counts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod programs;
mod stacks;
mod subject;
mod types;
