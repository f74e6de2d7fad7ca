//! Tests of requests with bodies.

use super::*;

fn posting(body: &[u8]) -> Client {
    Client::with_requests(&request("POST", body), 0)
}

impl Client {
    /// Returns the lengths of the DATA frames that are sent now, with their flags.
    fn pumps(&mut self) -> Vec<(u32, usize, u8)> {
        self.http2.pump(1 << 20, &mut self.out);
        let wrote = self.wrote().into_iter().filter(|frame| frame.0 == kind::DATA);
        wrote.map(|(_, flags, stream, payload)| (stream, payload.len(), flags)).collect()
    }
}

#[test]
fn the_body_and_not_the_headers_ends_the_stream() {
    let mut client = posting(b"body");
    client.http2.send(Ticks(1), &mut client.out);
    let (_, flags, _, _) = client.wrote()[0];
    assert_eq!(flags, flag::END_HEADERS);
    assert_eq!(client.pumps(), [(1, 4, flag::END_STREAM)]);
    client.receives(&answer(1, b"x")).unwrap();
    assert_eq!((client.take_outcomes(), client.out.len()), (vec![(1, answered(200, b"x"))], 0));
}

#[test]
fn an_upload_waits_for_a_window_and_resumes_when_it_grows() {
    let mut client = posting(&[0; 20]);
    client.receives(&settings(&[(4, 5)])).unwrap();
    client.http2.send(Ticks(1), &mut client.out);
    assert_eq!(client.pumps(), [(1, 5, 0)]);
    client.receives(&window_update(1, 1)).unwrap();
    assert_eq!(client.pumps(), [(1, 1, 0)]);
    client.receives(&settings(&[(4, 15)])).unwrap();
    assert_eq!(client.pumps(), [(1, 10, 0)]);
    client.receives(&window_update(1, 1000)).unwrap();
    assert_eq!(client.pumps(), [(1, 4, flag::END_STREAM)]);
}

#[test]
fn a_response_before_the_end_of_the_body_cancels_the_upload() {
    let mut client = posting(&[0; 100_000]);
    client.http2.send(Ticks(1), &mut client.out);
    client.pumps();
    client.receives(&answer(1, b"enough")).unwrap();
    assert_eq!(client.take_outcomes(), [(1, answered(200, b"enough"))]);
    assert_eq!(std::mem::take(&mut client.out), reset(1, ErrorCode::CANCEL));
    client.receives(&[window_update(0, 100_000), window_update(1, 100_000)].concat()).unwrap();
    assert_eq!(client.pumps(), []);
}

#[test]
fn an_invalid_stream_window_update_fails_only_its_own_request() {
    for (update, code) in [
        (window_update(1, 0x7fff_ffff), ErrorCode::FLOW_CONTROL_ERROR),
        (window_update(1, 0), ErrorCode::PROTOCOL_ERROR),
    ] {
        let mut client = posting(&[0; 100_000]);
        client.http2.send(Ticks(1), &mut client.out);
        client.out.clear();
        client.receives(&update).unwrap();
        let outcomes = client.take_outcomes();
        let [(1, Outcome::Failed(failure))] = outcomes[..] else { panic!("{outcomes:?}") };
        assert_eq!((code_of(failure), &client.out), (code, &reset(1, code)));
    }
}
