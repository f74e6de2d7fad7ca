//! Encodes the header block of the repeated request.
//!
//! Like ordinary clients, it puts what may be indexed into the server's dynamic table with the
//! first block, and refers to it in all later ones. So these are all the same few bytes.

use super::{TABLE_SIZE, huffman, integer, static_table};

/// The header block of the request: the first one, and the one for all further requests.
#[derive(Debug)]
pub(in crate::h2) struct Encoder {
    fields: Box<[(String, String)]>,
    /// The block of the next request.
    block: Vec<u8>,
    /// Whether `block` is the one for all further requests.
    is_settled: bool,
    /// Whether the server's table has at least the default size.
    may_index: bool,
}

impl Encoder {
    /// Creates the encoder for fields with lower-case names, pseudo-header fields first.
    pub(in crate::h2) fn new(fields: Vec<(String, String)>) -> Self {
        let size: usize = indexable(&fields).map(|(n, v)| n.len() + v.len() + 32).sum();
        // If they do not fit together, they would evict each other.
        let may_index = size <= TABLE_SIZE;
        let mut encoder =
            Self { fields: fields.into(), block: Vec::new(), is_settled: false, may_index };
        encoder.write(if may_index { LiteralForm::Remember } else { LiteralForm::Plain });
        encoder
    }

    /// Handles a change of the server's table size. A smaller table is not used any more (RFC 7541,
    /// section 4.2).
    pub(in crate::h2) fn set_table_size(&mut self, size: u32) {
        if (size as usize) < TABLE_SIZE {
            self.may_index = false;
            self.is_settled = false;
            self.write(LiteralForm::Forget);
        }
    }

    /// Returns the block of the next request.
    pub(in crate::h2) fn block(&self) -> &[u8] {
        &self.block
    }

    /// Notes that the block was sent.
    pub(in crate::h2) fn sent(&mut self) {
        if !self.is_settled {
            self.is_settled = true;
            self.write(if self.may_index { LiteralForm::Refer } else { LiteralForm::Plain });
        }
    }

    fn write(&mut self, form: LiteralForm) {
        let mut block = Vec::new();
        if form == LiteralForm::Forget {
            block.push(0b0010_0000); // The table's size becomes 0.
        }
        // The newest field has the lowest index.
        let mut dynamic = static_table::FIRST_DYNAMIC_INDEX + indexable(&self.fields).count();
        for (name, value) in &self.fields {
            if let Some(index) = static_table::index_of(name, value) {
                integer::write(&mut block, 0b1000_0000, 7, index);
            } else if form == LiteralForm::Plain
                || form == LiteralForm::Forget
                || !is_indexable(name, value)
            {
                literal(&mut block, 0b0000_0000, 4, name, value);
            } else if form == LiteralForm::Remember {
                literal(&mut block, 0b0100_0000, 6, name, value);
            } else {
                dynamic -= 1;
                integer::write(&mut block, 0b1000_0000, 7, dynamic);
            }
        }
        block.shrink_to_fit();
        self.block = block;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LiteralForm {
    /// Fields that may be indexed go into the table.
    Remember,
    /// Indexed fields are referred to.
    Refer,
    /// The table is not used.
    Plain,
    /// The table is emptied, and not used any more.
    Forget,
}

fn indexable(fields: &[(String, String)]) -> impl Iterator<Item = &(String, String)> {
    fields.iter().filter(|(name, value)| is_indexable(name, value))
}

/// Returns whether a field goes into the table: not if it is in the static one, usually differs
/// between requests, or must not be guessed (RFC 7541, section 7.1).
fn is_indexable(name: &str, value: &str) -> bool {
    let is_kept_out = ["authorization", "content-length", "cookie", ":path"].contains(&name);
    !is_kept_out && static_table::index_of(name, value).is_none()
}

fn literal(block: &mut Vec<u8>, pattern: u8, prefix: u32, name: &str, value: &str) {
    match static_table::index_of_name(name) {
        Some(index) => integer::write(block, pattern, prefix, index),
        None => {
            block.push(pattern);
            string(block, name);
        }
    }
    string(block, value);
}

fn string(block: &mut Vec<u8>, text: &str) {
    let encoded = huffman::encoded_length(text.as_bytes());
    if encoded < text.len() {
        integer::write(block, 0b1000_0000, 7, encoded);
        huffman::encode(text.as_bytes(), block);
    } else {
        integer::write(block, 0, 7, text.len());
        block.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn of_the_rfc() -> Encoder {
        let scheme = (":scheme", "http");
        let authority = (":authority", "www.example.com");
        Encoder::new(fields(&[(":method", "GET"), scheme, (":path", "/"), authority]))
    }

    const AUTHORITY: &[u8] = b"\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";

    /// Checks the first request of RFC 7541, C.4.1.
    #[test]
    fn the_first_request_example_of_the_rfc_is_encoded() {
        let mut encoder = of_the_rfc();
        assert_eq!(encoder.block(), [b"\x82\x86\x84\x41", AUTHORITY].concat());
        for _ in 0..2 {
            encoder.sent();
            assert_eq!(encoder.block(), b"\x82\x86\x84\xbe", "as C.4.2 begins");
        }
    }

    #[test]
    fn the_newest_field_has_the_lowest_index() {
        let mut encoder = Encoder::new(fields(&[("a", "1"), (":path", "/x"), ("b", "2")]));
        encoder.sent();
        assert_eq!(encoder.block(), b"\xbf\x04\x02/x\xbe");
    }

    #[test]
    fn the_dynamic_table_is_disabled_if_the_server_shrinks_it() {
        let mut encoder = of_the_rfc();
        encoder.sent();
        encoder.set_table_size(65_536);
        assert_eq!(encoder.block(), b"\x82\x86\x84\xbe");
        encoder.set_table_size(0);
        assert_eq!(encoder.block(), [b"\x20\x82\x86\x84\x01", AUTHORITY].concat());
        encoder.sent();
        encoder.set_table_size(4096);
        assert_eq!(encoder.block(), [b"\x82\x86\x84\x01", AUTHORITY].concat());
    }

    #[test]
    fn fields_that_do_not_fit_the_table_together_are_not_indexed() {
        let long = "x".repeat(3000);
        let mut encoder = Encoder::new(fields(&[("a", &long), ("b", &long)]));
        let before = encoder.block().to_vec();
        assert_eq!(before[0], 0);
        encoder.sent();
        assert_eq!(encoder.block(), before);
    }
}
