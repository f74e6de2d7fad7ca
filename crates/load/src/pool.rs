//! The connection pool: makes connections, keeps them, replaces lost ones, and gives up after
//! repeated failures.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use mio::{Registry, Token};

use crate::connection::{Connection, ConnectionProgress};
use crate::failure::RequestFailure;
use crate::protocol::{Outcomes, Ticks};
use crate::resolved_target::ResolvedTarget;
use crate::tally::LoadTally;

/// Maximum number of consecutive failed connections in one place of the pool, per round.
const MAX_ATTEMPTS: u32 = 3;
/// Delay after the first failed connection. It doubles with each further one.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Upper limit of the delay.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Size of the read buffer that all connections share.
const READ_BUFFER_BYTES: usize = 128 << 10;

/// The connections of a load. Each occupies a place, where another one can replace it.
pub(crate) struct ConnectionPool<'a> {
    places: Vec<ConnectionSlot>,
    target: &'a ResolvedTarget,
    registry: Registry,
    buffer: Box<[u8]>,
    /// Places where a request may start, in turn.
    ready: VecDeque<usize>,
    /// Places where there may be more to read, though no further event reports it.
    unread: Vec<usize>,
    /// Whether some place may have no connection.
    pub(crate) has_gaps: bool,
    /// The number of open connections.
    pub(crate) open_count: u64,
    /// Whether a connection was ever open.
    pub(crate) was_ever_open: bool,
    /// Why the last connection failed.
    pub(crate) last_failure: Option<RequestFailure>,
    /// The lowest number of streams that the server permits on a connection, if fewer than
    /// requested.
    pub(crate) permitted_streams: Option<usize>,
    streams: usize,
    is_bare: bool,
}

/// Holds at most one connection at a time, and what is remembered from one to the next.
#[derive(Default)]
struct ConnectionSlot {
    connection: Option<Connection>,
    /// Whether the place is in [`ConnectionPool::ready`].
    is_queued: bool,
    /// Whether the connection is open; with HTTP, whether requests could start on it.
    is_open: bool,
    /// Whether a response arrived on the connection.
    has_answered: bool,
    /// The number of consecutive failed connections.
    failures: u32,
    /// The earliest time of the next connection attempt.
    not_before: Duration,
    /// Selects one of the target's addresses.
    turn: usize,
    /// The number of addresses tried for the current connection.
    tried: usize,
    /// When a request last started or ended here.
    active: Duration,
    /// Background requests in flight here at the start of the round. They do not count against its
    /// streams.
    trickle_in_flight: usize,
}

impl ConnectionSlot {
    /// Returns how many more requests may start here, given that at most `streams` may be in
    /// flight.
    fn room(&self, streams: usize) -> usize {
        let connection = self.connection.as_ref();
        connection.map_or(0, |c| c.room(streams.saturating_add(self.trickle_in_flight)))
    }
}

impl<'a> ConnectionPool<'a> {
    pub(crate) fn new(
        connections: usize,
        streams: usize,
        target: &'a ResolvedTarget,
        registry: Registry,
        is_bare: bool,
    ) -> Self {
        Self {
            places: (0..connections).map(|_| ConnectionSlot::default()).collect(),
            target,
            registry,
            buffer: vec![0; READ_BUFFER_BYTES].into(),
            ready: VecDeque::new(),
            unread: Vec::new(),
            has_gaps: true,
            open_count: 0,
            was_ever_open: false,
            last_failure: None,
            permitted_streams: None,
            streams,
            is_bare,
        }
    }

    /// Starts a round on this target, with at most `streams` requests in flight on each connection.
    /// Closes connections to another target.
    pub(crate) fn start_round(
        &mut self,
        target: &'a ResolvedTarget,
        streams: usize,
        now: Duration,
    ) {
        if !std::ptr::eq(self.target, target) {
            self.close_all();
            self.target = target;
        }
        self.streams = streams;
        self.has_gaps = true;
        for place in &mut self.places {
            place.failures = 0;
            place.not_before = Duration::ZERO;
            place.active = now;
            place.trickle_in_flight = place.connection.as_ref().map_or(0, Connection::in_flight);
        }
        for number in 0..self.places.len() {
            self.enqueue(number);
        }
    }

    /// Makes connections in empty places until `wanted` places have one, or the others must wait to
    /// retry.
    pub(crate) fn fill(&mut self, wanted: usize, tally: &mut LoadTally, now: Duration) {
        if !std::mem::take(&mut self.has_gaps) {
            return;
        }
        let mut open = self.places.iter().filter(|place| place.connection.is_some()).count();
        for number in 0..self.places.len() {
            if open >= wanted {
                return;
            }
            let place = &self.places[number];
            if place.connection.is_some() {
                continue;
            }
            if place.not_before <= now {
                self.connect(number, tally.now, tally, now);
                open += usize::from(self.places[number].connection.is_some());
            }
            // A place that must wait is checked again.
            self.has_gaps |= self.places[number].connection.is_none();
        }
    }

    /// Starts the connection of a place. Its time counts from `started`.
    pub(crate) fn connect(
        &mut self,
        number: usize,
        started: Ticks,
        tally: &mut LoadTally,
        now: Duration,
    ) {
        let (to, from) = self.target.endpoints(self.places[number].turn, number);
        let connection = match self.target.session() {
            Ok(session) => Connection::connect(to, from, session, started),
            Err(error) => Err(io::Error::other(error)),
        };
        let connection = connection.and_then(|mut connection| {
            connection.register(&self.registry, Token(number))?;
            Ok(connection)
        });
        let place = &mut self.places[number];
        match connection {
            Ok(connection) => {
                place.connection = Some(connection);
                place.is_open = false;
                place.has_answered = false;
                place.active = now;
                place.trickle_in_flight = 0;
            }
            Err(error) => {
                self.connect_failed(number, started, RequestFailure::from_io(&error), tally, now);
            }
        }
    }

    /// Handles an event on the connection of a place.
    pub(crate) fn handle_event(&mut self, number: usize, tally: &mut LoadTally, now: Duration) {
        let Some(place) = self.places.get_mut(number) else { return };
        let Some(connection) = &mut place.connection else { return };
        let answers = tally.answers;
        let progress = connection.advance(&mut self.buffer, &self.target.http, tally);
        if tally.answers > answers {
            place.has_answered = true;
            place.failures = 0;
            place.active = now;
        }
        match progress {
            Ok(progress) => self.apply_progress(number, progress, tally, now),
            Err(why) => self.lost(number, why, tally, now),
        }
    }

    fn apply_progress(
        &mut self,
        number: usize,
        progress: ConnectionProgress,
        tally: &mut LoadTally,
        now: Duration,
    ) {
        let place = &mut self.places[number];
        let Some(connection) = &mut place.connection else { return };
        if progress.may_have_more {
            self.unread.push(number);
        }
        if self.is_bare {
            if progress.opened {
                place.is_open = true;
                tally.connected(connection.started);
                self.count_open();
                tally.round.peak = tally.round.peak.max(self.open_count);
            }
            return;
        }
        if connection.protocol().is_some_and(|protocol| protocol.is_draining()) {
            if connection.in_flight() == 0 {
                self.close(number);
                self.has_gaps = true;
                // A connection without a response counts as a failure: the next one may end the
                // same way.
                let place = &mut self.places[number];
                if !place.has_answered {
                    place.failures += 1;
                    place.not_before = now + retry_delay(place.failures);
                    self.last_failure = Some(RequestFailure::Closed);
                }
            }
            return;
        }
        if !place.is_open && connection.protocol().is_some_and(|protocol| protocol.room() > 0) {
            place.is_open = true;
            place.tried = 0;
            self.count_open();
        }
        self.enqueue(number);
    }

    fn count_open(&mut self) {
        self.open_count += 1;
        self.was_ever_open = true;
    }

    /// Queues a place for requests, if there is room.
    fn enqueue(&mut self, number: usize) {
        let place = &mut self.places[number];
        if place.room(self.streams) > 0 && !place.is_queued {
            place.is_queued = true;
            self.ready.push_back(number);
        }
    }

    /// Returns whether a request may start in any place.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the number of places where requests may start.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Returns the next place where requests may start, and how many.
    pub(crate) fn next_ready(&mut self) -> Option<(usize, usize)> {
        while let Some(number) = self.ready.pop_front() {
            let place = &mut self.places[number];
            place.is_queued = false;
            let room = place.room(self.streams);
            if room > 0 {
                return Some((number, room));
            }
        }
        None
    }

    /// Starts a request in a place that has room.
    pub(crate) fn send(&mut self, number: usize, due: Ticks) {
        if let Some(connection) = &mut self.places[number].connection {
            connection.send(due);
        }
    }

    /// Writes the requests that started in a place.
    pub(crate) fn flush(&mut self, number: usize, tally: &mut LoadTally, now: Duration) {
        let place = &mut self.places[number];
        place.active = now;
        let Some(connection) = &mut place.connection else { return };
        if connection.flush().is_err() {
            // Reading yields the reason.
            return self.handle_event(number, tally, now);
        }
        self.note_permitted_streams(number);
        self.enqueue(number);
    }

    /// Notes whether the server permits fewer streams than requested.
    fn note_permitted_streams(&mut self, number: usize) {
        let place = &self.places[number];
        let Some(protocol) = place.connection.as_ref().and_then(Connection::protocol) else {
            return;
        };
        let in_flight = protocol.in_flight();
        if in_flight < self.streams && protocol.room() == 0 && !protocol.is_draining() {
            self.permitted_streams =
                Some(self.permitted_streams.map_or(in_flight, |before| before.min(in_flight)));
        }
    }

    /// Continues to read where there may be more.
    pub(crate) fn read_more(&mut self, tally: &mut LoadTally, now: Duration) {
        for number in std::mem::take(&mut self.unread) {
            self.handle_event(number, tally, now);
        }
    }

    /// Returns whether there may be more to read in any place.
    pub(crate) fn may_read_on(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Handles a connection that is lost or unusable.
    fn lost(&mut self, number: usize, why: RequestFailure, tally: &mut LoadTally, now: Duration) {
        let place = &mut self.places[number];
        let Some(mut connection) = place.connection.take() else { return };
        let answers = tally.answers;
        connection.fail(why, tally);
        self.has_gaps = true;
        let was_open = connection.is_open();
        if std::mem::take(&mut place.is_open) {
            self.open_count -= 1;
            if self.is_bare {
                tally.round.closed_while_held += 1;
                return;
            }
        }
        if !was_open || self.is_bare {
            return self.connect_failed(number, connection.started, why, tally, now);
        }
        let has_answered =
            place.has_answered || tally.answers > answers || why == RequestFailure::TimedOut;
        match has_answered {
            true => place.not_before = now,
            false => self.count_failure(number, why, now),
        }
    }

    /// Handles a failed connection attempt: tries the next address, if there is one.
    fn connect_failed(
        &mut self,
        number: usize,
        started: Ticks,
        why: RequestFailure,
        tally: &mut LoadTally,
        now: Duration,
    ) {
        let place = &mut self.places[number];
        place.tried += 1;
        if place.tried < self.target.address_count() {
            place.turn += 1;
            return self.connect(number, started, tally, now);
        }
        place.tried = 0;
        if self.is_bare {
            tally.failed(started, why);
        }
        self.count_failure(number, why, now);
    }

    fn count_failure(&mut self, number: usize, why: RequestFailure, now: Duration) {
        let place = &mut self.places[number];
        place.failures += 1;
        place.not_before = now + retry_delay(place.failures);
        // A wrong protocol explains more than the failures that follow from it.
        self.last_failure = self.last_failure.filter(|last| last.is_wrong_protocol()).or(Some(why));
        self.has_gaps = true;
    }

    /// Returns the last failure if each of the first `wanted` places failed: as often as it takes
    /// to give up, if `for_good`, or at least once.
    pub(crate) fn failed(&self, wanted: usize, for_good: bool) -> Option<RequestFailure> {
        let least = if for_good { MAX_ATTEMPTS } else { 1 };
        let failed = |place: &ConnectionSlot| place.connection.is_none() && place.failures >= least;
        self.last_failure.filter(|_| self.places.iter().take(wanted).all(failed))
    }

    /// Returns the number of places that have given up.
    pub(crate) fn given_up(&self) -> usize {
        self.places.iter().filter(|p| p.connection.is_none() && p.failures >= MAX_ATTEMPTS).count()
    }

    /// Gives up requests and connection attempts that started at or before `until`.
    pub(crate) fn expire(&mut self, until: Ticks, tally: &mut LoadTally, now: Duration) {
        for number in 0..self.places.len() {
            let place = &mut self.places[number];
            let Some(connection) = &mut place.connection else { continue };
            let oldest = connection.protocol().and_then(|protocol| protocol.oldest());
            if !place.is_open && oldest.is_none() && connection.started <= until {
                self.lost(number, RequestFailure::NotConnected, tally, now);
            } else if oldest.is_some_and(|oldest| oldest <= until) {
                match connection.expire(until, tally) {
                    Ok(()) => self.flush(number, tally, now),
                    Err(why) => self.lost(number, why, tally, now),
                }
            }
        }
    }

    /// Closes connections that were idle since a time.
    pub(crate) fn close_idle(&mut self, since: Duration) {
        for number in 0..self.places.len() {
            let place = &self.places[number];
            let is_idle = place.connection.as_ref().is_some_and(|c| c.in_flight() == 0);
            if is_idle && place.active <= since {
                self.close(number);
            }
        }
    }

    /// Closes all connections.
    pub(crate) fn close_all(&mut self) {
        for number in 0..self.places.len() {
            self.close(number);
        }
    }

    fn close(&mut self, number: usize) {
        let place = &mut self.places[number];
        let Some(mut connection) = place.connection.take() else { return };
        connection.close();
        if std::mem::take(&mut place.is_open) {
            self.open_count -= 1;
        }
    }

    /// Gives up all connections; their requests in flight fail for this reason.
    pub(crate) fn give_up_all(&mut self, why: RequestFailure, tally: &mut LoadTally) {
        for place in &mut self.places {
            let Some(mut connection) = place.connection.take() else { continue };
            connection.fail(why, tally);
            match std::mem::take(&mut place.is_open) {
                true => self.open_count -= 1,
                false if self.is_bare => tally.failed(connection.started, why),
                false => {}
            }
        }
    }

    pub(crate) fn rebase(&mut self, by: Ticks) {
        for connection in self.places.iter_mut().filter_map(|place| place.connection.as_mut()) {
            connection.rebase(by);
        }
    }
}

/// Returns the delay after this number of consecutive failed connections.
fn retry_delay(failures: u32) -> Duration {
    MIN_RETRY_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(MAX_RETRY_DELAY)
}
