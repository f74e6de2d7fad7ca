//! The totals of several processes, in a line.

use lowtide_model::bytes::Human;
use lowtide_model::group::GroupTotals;
use lowtide_model::number::HumanCount;

/// Formats a number of processes.
pub fn processes(count: u64) -> String {
    format!("{} {}", HumanCount(count), if count == 1 { "process" } else { "processes" })
}

/// Describes processes that use the memory of another one; `None` if there are none.
pub fn same_memory(count: u64) -> Option<String> {
    let verb = if count == 1 { "uses" } else { "use" };
    (count > 0)
        .then(|| format!("{} {verb} the memory of another, which counts once", HumanCount(count)))
}

/// Returns the totals as a sentence.
pub fn sentence(totals: &GroupTotals) -> String {
    let mut parts = vec![format!("together: {}", processes(totals.processes))];
    parts.extend(same_memory(totals.same_memory));
    let about = if totals.pss_is_estimate { "≈ " } else { "" };
    let pss = match (totals.pss_before_bytes, totals.pss_bytes) {
        (Some(before), Some(now)) => {
            format!("PSS {about}{} → {about}{}", Human(before), Human(now))
        }
        (None, Some(now)) => format!("PSS {about}{}", Human(now)),
        _ => "PSS is not known".to_owned(),
    };
    parts.push(pss);
    parts.push(format!("RSS {}", Human(totals.rss_bytes)));
    for (bytes, what) in [
        (totals.private_bytes, "not shared after a fork"),
        (totals.allocated_bytes, "allocated"),
        (totals.reclaimable_bytes, "reclaimable"),
        (totals.returned_bytes, "returned"),
    ] {
        parts.extend(bytes.map(|bytes| format!("{} {what}", Human(bytes))));
    }
    for (count, what) in
        [(totals.refused.unwrap_or(0), "refused"), (totals.unreadable, "could not be inspected")]
    {
        if count > 0 {
            parts.push(format!("{} {what}", HumanCount(count)));
        }
    }
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_release_shows_total_pss_before_and_after() {
        let totals = GroupTotals {
            processes: 3,
            pss_before_bytes: Some(401 << 20),
            pss_bytes: Some(190 << 20),
            rss_bytes: 214 << 20,
            returned_bytes: Some(211 << 20),
            refused: Some(1),
            ..GroupTotals::default()
        };
        assert_eq!(
            sentence(&totals),
            "together: 3 processes · PSS 401 MiB → 190 MiB · RSS 214 MiB · 211 MiB returned · 1 refused"
        );
    }

    #[test]
    fn memory_that_several_processes_use_counts_once() {
        let totals = GroupTotals {
            processes: 2,
            same_memory: 1,
            pss_bytes: Some(150 << 20),
            rss_bytes: 151 << 20,
            ..GroupTotals::default()
        };
        assert_eq!(
            sentence(&totals),
            "together: 2 processes · 1 uses the memory of another, which counts once · PSS 150 MiB · \
             RSS 151 MiB"
        );
    }

    #[test]
    fn an_estimated_pss_is_marked() {
        let totals = GroupTotals {
            processes: 2,
            pss_bytes: Some(1 << 20),
            pss_is_estimate: true,
            ..GroupTotals::default()
        };
        assert!(sentence(&totals).contains("PSS ≈ 1.00 MiB"), "{}", sentence(&totals));
    }
}
