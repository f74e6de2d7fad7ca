//! The processes that a verb acts on, one after the other.

pub(crate) mod container;
pub(crate) mod each_process;
pub(crate) mod group;
pub(crate) mod patient_finder;
pub(crate) mod selector;
pub(crate) mod wait;
