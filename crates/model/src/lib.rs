//! The words that the rest of lowtide speaks: bytes, samples, treatments, records, statistics and
//! the judgements that follow from them.
//!
//! Nothing here opens a file, reads a clock or starts a process. Everything is a function of what
//! it is fed, so that it is tested on saved records and made-up series in milliseconds.

pub mod bytes;
pub mod compare;
pub mod conclude;
pub mod cures;
pub mod duration;
pub mod growth;
pub mod heap_summary;
pub mod inspection;
pub mod judge;
pub mod ledger;
pub mod load;
#[cfg(test)]
pub(crate) mod made_up;
pub mod number;
pub mod plan;
pub mod recommend;
pub mod record;
pub mod regression;
pub mod release;
pub mod requests;
pub mod sample;
pub mod stats;
pub mod study;
pub mod threshold;
pub mod treatment;
pub mod verdict;
mod warnings;
pub mod whole;
