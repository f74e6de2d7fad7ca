//! Decodes the header blocks of responses. It decodes every field, since later ones may refer to
//! it, and keeps only the status and the length of the body.

use super::dynamic_table::{DynamicTable, FieldName, HeaderField};
use super::{DecodeError, TABLE_SIZE, huffman, integer, static_table};

/// The relevant fields of a header block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::h2) struct Headers {
    /// `:status`
    pub(in crate::h2) status: Option<u16>,
    /// `content-length`
    pub(in crate::h2) length: Option<u64>,
    /// Why no response can have these headers, although they were decoded.
    pub(in crate::h2) malformed: Option<&'static str>,
}

/// Decodes header blocks, in the order in which they arrive.
#[derive(Debug, Default)]
pub(in crate::h2) struct Decoder {
    table: DynamicTable,
}

impl Decoder {
    /// Decodes one complete block.
    ///
    /// # Errors
    ///
    /// Fails if the block is invalid. The connection can then no longer be used.
    pub(in crate::h2) fn decode(&mut self, mut block: &[u8]) -> Result<Headers, DecodeError> {
        let mut headers = Headers::default();
        while let Some(first) = block.first()
            && first >> 5 == 0b001
        {
            block = self.resize(block)?;
        }
        while !block.is_empty() {
            let field;
            (field, block) = self.field(block)?;
            headers.add(field);
        }
        Ok(headers)
    }

    /// Decodes a change of the table size (section 6.3), which is permitted only before the first
    /// field.
    fn resize<'a>(&mut self, block: &'a [u8]) -> Result<&'a [u8], DecodeError> {
        let (size, rest) = integer::read(block, 5)?;
        if size > TABLE_SIZE {
            return Err(DecodeError);
        }
        self.table.set_max_size(size);
        Ok(rest)
    }

    /// Decodes one field. Returns it and the rest of the block.
    fn field<'a>(&mut self, block: &'a [u8]) -> Result<(HeaderField, &'a [u8]), DecodeError> {
        match block.first().ok_or(DecodeError)? {
            0b1000_0000.. => {
                let (index, rest) = integer::read(block, 7)?;
                Ok((self.indexed(index)?, rest))
            }
            0b0100_0000.. => {
                let (field, rest) = self.literal(block, 6)?;
                self.table.insert(field);
                Ok((field, rest))
            }
            // A change of the table size after a field.
            0b0010_0000.. => Err(DecodeError),
            _ => self.literal(block, 4),
        }
    }

    fn indexed(&self, index: usize) -> Result<HeaderField, DecodeError> {
        if let Some(dynamic) = index.checked_sub(static_table::FIRST_DYNAMIC_INDEX) {
            return self.table.get(dynamic).ok_or(DecodeError);
        }
        let (name, value) = static_table::entry(index).ok_or(DecodeError)?;
        let known = FieldName::parse(name.as_bytes());
        Ok(field(known, name.len(), &StringPrefix::new(value.as_bytes())))
    }

    fn literal<'a>(
        &self,
        block: &'a [u8],
        prefix: u32,
    ) -> Result<(HeaderField, &'a [u8]), DecodeError> {
        let (index, rest) = integer::read(block, prefix)?;
        let (name, length, rest) = if index == 0 {
            let (name, rest) = string(rest)?;
            (FieldName::parse(name.start()), name.length, rest)
        } else {
            let named = self.indexed(index)?;
            (named.name, named.name_length as usize, rest)
        };
        let (value, rest) = string(rest)?;
        Ok((field(name, length, &value), rest))
    }
}

impl Headers {
    fn add(&mut self, field: HeaderField) {
        match field.name {
            FieldName::Other => {}
            FieldName::OtherPseudo => self.malformed = Some("a response with headers of a request"),
            FieldName::Status => match field.number.and_then(|number| u16::try_from(number).ok()) {
                Some(status @ 100..=999) if self.status.is_none() => self.status = Some(status),
                _ => self.malformed = Some("a response with an invalid :status"),
            },
            FieldName::ContentLength => match field.number {
                Some(length) if self.length.is_none_or(|known| known == length) => {
                    self.length = Some(length);
                }
                _ => self.malformed = Some("a response with an invalid content-length"),
            },
        }
    }
}

fn field(name: FieldName, name_length: usize, value: &StringPrefix) -> HeaderField {
    let is_relevant = matches!(name, FieldName::Status | FieldName::ContentLength);
    HeaderField {
        name,
        // Far below 2^32, as every block is.
        name_length: name_length as u32,
        value_length: value.length as u32,
        number: if is_relevant { value.number() } else { None },
    }
}

/// Decodes a string (section 5.2).
fn string(bytes: &[u8]) -> Result<(StringPrefix, &[u8]), DecodeError> {
    let is_huffman = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let (length, rest) = integer::read(bytes, 7)?;
    let (bytes, rest) = rest.split_at_checked(length).ok_or(DecodeError)?;
    if !is_huffman {
        return Ok((StringPrefix::new(bytes), rest));
    }
    let mut text = StringPrefix::default();
    huffman::decode(bytes, |byte| text.push(byte))?;
    Ok((text, rest))
}

/// The length and the first bytes of a string, as many as any relevant field has.
#[derive(Default)]
struct StringPrefix {
    length: usize,
    start: [u8; 20],
}

impl StringPrefix {
    fn new(bytes: &[u8]) -> Self {
        let mut text = Self { length: bytes.len(), ..Self::default() };
        let kept = bytes.len().min(text.start.len());
        text.start[..kept].copy_from_slice(&bytes[..kept]);
        text
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.start.get_mut(self.length) {
            *place = byte;
        }
        self.length += 1;
    }

    fn start(&self) -> &[u8] {
        &self.start[..self.length.min(self.start.len())]
    }

    /// Parses the string as a number of digits alone.
    fn number(&self) -> Option<u64> {
        let digits = (1..self.start.len()).contains(&self.length).then(|| self.start())?;
        digits.iter().try_fold(0_u64, |number, byte| {
            byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
    }

    fn sizes(decoder: &Decoder) -> Vec<(u32, u32)> {
        let fields = (0..).map_while(|at| decoder.table.get(at));
        fields.map(|field| (field.name_length, field.value_length)).collect()
    }

    /// Checks the same three responses in both forms (RFC 7541, C.5 and C.6), with a table of 256
    /// bytes.
    fn reads_three_answers(blocks: [&str; 3]) {
        let mut decoder = Decoder::default();
        decoder.table.set_max_size(256);
        let statuses = blocks.map(|block| decoder.decode(&bytes(block)).unwrap().status);
        assert_eq!(statuses, [Some(302), Some(307), Some(200)]);
        // set-cookie, content-encoding, date
        assert_eq!(sizes(&decoder), [(10, 56), (16, 4), (4, 29)]);
    }

    #[test]
    fn the_response_examples_of_the_rfc_are_decoded() {
        reads_three_answers([
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 \
             2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 \
             6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d \
             54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 \
             5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e \
             3d31",
        ]);
    }

    #[test]
    fn the_huffman_coded_response_examples_of_the_rfc_are_decoded() {
        reads_three_answers([
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 \
             2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab \
             77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f \
             9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ]);
    }

    #[test]
    fn content_length_is_also_read_from_the_dynamic_table() {
        let mut decoder = Decoder::default();
        let first = decoder.decode(b"\x88\x5c\x0242").unwrap();
        let again = decoder.decode(b"\x88\xbe").unwrap();
        assert_eq!((first.length, first), (Some(42), again));
    }

    #[test]
    fn table_size_updates_precede_the_first_field_and_respect_our_limit() {
        let mut decoder = Decoder::default();
        decoder.decode(b"\x5c\x0242").unwrap();
        assert!(decoder.decode(b"\x20\x88").is_ok());
        assert_eq!(decoder.decode(b"\xbe"), Err(DecodeError), "the field was evicted");
        assert!(decoder.decode(b"\x20\x3f\xe1\x1f\x88").is_ok(), "0, then 4096");
        assert_eq!(decoder.decode(b"\x3f\xe2\x1f\x88"), Err(DecodeError), "4097");
        assert_eq!(decoder.decode(b"\x88\x20"), Err(DecodeError));
    }

    #[test]
    fn invalid_response_headers_are_reported_as_malformed() {
        let malformed = |block: &[u8]| Decoder::default().decode(block).unwrap().malformed;
        assert_eq!(malformed(b"\x88\x88"), Some("a response with an invalid :status"));
        assert_eq!(malformed(b"\x08\x0399x"), Some("a response with an invalid :status"));
        assert_eq!(malformed(b"\x08\x03099"), Some("a response with an invalid :status"));
        assert_eq!(malformed(b"\x88\x82"), Some("a response with headers of a request"));
        assert_eq!(
            malformed(b"\x88\x0f\x0d\x02-1"),
            Some("a response with an invalid content-length")
        );
        assert_eq!(
            malformed(b"\x88\x0f\x0d\x011\x0f\x0d\x012"),
            Some("a response with an invalid content-length")
        );
        assert_eq!(malformed(b"\x88\x0f\x0d\x011\x0f\x0d\x011"), None);
    }

    #[test]
    fn a_truncated_block_is_an_error() {
        let whole = b"\x40\x0acustom-key\x0dcustom-header";
        assert!(Decoder::default().decode(whole).is_ok());
        for end in 1..whole.len() {
            assert_eq!(Decoder::default().decode(&whole[..end]), Err(DecodeError), "{end}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_blocks_do_not_panic_and_the_table_stays_bounded(blocks: Vec<Vec<u8>>) {
            let mut decoder = Decoder::default();
            for block in blocks {
                let _ = decoder.decode(&block);
                let size: usize = sizes(&decoder).iter().map(|(n, v)| (n + v + 32) as usize).sum();
                prop_assert!(size <= TABLE_SIZE);
            }
        }
    }
}
