//! Runs a subject under treatments and a load, and records the events.
//!
//! [`Settings`] are a study as a file or the command line describes it, and a [`Plan`] is a checked study.
//! [`run`] runs it trial by trial under keepers ([`keep`]), and `lowtide-record` writes the record.
//! `lowtide-analysis` computes the metrics from the record afterwards.

mod allocator;
mod capture;
mod contents;
mod error;
mod eta;
mod keeper;
mod metrics_source;
mod on_demand;
mod order;
mod plan;
mod preflight;
mod programs;
mod progress;
mod ready;
mod record_dir;
mod runner;
mod settings;
mod timeline;
mod treatment;
mod trial;
mod tune;

pub use allocator::AllocatorError;
pub use error::{Obstacle, PlanError, StudyError};
pub use eta::TimeLeft;
pub use keeper::process::run as keep;
pub use keeper::{KeeperCommand, Launch};
pub use plan::Plan;
pub use programs::find_program;
pub use progress::{StudyEvent, StudyObserver};
pub use runner::{StudyRun, run};
pub use settings::{Flags, Settings, TreatmentSettings, Words};
pub use treatment::resolve::launch_under;
pub use tune::{PRESETS, Preset};
