//! The comparison of two versions of a command.

use lowtide_analysis::study_report::StudyReport;
use lowtide_analysis::versions::{
    BASE, ComparedMetric, FEWEST_PAIRS, GrownBlocks, GrownOwner, HEAD, VersionComparison,
    VersionVerdict,
};
use lowtide_model::bytes::Human;
use lowtide_model::ledger::Owner;

use super::cells::{Cell, Table, TableRow, heads};
use crate::pins::size;
use crate::text::{printable, signed, thousands};

/// Maximum number of owners in the table.
const MAX_OWNERS: usize = 8;

/// Returns settled memory, peak memory, and settled memory by owner of both versions.
pub(crate) fn versions(study: &StudyReport) -> Option<Table> {
    let comparison = study.comparison.as_ref()?;
    let mut rows = vec![
        row("settled memory".to_owned(), false, &comparison.settled),
        row("peak memory".to_owned(), false, &comparison.peak),
    ];
    let owners = comparison.by_owner.iter().map(|owner| {
        let name = format!("settled, {}", owner_name(owner.owner, owner.name.as_deref()));
        row(name, owner.estimated, &owner.metric)
    });
    rows.extend(owners.take(MAX_OWNERS));
    Some(Table {
        caption: caption(study, comparison),
        heads: heads(&["memory", BASE, HEAD, "difference (interval)", "verdict"]),
        rows,
    })
}

fn caption(study: &StudyReport, comparison: &VersionComparison) -> String {
    let left_out = match comparison.by_owner.len().saturating_sub(MAX_OWNERS) {
        0 => String::new(),
        more => format!("; {more} more owners are in the JSON"),
    };
    let repeats = comparison.settled.repeats;
    let interval = match repeats >= FEWEST_PAIRS {
        true => "interval with an error of 1 in 1,024 on each side",
        false => "the range, since fewer than 10 repeats have no such interval",
    };
    format!(
        "{}, medians of {repeats} repeats of both versions; the difference is that within a repeat, {interval}; \
         differences up to {} do not matter{left_out}",
        study.metric.name().to_uppercase(),
        Human(comparison.settled.margin_bytes)
    )
}

fn row(name: String, estimated: bool, metric: &ComparedMetric) -> TableRow {
    let about = if estimated { "≈ " } else { "" };
    let bytes = |value: Option<u64>| {
        Cell::from(value.map_or("–".to_owned(), |bytes| format!("{about}{}", Human(bytes))))
    };
    let difference = metric.difference_bytes.map_or("–".to_owned(), |d| {
        format!("{about}{} ({} to {})", signed(d.median), signed(d.low), signed(d.high))
    });
    TableRow::plain(vec![
        Cell::from(printable(&name)),
        bytes(metric.base_bytes),
        bytes(metric.head_bytes),
        Cell::from(difference),
        Cell::from(metric.verdict.name().to_owned()),
    ])
}

fn owner_name(owner: Owner, name: Option<&str>) -> String {
    name.map_or_else(|| owner.name().to_owned(), printable)
}

/// Returns the result of the comparison in a sentence or two.
pub(super) fn sentence(comparison: &VersionComparison) -> String {
    let settled = &comparison.settled;
    let Some(difference) = settled.difference_bytes else {
        return "Not resolved: no repeat has settled memory of both versions.".to_owned();
    };
    let margin = Human(settled.margin_bytes);
    let range = format!("{} to {}", signed(difference.low), signed(difference.high));
    match settled.verdict {
        VersionVerdict::Worse => format!(
            "Worse: {HEAD} keeps {} more settled memory than {BASE}, at least {}.{}",
            amount(settled, difference.median),
            amount(settled, difference.low),
            in_owners(comparison)
        ),
        VersionVerdict::Better => format!(
            "Better: {HEAD} keeps {} less settled memory than {BASE}, at least {}.",
            amount(settled, difference.median),
            amount(settled, difference.high)
        ),
        VersionVerdict::Same => format!(
            "The same within the noise: the difference in settled memory is {range}, and up to {margin} does not \
             matter."
        ),
        VersionVerdict::NotResolved => {
            format!("Not resolved: {}. {}", unresolved(settled, &range), needed(settled))
        }
    }
}

/// Describes why a metric is not decided.
fn unresolved(settled: &ComparedMetric, range: &str) -> String {
    let repeats = settled.repeats;
    match settled.interval() {
        Some(_) => format!(
            "the difference in settled memory is {range}, across the {} that do not matter",
            Human(settled.margin_bytes)
        ),
        None => format!(
            "{repeats} of at least {FEWEST_PAIRS} repeats have settled memory of both versions; so far, the difference \
             is {range}"
        ),
    }
}

fn needed(settled: &ComparedMetric) -> String {
    match settled.repeats_needed {
        Some(1) => "1 more repeat would probably decide it.".to_owned(),
        Some(repeats) => format!("{repeats} more repeats would probably decide it."),
        None => "It is too close to what does not matter: more repeats would not decide it; \
                 choose another --tolerance."
            .to_owned(),
    }
}

/// Formats an amount of bytes with its share of the older version's memory.
fn amount(metric: &ComparedMetric, difference: i64) -> String {
    let bytes = Human(difference.unsigned_abs());
    let share = metric.share(difference);
    share.map_or(bytes.to_string(), |share| format!("{bytes} ({:.1} %)", share.abs() * 100.0))
}

fn in_owners(comparison: &VersionComparison) -> String {
    match comparison.grew.is_empty() {
        true => " The owner of the growth is unknown.".to_owned(),
        false => {
            let names: Vec<String> = comparison.grew.iter().map(grown_owner).collect();
            format!(" What grew: {}.", names.join("; "))
        }
    }
}

fn grown_owner(grown: &GrownOwner) -> String {
    let name = owner_name(grown.owner, grown.name.as_deref());
    let blocks: Vec<String> =
        grown.blocks.iter().map(|blocks| grown_blocks(grown.owner, blocks)).collect();
    let blocks =
        if blocks.is_empty() { String::new() } else { format!(" ({})", blocks.join(", ")) };
    format!("{name} {}{blocks}", signed(grown.bytes))
}

fn grown_blocks(owner: Owner, blocks: &GrownBlocks) -> String {
    let block_type = blocks.block_type.as_ref().map_or(String::new(), |name| format!(" {name}"));
    let verb = if owner == Owner::Fragmented { "pin " } else { "" };
    let noun = if blocks.blocks == 1 { "block" } else { "blocks" };
    printable(&format!(
        "{} {noun} of {}{block_type} {verb}{}",
        thousands(blocks.blocks),
        size(blocks.size_bytes),
        signed(blocks.growth_bytes as i64)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_analysis::versions::Interval;

    fn metric(verdict: VersionVerdict, [low, median, high]: [i64; 3]) -> ComparedMetric {
        let mib = |count: i64| count << 20;
        ComparedMetric {
            verdict,
            base_bytes: Some(200 << 20),
            head_bytes: Some(212 << 20),
            difference_bytes: Some(Interval {
                low: mib(low),
                median: mib(median),
                high: mib(high),
            }),
            margin_bytes: 2 << 20,
            repeats: 10,
            repeats_needed: None,
        }
    }

    fn comparison(settled: ComparedMetric, grew: Vec<GrownOwner>) -> VersionComparison {
        let peak = metric(VersionVerdict::Same, [0, 0, 1]);
        VersionComparison { against: Vec::new(), settled, peak, by_owner: Vec::new(), grew }
    }

    #[test]
    fn growth_is_described_with_its_lower_end_and_with_what_grew() {
        let blocks = |size_bytes, growth_mib: u64| GrownBlocks {
            size_bytes,
            block_type: Some("C++ Session".to_owned()),
            blocks: 12_000,
            bytes: 12_000 * size_bytes,
            growth_bytes: growth_mib << 20,
        };
        let grown = |owner, bytes, blocks| GrownOwner { owner, name: None, bytes, blocks };
        let grew = vec![
            grown(Owner::Allocated, 9 << 20, vec![blocks(1040, 9)]),
            grown(Owner::Fragmented, 3 << 20, vec![blocks(64, 2)]),
        ];
        let found = comparison(metric(VersionVerdict::Worse, [10, 12, 14]), grew);
        assert_eq!(
            sentence(&found),
            "Worse: head keeps 12.0 MiB (6.0 %) more settled memory than base, at least 10.0 MiB (5.0 %). What grew: \
             allocated +9.00 MiB (12,000 blocks of 1,040 B C++ Session +9.00 MiB); fragmented +3.00 MiB (12,000 blocks \
             of 64 B C++ Session pin +2.00 MiB)."
        );
        let unknown = comparison(metric(VersionVerdict::Worse, [10, 12, 14]), Vec::new());
        assert!(sentence(&unknown).ends_with("The owner of the growth is unknown."));
    }

    #[test]
    fn the_other_verdicts_show_what_is_certain() {
        let of = |settled| sentence(&comparison(settled, Vec::new()));
        assert_eq!(
            of(metric(VersionVerdict::Better, [-14, -12, -10])),
            "Better: head keeps 12.0 MiB (6.0 %) less settled memory than base, at least 10.0 MiB (5.0 %)."
        );
        assert_eq!(
            of(metric(VersionVerdict::Same, [-1, 0, 1])),
            "The same within the noise: the difference in settled memory is -1.00 MiB to +1.00 MiB, and up to 2.00 MiB \
             does not matter."
        );
        let open = metric(VersionVerdict::NotResolved, [-1, 3, 9]);
        let more = ComparedMetric { repeats_needed: Some(4), ..open };
        assert!(of(more).ends_with("4 more repeats would probably decide it."), "{}", of(more));
        assert!(of(open).contains("more repeats would not decide it"), "{}", of(open));
        let few = ComparedMetric { repeats: 3, repeats_needed: Some(7), ..open };
        assert!(of(few).starts_with("Not resolved: 3 of at least 10 repeats have"), "{}", of(few));
        let none = ComparedMetric { difference_bytes: None, ..open };
        assert_eq!(of(none), "Not resolved: no repeat has settled memory of both versions.");
    }
}
