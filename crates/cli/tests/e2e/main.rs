//! lowtide from outside: the binary, real programs, real signals.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_input;
mod bench_records;
mod black_box;
mod commands;
mod containers;
mod correlation;
mod endings;
mod expected;
mod exporter;
mod fleet;
mod frameworks;
mod gate;
mod handover;
mod held;
mod hoard;
mod in_force;
mod inspect;
mod install;
mod leaks;
mod load;
mod locked;
mod long_studies;
mod million_streams;
mod musl;
mod node_tls;
mod old_kernel;
mod podman;
mod records;
mod release;
mod reports;
mod schemas;
mod slow_files;
mod stacks;
mod subjects;
mod supervision;
mod support;
mod terminal;
mod top;
mod trials;
mod watch;
