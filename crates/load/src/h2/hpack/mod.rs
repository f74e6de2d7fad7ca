//! HPACK (RFC 7541): the headers of answers are read, those of the one request are written.

mod decoder;
mod dynamic_table;
mod encoder;
mod huffman;
mod integer;
mod static_table;

pub(super) use decoder::{Decoder, Headers};
pub(super) use encoder::Encoder;

/// A header block could not be read; the state that both sides share is lost with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unreadable;

/// What both sides start with, and what we keep to (RFC 9113, section 6.5.2). Ordinary clients do so
/// too: with less, a server would write, and keep, other headers than it does for them.
const TABLE_SIZE: usize = 4096;
