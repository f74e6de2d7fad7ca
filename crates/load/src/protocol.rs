//! What a protocol is to the loop that drives it: no I/O, no clock. Bytes in, bytes out, outcomes told.

use std::sync::Arc;
use std::time::Duration;

use crate::failure::Failure;

mod body;

pub use body::{Body, BodyHash};

/// A time since the count started, in units of 10 µs: four bytes reach 11.9 hours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Ticks(pub u32);

impl Ticks {
    /// The last whole tick within `elapsed`; the highest there is where that lies beyond it.
    pub fn of(elapsed: Duration) -> Self {
        Self(u32::try_from(elapsed.as_micros() / 10).unwrap_or(u32::MAX))
    }

    /// The time since the count started.
    pub fn elapsed(self) -> Duration {
        Duration::from_micros(u64::from(self.0) * 10)
    }
}

/// The request: the same for all requests of a connection.
///
/// What goes into it was checked where it came from: a method and header names are tokens, and
/// nothing holds a line break or a zero.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Host, and port where it is not the scheme's.
    pub authority: String,
    /// Path and query, beginning with `/`.
    pub path: String,
    /// Further headers, names in any case. `host` takes the place of `authority`; a `content-length`
    /// need not be among them.
    pub headers: Vec<(String, String)>,
    /// The body; without one, empty.
    pub body: Arc<[u8]>,
}

/// One connection's protocol: no I/O, no clock. Bytes in, bytes out, outcomes told.
///
/// All that is to be written is appended to `out`; nothing there is looked at or taken back.
pub trait Protocol {
    /// What goes out as soon as the connection stands.
    fn open(&mut self, out: &mut Vec<u8>);

    /// How many more requests can start now: what the server allows, and what is in flight, taken
    /// into account. HTTP/2: 0 until the server's SETTINGS have come; 0 after GOAWAY.
    fn room(&self) -> usize;

    /// Begins one request, which counts from `due` (its scheduled send). Only while there is room;
    /// without, nothing happens. `due` must not lie before that of the request sent last, or
    /// [`Protocol::expire`] and [`Protocol::oldest`] come to it late.
    fn send(&mut self, due: Ticks, out: &mut Vec<u8>);

    /// Takes what came from the server, cut anywhere.
    ///
    /// # Errors
    ///
    /// The connection is of no more use. The caller then calls [`Protocol::closed`] with the failure;
    /// what `out` holds may still be written (HTTP/2: it tells the server why).
    fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        told: &mut dyn Outcomes,
    ) -> Result<(), Failure>;

    /// Goes on with request bodies, as far as windows and `out` (at most `most` bytes more) permit.
    /// Costs nothing where no body waits. What gets nothing out waits for the server.
    fn pump(&mut self, most: usize, out: &mut Vec<u8>);

    /// Gives up all requests that started at or before `until` (HTTP/2: RST_STREAM CANCEL each). Told
    /// as timed out.
    ///
    /// # Errors
    ///
    /// The connection cannot be used any more (HTTP/1.1, whose answers come in order).
    fn expire(
        &mut self,
        until: Ticks,
        out: &mut Vec<u8>,
        told: &mut dyn Outcomes,
    ) -> Result<(), Failure>;

    /// When the oldest request in flight started.
    fn oldest(&self) -> Option<Ticks>;

    /// How many requests were started and not yet told.
    fn in_flight(&self) -> usize;

    /// No new request may start here (GOAWAY, `connection: close`), but those in flight may still
    /// be answered.
    fn is_draining(&self) -> bool;

    /// Says goodbye (HTTP/2: GOAWAY NO_ERROR).
    fn close(&mut self, out: &mut Vec<u8>);

    /// The connection is gone: all in flight failed, for that reason, or for a better one that the
    /// protocol knows (HTTP/2: GOAWAY with an error; a body that had started was cut short). An
    /// HTTP/1.1 body that ends with the connection ([`Failure::Closed`]) is whole.
    fn closed(&mut self, why: Failure, told: &mut dyn Outcomes);

    /// Begins the count of ticks anew, `by` later: what is in flight keeps its age, but for
    /// what started before, which started at 0.
    fn rebase(&mut self, by: Ticks);
}

/// What becomes of requests. Each request that `send` started is told exactly once, by one of the two.
pub trait Outcomes {
    /// Answered whole. `status` as the server gave it.
    fn answered(&mut self, started: Ticks, status: u16, body: Body<'_>);

    /// Not answered, or not whole.
    fn failed(&mut self, started: Ticks, failure: Failure);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_ten_microseconds_and_stop_at_their_end() {
        assert_eq!(Ticks::of(Duration::from_micros(129)), Ticks(12));
        assert_eq!(Ticks(12).elapsed(), Duration::from_micros(120));
        assert_eq!(Ticks::of(Duration::from_secs(1_000_000)), Ticks(u32::MAX));
    }
}
