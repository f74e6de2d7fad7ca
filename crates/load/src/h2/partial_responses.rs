//! Answers whose bodies come in several frames. Nearly none do, so that what they need stands
//! apart from the slots.

use std::collections::BTreeMap;

use crate::protocol::{Body, BodyHash};

/// Of a body up to this length, the text is kept until it is told.
const MAX_KEPT_BODY_BYTES: usize = 4096;
/// Of all bodies together, no more than this is kept; beyond, they are told by hash and length.
const MAX_KEPT_TOTAL_BYTES: usize = 1 << 20;

/// An answer that comes in pieces.
#[derive(Debug)]
pub(super) struct PartialResponse {
    pub(super) status: u16,
    /// The length that its headers said.
    pub(super) length: Option<u64>,
    hash: BodyHash,
    text: Option<Vec<u8>>,
    /// What was received and not yet given back to the stream's window.
    unreturned: u32,
}

impl PartialResponse {
    /// Its body so far.
    pub(super) fn body(&self) -> Body<'_> {
        match &self.text {
            Some(text) => Body::Whole(text),
            None => Body::Hashed { hash: self.hash.finish(), bytes: self.hash.bytes() },
        }
    }

    /// Adds to what the window has to get back. Once that is `half`, it is returned, and counted anew.
    pub(super) fn consumed(&mut self, bytes: u32, half: u32) -> Option<u32> {
        self.unreturned += bytes;
        (self.unreturned >= half).then(|| std::mem::take(&mut self.unreturned))
    }
}

/// All answers that come in pieces, by the numbers of their streams.
#[derive(Debug, Default)]
pub(super) struct PartialResponses {
    answers: BTreeMap<u32, PartialResponse>,
    /// The length of all texts.
    kept: usize,
}

impl PartialResponses {
    /// An answer whose body has yet to come.
    pub(super) fn start(&mut self, stream: u32, status: u16, length: Option<u64>) {
        let hash = BodyHash::default();
        let answer =
            PartialResponse { status, length, hash, text: Some(Vec::new()), unreturned: 0 };
        self.answers.insert(stream, answer);
    }

    /// Adds the next piece; none where no such answer was started.
    pub(super) fn add(&mut self, stream: u32, chunk: &[u8]) -> Option<&mut PartialResponse> {
        let answer = self.answers.get_mut(&stream)?;
        answer.hash.add(chunk);
        if let Some(text) = &mut answer.text {
            if text.len() + chunk.len() <= MAX_KEPT_BODY_BYTES
                && self.kept + chunk.len() <= MAX_KEPT_TOTAL_BYTES
            {
                text.extend_from_slice(chunk);
                self.kept += chunk.len();
            } else {
                self.kept -= text.len();
                answer.text = None;
            }
        }
        Some(answer)
    }

    /// Takes an answer out, whether it is whole or not.
    pub(super) fn end(&mut self, stream: u32) -> Option<PartialResponse> {
        let answer = self.answers.remove(&stream)?;
        self.kept -= answer.text.as_ref().map_or(0, Vec::len);
        Some(answer)
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_short_body_is_kept_and_that_of_a_long_one_is_not() {
        let mut chunks = PartialResponses::default();
        chunks.start(1, 200, None);
        chunks.add(1, b"axum(1) ");
        chunks.add(1, b"HTTP/2.0");
        assert!(matches!(
            chunks.end(1).unwrap().body(), Body::Whole(text) if text == b"axum(1) HTTP/2.0"
        ));

        let long = vec![b'x'; MAX_KEPT_BODY_BYTES];
        chunks.start(3, 200, None);
        chunks.add(3, &long);
        chunks.add(3, b"y");
        let answer = chunks.end(3).unwrap();
        let whole = [&long[..], b"y"].concat();
        assert!(matches!(answer.body(), Body::Hashed { .. }));
        assert_eq!(answer.body().bytes(), MAX_KEPT_BODY_BYTES as u64 + 1);
        assert_eq!(answer.body().hash(), Body::Whole(&whole).hash());
        assert_eq!(chunks.kept, 0);
    }

    #[test]
    fn all_texts_together_are_bounded() {
        let mut chunks = PartialResponses::default();
        for stream in 0..2000 {
            chunks.start(stream, 200, None);
            chunks.add(stream, &[0; 1000]);
        }
        assert!(chunks.kept <= MAX_KEPT_TOTAL_BYTES);
        for stream in 0..2000 {
            assert_eq!(chunks.end(stream).unwrap().body().hash(), Body::Whole(&[0; 1000]).hash());
        }
        assert_eq!(chunks.kept, 0);
    }

    #[test]
    fn a_window_is_given_back_by_halves() {
        let mut chunks = PartialResponses::default();
        chunks.start(1, 200, None);
        let answer = chunks.add(1, b"").unwrap();
        assert_eq!(answer.consumed(60, 100), None);
        assert_eq!(answer.consumed(60, 100), Some(120));
        assert_eq!(answer.consumed(60, 100), None);
    }
}
