//! Runs a subject under treatments and a load, and records what happens.
//!
//! [`settings`] is what was asked for, [`plan`] what was checked, [`runner`] runs it trial by trial,
//! [`trial`] is the course of one of them, [`keeper`] stands between lowtide and what it starts, and
//! `lowtide-record` writes it all down. What the figures mean is not decided here: that is read off the
//! record afterwards.

pub mod allocator;
mod begun;
mod contents;
pub mod error;
pub mod figures;
pub mod keeper;
pub mod order;
pub mod output;
pub mod plan;
pub mod preflight;
pub mod programs;
pub mod progress;
pub mod ready;
pub mod remaining;
pub mod runner;
pub mod settings;
pub mod timeline;
pub mod treatment;
mod treatments;
pub mod trial;
pub mod tune;
