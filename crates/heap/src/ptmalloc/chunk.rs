//! The layout of a chunk: sizes and flags of its head (`struct malloc_chunk` in glibc's
//! malloc/malloc.c).

/// Size of the smallest chunk, in bytes (`MINSIZE`).
pub(super) const SMALLEST: u64 = 32;
/// Distance from a chunk to the memory that the program gets, in bytes (`CHUNK_HDR_SZ`).
pub(crate) const USER_AT: u64 = 16;
/// Part of a chunk in use that the program does not get, in bytes (`SIZE_SZ`): the program also
/// gets the first word of the next chunk.
pub(super) const HEAD_BYTES: u64 = 8;
/// Size of the largest chunk that a fast bin holds, in bytes (`MAX_FAST_SIZE` and the head).
pub(super) const LARGEST_FAST: u64 = 176;
/// Flag of a size: the chunk before it is in use.
pub(super) const PREV_INUSE: u64 = 1;
/// Flag of a size: the chunk is mmapped.
pub(super) const IS_MMAPPED: u64 = 2;
/// Mask of the three flag bits of a size.
pub(super) const FLAGS: u64 = 7;
/// Size of the list fields of a free chunk, in bytes (`sizeof (struct malloc_chunk)`). A page that
/// contains a part of them is not returned.
pub(crate) const LIST_BYTES: u64 = 48;
