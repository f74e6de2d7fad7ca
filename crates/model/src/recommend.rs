//! Which treatment to take: the one that leaves the least excess among those that cost no more than
//! was allowed. When the repeats do not settle it, the recommendation says so.

use crate::bytes::Human;
use crate::record::v1::Plan;
use crate::stats::{ENOUGH_FOR_INTERVAL, Estimate};
use crate::study::{Recommendation, Standing, Summary, TrialResult};
use crate::treatment::Treatment;

/// Sums up each treatment and chooses one. The first treatment of the plan is the reference.
pub fn recommend(plan: &Plan, trials: &[TrialResult]) -> (Vec<Summary>, Option<Recommendation>) {
    let repeats = |treatment: &Treatment| -> Vec<&TrialResult> {
        trials.iter().filter(|t| t.treatment == *treatment).collect()
    };
    let reference = plan.treatments.first().map(repeats).unwrap_or_default();
    let summaries: Vec<Summary> = plan
        .treatments
        .iter()
        .enumerate()
        .map(|(place, treatment)| {
            summarise(treatment, place == 0, &repeats(treatment), &reference, plan.max_slowdown)
        })
        .collect();
    let recommendation = choose(plan, &summaries, trials);
    (summaries, recommendation)
}

fn summarise(
    treatment: &Treatment,
    is_reference: bool,
    repeats: &[&TrialResult],
    reference: &[&TrialResult],
    max_slowdown: f64,
) -> Summary {
    let usable: Vec<&TrialResult> = repeats.iter().copied().filter(|t| t.is_usable()).collect();
    // Figures of a treatment that was never in force are shown, with their standing beside them.
    let shown = if usable.is_empty() {
        repeats.iter().copied().filter(|t| t.outcome == "done").collect()
    } else {
        usable.clone()
    };
    let estimate = |of: &dyn Fn(&TrialResult) -> Option<f64>| {
        Estimate::of(&shown.iter().filter_map(|t| of(t)).collect::<Vec<f64>>())
    };
    let bytes = |of: &dyn Fn(&TrialResult) -> Option<u64>| estimate(&|t| of(t).map(|b| b as f64));
    let ratio = |of: &dyn Fn(&TrialResult) -> Option<f64>| {
        Estimate::of(&paired(&usable, reference, |a, b| Some(of(a)? / of(b)?)))
    };
    let cpu_ratio = ratio(&cpu_per_work);
    let latency_ratio = ratio(&latency);
    let standing = if usable.is_empty() {
        if repeats.iter().any(|t| t.allocator_active == Some(false)) {
            Standing::NotInForce
        } else {
            Standing::Failed
        }
    } else if is_reference {
        Standing::Reference
    } else {
        standing_of(&[cpu_ratio, latency_ratio], 1.0 + max_slowdown)
    };
    Summary {
        treatment: treatment.clone(),
        standing,
        baseline_bytes: bytes(&|t| t.baseline_bytes),
        peak_bytes: bytes(&|t| t.peak_bytes),
        settled_bytes: bytes(&|t| t.settled_bytes),
        settled_ratio: estimate(&|t| t.settled_ratio),
        excess_mean_bytes: bytes(&|t| t.excess_mean_bytes),
        excess_byte_seconds: estimate(&|t| t.excess_byte_seconds),
        cpu_s: estimate(&cpu_per_work),
        cpu_ratio: cpu_ratio.filter(|_| !is_reference),
        latency_ratio: latency_ratio.filter(|_| !is_reference),
    }
}

/// Pairs the repeats of two treatments by their number, so that a drift of the machine falls on both.
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

/// CPU seconds for the work done: for each request where the load counts them, else for the trial.
fn cpu_per_work(trial: &TrialResult) -> Option<f64> {
    let loads = trial.rounds.iter().filter_map(|r| r.load.as_ref());
    let requests: f64 = loads.filter_map(|l| l.figure("succeeded")).sum();
    let cpu = trial.cpu_s.filter(|c| *c > 0.0)?;
    Some(if requests > 0.0 { cpu / requests } else { cpu })
}

/// Latency of the load in seconds, the mean over its rounds.
fn latency(trial: &TrialResult) -> Option<f64> {
    let of_rounds: Vec<f64> =
        trial.rounds.iter().filter_map(|r| Some(r.load.as_ref()?.latency_s())).collect();
    let sum: f64 = of_rounds.iter().sum();
    (sum > 0.0).then(|| sum / of_rounds.len() as f64)
}

fn standing_of(ratios: &[Option<Estimate>], limit: f64) -> Standing {
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

fn choose(plan: &Plan, summaries: &[Summary], trials: &[TrialResult]) -> Option<Recommendation> {
    let excess = |s: &Summary| s.excess_byte_seconds.map(|e| e.median);
    let mut candidates: Vec<&Summary> = summaries
        .iter()
        .filter(|s| {
            let admitted = [Standing::Reference, Standing::Within, Standing::Unresolved];
            admitted.contains(&s.standing) && excess(s).is_some()
        })
        .collect();
    candidates.sort_by(|a, b| excess(a).unwrap_or(0.0).total_cmp(&excess(b).unwrap_or(0.0)));
    if summaries.len() < 2 {
        return None;
    }
    let Some(best) = candidates.first() else {
        let because = "no treatment has a trial that ended as planned and can be compared";
        return Some(none(because.to_owned()));
    };
    let nothing_rose = trials.iter().filter(|t| t.is_usable()).all(|t| t.settled_ratio.is_none());
    if nothing_rose {
        return Some(none(
            "memory did not rise under any treatment: there is nothing to choose by".to_owned(),
        ));
    }
    let difference = |to: &Summary| excess_difference(best, to, trials);
    let mut doubts = Vec::new();
    if let Some(runner_up) = candidates.get(1) {
        if !difference(runner_up).is_some_and(|d| d.resolved_from(0.0)) {
            doubts.push(format!("whether it leaves less than {}", runner_up.treatment));
        } else if !is_material(best, runner_up) {
            doubts.push(format!(
                "whether it is better than {}, which differs by a few pages",
                runner_up.treatment
            ));
        }
    } else if !summaries
        .iter()
        .all(|s| s.standing == Standing::Beyond || s.treatment == best.treatment)
    {
        doubts.push("whether anything is better: no other treatment could be compared".to_owned());
    }
    if best.standing == Standing::Unresolved {
        doubts.push(format!("whether its cost stays within {}", percent(plan.max_slowdown)));
    }
    Some(Recommendation {
        treatment: Some(best.treatment.clone()),
        because: because(best, summaries, &doubts, plan.repeats),
        resolved: doubts.is_empty(),
    })
}

/// Whether two treatments differ by more than anyone would act on: 1 MiB, or 1 % of the peak.
fn is_material(a: &Summary, b: &Summary) -> bool {
    let excess = |s: &Summary| s.excess_mean_bytes.map_or(0.0, |e| e.median);
    let peak = |s: &Summary| s.peak_bytes.map_or(0.0, |e| e.median);
    (excess(a) - excess(b)).abs() >= (peak(a).max(peak(b)) / 100.0).max(1_048_576.0)
}

fn none(because: String) -> Recommendation {
    Recommendation { treatment: None, because, resolved: false }
}

/// The paired differences in excess between two treatments.
fn excess_difference(a: &Summary, b: &Summary, trials: &[TrialResult]) -> Option<Estimate> {
    let repeats = |summary: &Summary| -> Vec<&TrialResult> {
        trials.iter().filter(|t| t.treatment == summary.treatment && t.is_usable()).collect()
    };
    Estimate::of(&paired(&repeats(a), &repeats(b), |a, b| {
        Some(a.excess_byte_seconds? - b.excess_byte_seconds?)
    }))
}

fn because(best: &Summary, summaries: &[Summary], doubts: &[String], repeats: u32) -> String {
    let mean = |s: &Summary| s.excess_mean_bytes.map_or(0, |e| e.median as u64);
    let mut text =
        format!("after the load it held {} above its baseline on average", Human(mean(best)));
    match summaries.first() {
        Some(reference) if reference.treatment != best.treatment => {
            text += &format!(", {} {}", reference.treatment, Human(mean(reference)));
            let costs = costs(best);
            if !costs.is_empty() {
                text += &format!("; {costs}");
            }
        }
        _ => text += ", the least of all that are worth their cost",
    }
    let tempting = |s: &&Summary| s.standing == Standing::Beyond && mean(s) < mean(best);
    for costly in summaries.iter().filter(tempting) {
        text += &format!("; {} costs too much ({})", costly.treatment, costs(costly));
    }
    if !doubts.is_empty() {
        text += &format!(". Not resolved: {}", doubts.join("; "));
        if repeats < ENOUGH_FOR_INTERVAL as u32 {
            text += &format!("; more repeats say more (--repeat {ENOUGH_FOR_INTERVAL})");
        }
    }
    text
}

/// What a treatment costs against the reference, in words.
fn costs(summary: &Summary) -> String {
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
    [part("CPU time", summary.cpu_ratio), part("latency", summary.latency_ratio)]
        .into_iter()
        .flatten()
        .collect::<Vec<String>>()
        .join(", ")
}

fn percent(ratio: f64) -> String {
    format!("{} %", (ratio * 1000.0).round() / 10.0)
}

#[cfg(test)]
mod tests;
