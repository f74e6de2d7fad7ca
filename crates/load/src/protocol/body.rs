//! The body of a response, and a hash of it that does not depend on how it was split.

/// The body of a response: all bytes if it arrived in one chunk (nearly always) or is short,
/// otherwise its hash and length.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// All bytes.
    Whole(&'a [u8]),
    /// A body that arrived in several chunks and was too long to keep.
    Hashed {
        /// The `BodyHash` of all chunks in order.
        hash: u64,
        /// Its length in bytes.
        bytes: u64,
    },
}

impl Body<'_> {
    /// Returns its hash, which is the same for the same bytes, however they were split.
    pub fn hash(&self) -> u64 {
        match self {
            Self::Whole(bytes) => {
                let mut hash = BodyHash::default();
                hash.add(bytes);
                hash.finish()
            }
            Self::Hashed { hash, .. } => *hash,
        }
    }

    /// Returns its length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Hashed { bytes, .. } => *bytes,
        }
    }
}

/// A 64-bit hash of bytes that arrive in chunks, independent of how they are split. It
/// distinguishes bodies that differ by chance, and does not resist deliberate collisions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyHash {
    state: u64,
    /// Bytes that do not fill a word yet, the first in the lowest bits.
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
    /// Returns the number of bytes hashed so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Hashes the next chunk.
    pub(crate) fn add(&mut self, mut chunk: &[u8]) {
        while !self.bytes.is_multiple_of(8)
            && let Some((byte, rest)) = chunk.split_first()
        {
            self.add_byte(*byte);
            chunk = rest;
        }
        let (words, rest) = chunk.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        self.bytes += (words.len() * 8) as u64;
        for byte in rest {
            self.add_byte(*byte);
        }
    }

    /// Returns the hash of all bytes so far.
    pub(crate) fn finish(mut self) -> u64 {
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

    /// Mixes in a word: each bit of it affects both halves of a 128-bit product, which are
    /// combined.
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

    fn in_chunks(chunks: &[Vec<u8>]) -> u64 {
        let mut hash = BodyHash::default();
        for chunk in chunks {
            hash.add(chunk);
        }
        hash.finish()
    }

    proptest! {
        #[test]
        fn a_hash_does_not_depend_on_chunk_boundaries(chunks: Vec<Vec<u8>>) {
            let whole = chunks.concat();
            prop_assert_eq!(in_chunks(&chunks), Body::Whole(&whole).hash());
        }
    }

    #[test]
    fn slightly_different_bodies_have_different_hashes() {
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
