//! Runs a subject under treatments and a load, and records what happens.
//!
//! [`settings`] is what was asked for, [`plan`] what was checked, [`runner`] runs it trial by trial,
//! [`trial`] is the course of one of them, [`supervisor`] stands between lowtide and what it starts, and
//! `lowtide-record` writes it all down. What the figures mean is not decided here: that is read off the
//! record afterwards.

pub mod allocator;
pub mod capture;
mod contents;
pub mod error;
pub mod eta;
pub mod metrics_source;
mod on_demand;
pub mod order;
pub mod plan;
pub mod preflight;
pub mod programs;
pub mod progress;
pub mod ready;
mod record_dir;
pub mod runner;
pub mod settings;
pub mod supervisor;
pub mod timeline;
pub mod treatment;

pub mod trial;
pub mod tune;
