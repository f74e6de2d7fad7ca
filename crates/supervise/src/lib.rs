//! Keeps the memory of processes low: observes them, lets a policy decide, and releases their memory.

pub mod reaper;
