//! The vocabulary of lowtide: bytes, durations, ledgers, samples, treatments, and the objects that
//! verbs print as JSON.
//!
//! This crate depends on no other crate of lowtide, does no I/O and makes no decisions.

pub mod act;
pub mod allocator_facts;
pub mod allocator_kind;
pub mod black_box;
pub mod bytes;
pub mod cgroup;
pub mod counters;
pub mod counts;
pub mod duration;
pub mod engine;
pub mod event;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod group;
pub mod growth;
pub mod heap_file;
pub mod heap_summary;
pub mod inspection;
pub mod leaks;
pub mod ledger;
pub mod load;
pub mod machine;
pub mod number;
pub mod open_memory;
pub mod pins;
pub mod process;
pub mod release;
pub mod remedy;
pub mod runtime_kind;
pub mod sample;
pub mod saved_observation;
pub mod stats;
pub mod survivors;
pub mod text;
pub mod top;
pub mod treatment;
pub mod verdict;
