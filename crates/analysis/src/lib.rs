//! Conclusions from records and inspections: metrics, statistics, recommendations, growth,
//! verdicts.
//!
//! Everything is a function of its arguments. Nothing here opens a file, reads a clock or starts a
//! process, so tests run on saved records and made-up series in milliseconds.

pub mod analyze;
pub mod black_box;
pub mod compare;
pub mod diagnose;
mod evidence;
pub mod growth;
pub mod heap_difference;
pub mod leaks;
pub mod metrics;
pub mod owners;
pub mod pins;
mod recommend;
pub mod regression;
pub mod remedies;
pub mod requests;
pub mod study_report;
pub mod threshold;
pub mod trial_result;
pub mod versions;
mod warnings;
