//! The memory of a host's processes as metrics for Prometheus.
//!
//! - [`groups`]: processes by program, name, cgroup or pod, in a bounded number of groups.
//! - [`metrics`]: the metrics of a moment, as text.
//! - [`server`]: serves them by HTTP.
//! - [`web_config`]: TLS and passwords, from a file in Prometheus' own format.
//! - [`textfile`]: writes them to a file instead.
//! - [`seal`]: forbids this process to act on others.
//!
//! The exporter reads and never acts.

pub mod groups;
pub mod listen;
pub mod metrics;
pub mod seal;
pub mod server;
pub mod textfile;
pub mod web_config;

pub use groups::GroupBy;
pub use listen::ListenAddress;
pub use metrics::Exporter;
