//! HPACK (RFC 7541): decodes the headers of responses, and encodes those of the repeated request.

mod decoder;
mod dynamic_table;
mod encoder;
mod huffman;
mod integer;
mod static_table;

pub(super) use decoder::{Decoder, Headers};
pub(super) use encoder::Encoder;

/// A header block cannot be decoded. The state that both sides share is lost with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecodeError;

/// Default and maximum size of a dynamic table in bytes (RFC 9113, section 6.5.2), the same as in
/// ordinary clients: with a smaller one, a server would write and keep other headers than it does
/// for them.
const TABLE_SIZE: usize = 4096;
