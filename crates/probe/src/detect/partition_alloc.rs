//! PartitionAlloc, the allocator of Chromium, recognised by its mappings alone: it exports no
//! names.
//!
//! It divides its pools into super pages of 2 MiB. Each has a page of metadata between two guards
//! near its start (`partition_alloc_constants.h`). V8 keeps its heap beside them, in reservations
//! that start at a multiple of 4 GiB.

use std::ops::Range;

use crate::proc::maps::Mapping;

const SUPER_PAGE: u64 = 2 << 20;
/// Possible offsets of a super page's metadata, in bytes: its second or third page of 4 KiB.
const METADATA: [u64; 2] = [0x1000, 0x2000];
const METADATA_BYTES: u64 = 0x1000;
/// Size and alignment of V8's reservations, in bytes (the cage of compressed pointers).
const CAGE: u64 = 4 << 30;

fn is_anonymous(mapping: &Mapping) -> bool {
    !mapping.has_file() && mapping.name.is_empty() && mapping.permissions.ends_with('p')
}

fn is_reserved(mapping: &Mapping) -> bool {
    is_anonymous(mapping) && mapping.permissions.starts_with("---")
}

/// Returns the super pages of a process, in order. The super page of a large block extends to the
/// end of its mapping.
pub(super) fn super_pages(maps: &[Mapping]) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for (place, mapping) in maps.iter().enumerate() {
        let base = mapping.start - mapping.start % SUPER_PAGE;
        let is_metadata = is_anonymous(mapping)
            && mapping.permissions.starts_with("rw-")
            && mapping.size() == METADATA_BYTES
            && METADATA.contains(&(mapping.start - base));
        let before = place.checked_sub(1).and_then(|at| maps.get(at));
        let guarded = |guard: Option<&Mapping>, at: u64| {
            guard.is_some_and(|g| is_reserved(g) && (g.start == at || g.end == at))
        };
        let after = maps.get(place + 1);
        if is_metadata && guarded(before, mapping.start) && guarded(after, mapping.end) {
            // A block that is larger than a super page is completely after its guard.
            let payload =
                maps.get(place + 2).filter(|m| is_anonymous(m) && m.start < base + SUPER_PAGE);
            let end = payload.map_or(0, |m| m.end).max(base + SUPER_PAGE);
            match found.last_mut().filter(|last| last.end >= base) {
                Some(last) => last.end = last.end.max(end),
                None => found.push(base..end),
            }
        }
    }
    found
}

/// Returns the reservations of V8, which have no super pages. Other reservations may be adjacent to
/// them, so each aligned 4 GiB is checked.
pub(super) fn cages_of_v8(maps: &[Mapping]) -> Vec<Range<u64>> {
    let mut groups: Vec<Range<u64>> = Vec::new();
    for mapping in maps.iter().filter(|m| is_anonymous(m)) {
        match groups.last_mut().filter(|last| last.end == mapping.start) {
            Some(last) => last.end = mapping.end,
            None => groups.push(mapping.start..mapping.end),
        }
    }
    let super_pages = super_pages(maps);
    let has_none = |cage: &Range<u64>| {
        let place = super_pages.partition_point(|page| page.end <= cage.start);
        super_pages.get(place).is_none_or(|page| page.start >= cage.end)
    };
    let whole = groups.iter().flat_map(|group| {
        // An address space can be one reservation for the most part, and has at most 2^15 of these.
        let first = group.start.next_multiple_of(CAGE);
        (first..group.end)
            .step_by(CAGE as usize)
            .map(|at| at..at.saturating_add(CAGE))
            .filter(|c| c.end <= group.end)
    });
    let mut found: Vec<Range<u64>> = Vec::new();
    for cage in whole.filter(has_none) {
        match found.last_mut().filter(|last| last.end == cage.start) {
            Some(last) => last.end = cage.end,
            None => found.push(cage),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps;

    /// Returns their start and end, in GiB.
    fn cages(text: &str) -> Vec<(u64, u64)> {
        let found = cages_of_v8(&maps::parse(text).unwrap());
        found.into_iter().map(|cage| (cage.start >> 30, cage.end >> 30)).collect()
    }

    #[test]
    fn a_v8_reservation_is_found_even_next_to_another_one() {
        let cage = "200000000-201000000 rw-p 00000000 00:00 0 \n\
                    201000000-300000000 ---p 00000000 00:00 0 \n";
        assert_eq!(cages(cage), [(8, 12)]);
        let before = "1fff00000-200000000 rw-p 00000000 00:00 0 \n";
        assert_eq!(cages(&format!("{before}{cage}")), [(8, 12)]);
        // A pool of PartitionAlloc after it, with a super page: its metadata is between guards.
        let pool = "300000000-300001000 ---p 00000000 00:00 0 \n\
                    300001000-300002000 rw-p 00000000 00:00 0 \n\
                    300002000-400000000 ---p 00000000 00:00 0 \n";
        assert_eq!(cages(&format!("{cage}{pool}")), [(8, 12)]);
        assert_eq!(cages("210000000-300000000 rw-p 00000000 00:00 0 \n"), []);
    }
}
