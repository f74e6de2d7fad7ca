//! The memory of every process of a host: RSS of all processes, and its composition.
//!
//! - `scan`: lists the processes and reads the RSS of each, which costs microseconds.
//! - `schedule`: decides which process to inspect next.
//! - [`budget`]: limits the CPU time of both.
//! - [`survey`]: does this on threads of its own, and holds the results.
//! - `process`: the state of one process.
//! - `cgroups`: the charges of cgroups.
//!
//! `lowtide top` and `lowtide exporter` share it. Nothing here stops a process or writes to one.
//!
//! # How a survey works
//!
//! 1. `scan` lists the processes and reads `/proc/PID/stat` of each, which never waits for a
//!    process.
//! 2. `schedule` computes how urgent the inspection of a process is: one that was never
//!    inspected, has changed, is large, or was last inspected long ago comes first. [`budget`]
//!    decides when the CPU time of lowtide permits the next inspection. Both are pure.
//! 3. The threads of [`survey`] inspect the most urgent process. An inspection that makes no
//!    progress is abandoned, and its process is not read again. An inspection that takes too long
//!    is tried again after 10 minutes. Either process keeps its row in the table.

pub mod budget;
mod cgroups;
mod process;
mod scan;
mod schedule;
pub mod survey;

pub use process::{HostProcess, InspectionResult, Unread};
pub use scan::{Host, ScanFilter};
pub use survey::{Survey, SurveyOptions};
