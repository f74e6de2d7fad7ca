//! Texts in a file: those that identify an allocator, and those that contain a version.

use std::fs::File;
use std::path::Path;

use lowtide_model::allocator_kind::AllocatorKind;
use memchr::memmem;

use crate::mapped::MappedFile;

/// Texts that remain after symbols are stripped. They are split in two parts, so that this program
/// does not contain them.
const TEXTS: [(&str, &str, AllocatorKind); 5] = [
    ("<jemal", "loc>", AllocatorKind::Jemalloc),
    ("mimal", "loc: ", AllocatorKind::Mimalloc),
    ("tcmalloc_", "region_%s", AllocatorKind::Tcmalloc),
    ("Failed to initialise ", "snmalloc", AllocatorKind::Snmalloc),
    // This name of mappings, and the one above, are from prctl(PR_SET_VMA).
    ("scudo:", "primary", AllocatorKind::Scudo),
];

/// glibc malloc's message for a damaged heap, in two parts as above. It is part of every program
/// that is linked with that malloc statically.
const GLIBC: (&str, &str) = ("malloc(): corrupted", " top size");

/// musl's text for error number 0. Only a program that formats errors contains it.
const MUSL: (&str, &str) = ("No error in", "formation\0");

/// Maximum number of bytes of a file that are searched: its texts may claim to be as large as the
/// file, and that may be nearly all holes.
const MOST: u64 = 256 << 20;
/// Number of bytes that are read at once.
const BLOCK: u64 = 1 << 20;
/// Number of bytes that are read again with the next block: no text that is searched for is longer.
const OVERLAP: u64 = 256;

/// Passes a part of a file to `look`, block by block, until it finds something.
pub(crate) fn scan<T>(
    file: &MappedFile,
    (offset, size): (u64, u64),
    mut look: impl FnMut(&[u8]) -> Option<T>,
) -> Option<T> {
    let size = size.min(MOST);
    let mut block = vec![0; (BLOCK + OVERLAP).min(size) as usize];
    let mut at = 0;
    while at < size {
        let length = (size - at).min(BLOCK + OVERLAP) as usize;
        file.read_exact_at(&mut block[..length], offset + at).ok()?;
        if let Some(found) = look(&block[..length]) {
            return Some(found);
        }
        at += BLOCK;
    }
    None
}

/// Returns the allocator that a stripped file contains.
pub(crate) fn allocator(file: &MappedFile, range: (u64, u64)) -> Option<AllocatorKind> {
    let texts = TEXTS.map(|(a, b, kind)| (finder(a, b), kind));
    scan(file, range, |block| {
        texts.iter().find(|(text, _)| text.find(block).is_some()).map(|(_, kind)| kind.clone())
    })
}

/// Returns the C library that a static program was linked with; `None` if no text identifies it.
pub(crate) fn static_c_library(file: &MappedFile, range: (u64, u64)) -> Option<AllocatorKind> {
    let (glibc, musl) = (finder(GLIBC.0, GLIBC.1), finder(MUSL.0, MUSL.1));
    scan(file, range, |block| match (glibc.find(block), musl.find(block)) {
        (Some(_), _) => Some(AllocatorKind::Glibc),
        (_, Some(_)) => Some(AllocatorKind::Musl),
        _ => None,
    })
}

fn finder(first: &str, second: &str) -> memmem::Finder<'static> {
    memmem::Finder::new(&[first, second].concat()).into_owned()
}

/// Returns the number after a text, such as `2.10` after `gperftools `.
pub(crate) fn number_behind(file: &MappedFile, range: (u64, u64), text: &str) -> Option<String> {
    scan(file, range, |block| number_in(block, text))
}

fn number_in(bytes: &[u8], text: &str) -> Option<String> {
    memmem::find_iter(bytes, text).find_map(|at| {
        let number = leading_number(&bytes[at + text.len()..]);
        (!number.is_empty()).then(|| number.to_owned())
    })
}

/// Returns the digits and dots at the start, without a dot at their end.
fn leading_number(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|b| !b.is_ascii_digit() && *b != b'.').unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default().trim_end_matches('.')
}

/// Returns a text between two NUL bytes that consists of `prefix`, digits and dots, with `dots`
/// dots in total. The prefix is part of the result.
pub(crate) fn whole_number(
    file: &MappedFile,
    range: (u64, u64),
    prefix: &str,
    dots: usize,
) -> Option<String> {
    let start = [b"\0", prefix.as_bytes()].concat();
    scan(file, range, |block| {
        memmem::find_iter(block, &start).find_map(|at| {
            let number = leading_number(&block[at + start.len()..]);
            let whole = format!("{prefix}{number}");
            let ends = block.get(at + 1 + whole.len()) == Some(&0);
            let fits = ends && whole.matches('.').count() == dots && !whole.contains("..");
            (fits && !number.is_empty()).then_some(whole)
        })
    })
}

/// Returns jemalloc's own version: `5.3.1` for a release, `5.3.0-145` for a state 145 commits after
/// it. Its text has the commit as well (`5.3.1-0-g` and 40 digits). Without a repository, its build
/// writes `0.0.0-0-g0000…`, which is not a version.
pub(crate) fn jemalloc_version(file: &MappedFile, range: (u64, u64)) -> Option<String> {
    scan(file, range, |block| {
        memmem::find_iter(block, b"-g").find_map(|at| {
            let commit = block.get(at + 2..at + 42)?;
            let is_commit = commit.iter().all(u8::is_ascii_hexdigit);
            let from = block[..at].iter().rposition(|b| !(b.is_ascii_digit() || b".-".contains(b)));
            let text = std::str::from_utf8(&block[from.map_or(0, |at| at + 1)..at]).ok()?;
            let (release, commits) = text.split_once('-')?;
            if !is_commit || release == "0.0.0" || release.matches('.').count() != 2 {
                return None;
            }
            Some(if commits == "0" { release.to_owned() } else { text.to_owned() })
        })
    })
}

/// Returns the variable from which a build of jemalloc reads its settings: `MALLOC_CONF`, after the
/// prefix of the build's functions in capitals (`_RJEM_` in Rust).
pub(crate) fn jemalloc_variable(file: &MappedFile, range: (u64, u64)) -> Option<String> {
    /// Maximum length of a prefix, in bytes.
    const MAX_PREFIX: usize = 32;
    const NAME: &[u8] = b"MALLOC_CONF\0";
    scan(file, range, |block| {
        memmem::find_iter(block, NAME).find_map(|at| {
            let is_other = |b: &u8| !(b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_');
            let from = block[..at].iter().rposition(is_other)?;
            let is_whole = block[from] == 0 && at - from <= MAX_PREFIX;
            let name = std::str::from_utf8(&block[from + 1..at + NAME.len() - 1]).ok()?;
            is_whole.then(|| name.to_owned())
        })
    })
}

/// Returns the version of a glibc from its own file.
pub fn c_library_version(library: &Path) -> Option<String> {
    let file = MappedFile::from(File::open(library).ok()?);
    glibc_version(&file, (0, file.size().ok()?))
}

/// Returns the version of a glibc from a part of its own file.
pub(crate) fn glibc_version(file: &MappedFile, range: (u64, u64)) -> Option<String> {
    number_behind(file, range, "stable release version ")
        .or_else(|| number_behind(file, range, "development release version "))
}

/// Returns the version after a text in a file: `2.10` for `gperftools 2.10`.
pub fn version_of(library: &Path, text: &str) -> Option<String> {
    let file = MappedFile::from(File::open(library).ok()?);
    number_behind(&file, (0, file.size().ok()?), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (MappedFile, (u64, u64)) {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        (file.into(), (0, bytes.len() as u64))
    }

    #[test]
    fn a_string_across_two_blocks_is_found() {
        for shift in 0..32 {
            let mut bytes = vec![b'x'; (BLOCK - shift) as usize];
            bytes.extend(b"gperftools 2.10\0and more");
            let (file, range) = file(&bytes);
            assert_eq!(number_behind(&file, range, "gperftools ").as_deref(), Some("2.10"));
        }
    }

    #[test]
    fn jemalloc_releases_are_distinguished_from_development_versions() {
        let version = |text: &str| {
            let (file, range) =
                file(format!("\0-g\0{text}-g{}\0", "81034ce1f1".repeat(4)).as_bytes());
            jemalloc_version(&file, range)
        };
        assert_eq!(version("5.3.1-0").as_deref(), Some("5.3.1"));
        assert_eq!(version("5.3.0-145").as_deref(), Some("5.3.0-145"));
        assert_eq!(version("0.0.0-0"), None);
        assert_eq!(version("some-file"), None);
    }

    #[test]
    fn the_variable_of_jemalloc_has_the_prefix_of_its_build() {
        let variable = |text: &[u8]| {
            let (file, range) = file(text);
            jemalloc_variable(&file, range)
        };
        for name in ["MALLOC_CONF", "_RJEM_MALLOC_CONF", "JE_MALLOC_CONF"] {
            let text = format!("set MALLOC_CONF\0\0{name}\0rest");
            assert_eq!(variable(text.as_bytes()).as_deref(), Some(name));
        }
        assert_eq!(variable(b"set MALLOC_CONF\0or MALLOC_CONF to"), None);
    }

    #[test]
    fn only_a_version_that_is_a_whole_string_is_found() {
        let (file, range) = file(b"\0v8.1\0/lib/v9.9.9/x\0v20.20.2-rc\0v20.20.2\0");
        assert_eq!(whole_number(&file, range, "v", 2).as_deref(), Some("v20.20.2"));
        assert_eq!(whole_number(&file, range, "v2", 2).as_deref(), Some("v20.20.2"));
        assert_eq!(whole_number(&file, range, "1.", 2), None);
    }

    #[test]
    fn the_c_library_of_a_static_program_is_identified() {
        let (glibc, range) = file(&[b"x\0", [GLIBC.0, GLIBC.1].concat().as_bytes()].concat());
        assert_eq!(static_c_library(&glibc, range), Some(AllocatorKind::Glibc));
        let (musl, range) = file(&[b"x\0", [MUSL.0, MUSL.1].concat().as_bytes()].concat());
        assert_eq!(static_c_library(&musl, range), Some(AllocatorKind::Musl));
        let (none, range) = file(b"nothing");
        assert_eq!(static_c_library(&none, range), None);
    }

    #[test]
    fn the_version_after_a_string_is_read_up_to_its_last_digit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\0a stable release version 2.36.\nmore").unwrap();
        assert_eq!(c_library_version(file.path()).as_deref(), Some("2.36"));
        std::fs::write(file.path(), b"stable release version ").unwrap();
        assert_eq!(c_library_version(file.path()), None);
    }
}
