//! Properties that hold for any server.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// The response to one request.
#[derive(Debug, Clone)]
enum Script {
    Whole { interim: bool, says_length: bool, chunks: Vec<Vec<u8>>, padding: u8, trailers: bool },
    CutShort(Vec<u8>),
    Reset(u32),
    Never,
}

fn script() -> impl Strategy<Value = Script> {
    let body = || prop::collection::vec(any::<u8>(), 0..40);
    let whole = (
        any::<bool>(),
        any::<bool>(),
        prop::collection::vec(body(), 0..5),
        any::<u8>(),
        any::<bool>(),
    );
    prop_oneof![
        8 => whole.prop_map(|(interim, says_length, chunks, padding, trailers)| {
            Script::Whole { interim, says_length, chunks, padding, trailers }
        }),
        1 => body().prop_map(Script::CutShort),
        1 => (1_u32..14).prop_map(Script::Reset),
        1 => Just(Script::Never),
    ]
}

impl Script {
    /// Returns the server's frames, in order.
    fn frames(&self, stream: u32) -> Vec<Vec<u8>> {
        match self {
            Self::Never => vec![],
            Self::Reset(code) => vec![super::reset(stream, ErrorCode(*code))],
            Self::CutShort(body) => {
                // Declares one byte too many, in a field that goes into the table.
                let length = (body.len() + 1).to_string();
                let block = [b"\x88\x5c", &[length.len() as u8][..], length.as_bytes()].concat();
                vec![headers(stream, 0, &block), data(stream, flag::END_STREAM, body)]
            }
            Self::Whole { interim, says_length, chunks, padding, trailers } => {
                let mut frames = Vec::new();
                if *interim {
                    frames.push(headers(stream, 0, b"\x08\x03103"));
                }
                let length = chunks.concat().len().to_string();
                let mut block = b"\x88".to_vec();
                if *says_length {
                    block.extend([0x0f, 0x0d, length.len() as u8]);
                    block.extend(length.as_bytes());
                }
                let (first, rest) = block.split_at(block.len() / 2);
                let ends = chunks.is_empty() && !trailers;
                frames.push(if ends {
                    headers(stream, flag::END_STREAM, &block)
                } else {
                    // No other frame may come between these two.
                    let go_on = frame(kind::CONTINUATION, flag::END_HEADERS, stream, rest);
                    [frame(kind::HEADERS, 0, stream, first), go_on].concat()
                });
                for (at, chunk) in chunks.iter().enumerate() {
                    let is_last = at + 1 == chunks.len() && !trailers;
                    let flags = if is_last { flag::END_STREAM } else { 0 };
                    let zeros = vec![0; usize::from(*padding)];
                    let padded = [&[*padding][..], chunk, &zeros].concat();
                    frames.push(data(stream, flags | flag::PADDED, &padded));
                }
                if *trailers {
                    frames.push(headers(stream, flag::END_STREAM, b"\x40\x01x\x01y"));
                }
                frames
            }
        }
    }

    fn expected(&self) -> Outcome {
        match self {
            Self::Never => Outcome::Failed(RequestFailure::Closed),
            Self::CutShort(_) => Outcome::Failed(RequestFailure::CutShort),
            Self::Reset(7) => Outcome::Failed(RequestFailure::RefusedStream),
            Self::Reset(code) => Outcome::Failed(RequestFailure::StreamReset(ErrorCode(*code))),
            Self::Whole { chunks, .. } => answered(200, &chunks.concat()),
        }
    }
}

/// Returns all frames in an order that preserves the order within each stream.
fn interleaved(scripts: &[Script], order: &[Index]) -> Vec<u8> {
    let streams = (0..).map(|n| 2 * n + 1);
    let mut left: Vec<_> =
        streams.zip(scripts).map(|(stream, s)| s.frames(stream).into_iter()).collect();
    let mut order = order.iter().cycle();
    let mut bytes = settings(&[]);
    while let Some(next) = order.next().filter(|_| !left.is_empty()) {
        let at = next.index(left.len());
        match left[at].next() {
            Some(frame) => bytes.extend(frame),
            None => drop(left.remove(at)),
        }
    }
    bytes
}

/// Sends `many` requests after the server's SETTINGS, passes in the bytes in chunks, and closes.
fn outcomes(many: usize, body: &[u8], bytes: &[u8], cuts: &[usize]) -> Vec<(u32, Outcome)> {
    let mut client = Client::new(&request("POST", body));
    let (mut rest, mut result) = (bytes, client.receives(&settings(&[])));
    for at in 0..many as u32 {
        client.http2.send(Ticks(at), &mut client.out);
        client.http2.pump(100, &mut client.out);
    }
    for cut in cuts.iter().cycle() {
        let (chunk, after) = rest.split_at((*cut).clamp(1, rest.len().max(1)).min(rest.len()));
        rest = after;
        result = client.receives(chunk);
        client.http2.pump(1000, &mut client.out);
        if rest.is_empty() || result.is_err() {
            break;
        }
    }
    client.closes(result.err().unwrap_or(RequestFailure::Closed));
    assert_eq!((client.http2.in_flight(), client.http2.room()), (0, 0));
    client.take_outcomes()
}

fn each_once(recorded: &[(u32, Outcome)]) -> Vec<u32> {
    let mut started: Vec<u32> = recorded.iter().map(|(started, _)| *started).collect();
    started.sort_unstable();
    started
}

proptest! {
    #[test]
    fn any_responses_in_any_order_and_chunking_yield_the_expected_outcomes(
        scripts in prop::collection::vec(script(), 1..12),
        order: [Index; 16],
        cuts in prop::collection::vec(1..60_usize, 1..10),
    ) {
        let bytes = interleaved(&scripts, &order);
        let whole = outcomes(scripts.len(), b"", &bytes, &[bytes.len()]);
        prop_assert_eq!(&outcomes(scripts.len(), b"", &bytes, &cuts), &whole);
        let mut by_request = whole;
        by_request.sort_by_key(|(started, _)| *started);
        let expected: Vec<_> = (0..).zip(scripts.iter().map(Script::expected)).collect();
        prop_assert_eq!(by_request, expected);
    }

    #[test]
    fn arbitrary_bytes_yield_one_outcome_per_request(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        body in prop::collection::vec(any::<u8>(), 0..50),
        many in 0..20_usize,
    ) {
        let recorded = outcomes(many, &body, &bytes, &[7]);
        prop_assert!(each_once(&recorded).into_iter().eq(0..many as u32));
    }

    /// Frames with valid headers and invalid content reach more code than random bytes.
    #[test]
    fn arbitrary_frames_yield_one_outcome_per_request(
        frames in prop::collection::vec(
            (0..11_u8, any::<u8>(), 0..24_u32, prop::collection::vec(any::<u8>(), 0..20)), 0..40
        ),
        body in prop::collection::vec(any::<u8>(), 0..50),
        many in 0..12_usize,
    ) {
        let bytes: Vec<u8> =
            frames.iter().flat_map(|(kind, flags, stream, p)| frame(*kind, *flags, *stream, p)).collect();
        let recorded = outcomes(many, &body, &bytes, &[50]);
        prop_assert!(each_once(&recorded).into_iter().eq(0..many as u32));
    }

    #[test]
    fn damaged_responses_yield_one_outcome_per_request(
        scripts in prop::collection::vec(script(), 1..12),
        order: [Index; 16],
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = interleaved(&scripts, &order);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let recorded = outcomes(scripts.len(), b"body", &bytes, &[33]);
        prop_assert!(each_once(&recorded).into_iter().eq(0..scripts.len() as u32));
    }
}

/// Runs the same test with a fixed seed and many more cases, on responses of every kind.
#[test]
fn thousands_of_damaged_responses_yield_one_outcome_per_request() {
    let chunks = vec![b"in ".to_vec(), Vec::new(), b"pieces".to_vec()];
    let whole = |interim, says_length, trailers| Script::Whole {
        interim,
        says_length,
        chunks: chunks.clone(),
        padding: 3,
        trailers,
    };
    let scripts = [
        whole(true, true, true),
        whole(false, true, false),
        whole(true, false, false),
        Script::CutShort(b"short".to_vec()),
        Script::Reset(7),
        Script::Never,
    ];
    let frames = (0..).map(|n| 2 * n + 1).zip(&scripts).flat_map(|(stream, s)| s.frames(stream));
    let end = [settings(&[(3, 2), (4, 3)]), window_update(0, 9), go_away(5, ErrorCode(11))];
    let valid: Vec<u8> = frames.chain(end).flatten().collect();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 20) as usize % below
    };
    for _ in 0..20_000 {
        let mut bytes = valid.clone();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            bytes[at] ^= 1 << random(8);
        }
        bytes.truncate(bytes.len() - random(9));
        let recorded = outcomes(scripts.len(), b"body", &bytes, &[1 + random(50)]);
        assert!(each_once(&recorded).into_iter().eq(0..scripts.len() as u32), "{bytes:?}");
    }
}
