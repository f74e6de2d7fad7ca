//! Integers of HPACK (RFC 7541, section 5.1).

use super::DecodeError;

/// Decodes an integer with a prefix of `prefix` bits in its first byte. Returns it and the
/// remaining bytes.
pub(super) fn read(bytes: &[u8], prefix: u32) -> Result<(usize, &[u8]), DecodeError> {
    let (first, mut rest) = bytes.split_first().ok_or(DecodeError)?;
    let max = (1_u32 << prefix) - 1;
    let mut value = u32::from(*first) & max;
    if value < max {
        return Ok((value as usize, rest));
    }
    // Four groups of seven bits: far beyond the length of any accepted block, and no overflow.
    for shift in [0, 7, 14, 21] {
        let (byte, after) = rest.split_first().ok_or(DecodeError)?;
        rest = after;
        value += u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok((value as usize, rest));
        }
    }
    Err(DecodeError)
}

/// Encodes an integer with a prefix of `prefix` bits, after the bits of `pattern` in its first
/// byte.
pub(super) fn write(out: &mut Vec<u8>, pattern: u8, prefix: u32, value: usize) {
    let max = (1_usize << prefix) - 1;
    if value < max {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | max as u8);
    let mut rest = value - max;
    while rest >= 0x80 {
        out.push(0x80 | rest as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the examples of RFC 7541, C.1.
    #[test]
    fn the_integer_examples_of_the_rfc_are_encoded_and_decoded() {
        let examples: [(u32, usize, &[u8]); 3] =
            [(5, 10, &[0x0a]), (5, 1337, &[0x1f, 0x9a, 0x0a]), (8, 42, &[0x2a])];
        for (prefix, value, bytes) in examples {
            assert_eq!(read(bytes, prefix), Ok((value, &[][..])));
            let mut out = Vec::new();
            write(&mut out, 0, prefix, value);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn a_truncated_or_unbounded_integer_is_an_error() {
        assert_eq!(read(&[], 7), Err(DecodeError));
        assert_eq!(read(&[0x7f], 7), Err(DecodeError));
        assert_eq!(read(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01], 7), Err(DecodeError));
    }
}
