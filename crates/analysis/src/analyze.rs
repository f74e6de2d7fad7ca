//! From what was recorded to what it says: every trial judged, every treatment summed up, one chosen.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::metrics::{self, Metric, PerConnection, TrialMetrics, over_rounds};
use crate::recommend;
use crate::study::{AtEvents, LoadResult, RoundResult, SCHEMA, StudyReport, Trends, TrialResult};
use crate::warnings::warnings;
use lowtide_model::bytes::Human;
use lowtide_model::release;
use lowtide_record::v1::{Event, HookRun, INNER_MEMORY, LedgerReading, Outcome};
use lowtide_record::{StudyRecord, TrialRecord};

/// Puts a study together from its record. `trials` are those whose files could be read.
pub fn analyze(record: &str, study: StudyRecord, trials: &[(String, TrialRecord)]) -> StudyReport {
    let several = |(_, t): &(String, TrialRecord)| metrics::metric_of(t) == Metric::Pss;
    let metric = if trials.iter().any(several) { Metric::Pss } else { Metric::Rss };
    let results: Vec<TrialResult> = trials
        .iter()
        .map(|(samples, trial)| {
            let result = TrialResult::of(samples, trial, metrics::measure(trial, metric));
            match study.plan.has_alike_rounds() {
                true => result,
                false => TrialResult { over_rounds: Trends::default(), ..result },
            }
        })
        .collect();
    let (treatments, recommendation) = recommend::recommend(&study.plan, &results);
    let complete =
        results.len() == study.plan.slots().len() && results.iter().all(|t| t.outcome == "done");
    StudyReport {
        schema: SCHEMA,
        record: record.to_owned(),
        name: study.plan.name.clone(),
        command: study.plan.command.clone(),
        started_unix_s: study.header.started_unix_s,
        lowtide_version: study.header.lowtide_version,
        machine: study.header.machine,
        seed: study.plan.seed,
        shard: study.plan.shard,
        complete,
        metric,
        recommendation,
        warnings: on_other_machines(trials).into_iter().chain(warnings(&results)).collect(),
        treatments,
        trials: results,
        plan: study.plan,
    }
}

/// That trials of one record ran on different machines, as after a resumption elsewhere.
fn on_other_machines(trials: &[(String, TrialRecord)]) -> Option<String> {
    let of = |(_, trial): &(String, TrialRecord)| {
        let machine = &trial.header.machine;
        let words = [
            machine.cpu.clone(),
            machine.cpus.map(|n| format!("{n} CPUs")),
            machine.memory_bytes.map(|bytes| Human(bytes).to_string()),
            machine.kernel.as_ref().map(|kernel| format!("kernel {kernel}")),
            machine.libc.clone(),
        ];
        words.into_iter().flatten().collect::<Vec<String>>().join(", ")
    };
    let first = of(trials.first()?);
    let others: Vec<&(String, TrialRecord)> = trials.iter().filter(|t| of(t) != first).collect();
    let other = of(others.first()?);
    Some(format!(
        "{} of {} trials ran on another machine ({other}) than the first ({first}): compare only what ran on the \
         same",
        others.len(),
        trials.len()
    ))
}

impl TrialResult {
    pub(crate) fn of(samples: &str, trial: &TrialRecord, figures: TrialMetrics) -> Self {
        let (outcome, failed_because) = match trial.end.as_ref().map(|e| &e.outcome) {
            Some(Outcome::Done) => ("done", None),
            Some(Outcome::Failed { because }) => ("failed", Some(because.clone())),
            Some(Outcome::Interrupted) => ("interrupted", None),
            None => ("unfinished", None),
        };
        let ledgers: AtEvents<&LedgerReading> = match figures.metric {
            Metric::Rss => metrics::ledgers(trial, &figures),
            Metric::Pss => metrics::ledgers(trial, &metrics::measure(trial, Metric::Rss)),
        };
        let (allocator_active, allocator_inactive_because) = metrics::in_force(trial);
        let rounds: Vec<RoundResult> =
            figures.rounds.iter().map(|round| RoundResult::of(round, trial, &figures)).collect();
        Self {
            number: trial.trial.number,
            treatment: trial.trial.treatment.clone(),
            repeat: trial.trial.repeat,
            outcome,
            failed_because,
            exit_code: trial.end.as_ref().and_then(|e| e.exit_code),
            signal: trial.end.as_ref().and_then(|e| e.signal),
            allocator_active,
            allocator_inactive_because,
            metric: figures.metric,
            pss_readings: (figures.metric == Metric::Pss)
                .then(|| trial.samples.iter().filter(|s| s.slow.is_some()).count() as u64),
            rise_before_load_bytes: figures.rise_before_load,
            baseline_bytes: figures.baseline,
            peak_bytes: figures.peak,
            settled_bytes: figures.settled,
            settled_ratio: figures.settled_ratio,
            vsz_peak_bytes: figures.vsz_peak,
            excess_byte_seconds: figures.excess_byte_seconds,
            excess_mean_bytes: figures.excess_mean,
            lazyfree_bytes: figures.lazyfree,
            minor_faults: figures.minor_faults,
            major_faults: figures.major_faults,
            wall_s: figures.wall_s,
            cpu_s: figures.cpu_s,
            releases: trial.acts.iter().filter(|act| is_release(act)).count() as u64,
            bytes_per_connection: figures.bytes_per_connection,
            over_rounds: trends(trial, &figures, &rounds),
            rounds,
            ramps: figures.ramps,
            phases: figures.phases,
            ledgers: ledgers.and_then(|l| Some(l.ledger.clone())),
            managers: ledgers.and_then(|l| Some(l.managers.clone())),
            heaps: ledgers.and_then(|l| l.heap),
            samples: samples.to_owned(),
        }
    }
}

/// Whether memory was given back, and how much is known.
fn is_release(act: &HookRun) -> bool {
    let told = |name: &str| act.report.as_ref().and_then(|report| report.get(name));
    told("schema").and_then(Value::as_str) == Some(release::SCHEMA)
        && told("returned_bytes").and_then(Value::as_u64).is_some_and(|bytes| bytes > 0)
}

/// How what stayed of memory, and of what the program says it has allocated, went on from round to round.
fn trends(trial: &TrialRecord, figures: &TrialMetrics, rounds: &[RoundResult]) -> Trends {
    let stayed = |of: fn(&RoundResult) -> Option<u64>| -> Option<Vec<u64>> {
        rounds.iter().map(of).collect()
    };
    let raised =
        figures.peak.zip(figures.baseline).map_or(0, |(peak, base)| peak.saturating_sub(base));
    let told = || trial.figures.iter().filter_map(|f| Some(*f.values.get(INNER_MEMORY)? as u64));
    let told_raised = told().max().zip(told().min()).map_or(0, |(most, least)| most - least);
    Trends {
        memory: stayed(|r| r.settled_bytes).and_then(|all| over_rounds(&all, raised)),
        inner_memory: stayed(|r| r.allocated_bytes).and_then(|all| over_rounds(&all, told_raised)),
    }
}

/// What the program itself said at a moment that it had allocated, if it had said so just before.
fn allocated_at(trial: &TrialRecord, t_s: f64) -> Option<u64> {
    const JUST_BEFORE_S: f64 = 3.0;
    let told = trial.figures.iter().rfind(|f| f.t_s <= t_s)?;
    let bytes = told.values.get(INNER_MEMORY).filter(|_| t_s - told.t_s <= JUST_BEFORE_S)?;
    Some(*bytes as u64)
}

impl RoundResult {
    fn of(round: &metrics::RoundMetrics, trial: &TrialRecord, figures: &TrialMetrics) -> Self {
        let load = trial.loads.iter().find(|l| l.round == round.round).map(|load| {
            let figures = match &load.report {
                Some(Value::Object(map)) => map
                    .iter()
                    .filter(|(k, _)| !["round", "ended_well", "wall_s"].contains(&k.as_str()))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect(),
                _ => BTreeMap::new(),
            };
            LoadResult { ended_well: load.succeeded, wall_s: load.wall_s, figures }
        });
        let settled =
            trial.marks.iter().find(|m| m.mark == Event::Settled && m.round == Some(round.round));
        Self {
            round: round.round,
            peak_bytes: round.peak,
            settled_bytes: round.settled,
            allocated_bytes: settled.and_then(|mark| allocated_at(trial, mark.t_s)),
            per_connection: PerConnection::of(
                figures.ramps.iter().filter(|ramp| ramp.round == round.round),
            ),
            load,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_record::fixtures::trial;

    #[test]
    fn a_record_that_was_gone_on_with_on_another_machine_says_so() {
        let on = |repeat, kernel: &str| {
            let mut trial = trial("glibc", repeat, false);
            trial.header.machine.kernel = Some(kernel.to_owned());
            ("t.jsonl".to_owned(), trial)
        };
        assert_eq!(on_other_machines(&[on(1, "6.1"), on(2, "6.1")]), None);
        let told = on_other_machines(&[on(1, "6.1"), on(2, "6.18"), on(3, "6.18")]).unwrap();
        assert!(
            told.starts_with("2 of 3 trials ran on another machine (kernel 6.18) than"),
            "{told}"
        );
    }
}
