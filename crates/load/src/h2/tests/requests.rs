//! Tests of single requests.

use super::*;

const END: u8 = flag::END_STREAM;

#[test]
fn responses_in_two_frames_are_reported_in_arrival_order() {
    let mut client = Client::getting(2);
    client.receives(&[answer(3, b"second"), answer(1, b"first")].concat()).unwrap();
    assert_eq!(
        client.take_outcomes(),
        [(2, answered(200, b"second")), (1, answered(200, b"first"))]
    );
    assert_eq!((client.http2.in_flight(), client.out.len()), (0, 0));
}

#[test]
fn a_response_may_have_no_body_or_an_empty_one() {
    let mut client = Client::getting(2);
    client.receives(&headers(1, END, b"\x89")).unwrap();
    client.receives(&answer(3, b"")).unwrap();
    assert_eq!(client.take_outcomes(), [(1, answered(204, b"")), (2, answered(200, b""))]);
}

#[test]
fn a_body_in_several_frames_is_joined_and_ended_by_trailers() {
    let mut client = Client::getting(2);
    for bytes in [headers(1, 0, b"\x88"), data(1, 0, b"a"), data(1, 0, b""), data(1, END, b"b")] {
        client.receives(&bytes).unwrap();
    }
    for bytes in [headers(3, 0, b"\x88"), data(3, 0, b"c"), headers(3, END, b"\x00\x01x\x01y")] {
        client.receives(&bytes).unwrap();
    }
    assert_eq!(client.take_outcomes(), [(1, answered(200, b"ab")), (2, answered(200, b"c"))]);
}

#[test]
fn interim_responses_are_skipped() {
    let mut client = Client::getting(1);
    let interim = headers(1, 0, b"\x08\x03103");
    client.receives(&[&interim[..], &interim, &answer(1, b"x")].concat()).unwrap();
    assert_eq!(client.take_outcomes(), [(1, answered(200, b"x"))]);
}

#[test]
fn padding_is_not_part_of_the_body() {
    let mut client = Client::getting(1);
    client.receives(&headers(1, flag::PADDED, b"\x02\x88\0\0")).unwrap();
    client.receives(&data(1, END | flag::PADDED, b"\x03body\0\0\0")).unwrap();
    assert_eq!(client.take_outcomes(), [(1, answered(200, b"body"))]);
}

#[test]
fn a_body_that_does_not_match_its_content_length_is_cut_short() {
    let outcomes = |frames: &[Vec<u8>]| {
        let mut client = Client::getting(1);
        client.receives(&frames.concat()).unwrap();
        client.take_outcomes()
    };
    let of_four = || headers(1, 0, b"\x88\x0f\x0d\x014");
    let cut_short = [(1, Outcome::Failed(RequestFailure::CutShort))];
    assert_eq!(outcomes(&[of_four(), data(1, END, b"four")]), [(1, answered(200, b"four"))]);
    assert_eq!(outcomes(&[of_four(), data(1, END, b"3..")]), cut_short);
    assert_eq!(outcomes(&[of_four(), data(1, 0, b"3.."), data(1, END, b"")]), cut_short);
    assert_eq!(outcomes(&[of_four(), data(1, 0, b"5....")]), cut_short);
    assert_eq!(outcomes(&[headers(1, END, b"\x88\x0f\x0d\x014")]), cut_short);
    assert_eq!(outcomes(&[headers(1, END, b"\x8b\x0f\x0d\x014")]), [(1, answered(304, b""))]);
}

#[test]
fn a_response_to_head_has_a_content_length_and_no_body() {
    let mut client = Client::with_requests(&request("HEAD", b""), 1);
    client.receives(&headers(1, END, b"\x88\x0f\x0d\x014")).unwrap();
    assert_eq!(client.take_outcomes(), [(1, answered(200, b""))]);
}

#[test]
fn a_content_length_over_32_bits_is_enforced() {
    let mut client = Client::getting(1);
    client.receives(&headers(1, 0, b"\x88\x0f\x0d\x0a5000000000")).unwrap();
    client.receives(&data(1, END, b"little")).unwrap();
    assert_eq!(client.take_outcomes(), [(1, Outcome::Failed(RequestFailure::CutShort))]);
}

#[test]
fn a_malformed_response_fails_only_its_own_request() {
    let wrong: [Vec<u8>; 6] = [
        data(1, END, b"a body before its headers"),
        headers(1, END, b"\x00\x01x\x01y"),
        headers(1, END, b"\x08\x03100"),
        headers(1, END, b"\x08\x02ok"),
        [headers(1, 0, b"\x88"), headers(1, 0, b"\x00\x01x\x01y")].concat(),
        [headers(1, 0, b"\x88"), data(1, 0, b"x"), headers(1, END, b"\x88")].concat(),
    ];
    for bytes in wrong {
        let mut client = Client::getting(2);
        client.receives(&[bytes, answer(3, b"x")].concat()).unwrap();
        let outcomes = client.take_outcomes();
        let [(1, Outcome::Failed(failure)), (2, Outcome::Answered(..))] = &outcomes[..] else {
            panic!("{outcomes:?}")
        };
        assert_eq!(code_of(*failure), ErrorCode::PROTOCOL_ERROR);
        assert_eq!(client.out, reset(1, ErrorCode::PROTOCOL_ERROR));
    }
}

#[test]
fn a_request_reset_by_the_server_fails_with_the_reason() {
    let mut client = Client::getting(3);
    client.receives(&reset(1, ErrorCode::REFUSED_STREAM)).unwrap();
    client.receives(&reset(3, ErrorCode(2))).unwrap();
    client.receives(&[answer(5, b"x"), reset(5, ErrorCode::NO_ERROR)].concat()).unwrap();
    let outcomes = client.take_outcomes();
    assert_eq!(outcomes[0], (1, Outcome::Failed(RequestFailure::RefusedStream)));
    assert_eq!(outcomes[1], (2, Outcome::Failed(RequestFailure::StreamReset(ErrorCode(2)))));
    assert_eq!(outcomes[2..], [(3, answered(200, b"x"))]);
}

#[test]
fn requests_time_out_oldest_first_and_late_responses_are_ignored() {
    let mut client = Client::getting(4);
    client.receives(&answer(3, b"x")).unwrap();
    client.take_outcomes();
    client.expires(3);
    let timed_out = |started| (started, Outcome::Failed(RequestFailure::TimedOut));
    assert_eq!(client.take_outcomes(), [timed_out(1), timed_out(3)]);
    let cancelled = [1, 5].map(|stream| reset(stream, ErrorCode::CANCEL));
    assert_eq!(std::mem::take(&mut client.out), cancelled.concat());
    assert_eq!((client.http2.oldest(), client.http2.in_flight()), (Some(Ticks(4)), 1));

    // The length in the late response goes into the table, and the next response refers to it.
    client.receives(&headers(1, 0, b"\x88\x5c\x012")).unwrap();
    client.receives(&[data(1, END, b"xy"), headers(7, 0, b"\x88\xbe")].concat()).unwrap();
    client.receives(&data(7, END, b"xy")).unwrap();
    assert_eq!(client.take_outcomes(), [(4, answered(200, b"xy"))]);
}

#[test]
fn rebasing_the_ticks_keeps_the_age_of_requests_in_flight() {
    let mut client = Client::getting(3);
    client.http2.rebase(Ticks(2));
    client.closes(RequestFailure::Reset);
    let started: Vec<u32> = client.take_outcomes().iter().map(|(started, _)| *started).collect();
    assert_eq!(started, [0, 0, 1]);
}

#[test]
fn an_aborted_response_leaves_no_partial_data() {
    let mut client = Client::getting(4);
    for stream in [1, 3, 5, 7] {
        client.receives(&[headers(stream, 0, b"\x88"), data(stream, 0, b"x")].concat()).unwrap();
    }
    assert_eq!(client.http2.partial.len(), 4);
    client.expires(1);
    client.receives(&reset(3, ErrorCode::CANCEL)).unwrap();
    client.receives(&headers(5, 0, b"\x88")).unwrap();
    client.receives(&go_away(5, ErrorCode::NO_ERROR)).unwrap();
    assert_eq!((client.take_outcomes().len(), client.http2.partial.len()), (4, 0));
}
