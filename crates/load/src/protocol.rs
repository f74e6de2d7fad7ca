//! The interface between the loop and a protocol, which has neither I/O nor a clock: the loop
//! passes in received bytes, and gets bytes to send and the outcomes of requests.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::RequestFailure;
use crate::target::Scheme;

mod body;

pub use body::Body;
pub(crate) use body::BodyHash;

/// A time since the start of the count, in units of 10 µs: four bytes reach 11.9 hours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ticks(pub u32);

impl Ticks {
    /// Rounds down to whole ticks; saturates.
    pub(crate) fn from_duration(elapsed: Duration) -> Self {
        Self(u32::try_from(elapsed.as_micros() / 10).unwrap_or(u32::MAX))
    }

    /// Returns the time since the start of the count.
    pub(crate) fn elapsed(self) -> Duration {
        Duration::from_micros(u64::from(self.0) * 10)
    }
}

/// The request that a connection repeats.
///
/// The caller has validated it: the method and header names are tokens, and no part contains a line
/// break or a NUL.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// [`Scheme::Http`] or [`Scheme::Https`].
    pub scheme: Scheme,
    /// Host, and port where it is not the scheme's.
    pub authority: String,
    /// Path and query, beginning with `/`.
    pub path: String,
    /// Further headers, with names in any case. `host` replaces `authority`. `content-length` may
    /// be omitted.
    pub headers: Vec<(String, String)>,
    /// The body; empty if there is none.
    pub body: Arc<[u8]>,
}

impl Request {
    /// Returns whether responses have no body, whatever their headers contain.
    pub(crate) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

/// The protocol on one connection, without I/O and without a clock.
///
/// Methods append the bytes to send to `out`, and neither read nor remove what is already there.
pub trait Protocol {
    /// Writes what the client sends as soon as the connection is open.
    fn open(&mut self, out: &mut Vec<u8>);

    /// Returns how many more requests can start now, given the server's limit and the requests in
    /// flight. HTTP/2: 0 until the server's SETTINGS arrive, and 0 after GOAWAY.
    fn room(&self) -> usize;

    /// Starts one request, whose latency counts from `due` (its scheduled time). Does nothing
    /// without room. `due` must not be earlier than that of the previous request; otherwise
    /// [`Protocol::expire`] and [`Protocol::oldest`] reach it late.
    fn send(&mut self, due: Ticks, out: &mut Vec<u8>);

    /// Processes bytes from the server, split at any position.
    ///
    /// # Errors
    ///
    /// Fails if the connection can no longer be used. The caller then calls [`Protocol::closed`]
    /// with the failure. It may still send `out` (HTTP/2: a GOAWAY with the reason).
    fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        outcomes: &mut dyn Outcomes,
    ) -> Result<(), RequestFailure>;

    /// Writes at most `max` bytes of request bodies, as far as flow control permits. Costs nothing
    /// if no body is pending. If it writes nothing, the pending bodies wait for the server.
    fn pump(&mut self, max: usize, out: &mut Vec<u8>);

    /// Gives up all requests that started at or before `until` (HTTP/2: with RST_STREAM CANCEL).
    /// They fail as timed out.
    ///
    /// # Errors
    ///
    /// Fails if the connection can no longer be used (HTTP/1.1, where responses arrive in order).
    fn expire(
        &mut self,
        until: Ticks,
        out: &mut Vec<u8>,
        outcomes: &mut dyn Outcomes,
    ) -> Result<(), RequestFailure>;

    /// Returns when the oldest request in flight started.
    fn oldest(&self) -> Option<Ticks>;

    /// Returns how many requests have started and have no outcome yet.
    fn in_flight(&self) -> usize;

    /// Returns whether no new request may start (GOAWAY, `connection: close`). The server may still
    /// answer those in flight.
    fn is_draining(&self) -> bool;

    /// Ends the connection in good order (HTTP/2: GOAWAY NO_ERROR).
    fn close(&mut self, out: &mut Vec<u8>);

    /// Handles the loss of the connection: all requests in flight fail, for `why` or for a more
    /// precise reason (HTTP/2: GOAWAY with an error; a partial body was cut short). An HTTP/1.1
    /// body that ends with the connection ([`RequestFailure::Closed`]) is complete.
    fn closed(&mut self, why: RequestFailure, outcomes: &mut dyn Outcomes);

    /// Moves the start of the count of ticks `by` later. Requests in flight keep their age; those
    /// that started before the new start count from 0.
    fn rebase(&mut self, by: Ticks);
}

/// Receives the outcomes of requests. Each request that `send` starts has exactly one outcome.
pub trait Outcomes {
    /// Receives a complete response. `status` is as the server sent it.
    fn answered(&mut self, started: Ticks, status: u16, body: Body<'_>);

    /// Receives the failure of a request without a complete response.
    fn failed(&mut self, started: Ticks, failure: RequestFailure);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_ten_microseconds_and_ticks_saturate() {
        assert_eq!(Ticks::from_duration(Duration::from_micros(129)), Ticks(12));
        assert_eq!(Ticks(12).elapsed(), Duration::from_micros(120));
        assert_eq!(Ticks::from_duration(Duration::from_secs(1_000_000)), Ticks(u32::MAX));
    }
}
