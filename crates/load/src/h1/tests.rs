//! Responses as servers send them, split at any position.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::failure::OtherProtocol;
use crate::target::Scheme;

fn request(method: &str, body: &[u8]) -> Request {
    Request {
        method: method.to_owned(),
        scheme: Scheme::Http,
        authority: "x:80".to_owned(),
        path: "/a?b".to_owned(),
        headers: vec![("X-One".to_owned(), "1".to_owned())],
        body: Arc::from(body),
    }
}

/// The outcomes that were reported.
#[derive(Debug, Default, PartialEq)]
struct RecordedOutcomes(Vec<Result<(u16, Vec<u8>), RequestFailure>>);

impl Outcomes for RecordedOutcomes {
    fn answered(&mut self, _started: Ticks, status: u16, body: Body<'_>) {
        let bytes = match body {
            Body::Whole(bytes) => bytes.to_vec(),
            Body::Hashed { bytes, .. } => format!("{bytes} bytes").into_bytes(),
        };
        self.0.push(Ok((status, bytes)));
    }

    fn failed(&mut self, _started: Ticks, failure: RequestFailure) {
        self.0.push(Err(failure));
    }
}

fn sent(method: &str) -> Http1 {
    let mut connection = Http1::new(&request(method, b""));
    connection.send(Ticks(1), &mut Vec::new());
    connection
}

/// Receives a response in chunks of this size.
fn answer(text: &[u8], size: usize) -> (Http1, Result<(), RequestFailure>, RecordedOutcomes) {
    let (mut connection, mut outcomes) = (sent("GET"), RecordedOutcomes::default());
    let mut result = Ok(());
    for chunk in text.chunks(size.max(1)) {
        result = result.and_then(|()| connection.receive(chunk, &mut Vec::new(), &mut outcomes));
    }
    (connection, result, outcomes)
}

fn good(body: &[u8]) -> RecordedOutcomes {
    RecordedOutcomes(vec![Ok((200, body.to_vec()))])
}

#[test]
fn a_request_is_sent_with_its_headers_and_its_body_as_space_permits() {
    let mut connection = Http1::new(&request("POST", b"0123456789"));
    let mut out = Vec::new();
    connection.send(Ticks(0), &mut out);
    assert_eq!(
        String::from_utf8_lossy(&out),
        "POST /a?b HTTP/1.1\r\nhost: x:80\r\ncontent-length: 10\r\nX-One: 1\r\n\r\n"
    );
    out.clear();
    connection.pump(4, &mut out);
    connection.pump(100, &mut out);
    connection.pump(100, &mut out);
    assert_eq!(out, b"0123456789");
    assert_eq!((connection.room(), connection.in_flight()), (0, 1));
}

#[test]
fn every_way_to_end_a_body_is_supported() {
    let texts: [(&[u8], &[u8]); 5] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", b"body"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2;x\r\ndy\r\n0\r\nA: b\r\n\r\n", b"body"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: x, Close\r\n\r\nbody", b"body"),
    ];
    for (text, body) in texts {
        for size in [1, 7, text.len()] {
            let (connection, result, outcomes) = answer(text, size);
            assert_eq!(
                (result, outcomes),
                (Ok(()), good(body)),
                "{}",
                String::from_utf8_lossy(text)
            );
            assert_eq!(connection.is_draining(), text.ends_with(b"Close\r\n\r\nbody"));
            assert_eq!(connection.room() == 1, !connection.is_draining());
        }
    }
}

#[test]
fn responses_to_head_204_and_304_have_no_body_despite_content_length() {
    for (method, status) in [("HEAD", 200), ("GET", 204), ("GET", 304)] {
        let (mut connection, mut outcomes) = (sent(method), RecordedOutcomes::default());
        let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 9\r\n\r\n");
        connection.receive(text.as_bytes(), &mut Vec::new(), &mut outcomes).unwrap();
        assert_eq!(outcomes, RecordedOutcomes(vec![Ok((status, Vec::new()))]));
    }
}

#[test]
fn a_body_ended_by_close_is_complete_only_without_content_length() {
    let (mut connection, _, mut outcomes) = answer(b"HTTP/1.1 200 OK\r\n\r\nall", 5);
    connection.closed(RequestFailure::Closed, &mut outcomes);
    assert_eq!(outcomes, good(b"all"));
    let (mut connection, _, mut outcomes) =
        answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", 5);
    connection.closed(RequestFailure::Closed, &mut outcomes);
    assert_eq!(outcomes, RecordedOutcomes(vec![Err(RequestFailure::CutShort)]));
    let (mut connection, mut outcomes) = (sent("GET"), RecordedOutcomes::default());
    connection.closed(RequestFailure::Reset, &mut outcomes);
    assert_eq!(outcomes, RecordedOutcomes(vec![Err(RequestFailure::Reset)]));
}

#[test]
fn an_invalid_response_is_an_error_with_its_cause() {
    for (text, failure) in [
        (&b"\0\0\x12\x04\0\0\0\0\0"[..], RequestFailure::NotHttp1(OtherProtocol::Http2)),
        (b"\x15\x03\x01\0\x02", RequestFailure::NotHttp1(OtherProtocol::Tls)),
        (b"SSH-2.0-OpenSSH_9\r\n", RequestFailure::NotHttp1(OtherProtocol::Unknown)),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            RequestFailure::Http1("a content-length that is not a number"),
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            RequestFailure::Http1("two different content-lengths"),
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxy",
            RequestFailure::Http1("more bytes than the response"),
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxyz",
            RequestFailure::Http1("a chunk that exceeds its size"),
        ),
        (
            b"HTTP/1.1 101 X\r\n\r\n",
            RequestFailure::Http1("a protocol switch that was not requested"),
        ),
    ] {
        let (_, result, _) = answer(text, text.len());
        assert_eq!(result, Err(failure), "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn unrequested_data_from_the_server_is_an_error_with_its_cause() {
    let says = |bytes: &[u8]| {
        let mut connection = Http1::new(&request("GET", b""));
        connection.receive(bytes, &mut Vec::new(), &mut RecordedOutcomes::default())
    };
    let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64";
    assert_eq!(says(settings), Err(RequestFailure::NotHttp1(OtherProtocol::Http2)));
    let unasked = RequestFailure::Http1("a response without a request");
    assert_eq!(says(b"HTTP/1.1 408 X\r\n\r\n"), Err(unasked));
    assert_eq!(says(b""), Ok(()));
}

#[test]
fn a_request_timeout_ends_the_connection() {
    let (mut connection, mut outcomes) = (sent("GET"), RecordedOutcomes::default());
    assert_eq!(connection.expire(Ticks(0), &mut Vec::new(), &mut outcomes), Ok(()));
    assert!(connection.expire(Ticks(1), &mut Vec::new(), &mut outcomes).is_err());
    assert_eq!(outcomes, RecordedOutcomes(vec![Err(RequestFailure::TimedOut)]));
    connection.closed(RequestFailure::TimedOut, &mut outcomes);
    assert_eq!((outcomes.0.len(), connection.room()), (1, 0));
}

proptest! {
    #[test]
    fn a_long_body_does_not_depend_on_chunk_boundaries(length in 0_usize..10_000, size in 1_usize..3000) {
        let body = "é".repeat(length);
        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let (_, result, outcomes) = answer(text.as_bytes(), size);
        prop_assert_eq!(result, Ok(()));
        let (_, _, whole) = answer(text.as_bytes(), text.len());
        prop_assert_eq!(outcomes, whole);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic_and_yield_one_outcome_per_request(bytes: Vec<u8>, size in 1_usize..20) {
        for start in [&b""[..], b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"] {
            let text = [start, &bytes].concat();
            let (mut connection, _, mut outcomes) = answer(&text, size);
            connection.closed(RequestFailure::Closed, &mut outcomes);
            prop_assert_eq!(outcomes.0.len(), 1);
        }
    }
}
