//! One file for each verb.

pub(crate) mod attach;
mod black_box;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod exporter;
mod heap_files;
pub(crate) mod inspect;
mod inspect_blocks;
pub(crate) mod leaks;
mod leaks_record;
pub(crate) mod load;
pub(crate) mod man;
mod next_step;
#[cfg(test)]
mod next_steps_end;
pub(crate) mod release;
pub(crate) mod report;
pub(crate) mod run;
mod service;
pub(crate) mod study;
pub(crate) mod top;
pub(crate) mod watch;
mod watch_cgroup;
