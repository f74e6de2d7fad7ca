//! Memory per connection, and the trend of retained memory over the rounds, for each treatment.

use lowtide_analysis::metrics::{PerConnection, RoundDirection, RoundTrend};
use lowtide_analysis::regression::Slope;
use lowtide_analysis::study_report::StudyReport;
use lowtide_analysis::trial_result::TrialResult;

use super::cells::{Cell, Table, TableRow, heads, shown};
use crate::text::with_minus;

/// Returns memory per connection, by regression over the ramps; `None` if no load opened
/// connections one by one.
pub(crate) fn per_connection(study: &StudyReport) -> Option<Table> {
    let all = study.treatments.iter().flat_map(|summary| {
        let (label, costs) = (summary.treatment.label(), summary.per_connection);
        let rounds = [("first", costs.first_round), ("later", costs.later_rounds)];
        rounds.into_iter().filter_map(move |(name, costs)| Some((label.clone(), name, costs?)))
    });
    let all: Vec<(String, &str, PerConnection)> = all.collect();
    let has_inner = all.iter().any(|(_, _, costs)| costs.inner_memory_bytes.is_some());
    let rows = all.into_iter().map(|(label, name, costs)| {
        let mut cells = vec![Cell::from(label), Cell::from(name.to_owned())];
        cells.push(slope(Some(costs.memory_bytes)));
        cells.extend(has_inner.then(|| slope(costs.inner_memory_bytes)));
        TableRow::plain(cells)
    });
    let rows: Vec<TableRow> = rows.collect();
    let mut columns = vec!["treatment", "rounds", study.metric.name()];
    columns.extend(has_inner.then_some("inner"));
    let inner = if has_inner { "; inner: allocated memory, as the program reports it" } else { "" };
    (!rows.is_empty()).then(|| Table {
        caption: format!(
            "Memory per connection, by regression over the time in which connections were opened (median \
             slope, 95 % interval){inner}"
        ),
        heads: heads(&columns),
        rows,
    })
}

fn slope(slope: Option<Slope>) -> Cell {
    let Some(slope) = slope else { return Cell::from("–".to_owned()) };
    let rounded = |bytes: f64| with_minus(bytes.round() as i64);
    let short = rounded(slope.each);
    let full = match slope.low.zip(slope.high) {
        Some((low, high)) => format!("{short} ({} to {})", rounded(low), rounded(high)),
        None => format!("{short} (not resolved)"),
    };
    Cell { full, short }
}

/// Returns the trends of retained memory over the rounds; `None` if there are too few rounds, or
/// the analysis found no trend because they are not alike.
pub(crate) fn trends(study: &StudyReport) -> Option<Table> {
    const MIN_ROUNDS: usize = 3;
    let are_few = study.trials.iter().all(|trial| trial.rounds.len() < MIN_ROUNDS);
    let trends = || study.trials.iter().map(|trial| &trial.over_rounds);
    if are_few || trends().all(|trends| trends.memory.is_none() && trends.inner_memory.is_none()) {
        return None;
    }
    let has_inner = trends().any(|trends| trends.inner_memory.is_some());
    let rows = study.treatments.iter().map(|summary| {
        let trials = shown(study, summary);
        let mut cells = vec![
            Cell::from(summary.treatment.label()),
            trend(&trials, |trial| trial.over_rounds.memory.as_ref()),
        ];
        cells.extend(
            has_inner.then(|| trend(&trials, |trial| trial.over_rounds.inner_memory.as_ref())),
        );
        TableRow::plain(cells)
    });
    let mut columns = vec!["treatment", study.metric.name()];
    columns.extend(has_inner.then_some("inner"));
    Some(Table {
        caption:
            "Trend of the memory that remains after a round, from the second round on: unbounded growth \
                  is a leak, a level trend is retained memory"
                .to_owned(),
        heads: heads(&columns),
        rows: rows.collect(),
    })
}

fn trend(trials: &[&TrialResult], of: fn(&TrialResult) -> Option<&RoundTrend>) -> Cell {
    trend_of(&trials.iter().copied().filter_map(of).collect::<Vec<_>>())
}

/// Returns the trend of several repeats: growing, if any of them is growing; otherwise the most
/// frequent one.
fn trend_of(found: &[&RoundTrend]) -> Cell {
    let count = |trend: RoundDirection| found.iter().filter(|one| one.trend == trend).count();
    // If two are equally frequent, `undecided` is taken, because it claims less.
    let most = [RoundDirection::Level, RoundDirection::Undecided]
        .into_iter()
        .max_by_key(|trend| count(*trend));
    let growing = Some(RoundDirection::Growing).filter(|trend| count(*trend) > 0);
    let Some(reported) = growing.or(most).filter(|_| !found.is_empty()) else {
        return Cell::from("–".to_owned());
    };
    let short = match (count(reported), found.len()) {
        (same, all) if same == all => reported.name().to_owned(),
        (same, all) => format!("{} in {same} of {all}", reported.name()),
    };
    let full = match found {
        [only] => format!("{short} ({})", only.because),
        _ => short.clone(),
    };
    Cell { full, short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_growing_repeat_is_reported_and_otherwise_the_majority_trend() {
        use RoundDirection::{Growing, Level, Undecided};
        let reported = |trends: &[RoundDirection]| {
            let because = "why".to_owned();
            let all =
                trends.iter().map(|trend| RoundTrend { trend: *trend, because: because.clone() });
            let all: Vec<RoundTrend> = all.collect();
            trend_of(&all.iter().collect::<Vec<_>>()).full
        };
        assert_eq!(reported(&[Level, Level, Growing]), "growing in 1 of 3");
        assert_eq!(reported(&[Growing, Growing]), "growing");
        assert_eq!(reported(&[Undecided, Level, Level]), "level in 2 of 3");
        assert_eq!(reported(&[Level, Undecided]), "undecided in 1 of 2");
        assert_eq!((reported(&[Level]), reported(&[])), ("level (why)".to_owned(), "–".to_owned()));
    }

    #[test]
    fn a_slope_is_shown_with_its_interval_or_marked_as_not_resolved() {
        let found = |low, high| slope(Some(Slope { n: 11, each: 45_158.4, low, high })).full;
        assert_eq!(found(Some(-512.0), Some(51_200.0)), "44.1 KiB (-512 B to 50.0 KiB)");
        assert_eq!(found(None, None), "44.1 KiB (not resolved)");
        assert_eq!(slope(None).full, "–");
    }
}
