//! Answers whose bodies come in several frames. Nearly none do, so that what they need stands
//! apart from the slots.

use std::collections::BTreeMap;

use crate::protocol::{Body, BodyHash};

/// Of a body up to this length, the text is kept until it is told.
const KEPT: usize = 4096;
/// Of all bodies together, no more than this is kept; beyond, they are told by hash and length.
const KEPT_IN_ALL: usize = 1 << 20;

/// An answer that comes in pieces.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The length that its headers said.
    pub(super) length: Option<u64>,
    hash: BodyHash,
    text: Option<Vec<u8>>,
    /// What was received and not yet given back to the stream's window.
    unreturned: u32,
}

impl Answer {
    /// Its body so far.
    pub(super) fn body(&self) -> Body<'_> {
        match &self.text {
            Some(text) => Body::Whole(text),
            None => Body::Pieces { hash: self.hash.finish(), bytes: self.hash.bytes() },
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
pub(super) struct Pieces {
    answers: BTreeMap<u32, Answer>,
    /// The length of all texts.
    kept: usize,
}

impl Pieces {
    /// An answer whose body has yet to come.
    pub(super) fn start(&mut self, stream: u32, status: u16, length: Option<u64>) {
        let hash = BodyHash::default();
        let answer = Answer { status, length, hash, text: Some(Vec::new()), unreturned: 0 };
        self.answers.insert(stream, answer);
    }

    /// Adds the next piece; none where no such answer was started.
    pub(super) fn add(&mut self, stream: u32, piece: &[u8]) -> Option<&mut Answer> {
        let answer = self.answers.get_mut(&stream)?;
        answer.hash.add(piece);
        if let Some(text) = &mut answer.text {
            if text.len() + piece.len() <= KEPT && self.kept + piece.len() <= KEPT_IN_ALL {
                text.extend_from_slice(piece);
                self.kept += piece.len();
            } else {
                self.kept -= text.len();
                answer.text = None;
            }
        }
        Some(answer)
    }

    /// Takes an answer out, whether it is whole or not.
    pub(super) fn end(&mut self, stream: u32) -> Option<Answer> {
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
        let mut pieces = Pieces::default();
        pieces.start(1, 200, None);
        pieces.add(1, b"axum(1) ");
        pieces.add(1, b"HTTP/2.0");
        assert!(matches!(
            pieces.end(1).unwrap().body(), Body::Whole(text) if text == b"axum(1) HTTP/2.0"
        ));

        let long = vec![b'x'; KEPT];
        pieces.start(3, 200, None);
        pieces.add(3, &long);
        pieces.add(3, b"y");
        let answer = pieces.end(3).unwrap();
        let whole = [&long[..], b"y"].concat();
        assert!(matches!(answer.body(), Body::Pieces { .. }));
        assert_eq!(answer.body().bytes(), KEPT as u64 + 1);
        assert_eq!(answer.body().hash(), Body::Whole(&whole).hash());
        assert_eq!(pieces.kept, 0);
    }

    #[test]
    fn all_texts_together_are_bounded() {
        let mut pieces = Pieces::default();
        for stream in 0..2000 {
            pieces.start(stream, 200, None);
            pieces.add(stream, &[0; 1000]);
        }
        assert!(pieces.kept <= KEPT_IN_ALL);
        for stream in 0..2000 {
            assert_eq!(pieces.end(stream).unwrap().body().hash(), Body::Whole(&[0; 1000]).hash());
        }
        assert_eq!(pieces.kept, 0);
    }

    #[test]
    fn a_window_is_given_back_by_halves() {
        let mut pieces = Pieces::default();
        pieces.start(1, 200, None);
        let answer = pieces.add(1, b"").unwrap();
        assert_eq!(answer.consumed(60, 100), None);
        assert_eq!(answer.consumed(60, 100), Some(120));
        assert_eq!(answer.consumed(60, 100), None);
    }
}
