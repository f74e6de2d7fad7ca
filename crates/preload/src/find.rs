//! Finds the counter in a live process.

use lowtide_probe::proc::maps::Mapping;

use crate::freed::FREED_BYTES;
use crate::numbers;

/// Returns the address of the counter in a process with these mappings, or `None` if the process
/// has not loaded the library. The counter has [`FREED_BYTES`] bytes.
///
/// The library is found by its file name, which contains a hash of its bytes. Device and inode
/// would miss a copy in a container's image, and every file on btrfs and overlayfs, which `maps`
/// and `stat` number differently. A process can map another file with that name;
/// [`crate::Freed::parse`] checks the bytes that are read from it.
pub fn find_counter(maps: &[Mapping]) -> Option<u64> {
    let first = maps.iter().find(|mapping| mapping.offset == 0 && is_library(&mapping.name))?;
    let address = first.start.checked_add(numbers::SYMBOL)?;
    let end = address.checked_add(FREED_BYTES as u64 - 1)?;
    let mut own = maps.iter().filter(|mapping| mapping.file == first.file);
    own.any(|mapping| mapping.contains(address) && mapping.contains(end)).then_some(address)
}

/// Returns whether a path leads to the library, which may have been deleted since.
fn is_library(path: &str) -> bool {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next() == Some(crate::file_name().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_probe::proc::maps::parse;

    const BASE: u64 = 0x7f12_0000_0000;

    fn maps(name: &str) -> Vec<Mapping> {
        let page = BASE + (numbers::SYMBOL & !4095);
        let text = format!(
            "10000-11000 r--p 00000000 fe:01 99 /srv/other.so\n\
             {BASE:x}-{:x} r--p 00000000 fe:01 1234 {name}\n\
             {page:x}-{:x} rw-p 00003000 fe:01 1234 {name}\n",
            BASE + 4096,
            page + 4096,
        );
        parse(&text).unwrap()
    }

    #[test]
    fn the_counter_is_found_for_a_library_in_any_directory() {
        let name = crate::file_name();
        let expected = Some(BASE + numbers::SYMBOL);
        assert_eq!(find_counter(&maps(&format!("/srv/a b/{name}"))), expected);
        assert_eq!(find_counter(&maps(&format!("/srv/{name} (deleted)"))), expected);
        assert_eq!(find_counter(&maps(&format!("/srv/{name}.old"))), None);
        assert_eq!(find_counter(&maps(&format!("/srv/{name}"))[..2]), None);
    }

    #[test]
    fn a_mapping_at_the_end_of_the_address_space_does_not_overflow() {
        let name = crate::file_name();
        let text = format!("fffffffffffff000-ffffffffffffffff r--p 00000000 fe:01 1234 /{name}\n");
        assert_eq!(find_counter(&parse(&text).unwrap()), None);
    }
}
