//! The simplest loop around a protocol: one thread reads, the other does everything else.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use lowtide_load::testing::{Body, Http2, Outcomes, Protocol, Request, Ticks};
use lowtide_load::{RequestFailure, Scheme};

/// Maximum time without data from the server before a test fails.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a request for a path.
pub(crate) fn request(method: &str, path: &str, body: &[u8]) -> Request {
    Request {
        method: method.into(),
        scheme: Scheme::Http,
        authority: "localhost".into(),
        path: path.into(),
        headers: vec![("User-Agent".into(), "lowtide".into())],
        body: Arc::from(body),
    }
}

/// The outcomes of all requests.
#[derive(Debug, Default)]
pub(crate) struct RecordedOutcomes {
    /// By status, hash and length of the body.
    pub(crate) answered: BTreeMap<(u16, u64, u64), usize>,
    pub(crate) failed: BTreeMap<RequestFailure, usize>,
    pub(crate) in_all: usize,
}

impl RecordedOutcomes {
    /// Returns the number of responses with this status and body.
    pub(crate) fn count(&self, status: u16, body: &[u8]) -> usize {
        let key = (status, Body::Whole(body).hash(), body.len() as u64);
        self.answered.get(&key).copied().unwrap_or(0)
    }
}

impl Outcomes for RecordedOutcomes {
    fn answered(&mut self, _: Ticks, status: u16, body: Body<'_>) {
        *self.answered.entry((status, body.hash(), body.bytes())).or_default() += 1;
        self.in_all += 1;
    }

    fn failed(&mut self, _: Ticks, failure: RequestFailure) {
        *self.failed.entry(failure).or_default() += 1;
        self.in_all += 1;
    }
}

/// A connection with its socket.
pub(crate) struct Client {
    protocol: Http2,
    socket: TcpStream,
    /// The bytes from the server; the channel closes with the connection.
    received: Receiver<Vec<u8>>,
    out: Vec<u8>,
    pub(crate) outcomes: RecordedOutcomes,
    pub(crate) max_in_flight: usize,
    is_closed: bool,
    sent: u32,
}

impl Client {
    pub(crate) fn connect(server: SocketAddr, request: &Request) -> Self {
        let socket = TcpStream::connect(server).unwrap();
        let mut reader = socket.try_clone().unwrap();
        let (sender, received) = channel();
        thread::spawn(move || {
            let mut bytes = vec![0; 20_000];
            while let Ok(length @ 1..) = reader.read(&mut bytes)
                && sender.send(bytes[..length].to_vec()).is_ok()
            {}
        });
        let mut protocol = Http2::new(request);
        let mut out = Vec::new();
        protocol.open(&mut out);
        let (outcomes, max_in_flight, is_closed, sent) = Default::default();
        Self { protocol, socket, received, out, outcomes, max_in_flight, is_closed, sent }
    }

    /// Sends this many requests, as there is room, and waits for all outcomes.
    pub(crate) fn run(&mut self, many: usize) {
        self.run_until(many, |client| client.outcomes.in_all >= many);
    }

    /// Sends this many requests, as there is room, until a condition holds.
    pub(crate) fn run_until(&mut self, many: usize, is_done: impl Fn(&Self) -> bool) {
        while !is_done(self) {
            self.start(many);
            self.protocol.pump(64 << 10, &mut self.out);
            // A write error is ignored: the end of the received data reports a closed connection.
            let _ = self.socket.write_all(&self.out);
            let has_written = !self.out.is_empty();
            self.out.clear();
            if is_done(self) || self.is_closed {
                return;
            }
            match self.received.try_recv() {
                Ok(bytes) => self.take(&bytes),
                Err(_) if has_written => {}
                Err(_) => self.wait(),
            }
        }
    }

    fn start(&mut self, many: usize) {
        let room = self.protocol.room().min(many - self.sent as usize);
        for _ in 0..room.min(1000) {
            self.sent += 1;
            self.protocol.send(Ticks(self.sent), &mut self.out);
        }
        self.max_in_flight = self.max_in_flight.max(self.protocol.in_flight());
    }

    fn wait(&mut self) {
        match self.received.recv_timeout(SERVER_TIMEOUT) {
            Ok(bytes) => self.take(&bytes),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                self.close(RequestFailure::Closed)
            }
            Err(error) => panic!("{error} for the server: {:?}", self.outcomes),
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if let Err(failure) = self.protocol.receive(bytes, &mut self.out, &mut self.outcomes) {
            self.close(failure);
        }
    }

    fn close(&mut self, why: RequestFailure) {
        self.protocol.closed(why, &mut self.outcomes);
        self.is_closed = true;
    }

    /// Gives up all requests in flight.
    pub(crate) fn expire(&mut self) {
        self.protocol.expire(Ticks(u32::MAX), &mut self.out, &mut self.outcomes).unwrap();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.protocol.is_draining()
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent as usize
    }

    /// Closes the connection in good order, and waits until the server has closed.
    pub(crate) fn goodbye(mut self) -> RecordedOutcomes {
        self.protocol.close(&mut self.out);
        let _ = self.socket.write_all(&self.out);
        while !self.is_closed {
            self.wait();
        }
        self.outcomes
    }
}
