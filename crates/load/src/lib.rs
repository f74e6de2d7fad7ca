//! Puts a load on a server and reports the outcomes: up to a million requests in flight from one
//! small process.
//!
//! A protocol has neither I/O nor a clock: it turns bytes into bytes and outcomes. The schedule has
//! no clock either: a [`Shape`] is a value, and a pacer computes what is due at a time. One loop on
//! one thread owns the sockets and the clock.
//!
//! How a load behaves:
//!
//! - Without a rate, the latency of a request counts from when it is sent. If a burst fits at once,
//!   it is divided evenly over the connections. With a rate, latency counts from the scheduled
//!   time, and a request that cannot be sent within the timeout fails.
//! - A lost connection is replaced as long as requests are left. After three in a row without a
//!   response, its place is given up for the round. When all are given up, the rest of a fixed
//!   number of requests fails. A load of fixed duration continues until its end.
//! - A load of fixed duration ends with its time. Requests in flight then are still answered, or
//!   time out.
//! - Connections stay open between rounds with the same target, until they have been idle for long
//!   enough.
//!
//! # How a load works
//!
//! 1. **Limits** (`limits.rs`). Open files, memory and ports are checked first. If one source
//!    address has too few ports for the connections to this machine, they come from 127.0.0.1,
//!    127.0.0.2 and so on.
//! 2. **Schedule** (`shape.rs`, `pacer.rs`): burst, sustain, ramp, hold, idle, repeat.
//! 3. **Loop** (`driver.rs`). It reads the clock, starts what is due, expires what is late, and
//!    waits for sockets or for a timer of about 50 µs. `pool.rs` opens, replaces and abandons
//!    connections.
//! 4. **Connection** (`connection.rs`): a socket, perhaps TLS, and a `Protocol`, which
//!    `http_choice.rs` selects by ALPN.
//! 5. **Outcomes** go to `tally.rs`, which counts them and stores no requests. A request in flight
//!    occupies only the memory in which its protocol keeps its state. Its start time decides
//!    whether it counts for the round or for background traffic.

use std::io;
use std::sync::atomic::AtomicBool;

use lowtide_model::load::LoadReport;

mod clock;
mod connection;
mod driver;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod h1;
mod h2;
mod http_choice;
mod limits;
mod observer;
mod pacer;
mod plan;
mod pool;
mod protocol;
mod rate;
mod resolved_target;
mod shape;
mod tally;
mod target;
mod timer;
mod tls;

pub use failure::{ErrorCode, OtherProtocol, RequestFailure, TlsFailure};
pub use http_choice::HttpVersion;
pub use limits::{Available, LimitError, ephemeral_ports, max_open_files, raise_open_files};
pub use observer::{Event, LoadEvent, LoadObserver, LoadState};
pub use plan::{LoadSpec, RequestTemplate};
pub use rate::{Rate, RateError};
pub use shape::Shape;
pub use target::{LoadTarget, LoadTargetError, Scheme, UnknownHost};
pub use tls::TlsError;

use resolved_target::ResolvedTarget;

/// HTTP/2 without the loop, for tests against real servers. Not part of the interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::h2::Http2;
    pub use crate::protocol::{Body, Outcomes, Protocol, Request, Ticks};
}

/// Why there is nothing to report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A host is unknown.
    #[error(transparent)]
    UnknownHost(#[from] UnknownHost),
    /// This machine lacks a resource that the load requires.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// TLS cannot be set up as requested.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No connection could be made, or the server uses another protocol.
    #[error("{target}: {failure}")]
    NoConnection {
        /// The target as the user wrote it.
        target: String,
        /// Why there is no connection.
        failure: RequestFailure,
    },
    /// A system call of the loop itself failed.
    #[error("the load cannot continue: {0}")]
    System(#[from] io::Error),
}

/// Runs a plan on the current thread until it is complete or `interrupt` is set. After an
/// interrupt, the requests in flight fail, and the report covers the run so far.
///
/// # Errors
/// Fails if there is nothing to report.
pub fn run(
    plan: &LoadSpec,
    available: &Available,
    observer: &mut dyn LoadObserver,
    interrupt: &AtomicBool,
) -> Result<LoadReport, RunError> {
    let sources = plan.required().check(available)?;
    let targets: Result<Vec<ResolvedTarget>, RunError> =
        plan.targets.iter().map(|target| ResolvedTarget::new(plan, target, sources)).collect();
    driver::Driver::new(plan, &targets?, observer, interrupt)?.run()
}
