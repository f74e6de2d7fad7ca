//! Selects the process to inspect next: large processes and changed processes come first.

/// Maximum time until a process whose RSS has changed is inspected again, in seconds, if the budget
/// suffices.
pub(crate) const CHANGED_S: f64 = 300.0;
/// Maximum time until any process is inspected again, in seconds, if the budget suffices.
pub(crate) const UNCHANGED_S: f64 = 1200.0;
/// Minimum change of RSS since the last inspection, as a share of the larger value.
const CHANGED_SHARE: f64 = 0.1;
/// Minimum change of RSS in bytes. RSS has changed if it reaches both minimums.
const CHANGED_BYTES: u64 = 1 << 20;
/// Share of those times before which a process is not inspected again.
const EARLIEST: f64 = 0.1;
/// RSS that raises the urgency by an eighth, in bytes; each doubling above it adds about another
/// eighth.
const LARGE_BYTES: f64 = 16.0 * 1024.0 * 1024.0;

/// The values that determine the urgency of an inspection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Need {
    /// Current RSS, in bytes.
    pub rss_bytes: u64,
    /// Age of the last inspection in seconds, and RSS then.
    pub last: Option<(f64, u64)>,
}

/// Returns the urgency of an inspection; at least 1 is overdue. `None` if it is too early.
pub(crate) fn urgency(need: Need) -> Option<f64> {
    let Some((age_s, rss_then)) = need.last else {
        // Processes without an inspection come before all others, the largest first.
        return Some(1e9 + need.rss_bytes as f64);
    };
    let change = need.rss_bytes.abs_diff(rss_then);
    let larger = need.rss_bytes.max(rss_then);
    let has_changed = change >= CHANGED_BYTES && change as f64 >= CHANGED_SHARE * larger as f64;
    let part = age_s / if has_changed { CHANGED_S } else { UNCHANGED_S };
    let size = 1.0 + (1.0 + need.rss_bytes as f64 / LARGE_BYTES).log2() / 8.0;
    (part >= EARLIEST).then_some(part * size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen(rss_mib: u64, age_s: f64, then_mib: u64) -> Option<f64> {
        urgency(Need { rss_bytes: rss_mib * MIB, last: Some((age_s, then_mib * MIB)) })
    }

    #[test]
    fn processes_that_were_never_inspected_come_first_largest_first() {
        let new = |mib: u64| urgency(Need { rss_bytes: mib * MIB, last: None });
        assert!(new(1000) > new(10));
        assert!(new(1) > seen(100_000, 1e6, 1));
    }

    #[test]
    fn changed_processes_come_before_unchanged_ones() {
        assert!(seen(110, 200.0, 100) < seen(112, 200.0, 100));
        assert!(seen(100, 200.0, 200) > seen(100, 200.0, 100));
        // Small differences are noise.
        assert_eq!(seen(0, 200.0, 0), seen(0, 200.0, 0));
        assert!(seen(5, 200.0, 4) > seen(4, 200.0, 4));
    }

    #[test]
    fn an_inspection_is_not_repeated_too_early() {
        assert_eq!(seen(1000, 20.0, 500), None);
        assert_eq!(seen(1000, 100.0, 1000), None);
        assert!(seen(1000, 40.0, 500).is_some());
    }

    #[test]
    fn the_larger_of_two_processes_with_equally_old_inspections_comes_first() {
        assert!(seen(4000, 600.0, 4000) > seen(40, 600.0, 40));
        // A small process is not forgotten.
        assert!(seen(4000, 600.0, 4000) < seen(1, 1800.0, 1));
    }
}
