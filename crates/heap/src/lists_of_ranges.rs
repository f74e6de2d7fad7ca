//! Ranges of addresses in order.

use std::ops::Range;

/// Ranges in order, those joined that touch or overlap each other.
pub(crate) fn joined(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

/// What of some ranges is left beside others; both in order and apart from each other.
pub(crate) fn gaps(
    ranges: impl Iterator<Item = Range<u64>>,
    others: &[Range<u64>],
) -> Vec<Range<u64>> {
    let mut all = Vec::new();
    for range in ranges {
        let mut at = range.start;
        let first = others.partition_point(|o| o.end <= range.start);
        for other in others[first..].iter().take_while(|o| o.start < range.end) {
            if at < other.start {
                all.push(at..other.start);
            }
            at = at.max(other.end);
        }
        if at < range.end {
            all.push(at..range.end);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_beside_others_are_the_gaps() {
        let ranges = [0..10, 20..30, 40..50];
        assert_eq!(
            gaps(ranges.into_iter(), &[0..5, 8..22, 25..26]),
            [5..8, 22..25, 26..30, 40..50]
        );
    }

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(joined(vec![0..10, 10..20, 30..40, 35..36]), [0..20, 30..40]);
    }
}
