//! Conclusions from records and inspections: metrics, statistics, recommendations, growth, verdicts.
//!
//! Everything is a function of its arguments. Nothing here opens a file, reads a clock or starts a process,
//! so tests run on saved records and made-up series in milliseconds.

pub mod analyze;
pub mod compare;
pub mod diagnose;
pub mod growth;
pub mod metrics;
pub mod recommend;
pub mod regression;
pub mod remedies;
pub mod requests;
pub mod stats;
pub mod study;
pub mod threshold;
mod warnings;
