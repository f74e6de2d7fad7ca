//! Recommends a treatment: the one with the least excess among those that cost no more than
//! permitted and serve the load as well as the reference does. If no treatment leaves materially
//! less than the reference, the reference is recommended. If the repeats do not settle it, the
//! recommendation is open, with the remaining memory and the cost of each treatment.

mod returnable;

use crate::metrics::PerConnection;
use crate::metrics::rise;
use crate::requests::RequestCount;
use crate::study_report::{
    FirstAndLater, Recommendation, Standing, TreatmentSummary, more_repeats_could_help,
};
use crate::trial_result::{LoadResult, TrialOutcome, TrialResult};
use lowtide_model::bytes::Human;
use lowtide_model::ledger::Owner;
use lowtide_model::stats::{ENOUGH_FOR_INTERVAL, Estimate};
use lowtide_model::treatment::Treatment;
use lowtide_record::plan::StudyPlan;
use returnable::add_returnable;

/// Summarises each treatment and chooses one, unless the plan requests no recommendation. The first
/// treatment of the plan is the reference.
pub(crate) fn recommend(
    plan: &StudyPlan,
    trials: &[TrialResult],
) -> (Vec<TreatmentSummary>, Option<Recommendation>) {
    let repeats = |treatment: &Treatment| -> Vec<&TrialResult> {
        trials.iter().filter(|t| t.treatment == *treatment).collect()
    };
    let reference = plan.treatments.first().map(repeats).unwrap_or_default();
    let yardstick = Yardstick::from_trials(trials);
    let limit = 1.0 + plan.max_slowdown;
    let summaries: Vec<TreatmentSummary> = plan
        .treatments
        .iter()
        .enumerate()
        .map(|(place, treatment)| {
            summarise(treatment, place == 0, &repeats(treatment), &reference, yardstick, limit)
        })
        .collect();
    let mut recommendation = choose(plan, &summaries, trials, yardstick);
    if let Some(recommendation) = &mut recommendation {
        add_returnable(recommendation, &summaries);
    }
    (summaries, recommendation)
}

/// The measures of cost: the same for all trials of a study.
#[derive(Debug, Clone, Copy)]
struct Yardstick {
    work: CpuUnit,
    /// Whether every load reports its latency; otherwise the duration of the load replaces it.
    latency: bool,
}

/// The unit that CPU time is given for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CpuUnit {
    /// A request, if the load counts requests.
    Request,
    /// A trial, if every trial does the same work.
    Trial,
    /// Unknown: the load took the same time in every trial and does not report the amount of its
    /// work, which may differ between treatments.
    Unknown,
}

/// Maximum excess of the failed share of requests over that of the reference, for a treatment to be
/// recommended: requests that fail need less memory.
const MOST_FAILED: f64 = 0.01;
/// Relative difference below which loads took the same time.
const SAME_DURATION: f64 = 0.02;

impl Yardstick {
    fn from_trials(trials: &[TrialResult]) -> Self {
        let usable = || trials.iter().filter(|t| t.is_usable());
        let latency = usable().flat_map(loads).all(|l| l.mean_latency_s().is_some());
        let took: Vec<f64> = usable()
            .map(|t| loads(t).map(|l| l.wall_s).sum())
            .filter(|seconds| *seconds > 0.0)
            .collect();
        let longest = took.iter().copied().fold(0.0, f64::max);
        let shortest = took.iter().copied().fold(f64::INFINITY, f64::min);
        let work = if took.is_empty() {
            CpuUnit::Trial
        } else if usable().all(|t| requests(t) > 0.0) {
            CpuUnit::Request
        } else if took.len() > 1 && longest - shortest < longest * SAME_DURATION {
            CpuUnit::Unknown
        } else {
            CpuUnit::Trial
        };
        Self { work, latency }
    }

    /// Returns CPU seconds for the work done.
    fn cpu(self, trial: &TrialResult) -> Option<f64> {
        let cpu = trial.cpu_s.filter(|c| *c > 0.0)?;
        Some(if self.work == CpuUnit::Request { cpu / requests(trial) } else { cpu })
    }

    fn latency_name(self) -> &'static str {
        if self.latency { "latency" } else { "duration of the load" }
    }

    /// Returns the latency of the load in seconds, as the mean over its rounds.
    fn latency(self, trial: &TrialResult) -> Option<f64> {
        let of = |l: &LoadResult| l.mean_latency_s().filter(|_| self.latency).unwrap_or(l.wall_s);
        let of_rounds: Vec<f64> = loads(trial).map(of).collect();
        let sum: f64 = of_rounds.iter().sum();
        (sum > 0.0).then(|| sum / of_rounds.len() as f64)
    }
}

fn loads(trial: &TrialResult) -> impl Iterator<Item = &LoadResult> {
    trial.rounds.iter().filter_map(|r| r.load.as_ref())
}

fn requests(trial: &TrialResult) -> f64 {
    loads(trial).filter_map(|l| l.figure("succeeded")).sum()
}

fn summarise(
    treatment: &Treatment,
    is_reference: bool,
    repeats: &[&TrialResult],
    reference: &[&TrialResult],
    yardstick: Yardstick,
    limit: f64,
) -> TreatmentSummary {
    let usable: Vec<&TrialResult> = repeats.iter().copied().filter(|t| t.is_usable()).collect();
    // The metrics of a treatment that was never in force are shown, together with its standing.
    let shown = if usable.is_empty() {
        repeats.iter().copied().filter(|t| t.outcome == TrialOutcome::Done).collect()
    } else {
        usable.clone()
    };
    let estimate = |of: &dyn Fn(&TrialResult) -> Option<f64>| {
        Estimate::from_values(&shown.iter().filter_map(|t| of(t)).collect::<Vec<f64>>())
    };
    let bytes = |of: &dyn Fn(&TrialResult) -> Option<u64>| estimate(&|t| of(t).map(|b| b as f64));
    let ratio = |of: &dyn Fn(&TrialResult) -> Option<f64>| {
        Estimate::from_values(&paired(&usable, reference, |a, b| Some(of(a)? / of(b)?)))
    };
    let cpu_ratio = ratio(&|t| yardstick.cpu(t));
    let latency_ratio = ratio(&|t| yardstick.latency(t));
    let standing = if usable.is_empty() {
        if repeats.iter().any(|t| t.allocator_active == Some(false)) {
            Standing::NotInForce
        } else if repeats.iter().any(|t| t.outcome == TrialOutcome::Failed) {
            Standing::Failed
        } else {
            Standing::NotFinished
        }
    } else if is_reference {
        Standing::Reference
    } else if yardstick.work == CpuUnit::Unknown {
        Standing::Unresolved
    } else {
        standing_of(&[cpu_ratio, latency_ratio], limit)
    };
    let sent = Some(RequestCount::from_trials(shown.iter().copied())).filter(|sent| sent.all > 0.0);
    TreatmentSummary {
        treatment: treatment.clone(),
        standing,
        baseline_bytes: bytes(&|t| t.baseline_bytes),
        peak_bytes: bytes(&|t| t.peak_bytes),
        settled_bytes: bytes(&|t| t.settled_bytes),
        returnable_bytes: bytes(&|t| Some(t.ledgers.settled.as_ref()?.bytes(Owner::Reclaimable))),
        settled_ratio: estimate(&|t| t.settled_ratio),
        excess_mean_bytes: bytes(&|t| t.excess_mean_bytes),
        excess_byte_seconds: estimate(&|t| t.excess_byte_seconds),
        cpu_s: estimate(&|t| yardstick.cpu(t)),
        cpu_ratio: cpu_ratio.filter(|_| !is_reference),
        latency_ratio: latency_ratio.filter(|_| !is_reference),
        per_connection: per_connection(&shown),
        requests: sent.map(|sent| sent.all as u64),
        failed_requests: sent.map(|sent| sent.failed as u64),
    }
}

fn per_connection(trials: &[&TrialResult]) -> FirstAndLater<PerConnection> {
    let ramps = || trials.iter().flat_map(|trial| &trial.ramps);
    FirstAndLater {
        first_round: PerConnection::from_ramps(ramps().filter(|ramp| ramp.round == 1)),
        later_rounds: PerConnection::from_ramps(ramps().filter(|ramp| ramp.round > 1)),
    }
}

/// Pairs the repeats of two treatments by their number, so that a drift of the machine affects
/// both.
fn paired(
    these: &[&TrialResult],
    reference: &[&TrialResult],
    of: impl Fn(&TrialResult, &TrialResult) -> Option<f64>,
) -> Vec<f64> {
    these
        .iter()
        .filter_map(|a| {
            let b = reference.iter().find(|b| b.repeat == a.repeat && b.is_usable())?;
            of(a, b).filter(|v| v.is_finite())
        })
        .collect()
}

fn standing_of(ratios: &[Option<Estimate>], limit: f64) -> Standing {
    if ratios.iter().all(Option::is_none) {
        return Standing::Unresolved;
    }
    let mut standing = Standing::Within;
    for ratio in ratios.iter().flatten() {
        if ratio.n >= 2 && ratio.low > limit {
            return Standing::Beyond;
        }
        if ratio.n < 2 || ratio.high > limit {
            standing = Standing::Unresolved;
        }
    }
    standing
}

/// Returns the excess by which treatments are compared. The mean is compared and not the
/// byte-seconds: commands that load themselves may have been observed for different times.
fn excess(summary: &TreatmentSummary) -> Option<f64> {
    summary.excess_mean_bytes.map(|excess| excess.median)
}

/// Returns the treatments that can be recommended, the one with the least excess first.
fn candidates<'s>(
    plan: &StudyPlan,
    summaries: &'s [TreatmentSummary],
    trials: &[TrialResult],
) -> Vec<&'s TreatmentSummary> {
    let mut candidates: Vec<&TreatmentSummary> = summaries
        .iter()
        .filter(|s| {
            let admitted = [Standing::Reference, Standing::Within, Standing::Unresolved];
            // If memory was still rising at the end, the remaining memory is not known.
            let is_known = excess(s).is_some() && s.settled_bytes.is_some();
            admitted.contains(&s.standing)
                && is_known
                && !fails_more(s, summaries, trials)
                && !seems_too_costly(plan, s)
        })
        .collect();
    candidates.sort_by(|a, b| excess(a).unwrap_or(0.0).total_cmp(&excess(b).unwrap_or(0.0)));
    candidates
}

/// Returns whether the reference is recommended: no other treatment leaves materially less, nor one
/// that only seems too costly.
fn is_kept(
    reference: &TreatmentSummary,
    candidates: &[&TreatmentSummary],
    plan: &StudyPlan,
    summaries: &[TreatmentSummary],
    trials: &[TrialResult],
) -> bool {
    let mut rivals = candidates.iter().filter(|s| s.treatment != reference.treatment).peekable();
    let has_known_excess = candidates.iter().any(|s| s.treatment == reference.treatment);
    let is_open = |s: &TreatmentSummary| {
        let more = excess(s).zip(excess(reference)).map(|(its, base)| its - base);
        let is_less = more.is_some_and(|more| more < -material_bytes(s, reference));
        seems_too_costly(plan, s) && is_less && !fails_more(s, summaries, trials)
    };
    has_known_excess
        && !summaries.iter().any(is_open)
        && rivals.peek().is_some()
        && rivals.all(|s| leaves_no_less(s, reference, trials))
}

fn choose(
    plan: &StudyPlan,
    summaries: &[TreatmentSummary],
    trials: &[TrialResult],
    yardstick: Yardstick,
) -> Option<Recommendation> {
    if summaries.len() < 2 || !plan.recommends() {
        return None;
    }
    let candidates = candidates(plan, summaries, trials);
    let Some((best, others)) = candidates.split_first() else {
        let because = match summaries.iter().all(|s| !fails_more(s, summaries, trials)) {
            true => "no treatment has a trial that ended as planned, settled, and can be compared",
            false => "no treatment has a trial that ended as planned, settled, and served the load",
        };
        return Some(none(because.to_owned()));
    };
    let rose = |t: &TrialResult| rise(t.start_bytes, t.peak_bytes).is_some();
    if !trials.iter().filter(|t| t.is_usable()).any(rose) {
        return Some(none(
            "memory did not rise under any treatment: there is nothing to compare".to_owned(),
        ));
    }
    let reference = summaries.first().filter(|s| s.standing == Standing::Reference);
    if let Some(reference) =
        reference.filter(|reference| is_kept(reference, &candidates, plan, summaries, trials))
    {
        let because = match tradeoffs(reference, summaries, yardstick) {
            none if none.is_empty() => "no treatment leaves materially less memory".to_owned(),
            reported => {
                format!(
                    "no treatment at an acceptable cost leaves materially less memory; {reported}"
                )
            }
        };
        return Some(Recommendation {
            treatment: Some(reference.treatment.clone()),
            because,
            resolved: true,
        });
    }
    let doubts = doubts(best, others, plan, summaries, trials, yardstick);
    let because = if doubts.is_empty() {
        because(best, summaries, trials, yardstick)
    } else {
        open_because(&doubts, plan, summaries, yardstick)
    };
    Some(Recommendation {
        treatment: Some(best.treatment.clone()),
        because,
        resolved: doubts.is_empty(),
    })
}

/// Returns whether the estimated cost of a treatment exceeds the limit, regardless of the width of
/// its interval and the number of its repeats.
fn seems_too_costly(plan: &StudyPlan, summary: &TreatmentSummary) -> bool {
    let ratios = [summary.cpu_ratio, summary.latency_ratio];
    summary.standing == Standing::Unresolved
        && ratios.iter().flatten().any(|ratio| ratio.median > 1.0 + plan.max_slowdown)
}

/// Returns whether the repeats show that a treatment does not leave materially less than the
/// reference.
fn leaves_no_less(
    summary: &TreatmentSummary,
    reference: &TreatmentSummary,
    trials: &[TrialResult],
) -> bool {
    let difference = excess_difference(summary, reference, trials);
    let least = -material_bytes(summary, reference);
    // If one of them has more trials than the other, the medians may contradict the pairs.
    let excess = |s: &TreatmentSummary| s.excess_mean_bytes.map_or(0.0, |e| e.median);
    let by_medians = excess(summary) - excess(reference);
    by_medians > least && difference.is_some_and(|d| d.median > least && d.resolved_from(least))
}

/// Returns the reason why nothing is recommended yet, with the remaining memory and the cost of
/// each treatment.
fn open_because(
    doubts: &[String],
    plan: &StudyPlan,
    summaries: &[TreatmentSummary],
    yardstick: Yardstick,
) -> String {
    let mut text = doubts.join("; ");
    if more_repeats_could_help(summaries) && plan.repeats < ENOUGH_FOR_INTERVAL as u32 {
        text += &format!("; run more repeats (--repeat {ENOUGH_FOR_INTERVAL})");
    }
    let reference = summaries.first().filter(|s| s.standing == Standing::Reference);
    let tradeoffs = reference.map(|r| tradeoffs(r, summaries, yardstick));
    match tradeoffs {
        Some(reported) if !reported.is_empty() => format!("{text}. So far: {reported}"),
        _ => text,
    }
}

/// Describes the treatments whose mean excess is materially less than that of the reference, with
/// their costs, in one sentence: the three with the least. Returns an empty text if there are none.
fn tradeoffs(
    reference: &TreatmentSummary,
    summaries: &[TreatmentSummary],
    yardstick: Yardstick,
) -> String {
    const MAX_LISTED: usize = 3;
    let Some(of_reference) = reference.excess_mean_bytes.map(|e| e.median) else {
        return String::new();
    };
    let is_seen = |s: &&TreatmentSummary| {
        let standings = [Standing::Within, Standing::Beyond, Standing::Unresolved];
        standings.contains(&s.standing) && s.settled_bytes.is_some()
    };
    let mut savings: Vec<(f64, &TreatmentSummary)> = summaries
        .iter()
        .filter(is_seen)
        .filter_map(|s| Some((of_reference - s.excess_mean_bytes?.median, s)))
        .filter(|(less, s)| *less >= material_bytes(s, reference))
        .collect();
    savings.sort_by(|a, b| b.0.total_cmp(&a.0));
    let sentences = savings.iter().take(MAX_LISTED).map(|(less, summary)| {
        let costs = [summary.cpu_ratio, summary.latency_ratio].map(|ratio| ratio.map(in_short));
        let costs: Vec<String> = [("CPU", &costs[0]), (yardstick.latency_name(), &costs[1])]
            .into_iter()
            .filter_map(|(name, cost)| Some(format!("{name} {}", cost.as_ref()?)))
            .collect();
        let costs =
            if costs.is_empty() { String::new() } else { format!(", at {}", costs.join(" and ")) };
        format!(
            "{} held on average {} ({}) less than {}{costs}",
            summary.treatment,
            Human(*less as u64),
            whole_percent(less / of_reference),
            reference.treatment
        )
    });
    sentences.collect::<Vec<String>>().join("; ")
}

fn in_short(ratio: Estimate) -> String {
    match ratio.n {
        1 => format!("× {:.2}", ratio.median),
        _ => format!("× {:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high),
    }
}

/// Returns the requests of a treatment, as far as its trials report them.
fn requests_of(summary: &TreatmentSummary, trials: &[TrialResult]) -> RequestCount {
    RequestCount::from_trials(
        trials.iter().filter(|t| t.treatment == summary.treatment && t.is_usable()),
    )
}

/// Returns whether a larger share of requests failed under a treatment than under the reference.
fn fails_more(
    summary: &TreatmentSummary,
    summaries: &[TreatmentSummary],
    trials: &[TrialResult],
) -> bool {
    let share = |s: &TreatmentSummary| requests_of(s, trials).failed_share();
    share(summary) - summaries.first().map_or(0.0, share) > MOST_FAILED
}

/// Returns the open questions about the best treatment.
fn doubts(
    best: &TreatmentSummary,
    others: &[&TreatmentSummary],
    plan: &StudyPlan,
    summaries: &[TreatmentSummary],
    trials: &[TrialResult],
    yardstick: Yardstick,
) -> Vec<String> {
    let mut doubts = Vec::new();
    if plan.repeats < 2 {
        return vec!["one repeat shows no spread".to_owned()];
    }
    let name = best.treatment.label();
    let is_less = |other: &TreatmentSummary| {
        excess_difference(best, other, trials)
            .is_some_and(|d| d.median < 0.0 && d.resolved_from(0.0))
    };
    let (less, not_less): (Vec<&TreatmentSummary>, Vec<&TreatmentSummary>) =
        others.iter().partition(|o| is_less(o));
    if !not_less.is_empty() {
        doubts
            .push(format!("it is not certain that {name} leaves less than {}", labels(&not_less)));
    }
    let alike: Vec<&TreatmentSummary> =
        less.into_iter().filter(|o| !is_material(best, o)).collect();
    if !alike.is_empty() {
        let names = labels(&alike);
        doubts.push(format!("{name} and {names} differ by less than 1 MiB or 1 % of the peak"));
    }
    let limit = percent(plan.max_slowdown);
    let excess = |s: &TreatmentSummary| s.excess_mean_bytes.map(|e| e.median);
    let would_be_better = |s: &&TreatmentSummary| {
        let left_less = excess(s).zip(excess(best)).is_some_and(|(its, least)| its < least);
        seems_too_costly(plan, s) && left_less && is_material(best, s)
    };
    let costly: Vec<&TreatmentSummary> = summaries.iter().filter(would_be_better).collect();
    if !costly.is_empty() {
        doubts.push(format!("it is not certain that {} costs more than {limit}", labels(&costly)));
    }
    let is_settled = |s: &TreatmentSummary| {
        s.standing == Standing::Beyond
            || seems_too_costly(plan, s)
            || s.treatment == best.treatment
            || fails_more(s, summaries, trials)
    };
    if others.is_empty() && !summaries.iter().all(is_settled) {
        doubts.push("no other treatment could be compared".to_owned());
    }
    if best.standing == Standing::Unresolved {
        let why = if yardstick.work == CpuUnit::Unknown {
            ": the load took the same time in every trial, and did not report how much work it did"
        } else if best.cpu_ratio.is_none() && best.latency_ratio.is_none() {
            ": there is nothing to compare it with"
        } else {
            ""
        };
        doubts.push(format!("it is not certain that the cost of {name} stays within {limit}{why}"));
    }
    let not_seen = |t: &TrialResult| t.is_usable() && t.allocator_active.is_none();
    if trials.iter().any(|t| t.treatment == best.treatment && not_seen(t)) {
        doubts.push(format!("it is not certain that {name} was in force in every trial"));
    }
    doubts
}

fn labels(summaries: &[&TreatmentSummary]) -> String {
    let labels: Vec<String> = summaries.iter().map(|s| s.treatment.label()).collect();
    labels.join(", ")
}

/// Returns whether two treatments differ by a relevant amount: 1 MiB, or 1 % of the peak.
fn is_material(a: &TreatmentSummary, b: &TreatmentSummary) -> bool {
    let excess = |s: &TreatmentSummary| s.excess_mean_bytes.map_or(0.0, |e| e.median);
    (excess(a) - excess(b)).abs() >= material_bytes(a, b)
}

fn material_bytes(a: &TreatmentSummary, b: &TreatmentSummary) -> f64 {
    let peak = |s: &TreatmentSummary| s.peak_bytes.map_or(0.0, |e| e.median);
    (peak(a).max(peak(b)) / 100.0).max(1_048_576.0)
}

fn none(because: String) -> Recommendation {
    Recommendation { treatment: None, because, resolved: false }
}

/// Returns the paired differences in excess between two treatments.
fn excess_difference(
    a: &TreatmentSummary,
    b: &TreatmentSummary,
    trials: &[TrialResult],
) -> Option<Estimate> {
    let repeats = |summary: &TreatmentSummary| -> Vec<&TrialResult> {
        trials.iter().filter(|t| t.treatment == summary.treatment && t.is_usable()).collect()
    };
    Estimate::from_values(&paired(&repeats(a), &repeats(b), |a, b| {
        Some(a.excess_mean_bytes? as f64 - b.excess_mean_bytes? as f64)
    }))
}

fn because(
    best: &TreatmentSummary,
    summaries: &[TreatmentSummary],
    trials: &[TrialResult],
    yardstick: Yardstick,
) -> String {
    let mean = |s: &TreatmentSummary| s.excess_mean_bytes.map(|e| Human(e.median as u64));
    let mut text = match mean(best) {
        Some(held) => {
            let of_both = [Some(best), summaries.first()].into_iter().flatten();
            let baseline = baseline_of(&of_both.collect::<Vec<_>>(), trials);
            format!("after the load it held {held} above its {baseline} on average")
        }
        None => "its memory after the load is unknown".to_owned(),
    };
    match summaries.first() {
        Some(reference) if reference.treatment != best.treatment => {
            text += &match (reference.standing, mean(reference)) {
                (Standing::Reference, Some(held)) => format!(", {} {held}", reference.treatment),
                _ => format!("; {} cannot be compared", reference.treatment),
            };
            let costs = costs(best, yardstick);
            if !costs.is_empty() {
                text += &format!("; {costs}");
            }
        }
        _ => text += ", the least of all treatments with an acceptable cost",
    }
    let (failing, serving): (Vec<&TreatmentSummary>, Vec<&TreatmentSummary>) =
        summaries.iter().partition(|s| fails_more(s, summaries, trials));
    let holds_less = |s: &&&TreatmentSummary| mean(s).map(|h| h.0) < mean(best).map(|h| h.0);
    for failing in failing.iter().filter(holds_less) {
        let failed = requests_of(failing, trials);
        text += &format!("; {} is ruled out ({failed})", failing.treatment);
    }
    let costs_too_much = |s: &&&TreatmentSummary| s.standing == Standing::Beyond;
    for costly in serving.iter().filter(costs_too_much).filter(holds_less) {
        text += &format!("; {} costs too much ({})", costly.treatment, costs(costly, yardstick));
    }
    text
}

/// Returns what the excess of treatments is counted from. Trials whose memory rose from the start
/// have only an estimate.
fn baseline_of(summaries: &[&TreatmentSummary], trials: &[TrialResult]) -> String {
    let is_one = |trial: &&TrialResult| {
        trial.is_usable() && summaries.iter().any(|summary| summary.treatment == trial.treatment)
    };
    let count = trials.iter().filter(is_one).count();
    let estimated =
        trials.iter().filter(is_one).filter(|trial| trial.baseline_bytes.is_none()).count();
    match estimated {
        0 => "baseline".to_owned(),
        _ if estimated == count => "estimated baseline".to_owned(),
        _ => format!("baseline (estimated in {estimated} of {count} trials)"),
    }
}

/// Describes the cost of a treatment relative to the reference.
fn costs(summary: &TreatmentSummary, yardstick: Yardstick) -> String {
    let part = |name: &str, ratio: Option<Estimate>| {
        ratio.map(|r| {
            let surroundings = if r.n > 1 {
                format!(" ({:.2} to {:.2}, {})", r.low, r.high, r.kind())
            } else {
                format!(" ({})", r.kind())
            };
            format!("{name} × {:.2}{surroundings}", r.median)
        })
    };
    [part("CPU time", summary.cpu_ratio), part(yardstick.latency_name(), summary.latency_ratio)]
        .into_iter()
        .flatten()
        .collect::<Vec<String>>()
        .join(", ")
}

fn whole_percent(ratio: f64) -> String {
    format!("{} %", (ratio * 100.0).round())
}

fn percent(ratio: f64) -> String {
    format!("{} %", (ratio * 1000.0).round() / 10.0)
}

#[cfg(test)]
mod tests;
