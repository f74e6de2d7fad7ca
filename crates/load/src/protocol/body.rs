//! The body of an answer, and a hash of it that does not depend on how it was cut.

/// The body of an answer: whole where it came in one piece (nearly always) or is short, else its
/// hash and length.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// It came in pieces and was too long to be kept.
    Pieces {
        /// As [`BodyHash`] makes it of all pieces in a row.
        hash: u64,
        /// Its length.
        bytes: u64,
    },
}

impl Body<'_> {
    /// Its hash: the same for the same bytes, however they came.
    pub fn hash(&self) -> u64 {
        match self {
            Self::Whole(bytes) => {
                let mut hash = BodyHash::default();
                hash.add(bytes);
                hash.finish()
            }
            Self::Pieces { hash, .. } => *hash,
        }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Pieces { bytes, .. } => *bytes,
        }
    }
}

/// A 64-bit hash of bytes that may come in pieces: the same however they are cut. Tells bodies apart
/// that differ by chance; it withstands nobody who looks for two with the same hash.
#[derive(Debug, Clone, Copy)]
pub struct BodyHash {
    state: u64,
    /// Bytes that do not yet make a word, the first lowest.
    tail: u64,
    bytes: u64,
}

/// Odd, with as many ones as zeros and no pattern: the fraction of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Default for BodyHash {
    fn default() -> Self {
        Self { state: MULTIPLIER, tail: 0, bytes: 0 }
    }
}

impl BodyHash {
    /// How many bytes it was given.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next piece.
    pub fn add(&mut self, mut piece: &[u8]) {
        while !self.bytes.is_multiple_of(8)
            && let Some((byte, rest)) = piece.split_first()
        {
            self.add_byte(*byte);
            piece = rest;
        }
        let (words, rest) = piece.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        self.bytes += (words.len() * 8) as u64;
        for byte in rest {
            self.add_byte(*byte);
        }
    }

    /// The hash of all that was given so far.
    pub fn finish(mut self) -> u64 {
        let (tail, bytes) = (self.tail, self.bytes);
        self.mix(tail);
        self.mix(bytes);
        self.state
    }

    fn add_byte(&mut self, byte: u8) {
        self.tail |= u64::from(byte) << (8 * (self.bytes % 8));
        self.bytes += 1;
        if self.bytes.is_multiple_of(8) {
            let word = std::mem::take(&mut self.tail);
            self.mix(word);
        }
    }

    /// Each bit of the word reaches both halves of a product of 128 bits, which are put together.
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(MULTIPLIER);
        self.state = (product as u64 ^ (product >> 64) as u64).wrapping_add(MULTIPLIER);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    fn in_pieces(pieces: &[Vec<u8>]) -> u64 {
        let mut hash = BodyHash::default();
        for piece in pieces {
            hash.add(piece);
        }
        hash.finish()
    }

    proptest! {
        #[test]
        fn a_hash_does_not_depend_on_the_cuts(pieces: Vec<Vec<u8>>) {
            let whole = pieces.concat();
            prop_assert_eq!(in_pieces(&pieces), Body::Whole(&whole).hash());
        }
    }

    #[test]
    fn bodies_that_differ_in_little_have_different_hashes() {
        let mut seen = HashSet::new();
        for port in 0..100_000 {
            let text = format!("axum(20027) HTTP/2.0 192.168.0.123:{port}");
            assert!(seen.insert(Body::Whole(text.as_bytes()).hash()));
        }
        for zeros in 0..64 {
            assert!(seen.insert(Body::Whole(&vec![0; zeros]).hash()));
        }
    }
}
