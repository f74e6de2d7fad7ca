//! The memory of every process of a host: RSS of all processes, and its composition.
//!
//! - [`scan`]: lists the processes and reads the RSS of each, which costs microseconds.
//! - [`schedule`]: decides which process to inspect next.
//! - [`budget`]: limits the CPU time of both.
//! - [`survey`]: does this on threads of its own, and holds the results.
//! - [`process`]: the state of one process.
//!
//! `lowtide top` and `lowtide exporter` share it. Nothing here stops a process or writes to one.

pub mod budget;
pub mod process;
pub mod scan;
pub mod schedule;
pub mod survey;

pub use process::{Inspected, Process, Unread};
pub use scan::{Filter, Host};
pub use survey::{Options, Survey};
