//! Ranges of addresses in order.

use std::ops::Range;

/// Returns the sum of the bytes of some ranges.
pub fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Merges ranges that touch or overlap. They must be in order of their starts.
pub fn joined(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// Merges ranges that touch or overlap, in any order.
pub fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    joined(ranges)
}

/// Splits a range into parts of at most `most` bytes, whose resident pages are queried one part at
/// a time.
pub(crate) fn parts(range: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let part = at..range.end.min(at.saturating_add(most));
        at = part.end;
        (part.start < part.end).then_some(part)
    })
}

/// Returns whether one of some ranges, which are in order and disjoint, contains another.
pub fn hold(ranges: &[Range<u64>], other: &Range<u64>) -> bool {
    let place = ranges.partition_point(|range| range.end <= other.start);
    let range = ranges.get(place);
    range.is_some_and(|range| range.start <= other.start && other.end <= range.end)
}

/// Returns the parts of some ranges outside of others. Both are in order and disjoint.
pub(crate) fn gaps(
    ranges: impl Iterator<Item = Range<u64>>,
    others: &[Range<u64>],
) -> Vec<Range<u64>> {
    ranges.flat_map(|range| without(range, others)).collect()
}

/// Returns the parts of a range inside of others, which are in order and disjoint.
pub fn overlaps(range: Range<u64>, others: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> {
    let first = others.partition_point(|other| other.end <= range.start);
    let inside = others[first..].iter().take_while(move |other| other.start < range.end);
    inside.map(move |other| other.start.max(range.start)..other.end.min(range.end))
}

/// Returns the parts of a range outside of others, which are in order of their ends.
pub fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let first = others.partition_point(|other| other.end <= range.start);
    let mut found = Vec::new();
    let mut at = range.start;
    for other in others[first..].iter().take_while(|other| other.start < range.end) {
        if other.start > at {
            found.push(at..other.start);
        }
        at = at.max(other.end);
    }
    if at < range.end {
        found.push(at..range.end);
    }
    found
}

/// Retains the keys of nodes that do not overlap, in order of the keys: nodes of a damaged tree may
/// share their memory, and reading each of them would take too long.
pub(crate) fn keep_disjoint(keys: &mut Vec<(u64, u64)>, node_bytes: u64) {
    keys.sort_unstable_by_key(|(_, node)| *node);
    let mut end = 0;
    keys.retain(|(_, node)| {
        let is_apart = *node >= end;
        end = if is_apart { node.saturating_add(node_bytes) } else { end };
        is_apart
    });
    keys.sort_unstable_by_key(|(key, _)| *key);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_the_parts_of_ranges_outside_of_others() {
        let ranges = [0..10, 20..30, 40..50];
        assert_eq!(
            gaps(ranges.into_iter(), &[0..5, 8..22, 25..26]),
            [5..8, 22..25, 26..30, 40..50]
        );
    }

    #[test]
    fn the_parts_of_a_range_cover_all_of_it() {
        let split = |range| parts(range, 10).collect::<Vec<_>>();
        assert_eq!(split(5..27), [5..15, 15..25, 25..27]);
        assert_eq!(split(u64::MAX - 10..u64::MAX).len(), 1);
        assert!(split(7..7).is_empty());
    }

    #[test]
    fn touching_and_overlapping_ranges_are_merged() {
        assert_eq!(joined(vec![0..10, 10..20, 30..40, 35..36]), [0..20, 30..40]);
    }

    #[test]
    fn parts_covered_by_other_ranges_are_left_out() {
        let others = [0x1000..0x2000, 0x3000..0x4000, 0x5000..0x6000];
        assert_eq!(without(0x1800..0x5800, &others), [0x2000..0x3000, 0x4000..0x5000]);
        let outside = 0x6000..0x7000;
        assert_eq!(without(outside.clone(), &others), vec![outside]);
        assert!(without(0x3000..0x4000, &others).is_empty());
    }
}
