//! Responses whose bodies arrive in several frames. They are rare, so their state is stored apart
//! from the slots of requests.

use std::collections::BTreeMap;

use crate::protocol::{Body, BodyHash};

/// Maximum length of a body whose bytes are kept, so that a report can show it.
const MAX_KEPT_BODY_BYTES: usize = 4096;
/// Maximum number of bytes kept of all bodies together. Beyond it, only hash and length are kept.
const MAX_KEPT_TOTAL_BYTES: usize = 1 << 20;

/// A response whose body arrives in several frames.
#[derive(Debug)]
pub(super) struct PartialResponse {
    pub(super) status: u16,
    /// The `content-length` from its headers.
    pub(super) length: Option<u64>,
    hash: BodyHash,
    text: Option<Vec<u8>>,
    /// Received bytes that are not yet returned to the window of the stream.
    unreturned: u32,
}

impl PartialResponse {
    /// Returns the body so far.
    pub(super) fn body(&self) -> Body<'_> {
        match &self.text {
            Some(text) => Body::Whole(text),
            None => Body::Hashed { hash: self.hash.finish(), bytes: self.hash.bytes() },
        }
    }

    /// Counts bytes to return to the window. Returns the sum, and resets it, once it reaches
    /// `threshold`.
    pub(super) fn consumed(&mut self, bytes: u32, threshold: u32) -> Option<u32> {
        self.unreturned += bytes;
        (self.unreturned >= threshold).then(|| std::mem::take(&mut self.unreturned))
    }
}

/// All such responses, by stream ID.
#[derive(Debug, Default)]
pub(super) struct PartialResponses {
    answers: BTreeMap<u32, PartialResponse>,
    /// The length of all kept bodies.
    kept: usize,
}

impl PartialResponses {
    /// Adds a response whose body is still to arrive.
    pub(super) fn start(&mut self, stream: u32, status: u16, length: Option<u64>) {
        let hash = BodyHash::default();
        let answer =
            PartialResponse { status, length, hash, text: Some(Vec::new()), unreturned: 0 };
        self.answers.insert(stream, answer);
    }

    /// Adds the next chunk of a body. Returns `None` if there is no such response.
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

    /// Removes a response, complete or not.
    pub(super) fn end(&mut self, stream: u32) -> Option<PartialResponse> {
        let answer = self.answers.remove(&stream)?;
        self.kept -= answer.text.as_ref().map_or(0, Vec::len);
        Some(answer)
    }

    /// Returns the number of responses.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    /// Removes all responses.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_body_is_kept_and_a_long_body_is_only_hashed() {
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
    fn the_total_size_of_kept_bodies_is_bounded() {
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
    fn a_window_is_updated_after_half_is_consumed() {
        let mut chunks = PartialResponses::default();
        chunks.start(1, 200, None);
        let answer = chunks.add(1, b"").unwrap();
        assert_eq!(answer.consumed(60, 100), None);
        assert_eq!(answer.consumed(60, 100), Some(120));
        assert_eq!(answer.consumed(60, 100), None);
    }
}
