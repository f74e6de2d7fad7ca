//! The connections of a load: made, kept, lost, made again, given up.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use mio::{Registry, Token};

use crate::connection::{Connection, ConnectionProgress};
use crate::failure::Failure;
use crate::protocol::{Outcomes, Ticks};
use crate::resolved_target::ResolvedTarget;
use crate::tally::Tally;

/// After so many connections in a row that came to nothing, a place makes no more in its round.
const MAX_ATTEMPTS: u32 = 3;
/// After the first that came to nothing, the next one is made so much later, and then twice as late
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
/// until it is this late.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
/// What is read at once.
const READ_BUFFER_BYTES: usize = 128 << 10;

/// The connections of a load. Each has a place, and may take that of one that is gone.
pub(crate) struct Pool<'a> {
    places: Vec<Place>,
    target: &'a ResolvedTarget,
    registry: Registry,
    buffer: Box<[u8]>,
    /// Places where a request may start.
    ready: VecDeque<usize>,
    /// Places where there may be more to read, though no event will tell.
    unread: Vec<usize>,
    /// Some place has no connection.
    pub(crate) has_gaps: bool,
    /// How many stand.
    pub(crate) open_count: u64,
    /// Whether one ever did.
    pub(crate) was_ever_open: bool,
    /// The last that came to nothing.
    pub(crate) last_failure: Option<Failure>,
    /// A server permits only so many streams on a connection, fewer than were asked for.
    pub(crate) permitted_streams: Option<usize>,
    streams: usize,
    is_bare: bool,
}

#[derive(Default)]
struct Place {
    connection: Option<Connection>,
    /// It is in `ready`.
    is_queued: bool,
    /// The connection stands, so that requests can start or could have.
    is_open: bool,
    /// Something was answered on it.
    has_answered: bool,
    /// So many in a row came to nothing.
    failures: u32,
    /// No connection is made here before this time.
    not_before: Duration,
    /// Which of the target's addresses is tried.
    turn: usize,
    /// How many of them were, of this connection.
    tried: usize,
    /// When a request last started or ended here.
    active: Duration,
    /// What of a trickle was in flight here when the round started: it takes nothing away from it.
    trickle_in_flight: usize,
}

impl Place {
    /// How many requests may start here, of so many that may be in flight.
    fn room(&self, streams: usize) -> usize {
        let connection = self.connection.as_ref();
        connection.map_or(0, |c| c.room(streams.saturating_add(self.trickle_in_flight)))
    }
}

impl<'a> Pool<'a> {
    pub(crate) fn new(
        connections: usize,
        streams: usize,
        target: &'a ResolvedTarget,
        registry: Registry,
        is_bare: bool,
    ) -> Self {
        Self {
            places: (0..connections).map(|_| Place::default()).collect(),
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

    /// Makes connections at the first places that have none and may, until so many have one.
    pub(crate) fn fill(&mut self, wanted: usize, tally: &mut Tally, now: Duration) {
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
            // One that has to wait is looked at again.
            self.has_gaps |= self.places[number].connection.is_none();
        }
    }

    /// Makes the connection of a place, which counts from a time.
    pub(crate) fn connect(
        &mut self,
        number: usize,
        started: Ticks,
        tally: &mut Tally,
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
                self.connect_failed(number, started, Failure::of_connection(&error), tally, now);
            }
        }
    }

    /// Something happened on the connection of a place.
    pub(crate) fn event(&mut self, number: usize, tally: &mut Tally, now: Duration) {
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
            Ok(progress) => self.advanced(number, progress, tally, now),
            Err(why) => self.lost(number, why, tally, now),
        }
    }

    fn advanced(
        &mut self,
        number: usize,
        progress: ConnectionProgress,
        tally: &mut Tally,
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
                // One that was of no use may be so again.
                let place = &mut self.places[number];
                if !place.has_answered {
                    place.failures += 1;
                    place.not_before = now + retry_delay(place.failures);
                    self.last_failure = Some(Failure::Closed);
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

    /// Lets requests start at a place, where there is room.
    fn enqueue(&mut self, number: usize) {
        let place = &mut self.places[number];
        if place.room(self.streams) > 0 && !place.is_queued {
            place.is_queued = true;
            self.ready.push_back(number);
        }
    }

    /// Whether a request may start somewhere.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// At how many places requests may start.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The next place at which requests may start, and how many.
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

    /// Begins a request at a place that has room.
    pub(crate) fn send(&mut self, number: usize, due: Ticks) {
        if let Some(connection) = &mut self.places[number].connection {
            connection.send(due);
        }
    }

    /// Writes what was started at a place.
    pub(crate) fn flush(&mut self, number: usize, tally: &mut Tally, now: Duration) {
        let place = &mut self.places[number];
        place.active = now;
        let Some(connection) = &mut place.connection else { return };
        if connection.flush().is_err() {
            // Reading tells why.
            return self.event(number, tally, now);
        }
        self.note_permitted_streams(number);
        self.enqueue(number);
    }

    /// Sees whether the server permits fewer streams than were asked for.
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

    /// Reads on where there may be more.
    pub(crate) fn read_more(&mut self, tally: &mut Tally, now: Duration) {
        for number in std::mem::take(&mut self.unread) {
            self.event(number, tally, now);
        }
    }

    /// Whether there may be more to read somewhere.
    pub(crate) fn may_read_on(&self) -> bool {
        !self.unread.is_empty()
    }

    /// The connection of a place is gone, or of no use any more.
    fn lost(&mut self, number: usize, why: Failure, tally: &mut Tally, now: Duration) {
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
            place.has_answered || tally.answers > answers || why == Failure::TimedOut;
        match has_answered {
            true => place.not_before = now,
            false => self.count_failure(number, why, now),
        }
    }

    /// The connection of a place could not be made: another address is tried, where there is one.
    fn connect_failed(
        &mut self,
        number: usize,
        started: Ticks,
        why: Failure,
        tally: &mut Tally,
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

    fn count_failure(&mut self, number: usize, why: Failure, now: Duration) {
        let place = &mut self.places[number];
        place.failures += 1;
        place.not_before = now + retry_delay(place.failures);
        // That the server speaks another protocol says more than what else happens then.
        self.last_failure = self.last_failure.filter(|last| last.is_of_protocol()).or(Some(why));
        self.has_gaps = true;
    }

    /// Why all of the first places came to nothing, if so: as many times as it takes to give up, or
    /// once each.
    pub(crate) fn failed(&self, wanted: usize, for_good: bool) -> Option<Failure> {
        let least = if for_good { MAX_ATTEMPTS } else { 1 };
        let failed = |place: &Place| place.connection.is_none() && place.failures >= least;
        self.last_failure.filter(|_| self.places.iter().take(wanted).all(failed))
    }

    /// How many places have given up.
    pub(crate) fn given_up(&self) -> usize {
        self.places.iter().filter(|p| p.connection.is_none() && p.failures >= MAX_ATTEMPTS).count()
    }

    /// Gives up what started at or before a time: requests, and connections that are being made.
    pub(crate) fn expire(&mut self, until: Ticks, tally: &mut Tally, now: Duration) {
        for number in 0..self.places.len() {
            let place = &mut self.places[number];
            let Some(connection) = &mut place.connection else { continue };
            let oldest = connection.protocol().and_then(|protocol| protocol.oldest());
            if !place.is_open && oldest.is_none() && connection.started <= until {
                self.lost(number, Failure::NotConnected, tally, now);
            } else if oldest.is_some_and(|oldest| oldest <= until) {
                match connection.expire(until, tally) {
                    Ok(()) => self.flush(number, tally, now),
                    Err(why) => self.lost(number, why, tally, now),
                }
            }
        }
    }

    /// Closes what nothing has been on since a time.
    pub(crate) fn close_idle(&mut self, since: Duration) {
        for number in 0..self.places.len() {
            let place = &self.places[number];
            let is_idle = place.connection.as_ref().is_some_and(|c| c.in_flight() == 0);
            if is_idle && place.active <= since {
                self.close(number);
            }
        }
    }

    /// Closes all of them.
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

    /// Gives up everything: whatever is in flight fails for a reason.
    pub(crate) fn give_up_all(&mut self, why: Failure, tally: &mut Tally) {
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

/// How long to wait after so many connections in a row came to nothing.
fn retry_delay(failures: u32) -> Duration {
    MIN_RETRY_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(MAX_RETRY_DELAY)
}
