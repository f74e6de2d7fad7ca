//! Tests of a connection against a server that is simulated by bytes.

mod connection;
mod properties;
mod requests;
mod uploads;

use std::sync::Arc;

use super::*;
use crate::protocol::Body;
use crate::target::Scheme;
use frame::{FrameHeader, HEADER_BYTES, flag, kind};

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// Status, the body if its bytes were kept, otherwise its length, and its hash.
    Answered(u16, Result<Vec<u8>, u64>, u64),
    Failed(RequestFailure),
}

/// All outcomes, with the start of each request.
#[derive(Debug, Default)]
struct RecordedOutcomes(Vec<(u32, Outcome)>);

impl Outcomes for RecordedOutcomes {
    fn answered(&mut self, started: Ticks, status: u16, body: Body<'_>) {
        let text = match body {
            Body::Whole(text) => Ok(text.to_vec()),
            Body::Hashed { bytes, .. } => Err(bytes),
        };
        self.0.push((started.0, Outcome::Answered(status, text, body.hash())));
    }

    fn failed(&mut self, started: Ticks, failure: RequestFailure) {
        self.0.push((started.0, Outcome::Failed(failure)));
    }
}

/// A connection, the bytes that it wrote, and the outcomes that it reported.
struct Client {
    http2: Http2,
    out: Vec<u8>,
    outcomes: RecordedOutcomes,
}

fn request(method: &str, body: &[u8]) -> Request {
    Request {
        method: method.into(),
        scheme: Scheme::Http,
        authority: "localhost:3000".into(),
        path: "/".into(),
        headers: Vec::new(),
        body: Arc::from(body),
    }
}

impl Client {
    /// Creates a client before any data from the server.
    fn new(request: &Request) -> Self {
        Self { http2: Http2::new(request), out: Vec::new(), outcomes: RecordedOutcomes::default() }
    }

    /// Creates a client after the server's empty SETTINGS, with requests in flight that started at
    /// 1, 2, …
    fn with_requests(request: &Request, many: u32) -> Self {
        let mut client = Self::new(request);
        client.receives(&settings(&[])).unwrap();
        for at in 1..=many {
            client.http2.send(Ticks(at), &mut client.out);
        }
        client.http2.pump(1 << 20, &mut client.out);
        client.out.clear();
        client
    }

    fn getting(many: u32) -> Self {
        Self::with_requests(&request("GET", b""), many)
    }

    fn receives(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        self.http2.receive(bytes, &mut self.out, &mut self.outcomes)
    }

    fn expires(&mut self, until: u32) {
        self.http2.expire(Ticks(until), &mut self.out, &mut self.outcomes).unwrap();
    }

    fn closes(&mut self, why: RequestFailure) {
        self.http2.closed(why, &mut self.outcomes);
    }

    /// Returns the outcomes since the last call.
    fn take_outcomes(&mut self) -> Vec<(u32, Outcome)> {
        std::mem::take(&mut self.outcomes.0)
    }

    /// Returns the frames that were written since the last call.
    fn wrote(&mut self) -> Vec<(u8, u8, u32, Vec<u8>)> {
        let out = std::mem::take(&mut self.out);
        let (mut rest, mut frames) = (&out[..], Vec::new());
        while let Some((head, after)) = rest.split_first_chunk() {
            let head = FrameHeader::parse(head);
            let (payload, after) = after.split_at(head.length);
            frames.push((head.kind, head.flags, head.stream, payload.to_vec()));
            rest = after;
        }
        assert!(rest.is_empty());
        frames
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
    frame::write(&mut out, kind, flags, stream, payload);
    out
}

fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let pair = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(kind::SETTINGS, 0, 0, &settings.iter().flat_map(pair).collect::<Vec<_>>())
}

fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    frame(kind::HEADERS, flags | flag::END_HEADERS, stream, block)
}

fn data(stream: u32, flags: u8, body: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flags, stream, body)
}

fn reset(stream: u32, code: ErrorCode) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &code.0.to_be_bytes())
}

fn go_away(last: u32, code: ErrorCode) -> Vec<u8> {
    frame(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), code.0.to_be_bytes()].concat())
}

fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

/// Returns a complete response with status 200.
fn answer(stream: u32, body: &[u8]) -> Vec<u8> {
    [headers(stream, 0, b"\x88"), data(stream, flag::END_STREAM, body)].concat()
}

fn answered(status: u16, body: &[u8]) -> Outcome {
    Outcome::Answered(status, Ok(body.to_vec()), Body::Whole(body).hash())
}

/// Returns the error code of an HTTP/2 violation.
fn code_of(failure: RequestFailure) -> ErrorCode {
    match failure {
        RequestFailure::Http2 { code, .. } => code,
        other => panic!("{other}"),
    }
}
