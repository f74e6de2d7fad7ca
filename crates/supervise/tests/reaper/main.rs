//! The reaper as a process, with a service and a policy process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod memory;
mod orphans;
mod policy;
mod service;
mod signals;
mod support;
mod terminal;
