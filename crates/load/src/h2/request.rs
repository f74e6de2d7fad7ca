//! The repeated request, as frames.

use std::sync::Arc;

use super::frame::{self, FrameHeader, flag, kind};
use super::hpack::Encoder;
use crate::protocol::Request;

/// The request that a connection repeats.
#[derive(Debug)]
pub(super) struct RepeatedRequest {
    encoder: Encoder,
    pub(super) body: Arc<[u8]>,
    /// Responses to HEAD have a `content-length`, but no body.
    pub(super) is_head: bool,
}

impl RepeatedRequest {
    pub(super) fn new(request: &Request) -> Self {
        Self {
            encoder: Encoder::new(fields(request)),
            body: Arc::clone(&request.body),
            is_head: request.is_head(),
        }
    }

    /// Sets the size in bytes of the server's dynamic table for the request's headers.
    pub(super) fn set_table_size(&mut self, size: u32) {
        self.encoder.set_table_size(size);
    }

    /// Writes the headers on a stream, and ends the stream if there is no body.
    pub(super) fn write(&mut self, stream: u32, out: &mut Vec<u8>) {
        let end_stream = if self.body.is_empty() { flag::END_STREAM } else { 0 };
        let mut rest = self.encoder.block();
        let (mut kind, mut flags) = (kind::HEADERS, end_stream);
        loop {
            let (part, after) = rest.split_at(rest.len().min(frame::MAX_PAYLOAD));
            if after.is_empty() {
                flags |= flag::END_HEADERS;
            }
            FrameHeader { length: part.len(), kind, flags, stream }.write(out);
            out.extend_from_slice(part);
            if after.is_empty() {
                break;
            }
            (rest, kind, flags) = (after, kind::CONTINUATION, 0);
        }
        self.encoder.sent();
    }
}

/// Returns the request's fields in the form of HTTP/2 (RFC 9113, sections 8.2 and 8.3).
fn fields(request: &Request) -> Vec<(String, String)> {
    let mut authority = request.authority.as_str();
    let mut others = Vec::new();
    for (name, value) in &request.headers {
        let name = name.to_ascii_lowercase();
        if name == "host" {
            authority = value;
        } else if !is_of_one_connection(&name, value) {
            others.push((name, value.clone()));
        }
    }
    let length = request.body.len();
    if length > 0 && !others.iter().any(|(name, _)| name == "content-length") {
        others.push(("content-length".into(), length.to_string()));
    }
    let of_the_request = [
        (":method", request.method.as_str()),
        (":scheme", request.scheme.name()),
        (":authority", authority),
        (":path", &request.path),
    ];
    let mut fields: Vec<_> =
        of_the_request.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    fields.append(&mut others);
    fields
}

/// Returns whether a field is specific to the connection, which HTTP/2 does not permit (RFC 9113,
/// section 8.2.2).
fn is_of_one_connection(name: &str, value: &str) -> bool {
    let names = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
    names.contains(&name) || (name == "te" && !value.eq_ignore_ascii_case("trailers"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Scheme;

    fn request(headers: &[(&str, &str)], body: &[u8]) -> Request {
        Request {
            method: "POST".into(),
            scheme: Scheme::Http,
            authority: "localhost:3000".into(),
            path: "/?expire=20000".into(),
            headers: headers.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
            body: body.into(),
        }
    }

    #[test]
    fn host_becomes_the_authority_and_connection_headers_are_dropped() {
        let headers = [("Host", "example.org"), ("Connection", "close"), ("X-Y", "Z"), ("TE", "x")];
        let fields = fields(&request(&headers, b"body"));
        let sent: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(
            sent,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":authority", "example.org"),
                (":path", "/?expire=20000"),
                ("x-y", "Z"),
                ("content-length", "4"),
            ]
        );
    }

    #[test]
    fn a_long_header_block_is_split_into_continuation_frames() {
        let long = "\u{1}".repeat(40_000);
        let mut repeated = RepeatedRequest::new(&request(&[("cookie", &long)], b""));
        let mut out = Vec::new();
        repeated.write(7, &mut out);
        let mut heads = Vec::new();
        let mut rest = &out[..];
        while let Some((head, after)) = rest.split_first_chunk() {
            let head = FrameHeader::parse(head);
            heads.push((head.kind, head.flags, head.stream, head.length == frame::MAX_PAYLOAD));
            rest = &after[head.length..];
        }
        assert_eq!(heads, [(1, 1, 7, true), (9, 0, 7, true), (9, 4, 7, false)]);
    }
}
