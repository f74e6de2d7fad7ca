//! One frame of a ring: a head with a checksum, and its payload.
//!
//! Frames begin at multiples of [`ALIGNMENT`], so that a reader finds the next one after a damaged
//! one. The magic number has a byte that no UTF-8 text contains.

/// Distance of the places at which a frame may begin, in bytes.
pub(super) const ALIGNMENT: usize = 64;
/// Size of the head: magic number, sequence number, length of the payload, checksum.
const HEAD: usize = 4 + 8 + 4 + 4;
const MAGIC: [u8; 4] = [0xf5, b'L', b'T', b'B'];
/// Maximum size of a payload, in bytes.
pub const MAX_PAYLOAD: usize = 256 << 10;
/// Maximum number of bytes whose checksum a reader computes, in multiples of the size of a file. A
/// valid file needs one.
const MAX_SUMMED: usize = 3;

/// A frame that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'b> {
    /// Its place in the order of all frames of a ring.
    pub sequence: u64,
    /// Its content.
    pub payload: &'b [u8],
}

/// Returns the bytes of a frame, with its padding. `None` if the payload is too large.
pub(super) fn encode(sequence: u64, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= MAX_PAYLOAD)?;
    let mut bytes = Vec::with_capacity(encoded_length(payload.len()));
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&checksum(sequence, payload).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes.resize(encoded_length(payload.len()), 0);
    Some(bytes)
}

/// Returns the size of a frame with a payload of this size, in bytes.
pub(super) fn encoded_length(payload: usize) -> usize {
    (HEAD + payload).next_multiple_of(ALIGNMENT)
}

fn checksum(sequence: u64, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// Returns all valid frames of a ring, in their order. Whatever is damaged, cut off or half
/// overwritten is left out.
pub fn frames(bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut found = Vec::new();
    let (mut place, mut summed) = (0, 0);
    while let Some(rest) = bytes.get(place..).filter(|rest| rest.len() >= HEAD) {
        if summed > bytes.len().saturating_mul(MAX_SUMMED) {
            break;
        }
        let step = match head(rest) {
            Some((sequence, length, sum)) => {
                summed += length;
                let payload = &rest[HEAD..HEAD + length];
                match checksum(sequence, payload) == sum {
                    true => {
                        found.push(Frame { sequence, payload });
                        encoded_length(length)
                    }
                    false => ALIGNMENT,
                }
            }
            None => ALIGNMENT,
        };
        place += step;
    }
    found.sort_by_key(|frame| frame.sequence);
    found.dedup_by_key(|frame| frame.sequence);
    found
}

/// Returns sequence number, length and checksum, if the bytes begin with a head whose payload
/// follows completely.
fn head(bytes: &[u8]) -> Option<(u64, usize, u32)> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let is_whole = length <= MAX_PAYLOAD && length <= rest.len();
    is_whole.then_some((u64::from_le_bytes(*sequence), length, u32::from_le_bytes(*sum)))
}
