//! The decoder of response headers, on any bytes.

use crate::h2::decode_blocks;

/// Decodes header blocks of one connection. Each starts with a byte that is its length.
pub fn hpack(mut bytes: &[u8]) {
    let mut blocks = Vec::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (block, after) = rest.split_at(usize::from(*length).min(rest.len()));
        blocks.push(block);
        bytes = after;
    }
    decode_blocks(&blocks);
}

#[cfg(test)]
mod tests {
    #[test]
    fn damaged_header_blocks_are_decoded_or_rejected() {
        lowtide_model::fuzzing::run_seeds("hpack", 300, super::hpack);
    }
}
