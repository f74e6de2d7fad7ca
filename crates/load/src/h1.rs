//! HTTP/1.1: one request at a time on a connection, without pipelining.

use crate::failure::RequestFailure;
use crate::protocol::{Body, BodyHash, Outcomes, Protocol, Request, Ticks};

mod response;

use response::{ParseProgress, ResponseParser};

/// Maximum length of a body in several chunks that is kept, so that a report can show it.
const MAX_KEPT_BODY_BYTES: usize = 4 << 10;

/// One connection of HTTP/1.1.
pub(crate) struct Http1 {
    /// The head of the request, as it is sent.
    head: Box<[u8]>,
    request_body: std::sync::Arc<[u8]>,
    is_head: bool,
    in_flight: Option<RequestInFlight>,
    /// Received bytes that are not parsed yet: an incomplete head or chunk size.
    rest: Vec<u8>,
    ended: bool,
}

struct RequestInFlight {
    started: Ticks,
    /// The number of bytes of the request's body that are written.
    written: usize,
    parser: ResponseParser,
    body: BodyCollector,
}

impl Http1 {
    pub(crate) fn new(request: &Request) -> Self {
        Self {
            head: head(request).into(),
            request_body: std::sync::Arc::clone(&request.body),
            is_head: request.is_head(),
            in_flight: None,
            rest: Vec::new(),
            ended: false,
        }
    }

    /// Reports a complete response.
    fn finish(&mut self, outcomes: &mut dyn Outcomes) {
        let Some(flight) = self.in_flight.take() else { return };
        self.ended |= !flight.parser.keeps_alive();
        // After a response to a partly sent request, the server no longer expects the rest of the
        // request.
        self.ended |= flight.written < self.request_body.len();
        outcomes.answered(flight.started, flight.parser.status(), flight.body.body());
    }

    /// Parses received bytes. Returns how many of them were consumed.
    fn take(&mut self, bytes: &[u8], outcomes: &mut dyn Outcomes) -> Result<usize, RequestFailure> {
        let mut used = 0;
        while let Some(flight) = &mut self.in_flight {
            match flight.parser.advance(&bytes[used..], self.is_head)? {
                ParseProgress::NeedMore => break,
                ParseProgress::Consumed(count) => used += count,
                ParseProgress::Body(count) => {
                    flight.body.add(&bytes[used..used + count]);
                    used += count;
                }
                ParseProgress::End(count) => {
                    used += count;
                    self.finish(outcomes);
                }
            }
        }
        Ok(used)
    }
}

impl Protocol for Http1 {
    fn open(&mut self, _out: &mut Vec<u8>) {}

    fn room(&self) -> usize {
        usize::from(self.in_flight.is_none() && !self.ended)
    }

    fn send(&mut self, due: Ticks, out: &mut Vec<u8>) {
        if self.room() == 0 {
            return;
        }
        out.extend_from_slice(&self.head);
        self.in_flight = Some(RequestInFlight {
            started: due,
            written: 0,
            parser: ResponseParser::default(),
            body: BodyCollector::default(),
        });
    }

    fn receive(
        &mut self,
        bytes: &[u8],
        _out: &mut Vec<u8>,
        outcomes: &mut dyn Outcomes,
    ) -> Result<(), RequestFailure> {
        if self.in_flight.is_none() {
            return match bytes.is_empty() {
                true => Ok(()),
                false => Err(response::unsolicited(bytes)),
            };
        }
        if self.rest.is_empty() {
            let used = self.take(bytes, outcomes)?;
            self.rest.extend_from_slice(&bytes[used..]);
        } else {
            let mut rest = std::mem::take(&mut self.rest);
            rest.extend_from_slice(bytes);
            let used = self.take(&rest, outcomes)?;
            rest.drain(..used);
            self.rest = rest;
        }
        if self.in_flight.is_none() && !self.rest.is_empty() {
            return Err(RequestFailure::Http1("more bytes than the response"));
        }
        Ok(())
    }

    fn pump(&mut self, max: usize, out: &mut Vec<u8>) {
        let Some(flight) = &mut self.in_flight else { return };
        let rest = &self.request_body[flight.written..];
        let part = &rest[..rest.len().min(max)];
        out.extend_from_slice(part);
        flight.written += part.len();
    }

    fn expire(
        &mut self,
        until: Ticks,
        _out: &mut Vec<u8>,
        outcomes: &mut dyn Outcomes,
    ) -> Result<(), RequestFailure> {
        let Some(flight) = self.in_flight.take_if(|flight| flight.started <= until) else {
            return Ok(());
        };
        self.ended = true;
        outcomes.failed(flight.started, RequestFailure::TimedOut);
        Err(RequestFailure::TimedOut)
    }

    fn oldest(&self) -> Option<Ticks> {
        self.in_flight.as_ref().map(|flight| flight.started)
    }

    fn in_flight(&self) -> usize {
        usize::from(self.in_flight.is_some())
    }

    fn is_draining(&self) -> bool {
        self.ended
    }

    fn close(&mut self, _out: &mut Vec<u8>) {}

    fn closed(&mut self, why: RequestFailure, outcomes: &mut dyn Outcomes) {
        self.ended = true;
        let Some(flight) = &self.in_flight else { return };
        if why == RequestFailure::Closed && flight.parser.ends_with_connection() {
            return self.finish(outcomes);
        }
        let cut = flight.parser.has_started()
            && matches!(why, RequestFailure::Closed | RequestFailure::Reset);
        let why = if cut { RequestFailure::CutShort } else { why };
        if let Some(flight) = self.in_flight.take() {
            outcomes.failed(flight.started, why);
        }
    }

    fn rebase(&mut self, by: Ticks) {
        if let Some(flight) = &mut self.in_flight {
            flight.started = Ticks(flight.started.0.saturating_sub(by.0));
        }
    }
}

/// The body of a response, as far as it has arrived.
#[derive(Default)]
struct BodyCollector {
    text: Vec<u8>,
    hash: BodyHash,
}

impl BodyCollector {
    fn add(&mut self, chunk: &[u8]) {
        self.hash.add(chunk);
        if self.hash.bytes() <= MAX_KEPT_BODY_BYTES as u64 {
            self.text.extend_from_slice(chunk);
        }
    }

    fn body(&self) -> Body<'_> {
        match self.hash.bytes() <= MAX_KEPT_BODY_BYTES as u64 {
            true => Body::Whole(&self.text),
            false => Body::Hashed { hash: self.hash.finish(), bytes: self.hash.bytes() },
        }
    }
}

/// Returns the head of the request. The user's headers replace the default ones.
fn head(request: &Request) -> Vec<u8> {
    let has = |name: &str| request.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.path);
    if !has("host") {
        head += &format!("host: {}\r\n", request.authority);
    }
    let wants_length = matches!(request.method.as_str(), "POST" | "PUT" | "PATCH");
    if !has("content-length") && (wants_length || !request.body.is_empty()) {
        head += &format!("content-length: {}\r\n", request.body.len());
    }
    for (name, value) in &request.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    head.into_bytes()
}

#[cfg(test)]
mod tests;
