//! Parses a response: its head, and its body by length, in chunks, or until the connection ends
//! (RFC 9112, section 6.3).

use httparse::{EMPTY_HEADER, Header, Response, Status};

use crate::failure::{OtherProtocol, RequestFailure};

/// Maximum number of headers or trailers of a response.
const MAX_HEADERS: usize = 128;
/// Maximum length of a head, or of a line with a chunk size, in bytes.
const MAX_HEAD_BYTES: usize = 256 << 10;

/// The state of a response that arrives in parts.
#[derive(Debug, Default)]
pub(super) struct ResponseParser {
    state: ParseState,
    status: u16,
    closes: bool,
}

/// The part that the parser expects next.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum ParseState {
    #[default]
    Head,
    /// This many bytes of the body.
    Length(u64),
    /// The size of a chunk.
    ChunkSize,
    /// This many bytes of a chunk.
    Chunk(u64),
    /// The end of line after a chunk.
    ChunkEnd,
    /// The trailers after the last chunk.
    Trailers,
    /// The rest of the body, until the connection ends.
    Rest,
}

/// The result of one parsing step.
#[derive(Debug, PartialEq)]
pub(super) enum ParseProgress {
    /// More bytes are needed.
    NeedMore,
    /// This many bytes were consumed, and are not part of the body.
    Consumed(usize),
    /// This many bytes are part of the body.
    Body(usize),
    /// This many bytes were consumed, and the response is complete.
    End(usize),
}

impl ResponseParser {
    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// Returns whether the head of the response arrived.
    pub(super) fn has_started(&self) -> bool {
        self.state != ParseState::Head
    }

    pub(super) fn keeps_alive(&self) -> bool {
        !self.closes && self.state != ParseState::Rest
    }

    pub(super) fn ends_with_connection(&self) -> bool {
        self.state == ParseState::Rest
    }

    /// Parses the next part of the received bytes.
    pub(super) fn advance(
        &mut self,
        bytes: &[u8],
        is_head: bool,
    ) -> Result<ParseProgress, RequestFailure> {
        match self.state {
            ParseState::Length(0) => Ok(ParseProgress::End(0)),
            _ if bytes.is_empty() => Ok(ParseProgress::NeedMore),
            ParseState::Head => self.head(bytes, is_head),
            ParseState::Length(left) => {
                let count = available(left, bytes);
                self.state = ParseState::Length(left - count as u64);
                Ok(ParseProgress::Body(count))
            }
            ParseState::ChunkSize => self.chunk_size(bytes),
            ParseState::Chunk(left) => {
                let count = available(left, bytes);
                let left = left - count as u64;
                self.state = if left == 0 { ParseState::ChunkEnd } else { ParseState::Chunk(left) };
                Ok(ParseProgress::Body(count))
            }
            ParseState::ChunkEnd => self.chunk_end(bytes),
            ParseState::Trailers => trailers(bytes),
            ParseState::Rest => Ok(ParseProgress::Body(bytes.len())),
        }
    }

    fn head(&mut self, bytes: &[u8], is_head: bool) -> Result<ParseProgress, RequestFailure> {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut response = Response::new(&mut headers);
        let length = match response.parse(bytes) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) if bytes.len() < MAX_HEAD_BYTES => {
                return Ok(ParseProgress::NeedMore);
            }
            Ok(Status::Partial) => {
                return Err(RequestFailure::Http1("a header section without an end"));
            }
            Err(error) => return Err(head_failure(error, bytes)),
        };
        let status = response.code.unwrap_or_default();
        if status == 101 {
            return Err(RequestFailure::Http1("a protocol switch that was not requested"));
        }
        if (100..200).contains(&status) {
            return Ok(ParseProgress::Consumed(length));
        }
        self.status = status;
        self.closes = closes(response.version, response.headers);
        self.state = match is_head || status == 204 || status == 304 {
            true => ParseState::Length(0),
            false => body_state(response.headers)?,
        };
        Ok(ParseProgress::Consumed(length))
    }

    fn chunk_size(&mut self, bytes: &[u8]) -> Result<ParseProgress, RequestFailure> {
        match httparse::parse_chunk_size(bytes) {
            Ok(Status::Complete((used, size))) => {
                self.state = if size == 0 { ParseState::Trailers } else { ParseState::Chunk(size) };
                Ok(ParseProgress::Consumed(used))
            }
            Ok(Status::Partial) if bytes.len() < MAX_HEAD_BYTES => Ok(ParseProgress::NeedMore),
            _ => Err(RequestFailure::Http1("a chunk without a size")),
        }
    }

    fn chunk_end(&mut self, bytes: &[u8]) -> Result<ParseProgress, RequestFailure> {
        match bytes {
            [b'\r', b'\n', ..] => {
                self.state = ParseState::ChunkSize;
                Ok(ParseProgress::Consumed(2))
            }
            [b'\r'] => Ok(ParseProgress::NeedMore),
            _ => Err(RequestFailure::Http1("a chunk that exceeds its size")),
        }
    }
}

fn available(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len())
}

fn trailers(bytes: &[u8]) -> Result<ParseProgress, RequestFailure> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    match httparse::parse_headers(bytes, &mut headers) {
        Ok(Status::Complete((used, _))) => Ok(ParseProgress::End(used)),
        Ok(Status::Partial) if bytes.len() < MAX_HEAD_BYTES => Ok(ParseProgress::NeedMore),
        _ => Err(RequestFailure::Http1("malformed trailers")),
    }
}

/// Returns why a head is invalid: it belongs to another protocol, or is malformed.
fn head_failure(error: httparse::Error, bytes: &[u8]) -> RequestFailure {
    match other_protocol(bytes) {
        Some(other) => RequestFailure::NotHttp1(other),
        None if bytes.starts_with(b"HTTP/") => match error {
            httparse::Error::TooManyHeaders => RequestFailure::Http1("too many headers"),
            httparse::Error::Version => RequestFailure::NotHttp1(OtherProtocol::OtherHttp),
            _ => RequestFailure::Http1("a malformed header section"),
        },
        None => RequestFailure::NotHttp1(OtherProtocol::Unknown),
    }
}

/// Returns the failure for bytes that arrive before a request: an HTTP/2 server sends first.
pub(super) fn unsolicited(bytes: &[u8]) -> RequestFailure {
    other_protocol(bytes)
        .map_or(RequestFailure::Http1("a response without a request"), RequestFailure::NotHttp1)
}

fn other_protocol(bytes: &[u8]) -> Option<OtherProtocol> {
    match bytes {
        // Frames of HTTP/2 start with a length of three bytes; SETTINGS and GOAWAY are short.
        [0, 0, _, 4 | 7, ..] => Some(OtherProtocol::Http2),
        [21 | 22, 3, ..] => Some(OtherProtocol::Tls),
        _ => None,
    }
}

fn closes(version: Option<u8>, headers: &[Header<'_>]) -> bool {
    let says = |word: &str| {
        headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case("connection"))
            .flat_map(|header| header.value.split(|byte| *byte == b','))
            .any(|token| token.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    says("close") || (version == Some(0) && !says("keep-alive"))
}

/// Returns how the body is delimited.
fn body_state(headers: &[Header<'_>]) -> Result<ParseState, RequestFailure> {
    let mut length = None;
    for header in headers {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            let last = header.value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
            return match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                true => Ok(ParseState::ChunkSize),
                false => Ok(ParseState::Rest),
            };
        }
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).ok().map(str::trim);
            let digits = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let value: Option<u64> = digits.and_then(|digits| digits.parse().ok());
            match (value, length) {
                (None, _) => {
                    return Err(RequestFailure::Http1("a content-length that is not a number"));
                }
                (Some(new), Some(old)) if new != old => {
                    return Err(RequestFailure::Http1("two different content-lengths"));
                }
                _ => length = value,
            }
        }
    }
    Ok(length.map_or(ParseState::Rest, ParseState::Length))
}
