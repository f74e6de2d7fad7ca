//! The totals of several processes, in a line.

use lowtide_model::bytes::Human;
use lowtide_model::group::GroupTotals;
use lowtide_model::number::HumanCount;

/// Formats a number of processes.
pub fn processes(count: u64) -> String {
    format!("{} {}", HumanCount(count), if count == 1 { "process" } else { "processes" })
}

/// Returns the totals as a sentence.
pub fn sentence(totals: &GroupTotals) -> String {
    let mut parts = vec![format!("together: {}", processes(totals.processes))];
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
