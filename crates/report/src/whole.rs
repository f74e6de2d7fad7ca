//! What several processes are together, in a line.

use lowtide_model::bytes::Human;
use lowtide_model::group::GroupTotals;

fn counted_of(processes: u64) -> String {
    format!("{processes} {}", if processes == 1 { "process" } else { "processes" })
}

/// The line.
pub fn sentence(whole: &GroupTotals) -> String {
    let mut parts = vec![format!("together: {}", counted_of(whole.processes))];
    let about = if whole.pss_is_estimate { "≈ " } else { "" };
    let pss = match (whole.pss_before_bytes, whole.pss_bytes) {
        (Some(before), Some(now)) => {
            format!("PSS {about}{} → {about}{}", Human(before), Human(now))
        }
        (None, Some(now)) => format!("PSS {about}{}", Human(now)),
        _ => "PSS is not known".to_owned(),
    };
    parts.push(pss);
    parts.push(format!("RSS {}", Human(whole.rss_bytes)));
    for (bytes, what) in [
        (whole.allocated_bytes, "allocated"),
        (whole.reclaimable_bytes, "reclaimable"),
        (whole.returned_bytes, "returned"),
    ] {
        parts.extend(bytes.map(|bytes| format!("{} {what}", Human(bytes))));
    }
    for (count, what) in
        [(whole.refused.unwrap_or(0), "refused"), (whole.unreadable, "could not be inspected")]
    {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_of_several_tells_both_sums_of_pss() {
        let whole = GroupTotals {
            processes: 3,
            pss_before_bytes: Some(401 << 20),
            pss_bytes: Some(190 << 20),
            rss_bytes: 214 << 20,
            returned_bytes: Some(211 << 20),
            refused: Some(1),
            ..GroupTotals::default()
        };
        assert_eq!(
            sentence(&whole),
            "together: 3 processes · PSS 401 MiB → 190 MiB · RSS 214 MiB · 211 MiB returned · 1 refused"
        );
    }

    #[test]
    fn an_estimate_is_marked() {
        let whole = GroupTotals {
            processes: 2,
            pss_bytes: Some(1 << 20),
            pss_is_estimate: true,
            ..GroupTotals::default()
        };
        assert!(sentence(&whole).contains("PSS ≈ 1.00 MiB"), "{}", sentence(&whole));
    }
}
