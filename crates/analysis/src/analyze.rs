//! Computes a report from a record: measures every trial, summarises every treatment, recommends
//! one.

use crate::metrics::{self, Metric};
use crate::recommend;
use crate::study_report::{SCHEMA, StudyReport};
use crate::trial_result::{Trends, TrialOutcome, TrialResult};
use crate::versions;
use crate::warnings::warnings;
use lowtide_model::bytes::Human;
use lowtide_record::{StudyRecord, TrialRecord};

/// Analyzes the record of a study. `trials` are those with a readable file.
pub fn analyze(record: &str, study: StudyRecord, trials: &[(String, TrialRecord)]) -> StudyReport {
    let several = |(_, t): &(String, TrialRecord)| metrics::metric_of(t) == Metric::Pss;
    let metric = if trials.iter().any(several) { Metric::Pss } else { Metric::Rss };
    let results: Vec<TrialResult> = trials
        .iter()
        .map(|(samples, trial)| {
            let result = TrialResult::new(samples, trial, metrics::measure(trial, metric));
            match study.plan.has_alike_rounds() {
                true => result,
                false => TrialResult { over_rounds: Trends::default(), ..result },
            }
        })
        .collect();
    let (treatments, recommendation) = recommend::recommend(&study.plan, &results);
    let comparison = versions::compare(&study.plan, &results);
    let complete = results.len() == study.plan.slots().len()
        && results.iter().all(|t| t.outcome == TrialOutcome::Done);
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
        comparison,
        warnings: on_other_machines(trials).into_iter().chain(warnings(&results)).collect(),
        treatments,
        trials: results,
        plan: study.plan,
    }
}

/// Returns a warning if trials of one record ran on different machines, for example because it was
/// resumed on another one.
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
        "{} of {} trials ran on another machine ({other}) than the first ({first}): compare only trials of the \
         same machine",
        others.len(),
        trials.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_record::fixtures::trial;

    #[test]
    fn a_record_resumed_on_another_machine_is_warned_about() {
        let on = |repeat, kernel: &str| {
            let mut trial = trial("glibc", repeat, false);
            trial.header.machine.kernel = Some(kernel.to_owned());
            ("t.jsonl".to_owned(), trial)
        };
        assert_eq!(on_other_machines(&[on(1, "6.1"), on(2, "6.1")]), None);
        let warning = on_other_machines(&[on(1, "6.1"), on(2, "6.18"), on(3, "6.18")]).unwrap();
        assert!(
            warning.starts_with("2 of 3 trials ran on another machine (kernel 6.18) than"),
            "{warning}"
        );
    }
}
