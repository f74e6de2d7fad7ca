//! Ranges of addresses.

use std::ops::Range;

/// What a range has outside of others, which are in order of their ends.
pub(crate) fn without(range: Range<u64>, others: &[Range<u64>]) -> Vec<Range<u64>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_is_left_out() {
        let others = [0x1000..0x2000, 0x3000..0x4000, 0x5000..0x6000];
        assert_eq!(without(0x1800..0x5800, &others), [0x2000..0x3000, 0x4000..0x5000]);
        let outside = 0x6000..0x7000;
        assert_eq!(without(outside.clone(), &others), vec![outside]);
        assert!(without(0x3000..0x4000, &others).is_empty());
    }
}
