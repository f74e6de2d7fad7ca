//! Words in memory, and which of them may be links of free chunks of glibc.

/// Size and alignment of a chunk header, in bytes.
pub(super) const HEAD: u64 = 16;
/// Sizes of chunks: their smallest value, their largest one, and the flag that the chunk before it
/// is in use, which every free chunk has (`PREV_INUSE`). The flag of mmapped chunks is never set.
pub(super) const SMALLEST: u64 = 32;
const LARGEST: u64 = 1 << 40;
pub(super) const PREVIOUS_IN_USE: u64 = 1;
pub(super) const FLAGS: u64 = 7;
const MMAPPED: u64 = 2;
/// Number of words between the beginning of the size of a chunk and its last link.
pub(super) const BEFORE: usize = 4;

/// A word in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    /// Its address.
    pub at: u64,
    /// Its value.
    pub value: u64,
    /// Whether one of the words before it may be the size of a chunk, among whose links it then is,
    /// or the one before it the rest of a link.
    pub may_be_link: bool,
    /// Whether it is in a block of the walk that was divided since. It is then in another block, or
    /// in free memory.
    pub is_of_divided: bool,
}

/// Notes the words that may be sizes of chunks, in order of addresses.
#[derive(Debug, Default)]
pub(super) struct SizeWords {
    last: u64,
    /// The last word and its address.
    before: (u64, u64),
}

impl SizeWords {
    /// Notes that a block begins at an address. The size of its chunk is before it.
    #[inline]
    pub(super) fn block(&mut self, at: u64) {
        self.last = at.wrapping_sub(8);
    }

    /// Notes a word.
    #[inline]
    pub(super) fn word(&mut self, at: u64, value: u64) -> Word {
        let is_near_size = at.wrapping_sub(self.last) <= 8 * BEFORE as u64;
        let (before_at, before) = self.before;
        let is_near_rest = before_at.wrapping_add(8) == at && may_be_rest(before, value);
        if is_size(value) {
            self.last = at;
        }
        self.before = (at, value);
        Word { at, value, may_be_link: is_near_size || is_near_rest, is_of_divided: false }
    }
}

/// Returns whether a word may be the rest of a link whose lower bytes were overwritten, beside
/// another link: their upper bytes agree.
#[inline]
pub(super) fn may_be_rest(word: u64, other: u64) -> bool {
    word >> 32 == other >> 32 && (!word.is_multiple_of(HEAD) || word as u32 == 0)
}

/// Returns whether a word may be the size of a free chunk, with its flags.
#[inline]
pub(super) fn is_size(word: u64) -> bool {
    word & PREVIOUS_IN_USE == PREVIOUS_IN_USE && chunk_bytes(word).is_some()
}

/// Returns the bytes of the chunk that has a word as its size; `None` if the word is none, or that
/// of an mmapped chunk.
#[inline]
pub(super) fn chunk_bytes(word: u64) -> Option<u64> {
    let size = word & !FLAGS;
    let is_size = size.is_multiple_of(HEAD) && (SMALLEST..LARGEST).contains(&size);
    (is_size && word & MMAPPED == 0).then_some(size)
}
