//! Puts a load on a server and tells what became of it: up to a million requests in flight from one
//! small process.
//!
//! Protocols are pure: bytes in, bytes out, outcomes told ([`protocol::Protocol`]). So is what is started
//! when ([`shape::Shape`], [`pacer::Pacer`]). One loop on one thread owns the sockets and the clock.
//!
//! How a load behaves:
//!
//! - Without a rate, a request counts from when it is sent, and where all of a burst fit at once, each
//!   connection has its even share. With one, it counts from its scheduled time, and when it cannot be
//!   sent within the time-out, it has failed.
//! - A connection that is lost is made again for as long as requests are left. Three in a row on which
//!   nothing was answered are given up for the round; when none is left, what remains of a number of
//!   requests has failed. A time that is to be filled goes on to its end.
//! - A sustained load ends with its time; what is in flight then is still answered, or given up.
//! - Connections stay open between rounds that have the same address, until they have been idle for
//!   long enough.

use std::io;
use std::sync::atomic::AtomicBool;

use lowtide_model::load::LoadReport;

pub mod failure;
pub mod h2;
pub mod http_choice;
pub mod limits;
pub mod observer;
pub mod pacer;
pub mod plan;
pub mod protocol;
pub mod rate;
pub mod shape;
pub mod target;
pub mod tls;

mod clock;
mod connection;
mod driver;
mod h1;
mod pool;
mod resolved_target;
mod tally;
mod timer;

use failure::Failure;
use limits::{Available, LimitError};
use observer::Observer;
use plan::Plan;
use resolved_target::ResolvedTarget;
use target::UnknownHost;
use tls::TlsError;

/// Why there is nothing to report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A host is not known.
    #[error(transparent)]
    UnknownHost(#[from] UnknownHost),
    /// The machine does not permit it.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// TLS cannot be spoken as it was asked for.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No connection could be made, or none over which anything was answered.
    #[error("{target}: {failure}")]
    NoConnection {
        /// Where it was to go.
        target: String,
        /// Why it did not.
        failure: Failure,
    },
    /// The system failed what the loop itself needs.
    #[error("the load cannot go on: {0}")]
    System(#[from] io::Error),
}

/// Runs a plan on this thread, until it is done or `interrupt` is set: then what was done so far is
/// reported, and what was in flight has failed.
///
/// # Errors
/// When nothing was done that could be reported.
pub fn run(
    plan: &Plan,
    available: &Available,
    observer: &mut dyn Observer,
    interrupt: &AtomicBool,
) -> Result<LoadReport, RunError> {
    let sources = plan.required().check(available)?;
    let targets: Result<Vec<ResolvedTarget>, RunError> =
        plan.targets.iter().map(|target| ResolvedTarget::new(plan, target, sources)).collect();
    driver::Driver::new(plan, &targets?, observer, interrupt)?.run()
}
