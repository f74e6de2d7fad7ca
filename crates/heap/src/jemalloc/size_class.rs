//! jemalloc's size classes (`sc.h`): the same in all versions that are walked, with a quantum of 16
//! bytes.

use super::extent::MIN_PAGE_BYTES;

/// Number of size classes of small allocations, which come from slabs, for pages of 4 KiB.
pub(super) const MIN_SMALL: usize = 36;
/// Number of size classes, which is also the index for no class (`SC_NSIZES`).
pub(super) const COUNT: usize = 232;

/// The size of each class, in bytes.
const SIZES: [u64; COUNT] = sizes();

const fn sizes() -> [u64; COUNT] {
    let mut sizes = [0; COUNT];
    let smallest = [8, 16, 32, 48, 64];
    let mut index = 0;
    while index < smallest.len() {
        sizes[index] = smallest[index];
        index += 1;
    }
    // There are four classes for each doubling.
    let mut doubling = 6;
    while index < COUNT {
        let mut step = 1;
        while step <= 4 && index < COUNT {
            sizes[index] = (1 << doubling) + (step << (doubling - 2));
            step += 1;
            index += 1;
        }
        doubling += 1;
    }
    sizes
}

/// Returns the number of size classes of small allocations: they are smaller than four pages
/// (`SC_NBINS`).
pub(super) fn small(page_bytes: u64) -> usize {
    let doublings = page_bytes.ilog2() - MIN_PAGE_BYTES.ilog2();
    MIN_SMALL + 4 * doublings as usize
}

/// Returns the size of a class in bytes, or `None` for the index for no class.
pub(super) fn size(index: usize) -> Option<u64> {
    SIZES.get(index).copied()
}

/// Returns the sizes that a class serves, in bytes: from the first to the first beyond it.
pub(super) fn bounds(index: usize) -> (u64, u64) {
    let below = index.checked_sub(1).and_then(size).unwrap_or(0);
    (below + 1, size(index).map_or(u64::MAX, |size| size + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_classes_match_those_of_jemalloc() {
        // `bin_infos` and `sz_index2size_tab` of jemalloc 5.3.
        let some = [
            (0, 8),
            (1, 16),
            (4, 64),
            (5, 80),
            (8, 128),
            (9, 160),
            (35, 14336),
            (36, 16384),
            (44, 65536),
        ];
        for (index, bytes) in some {
            assert_eq!(size(index), Some(bytes), "{index}");
        }
        assert_eq!(size(COUNT - 1), Some(7 << 60));
        assert_eq!(size(COUNT), None);
        for lg_page in [12, 14, 16] {
            let classes = small(1 << lg_page);
            assert_eq!(
                size(classes),
                Some(4 << lg_page),
                "the first that has an extent of its own"
            );
        }
        assert_eq!((bounds(0), bounds(5)), ((1, 9), (65, 81)));
    }
}
