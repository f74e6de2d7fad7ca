//! Tests of the connection as a whole.

use super::*;
use crate::failure::OtherProtocol;

#[test]
fn a_connection_opens_with_the_preface_settings_and_a_window_update() {
    let mut client = Client::new(&request("GET", b""));
    client.http2.open(&mut client.out);
    assert!(client.out.starts_with(frame::PREFACE));
    client.out.drain(..frame::PREFACE.len());
    let kinds: Vec<_> =
        client.wrote().iter().map(|(kind, _, stream, _)| (*kind, *stream)).collect();
    assert_eq!(kinds, [(kind::SETTINGS, 0), (kind::WINDOW_UPDATE, 0)]);
}

#[test]
fn no_request_starts_before_the_settings_of_the_server() {
    let mut client = Client::new(&request("GET", b""));
    assert_eq!(client.http2.room(), 0);
    client.http2.send(Ticks(1), &mut client.out);
    assert_eq!((client.out.len(), client.http2.in_flight()), (0, 0));
    client.receives(&settings(&[])).unwrap();
    assert_eq!(client.wrote(), [(kind::SETTINGS, flag::ACK, 0, vec![])]);
    assert!(client.http2.room() > 1_000_000);
}

#[test]
fn concurrent_requests_respect_the_limit_of_the_server_and_its_updates() {
    let mut client = Client::new(&request("GET", b""));
    client.receives(&settings(&[(3, 2)])).unwrap();
    for at in 1..=3 {
        client.http2.send(Ticks(at), &mut client.out);
    }
    assert_eq!((client.http2.in_flight(), client.http2.room()), (2, 0));
    client.receives(&settings(&[(3, 1)])).unwrap();
    client.receives(&answer(1, b"")).unwrap();
    assert_eq!(client.http2.room(), 0);
    client.receives(&answer(3, b"")).unwrap();
    assert_eq!(client.http2.room(), 1);
    client.receives(&settings(&[(3, 0)])).unwrap();
    assert_eq!((client.http2.room(), client.http2.is_draining()), (0, false));
    client.receives(&settings(&[(3, 5)])).unwrap();
    assert_eq!(client.http2.room(), 5);
}

#[test]
fn headers_do_not_use_the_dynamic_table_if_its_size_is_zero() {
    let mut client = Client::new(&request("GET", b""));
    client.receives(&settings(&[(1, 0)])).unwrap();
    client.out.clear();
    client.http2.send(Ticks(1), &mut client.out);
    client.http2.send(Ticks(2), &mut client.out);
    let blocks: Vec<_> = client.wrote().into_iter().map(|(_, _, _, block)| block).collect();
    assert_eq!(blocks[0][0], 0x20, "the table's size becomes 0");
    assert_eq!(blocks[0][1..], blocks[1]);
}

#[test]
fn pings_are_acknowledged_and_unknown_frames_are_ignored() {
    let mut client = Client::getting(1);
    client.receives(&frame(kind::PING, 0, 0, b"12345678")).unwrap();
    client.receives(&frame(kind::PING, flag::ACK, 0, b"12345678")).unwrap();
    client.receives(&frame(kind::PRIORITY, 0, 1, b"prior")).unwrap();
    client.receives(&frame(0x99, 0xff, 77, b"of a later version")).unwrap();
    assert_eq!(client.wrote(), [(kind::PING, flag::ACK, 0, b"12345678".to_vec())]);
}

#[test]
fn requests_above_the_last_stream_id_of_a_goaway_fail_as_not_processed() {
    let mut client = Client::getting(3);
    client.receives(&go_away(0x7fff_ffff, ErrorCode::NO_ERROR)).unwrap();
    assert!(client.http2.is_draining() && client.outcomes.0.is_empty());
    assert_eq!(client.http2.room(), 0);
    client.receives(&go_away(1, ErrorCode::NO_ERROR)).unwrap();
    let not_processed = Outcome::Failed(RequestFailure::NotProcessed(ErrorCode::NO_ERROR));
    assert_eq!(client.take_outcomes(), [(2, not_processed.clone()), (3, not_processed)]);
    client.receives(&answer(1, b"x")).unwrap();
    assert_eq!(client.take_outcomes(), [(1, answered(200, b"x"))]);
}

#[test]
fn a_connection_closed_after_a_goaway_reports_its_error_code() {
    let mut client = Client::getting(2);
    client.receives(&go_away(1, ErrorCode::ENHANCE_YOUR_CALM)).unwrap();
    client.closes(RequestFailure::Closed);
    let outcomes: Vec<_> = client.take_outcomes().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(
        outcomes,
        [
            Outcome::Failed(RequestFailure::NotProcessed(ErrorCode::ENHANCE_YOUR_CALM)),
            Outcome::Failed(RequestFailure::GoneAway(ErrorCode::ENHANCE_YOUR_CALM)),
        ]
    );
}

#[test]
fn a_close_during_responses_fails_each_request_once() {
    let mut client = Client::getting(3);
    client.receives(&headers(3, 0, b"\x88")).unwrap();
    client.receives(&[headers(5, 0, b"\x88"), data(5, 0, b"half")].concat()).unwrap();
    client.closes(RequestFailure::Reset);
    let failures = [RequestFailure::Reset, RequestFailure::CutShort, RequestFailure::CutShort];
    let outcomes = (1..).zip(failures.map(Outcome::Failed));
    assert_eq!(client.take_outcomes(), outcomes.collect::<Vec<_>>());
    assert_eq!((client.http2.in_flight(), client.http2.room()), (0, 0));
    client.closes(RequestFailure::Reset);
    assert_eq!(
        (client.take_outcomes(), client.receives(b"x")),
        (vec![], Err(RequestFailure::Reset))
    );
}

#[test]
fn a_connection_drains_when_its_stream_ids_are_exhausted() {
    let mut client = Client::getting(0);
    client.http2.streams = Streams::starting_at(0x7fff_ffff);
    assert_eq!((client.http2.room(), client.http2.is_draining()), (1, false));
    client.http2.send(Ticks(1), &mut client.out);
    assert_eq!((client.http2.room(), client.http2.is_draining()), (0, true));
    client.receives(&answer(0x7fff_ffff, b"last")).unwrap();
    assert_eq!(client.take_outcomes(), [(1, answered(200, b"last"))]);
}

#[test]
fn bodies_of_timed_out_requests_are_credited_to_the_connection_window() {
    let mut client = Client::getting(1);
    client.expires(1);
    client.out.clear();
    let chunk = data(1, 0, &[0; frame::MAX_PAYLOAD]);
    let mut returned = 0;
    for _ in 0..(2 * CONNECTION_WINDOW as usize / frame::MAX_PAYLOAD) {
        client.receives(&chunk).unwrap();
        for (kind, _, stream, payload) in client.wrote() {
            assert_eq!((kind, stream), (kind::WINDOW_UPDATE, 0));
            returned += u32::from_be_bytes(payload.try_into().unwrap());
        }
    }
    assert_eq!(returned, 2 * CONNECTION_WINDOW);
}

#[test]
fn the_stream_window_is_updated_during_a_long_body() {
    let mut client = Client::getting(1);
    client.receives(&headers(1, 0, b"\x88")).unwrap();
    let chunk = data(1, 0, &[7; frame::MAX_PAYLOAD]);
    let chunks = 3 * settings::STREAM_WINDOW as usize / frame::MAX_PAYLOAD;
    for _ in 0..chunks {
        client.receives(&chunk).unwrap();
    }
    let wrote = client.wrote();
    let of_stream = wrote.iter().filter(|(_, _, stream, _)| *stream == 1).count();
    assert_eq!(of_stream, 6, "half a window at a time");
    client.receives(&data(1, flag::END_STREAM, b"")).unwrap();
    let body = vec![7; chunks * frame::MAX_PAYLOAD];
    let outcome = Outcome::Answered(200, Err(body.len() as u64), Body::Whole(&body).hash());
    assert_eq!(client.take_outcomes(), [(1, outcome)]);
}

#[test]
fn a_protocol_violation_ends_the_connection_with_an_error_and_a_goaway() {
    let started = |bytes: &[u8]| frame(kind::HEADERS, 0, 1, bytes);
    let protocol: [Vec<u8>; 14] = [
        data(0, 0, b"x"),
        data(3, 0, b"x"),
        data(1, flag::PADDED, b"\x09x"),
        headers(2, 0, b"\x88"),
        reset(3, ErrorCode::CANCEL),
        frame(kind::SETTINGS, 0, 1, b""),
        frame(kind::PING, 0, 1, b"12345678"),
        frame(kind::GOAWAY, 0, 1, b"12345678"),
        frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, b"\0\0\0\x02\x82"),
        window_update(0, 0),
        window_update(3, 1),
        frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"\x88"),
        [started(b"\x88"), data(1, 0, b"x")].concat(),
        [started(b"\x88"), frame(kind::CONTINUATION, 0, 3, b"x")].concat(),
    ];
    let size: [Vec<u8>; 5] = [
        frame(kind::RST_STREAM, 0, 1, b"12345"),
        frame(kind::PING, 0, 0, b"1234567"),
        frame(kind::GOAWAY, 0, 0, b"1234567"),
        frame(kind::SETTINGS, flag::ACK, 0, b"x"),
        frame(kind::WINDOW_UPDATE, 0, 0, b"123"),
    ];
    let others = [
        (ErrorCode::COMPRESSION_ERROR, headers(1, 0, b"\xff")),
        (ErrorCode::FLOW_CONTROL_ERROR, window_update(0, 0x7fff_ffff)),
        (ErrorCode::FLOW_CONTROL_ERROR, settings(&[(4, 0x8000_0000)])),
    ];
    let all = protocol.map(|bytes| (ErrorCode::PROTOCOL_ERROR, bytes)).into_iter();
    let all = all.chain(size.into_iter().map(|b| (ErrorCode::FRAME_SIZE_ERROR, b)));
    for (code, bytes) in all.chain(others) {
        let mut client = Client::getting(1);
        let failure = client.receives(&bytes).expect_err(&format!("{bytes:?}"));
        assert_eq!(code_of(failure), code, "{failure}");
        assert_eq!(client.out, go_away(0, code), "{failure}");
        client.closes(failure);
        assert_eq!(client.take_outcomes(), [(1, Outcome::Failed(failure))]);
    }
}

#[test]
fn headers_may_span_several_frames_but_not_without_a_limit() {
    let mut client = Client::getting(1);
    client.receives(&frame(kind::HEADERS, flag::END_STREAM, 1, b"")).unwrap();
    client.receives(&frame(kind::CONTINUATION, 0, 1, b"\x08\x03")).unwrap();
    client.receives(&frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"404")).unwrap();
    assert_eq!(client.take_outcomes(), [(1, answered(404, b""))]);

    for payload in [&b""[..], &[0; frame::MAX_PAYLOAD]] {
        let mut client = Client::getting(1);
        client.receives(&frame(kind::HEADERS, 0, 1, payload)).unwrap();
        let go_on = frame(kind::CONTINUATION, 0, 1, payload);
        let failure = (0..100).find_map(|_| client.receives(&go_on).err()).unwrap();
        assert_eq!(code_of(failure), ErrorCode::ENHANCE_YOUR_CALM);
    }
}

#[test]
fn an_http_1_response_is_an_error_that_names_the_protocol() {
    let mut client = Client::new(&request("GET", b""));
    let failure = client.receives(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err();
    assert_eq!((failure, client.out.len()), (RequestFailure::NotHttp2(OtherProtocol::Http11), 0));
}

#[test]
fn closing_a_connection_sends_a_goaway() {
    let mut client = Client::getting(0);
    client.http2.close(&mut client.out);
    assert_eq!(client.out, go_away(0, ErrorCode::NO_ERROR));
}
