//! lowtide from outside: the binary, real programs, real signals.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_input;
mod bench_records;
mod commands;
mod correlation;
mod endings;
mod expected;
mod hoard_003;
mod in_force;
mod inspect;
mod load;
mod long_studies;
mod node_004;
mod records;
mod release;
mod reports;
mod schemas;
mod server_000;
mod subjects;
mod subjects_001;
mod support;
mod terminal;
mod trials;
mod watch;
