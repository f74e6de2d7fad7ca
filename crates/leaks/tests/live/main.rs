//! Programs with and without leaks, watched from outside, compared with their own counts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod corpus;
mod labelled;
mod movers;
mod programs;
mod stacks;
mod subject;
mod types;
