//! Runs a subject under treatments and a load, and records the events.
//!
//! [`Settings`] are a study as a file or the command line describes it, and a [`Plan`] is a checked
//! study. [`run`] runs it trial by trial under keepers ([`keep`]), and `lowtide-record` writes the
//! record. `lowtide-analysis` computes the metrics from the record afterwards.
//!
//! # How a study works
//!
//! 1. **Settings** (`settings.rs`). One struct for the command line and for study files: most
//!    fields are a flag with its help, a key, and a condition that `--resume` compares. Flags
//!    override the file.
//! 2. **Plan** (`plan.rs`). Everything is checked before anything starts. `treatment/resolve.rs`
//!    makes the treatments (`versions.rs` those of `--against`), `allocator.rs` finds or unpacks
//!    libraries and tries each, `order.rs` draws the random order of the trials, and `preflight.rs`
//!    looks for obstacles to every trial, such as a port in use. A mistake is a [`PlanError`]: one
//!    sentence.
//! 3. **Record** (`record_dir.rs`). With `--resume`, the finished trials are read from it, and a
//!    plan with other conditions is refused. Each line is written at once; if that fails, the study
//!    ends.
//! 4. **Trials** (`runner.rs`). `trial/mod.rs` is the sequence of one trial: prepare, start, ready,
//!    warm-up, baseline, rounds of load and pause, settle, end, cleanup. It drives the trait
//!    `Stage`, whose real implementation is `trial/process_stage.rs`.
//! 5. **Start** (`treatment/launch.rs`, `keeper/`). A treatment becomes `LD_PRELOAD`, another
//!    loader, or variables. Everything starts below a keeper process.
//! 6. **Samples** (`trial/sampling.rs`). At every tick, `lowtide-probe` reads the process tree
//!    below the keeper. `smaps_rollup`, which is expensive, is read at a rate that bounds its cost.
//!    Other threads take ledgers (`trial/ledgers.rs`), poll the subject's own metrics, follow the
//!    load's record, and run the policy (`trial/supervision.rs`). At events such as `drained`,
//!    `trial/hooks.rs` runs the hooks of a treatment.
//! 7. **In force** (`treatment/in_force.rs`). For each process, `lowtide-probe` finds the object
//!    that defines `malloc`. It must be the allocator of the treatment.
//! 8. **Report.** `lowtide-report` reads the finished record back, `lowtide-analysis` computes a
//!    `StudyReport` from it, and `lowtide-report` formats it. A crossed threshold or a regression
//!    is exit code 99.

mod allocator;
mod borrowed;
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
mod versions;

pub use allocator::AllocatorError;
pub use borrowed::{BorrowError, TAKEN, settings_of, variables_of};
pub use error::{Obstacle, PlanError, StudyError};
pub use eta::TimeLeft;
pub use keeper::process::run as keep;
pub use keeper::{KeeperCommand, Launch};
pub use plan::Plan;
pub use progress::{StudyEvent, StudyObserver};
pub use runner::{StudyRun, run};
pub use settings::{Flags, Settings, TreatmentSettings, Words};
pub use treatment::resolve::launch_under;
pub use tune::{PRESETS, Preset};
