//! Failures: their exit codes, sentences and next steps.

pub(crate) mod exit;
pub(crate) mod rerun;
pub(crate) mod target_error;
pub(crate) mod usage;
