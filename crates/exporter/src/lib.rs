//! The memory of a host's processes as metrics for Prometheus.
//!
//! - `groups`: processes by program, name, cgroup or pod, in a bounded number of groups.
//! - `metrics`: the metrics of a moment, as text.
//! - [`server`]: serves them by HTTP.
//! - [`web_config`]: TLS and passwords, from a file in Prometheus' own format.
//! - [`textfile`]: writes them to a file instead.
//! - [`file_process`]: writes files in a process of its own.
//! - [`privileges`], [`seal`]: restrict this process to reading others.
//!
//! The exporter reads and never acts.
//!
//! # How a scrape works
//!
//! A scrape gets what the survey (`lowtide-survey`) knows, and never waits for an inspection. The
//! CPU time of the server does not count against the budget of the survey (`UncountedCpu`). If
//! there are too many connections, `connections` decides which one is closed; `turns` decides whose
//! password is verified next.
//!
//! [`privileges`] changes the user and removes capabilities before the first thread starts; then
//! [`seal`] installs a seccomp filter. `tests/permitted_calls.rs` interprets the filter for all
//! calls, and `tests/sealed.rs` makes calls that it refuses.

mod connections;
pub mod file_process;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod groups;
mod listen;
mod metrics;
pub mod privileges;
pub mod seal;
pub mod server;
pub mod textfile;
mod turns;
pub mod web_config;

pub use groups::GroupBy;
pub use listen::ListenAddress;
pub use metrics::Exporter;
