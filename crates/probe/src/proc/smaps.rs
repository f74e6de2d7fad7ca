//! `/proc/PID/smaps`: the flags of mappings. Expensive: for every mapping, the kernel also counts
//! the pages, while it holds the lock of the process's mappings.

use std::io::{self, BufRead};
use std::ops::Range;

use super::ParseError;
use super::maps::Mapping;

/// Maximum size of the text, in bytes: that of the usual limit of 65,530 mappings
/// (`vm.max_map_count`).
const MAX_BYTES: u64 = 64 << 20;

/// Maximum resident size of a mapping for which `smaps_rollup` or `smaps` is read, in bytes. While
/// the kernel makes these files, it releases the lock of the process's mappings only between two of
/// them (10 to 50 ms per GB), so that the process's threads would wait for a larger one. Values
/// that only that file has are then unknown.
pub(crate) const LARGEST_WALKED: u64 = 128 << 20;

/// Returns whether the kernel walks the page tables of each mapping fast enough for `smaps` or
/// `smaps_rollup`: see [`LARGEST_WALKED`].
pub(crate) fn is_cheap_to_walk(maps: &[Mapping], resident_bytes: u64) -> bool {
    let largest = maps.iter().filter(|m| !m.permissions.starts_with("---")).map(Mapping::size);
    largest.max().unwrap_or(0).min(resident_bytes) <= LARGEST_WALKED
}

/// Returns the locked mappings (`VmFlags: … lo …`), in order of address. Reading stops once they
/// have `enough_bytes`.
///
/// # Errors
/// Fails if reading fails, if a mapping has no addresses, or if the text is too long.
pub(crate) fn locked(text: impl BufRead, enough_bytes: u64) -> io::Result<Vec<Range<u64>>> {
    let mut text = text.take(MAX_BYTES);
    let (mut found, mut bytes) = (Vec::new(), 0);
    let (mut mapping, mut line) = (0..0, Vec::new());
    while bytes < enough_bytes {
        line.clear();
        if text.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            if flags.split(u8::is_ascii_whitespace).any(|flag| flag == b"lo") {
                // Only a hostile text can repeat the flags of a mapping.
                bytes = u64::saturating_add(bytes, mapping.end - mapping.start);
                found.push(mapping.clone());
            }
        } else if !line[0].is_ascii_uppercase() {
            // The names of all fields begin with a capital letter, the line of a mapping with a
            // number.
            mapping = addresses(&line).ok_or_else(|| error("a mapping has no addresses"))?;
        }
    }
    match text.limit() {
        0 => Err(error("it is too long").into()),
        _ => Ok(found),
    }
}

fn addresses(line: &[u8]) -> Option<Range<u64>> {
    let range = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (start < end).then_some(start..end)
}

fn error(what: &str) -> ParseError {
    ParseError { file: "smaps", what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lines of a text of Linux 6.18.
    const TEXT: &str = "\
        55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]\n\
        Size:                132 kB\nRss:                   8 kB\nTHPeligible:           0\n\
        VmFlags: rd wr mr mw me ac sd \n\
        7f3d23c00000-7f3d23c08000 rw-p 00000000 00:00 0                          [anon: VmFlags: lo ]\n\
        Size:                 32 kB\nLocked:               32 kB\nVmFlags: rd wr mr mw me lo ac sd \n\
        7f3d23c08000-7f3d23c09000 r--p 00000000 fe:01 12                         /srv/a lo b\n\
        Size:                  4 kB\nVmFlags: rd mr mw me sl \n\
        7f3d23c0a000-7f3d23c0c000 rw-p 00000000 00:00 0 \n\
        VmFlags: rd wr lo\n";

    #[test]
    fn only_mappings_with_the_flag_are_locked() {
        let (first, last) =
            (0x7f3d_23c0_0000..0x7f3d_23c0_8000, 0x7f3d_23c0_a000..0x7f3d_23c0_c000);
        assert_eq!(locked(TEXT.as_bytes(), u64::MAX).unwrap(), [first.clone(), last]);
        assert_eq!(locked(TEXT.as_bytes(), 32 << 10).unwrap(), [first]);
        assert!(locked(&b""[..], 1).unwrap().is_empty());
    }

    #[test]
    fn an_endless_text_and_a_mapping_without_addresses_are_errors() {
        let endless = io::BufReader::new(io::repeat(b'A'));
        assert_eq!(locked(endless, 1).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(locked(&b"7f00-6f00 rw-p\n"[..], 1).is_err());
        assert!(locked(&b"\n"[..], 1).is_err());
    }

    #[test]
    fn flags_that_are_repeated_do_not_overflow_the_sum() {
        let text = b"0-aaa0aa000a0aaaaa -\nVmFlags: lo\nVmFlags: lo\n";
        assert_eq!(locked(&text[..], u64::MAX).unwrap().len(), 2);
    }

    proptest! {
        #[test]
        fn the_parser_does_not_panic_on_arbitrary_text(
            text in "(([0-9a-f]{0,17}-[0-9a-f]{0,17} |VmFlags:|Rss: |\\PC{0,9})( lo| [a-z]{2}){0,3}\n?){0,9}"
        ) {
            let _ = locked(text.as_bytes(), u64::MAX);
        }
    }
}
