//! HPACK's Huffman code (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols, and
//! follow those of the next shorter length. So the lengths determine the code.

use super::DecodeError;

/// The code length of each byte in bits. The last is for the end-of-string symbol, which must never
/// occur.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const END_OF_STRING: usize = 256;
const MAX_CODE_BITS: usize = 30;

/// The codes of one length, aligned to the left of 32 bits so that codes of different lengths
/// compare.
#[derive(Clone, Copy)]
struct CodeLength {
    /// The first code of this length, and the first one after them.
    first: u32,
    end: u64,
    /// The index of its first symbol in [`Code::symbols`].
    at: usize,
}

struct Code {
    lengths: [CodeLength; MAX_CODE_BITS + 1],
    /// The symbols in the order of their codes.
    symbols: [u16; 257],
    /// The code of each symbol, aligned to the right.
    codes: [u32; 257],
}

const fn code() -> Code {
    let mut made = Code {
        lengths: [CodeLength { first: 0, end: 0, at: 0 }; MAX_CODE_BITS + 1],
        symbols: [0; 257],
        codes: [0; 257],
    };
    let (mut next, mut at, mut bits) = (0_u64, 0, 1);
    while bits <= MAX_CODE_BITS {
        made.lengths[bits] = CodeLength { first: next as u32, end: 0, at };
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as usize == bits {
                made.symbols[at] = symbol as u16;
                made.codes[symbol] = (next >> (32 - bits)) as u32;
                at += 1;
                next += 1 << (32 - bits);
            }
            symbol += 1;
        }
        made.lengths[bits].end = next;
        bits += 1;
    }
    made
}

static CODE: Code = code();

/// Decodes a string, and passes each byte to `each`.
pub(super) fn decode(bytes: &[u8], mut each: impl FnMut(u8)) -> Result<(), DecodeError> {
    let mut input = bytes.iter();
    // The next bits, aligned to the left, and their number.
    let (mut window, mut have) = (0_u64, 0);
    loop {
        while have <= 56
            && let Some(byte) = input.next()
        {
            window |= u64::from(*byte) << (56 - have);
            have += 8;
        }
        if have == 0 {
            return Ok(());
        }
        let Some((symbol, bits)) = next_symbol((window >> 32) as u32).filter(|s| s.1 <= have)
        else {
            return padding(window, have);
        };
        each(symbol);
        window <<= bits;
        have -= bits;
    }
}

/// Returns the byte whose code these bits start with, and the length of the code; `None` for the
/// end-of-string symbol.
fn next_symbol(window: u32) -> Option<(u8, usize)> {
    // The shortest code has five bits.
    let bits = (5..=MAX_CODE_BITS).find(|bits| u64::from(window) < CODE.lengths[*bits].end)?;
    let length = CODE.lengths[bits];
    let nth = (window - length.first) >> (32 - bits);
    let symbol = CODE.symbols[length.at + nth as usize];
    u8::try_from(symbol).ok().map(|byte| (byte, bits))
}

/// Checks the padding, which must be shorter than a byte and a prefix of the end-of-string symbol:
/// all ones.
fn padding(window: u64, have: usize) -> Result<(), DecodeError> {
    let ones = have < 8 && window >> (64 - have) == (1 << have) - 1;
    if ones { Ok(()) } else { Err(DecodeError) }
}

/// Returns the encoded length of a string in bytes.
pub(super) fn encoded_length(bytes: &[u8]) -> usize {
    let bits: usize = bytes.iter().map(|byte| usize::from(LENGTHS[usize::from(*byte)])).sum();
    bits.div_ceil(8)
}

/// Encodes a string.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let (mut window, mut have) = (0_u64, 0);
    for byte in bytes {
        let symbol = usize::from(*byte);
        let bits = u32::from(LENGTHS[symbol]);
        window = (window << bits) | u64::from(CODE.codes[symbol]);
        have += bits;
        while have >= 8 {
            have -= 8;
            out.push((window >> have) as u8);
        }
    }
    if have > 0 {
        // The padding is a prefix of the end-of-string symbol, which is all ones.
        let ones = CODE.codes[END_OF_STRING] as u8;
        out.push((window << (8 - have)) as u8 | ones >> have);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let mut out = Vec::new();
        decode(bytes, |byte| out.push(byte)).map(|()| out)
    }

    fn encoded(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(bytes, &mut out);
        out
    }

    /// Checks the examples of RFC 7541, C.4.1 and C.6.1.
    #[test]
    fn the_string_examples_of_the_rfc_are_encoded_and_decoded() {
        let examples: [(&[u8], &[u8]); 3] = [
            (
                b"www.example.com",
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
            ),
            (b"302", &[0x64, 0x02]),
            (b"private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ];
        for (text, bytes) in examples {
            assert_eq!(decoded(bytes).unwrap(), text);
            assert_eq!(encoded(text), bytes);
            assert_eq!(encoded_length(text), bytes.len());
        }
    }

    /// Checks RFC 7541, appendix B: symbols with rare lengths, and the last one.
    #[test]
    fn the_code_table_matches_the_rfc() {
        let code = |symbol: usize| (CODE.codes[symbol], LENGTHS[symbol]);
        assert_eq!(code(b'0'.into()), (0x0, 5));
        assert_eq!(code(b'\\'.into()), (0x7fff0, 19));
        assert_eq!(code(b'{'.into()), (0x7ffe, 15));
        assert_eq!(code(0), (0x1ff8, 13));
        assert_eq!(code(249), (0xffffffe, 28));
        assert_eq!(code(22), (0x3ffffffe, 30));
        assert_eq!(code(END_OF_STRING), (0x3fffffff, 30));
    }

    #[test]
    fn invalid_padding_and_the_end_of_string_symbol_are_errors() {
        assert_eq!(decoded(&[0b0000_0000]), Err(DecodeError), "padding of zeros");
        assert_eq!(decoded(&[0b0000_0111, 0xff]), Err(DecodeError), "a byte of padding");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(DecodeError), "the end of the string");
        assert_eq!(decoded(&[0b0000_0111]).unwrap(), b"0");
    }

    proptest! {
        #[test]
        fn any_string_round_trips(bytes: Vec<u8>) {
            prop_assert_eq!(encoded_length(&bytes), encoded(&bytes).len());
            prop_assert_eq!(decoded(&encoded(&bytes)).unwrap(), bytes);
        }

        #[test]
        fn arbitrary_bytes_are_rejected_or_are_the_only_code_of_the_string(bytes: Vec<u8>) {
            if let Ok(text) = decoded(&bytes) {
                prop_assert_eq!(encoded(&text), bytes, "one string has one code");
            }
        }
    }
}
