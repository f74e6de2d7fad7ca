use super::*;
use crate::analyze::analyze;
use crate::study_report::StudyReport;
use lowtide_record::fixtures::{MIB, process, trial};
use lowtide_record::v1::{Event, Load, Outcome, TrialUsage};
use lowtide_record::{StudyRecord, TrialRecord};

/// Returns a trial that holds `stays` MiB above its baseline for 10 s, and used `cpu_s`.
fn one(allocator: &str, repeat: u32, stays: f64, cpu_s: f64) -> TrialRecord {
    let mut record = trial(allocator, repeat, true).with_round(110.0, 10.0 + stays);
    if let Some(end) = &mut record.end {
        end.usage =
            Some(TrialUsage { cpu_s, minor_faults: 1, major_faults: 0, max_rss_bytes: 110 * MIB });
    }
    record
}

fn study(trials: Vec<TrialRecord>) -> StudyReport {
    study_with(trials, |_| ())
}

/// Returns the same, with a modified plan.
fn study_with(trials: Vec<TrialRecord>, say: fn(&mut StudyPlan)) -> StudyReport {
    let mut treatments: Vec<Treatment> = Vec::new();
    for trial in &trials {
        if !treatments.contains(&trial.trial.treatment) {
            treatments.push(trial.trial.treatment.clone());
        }
    }
    let repeats = trials.iter().map(|t| t.trial.repeat).max().unwrap_or(0);
    let mut plan = StudyPlan {
        order: vec![0; trials.len()],
        treatments,
        repeats,
        max_slowdown: 0.05,
        ..StudyPlan::default()
    };
    say(&mut plan);
    let header = trials[0].header.clone();
    let record = StudyRecord { header, plan, begun: Vec::new(), ended: Vec::new() };
    let named: Vec<(String, TrialRecord)> =
        trials.into_iter().map(|t| ("t.jsonl".to_owned(), t)).collect();
    analyze("record", record, &named)
}

fn chosen(study: &StudyReport) -> (Option<String>, bool, String) {
    let r = study.recommendation.clone().unwrap();
    (r.treatment.map(|t| t.label()), r.resolved, r.because)
}

#[test]
fn the_treatment_with_the_least_excess_at_equal_cost_is_recommended() {
    let study = study(vec![
        one("glibc", 1, 90.0, 1.00),
        one("jemalloc", 1, 20.0, 1.01),
        one("jemalloc", 2, 21.0, 0.99),
        one("glibc", 2, 91.0, 1.00),
    ]);
    let (treatment, resolved, because) = chosen(&study);
    assert_eq!((treatment.as_deref(), resolved), (Some("jemalloc"), true), "{because}");
    assert!(because.contains("glibc 9"), "{because}");
    assert_eq!(study.treatments[1].standing, Standing::Within);
}

#[test]
fn an_excess_over_an_estimate_is_not_called_one_over_a_baseline() {
    let trials = || [one("glibc", 1, 90.0, 1.0), one("jemalloc", 1, 20.0, 1.0)];
    let mut found = study(trials().into());
    let summaries: Vec<&TreatmentSummary> = found.treatments.iter().collect();
    assert_eq!(baseline_of(&summaries, &found.trials), "baseline");
    found.trials[0].baseline_bytes = None;
    assert_eq!(baseline_of(&summaries, &found.trials), "baseline (estimated in 1 of 2 trials)");
    assert_eq!(baseline_of(&summaries[1..], &found.trials), "baseline");
    found.trials[1].baseline_bytes = None;
    assert_eq!(baseline_of(&summaries, &found.trials), "estimated baseline");
}

#[test]
fn a_treatment_over_the_cost_limit_is_not_recommended() {
    let study = study(vec![
        one("glibc", 1, 90.0, 1.00),
        one("slow", 1, 1.0, 1.50),
        one("jemalloc", 1, 20.0, 1.00),
        one("glibc", 2, 90.0, 1.00),
        one("slow", 2, 1.0, 1.51),
        one("jemalloc", 2, 20.5, 1.00),
    ]);
    assert_eq!(study.treatments[1].standing, Standing::Beyond);
    assert_eq!(chosen(&study).0.as_deref(), Some("jemalloc"));
}

#[test]
fn the_reference_is_recommended_if_all_others_exceed_the_cost_limit() {
    let study = study(vec![
        one("glibc", 1, 90.0, 1.00),
        one("slow", 1, 1.0, 1.50),
        one("glibc", 2, 90.0, 1.00),
        one("slow", 2, 1.0, 1.51),
    ]);
    let (treatment, resolved, because) = chosen(&study);
    assert_eq!((treatment.as_deref(), resolved), (Some("glibc"), true), "{because}");
    assert!(because.contains("slow costs too much (CPU time × 1.5"), "{because}");
}

#[test]
fn one_repeat_resolves_nothing() {
    let study = study(vec![one("glibc", 1, 90.0, 1.0), one("jemalloc", 1, 1.0, 1.0)]);
    let (treatment, resolved, because) = chosen(&study);
    assert_eq!((treatment.as_deref(), resolved), (Some("jemalloc"), false));
    assert!(because.contains("--repeat 6"), "{because}");
}

#[test]
fn an_unresolved_cost_leaves_the_recommendation_unresolved() {
    let within_by_itself = study(vec![
        one("glibc", 1, 90.0, 1.0),
        one("jemalloc", 1, 20.0, 0.9),
        one("glibc", 2, 90.0, 1.0),
        one("jemalloc", 2, 20.0, 1.15),
    ]);
    assert_eq!(within_by_itself.treatments[1].standing, Standing::Unresolved);
    let (treatment, resolved, because) = chosen(&within_by_itself);
    assert_eq!((treatment.as_deref(), resolved), (Some("jemalloc"), false));
    assert!(because.contains("the cost of jemalloc stays within 5 %"), "{because}");
    // A wide interval does not compensate for an estimate above the limit: CPU × 1.15 (0.9 to 1.4).
    let study = study(vec![
        one("glibc", 1, 90.0, 1.0),
        one("jemalloc", 1, 20.0, 0.9),
        one("glibc", 2, 90.0, 1.0),
        one("jemalloc", 2, 20.0, 1.4),
    ]);
    assert_eq!(study.treatments[1].standing, Standing::Unresolved);
    let (treatment, resolved, because) = chosen(&study);
    assert_eq!((treatment.as_deref(), resolved), (Some("glibc"), false));
    assert!(because.contains("it is not certain that jemalloc costs more than 5 %"), "{because}");
    let so_far = "So far: jemalloc held on average 70.0 MiB (78 %) less than glibc, at CPU × 1.15 (0.90 to 1.40)";
    assert!(because.contains(so_far), "{because}");
}

#[test]
fn the_reference_is_not_final_while_the_cost_of_a_better_one_is_unresolved() {
    let study = study(vec![
        one("glibc", 1, 90.0, 1.0),
        one("jemalloc", 1, 20.0, 0.9),
        one("mimalloc", 1, 90.0, 1.0),
        one("glibc", 2, 90.0, 1.0),
        one("jemalloc", 2, 20.0, 1.4),
        one("mimalloc", 2, 90.0, 1.0),
    ]);
    let (treatment, resolved, because) = chosen(&study);
    assert_eq!((treatment.as_deref(), resolved), (Some("glibc"), false), "{because}");
    assert!(because.contains("it is not certain that jemalloc costs more than 5 %"), "{because}");
}

#[test]
fn the_cost_limit_applies_to_a_single_repeat_too() {
    let study = study(vec![one("glibc", 1, 90.0, 1.0), one("arena_max", 1, 50.0, 1.12)]);
    let (treatment, resolved, because) = chosen(&study);
    assert_eq!((treatment.as_deref(), resolved), (Some("glibc"), false));
    assert!(
        because
            .contains("arena_max held on average 40.0 MiB (44 %) less than glibc, at CPU × 1.12"),
        "{because}"
    );
}

#[test]
fn two_indistinguishable_treatments_are_not_resolved() {
    let study = study(vec![
        one("glibc", 1, 20.0, 1.0),
        one("jemalloc", 1, 25.0, 1.0),
        one("glibc", 2, 27.0, 1.0),
        one("jemalloc", 2, 19.0, 1.0),
    ]);
    let (_, resolved, because) = chosen(&study);
    assert!(
        !resolved && because.contains("it is not certain that jemalloc leaves less than"),
        "{because}"
    );
}

#[test]
fn a_difference_of_a_few_pages_is_no_reason_to_change() {
    let study = study(vec![
        one("glibc", 1, 20.00, 1.0),
        one("jemalloc", 1, 19.90, 1.0),
        one("glibc", 2, 20.00, 1.0),
        one("jemalloc", 2, 19.90, 1.0),
    ]);
    let (treatment, resolved, because) = chosen(&study);
    assert_eq!((treatment.as_deref(), resolved), (Some("glibc"), true), "{because}");
    assert_eq!(because, "no treatment leaves materially less memory");
}

#[test]
fn a_treatment_that_was_not_in_force_is_never_recommended() {
    let mut wrong = one("jemalloc", 1, 1.0, 1.0);
    wrong.processes = vec![process(10, Some(false), Some("it is linked statically"))];
    let study = study(vec![one("glibc", 1, 90.0, 1.0), wrong]);
    assert_eq!(study.treatments[1].standing, Standing::NotInForce);
    assert_eq!(study.trials[1].allocator_active, Some(false));
    let because = study.trials[1].allocator_inactive_because.as_deref();
    assert_eq!(because, Some("x (10): it is linked statically"));
    assert_eq!(chosen(&study).0.as_deref(), Some("glibc"));
}

#[test]
fn no_treatment_is_recommended_if_memory_did_not_rise() {
    let mut trials = vec![one("glibc", 1, 0.0, 1.0), one("jemalloc", 1, 0.0, 1.0)];
    for trial in &mut trials {
        for sample in &mut trial.samples {
            sample.total.rss_bytes.0 = 10 * MIB;
        }
    }
    let (treatment, resolved, because) = chosen(&study(trials));
    assert_eq!((treatment, resolved), (None, false));
    assert!(because.contains("did not rise"), "{because}");
}

#[test]
fn the_cost_is_unresolved_without_a_completed_reference() {
    let dead = |repeat| {
        let because = "out of memory".to_owned();
        one("glibc", repeat, 90.0, 1.0).ended(3.0, Outcome::Failed { because })
    };
    let study =
        study(vec![dead(1), one("jemalloc", 1, 20.0, 1.0), dead(2), one("jemalloc", 2, 20.0, 1.0)]);
    assert_eq!(study.treatments[1].standing, Standing::Unresolved);
    let (treatment, resolved, because) = chosen(&study);
    assert_eq!((treatment.as_deref(), resolved), (Some("jemalloc"), false), "{because}");
    assert!(because.contains("there is nothing to compare it with"), "{because}");
}

#[test]
fn the_cost_is_unresolved_for_a_fixed_duration_load_without_a_work_count() {
    let with_load = |allocator: &str, repeat, stays, wall_s| {
        let mut trial = one(allocator, repeat, stays, 1.0);
        trial.loads.push(Load { round: 1, succeeded: true, wall_s, report: None });
        trial
    };
    let of = |wall_s: f64| {
        study(vec![
            with_load("glibc", 1, 90.0, 20.0),
            with_load("jemalloc", 1, 20.0, wall_s),
            with_load("glibc", 2, 90.5, 20.0),
            with_load("jemalloc", 2, 20.0, wall_s),
        ])
    };
    let (_, resolved, because) = chosen(&of(20.01));
    assert!(!resolved && because.contains("did not report how much work it did"), "{because}");
    // The load takes as long as its work takes, so the cost is visible.
    let quicker = of(19.0);
    assert_eq!(quicker.treatments[1].standing, Standing::Within);
    let (_, resolved, because) = chosen(&quicker);
    assert!(resolved && because.contains("duration of the load × 0.95"), "{because}");
}

#[test]
fn self_loading_commands_are_compared_by_mean_excess() {
    // One reaches its peak slowly and late, so its excess is counted over a shorter time.
    let own = |allocator: &str, repeat, course: fn(f64) -> f64| {
        trial(allocator, repeat, false)
            .with_samples(0.0, 50.0, course)
            .with_mark(0.0, Event::Start, None)
            .with_mark(50.0, Event::Exit, None)
            .ended(50.0, Outcome::Done)
    };
    let creeps: fn(f64) -> f64 = |t| match t {
        t if t < 10.0 => 94.0 * t,
        t => (920.0 + 2.0 * t).min(1000.0),
    };
    let falls: fn(f64) -> f64 = |t| match t {
        t if t < 10.0 => 100.0 * t,
        t if t < 35.0 => 1000.0,
        _ => 50.0,
    };
    let study = study(vec![
        own("creeps", 1, creeps),
        own("falls", 1, falls),
        own("creeps", 2, creeps),
        own("falls", 2, falls),
    ]);
    let areas: Vec<f64> =
        study.treatments.iter().map(|s| s.excess_byte_seconds.unwrap().median).collect();
    assert!(areas[0] < areas[1], "{areas:?}");
    assert_eq!(chosen(&study).0.as_deref(), Some("falls"));
}

#[test]
fn a_treatment_that_may_not_have_been_in_force_is_not_resolved() {
    let mut unseen = one("jemalloc", 2, 20.0, 1.0);
    unseen.processes = vec![process(10, None, Some("it may not be inspected"))];
    let study = study(vec![
        one("glibc", 1, 90.0, 1.0),
        one("jemalloc", 1, 20.0, 1.0),
        one("glibc", 2, 90.0, 1.0),
        unseen,
    ]);
    let (_, resolved, because) = chosen(&study);
    assert!(
        !resolved && because.contains("it is not certain that jemalloc was in force"),
        "{because}"
    );
}

#[test]
fn the_best_median_is_not_resolved_if_the_paired_difference_disagrees() {
    // In the repeats that both completed, the first held more; its median is lower only because of
    // the trials that the other did not complete.
    let mut trials = vec![one("glibc", 1, 20.0, 1.0), one("glibc", 2, 21.0, 1.0)];
    trials.extend(
        [(1, 30.0), (2, 31.0), (3, 5.0), (4, 5.0)].map(|(r, s)| one("jemalloc", r, s, 1.0)),
    );
    let (treatment, resolved, because) = chosen(&study(trials));
    assert_eq!((treatment.as_deref(), resolved), (Some("jemalloc"), false), "{because}");
    assert!(
        because.contains("it is not certain that jemalloc leaves less than glibc"),
        "{because}"
    );
}

#[test]
fn cpu_time_is_compared_per_unit_of_work() {
    let with_requests = |allocator: &str, repeat, cpu_s, succeeded: u64| {
        let mut trial = one(allocator, repeat, 20.0, cpu_s);
        trial.loads.push(Load {
            round: 1,
            succeeded: true,
            wall_s: 8.0,
            report: Some(
                serde_json::json!({"round": 1, "succeeded": succeeded, "latency_s": {"mean": 0.5}}),
            ),
        });
        trial
    };
    let study =
        study(vec![with_requests("glibc", 1, 1.0, 1000), with_requests("fast", 1, 2.0, 2000)]);
    assert_eq!(study.treatments[1].cpu_ratio.unwrap().median, 1.0);
    assert_eq!(study.treatments[1].latency_ratio.unwrap().median, 1.0);
}

#[test]
fn no_treatment_is_recommended_among_different_workloads() {
    let trials = || vec![one("glibc", 1, 90.0, 1.0), one("jemalloc", 1, 1.0, 1.0)];
    assert!(study_with(trials(), |_| ()).recommendation.is_some());
    let study = study_with(trials(), |plan| plan.recommend = Some(false));
    assert!(study.recommendation.is_none());
    assert_eq!(study.treatments[0].standing, Standing::Reference);
}

#[test]
fn no_trend_is_computed_over_rounds_that_are_not_alike() {
    let trial = || {
        let all = one("glibc", 1, 20.0, 1.0).with_samples(20.1, 40.0, |_| 90.0);
        let all = all.with_mark(30.0, Event::LoadBegin, Some(2));
        let all = all.with_mark(35.0, Event::LoadEnd, Some(2));
        vec![all.with_mark(40.0, Event::Settled, Some(2)).ended(40.0, Outcome::Done)]
    };
    assert!(study(trial()).trials[0].over_rounds.memory.is_some());
    let study = study_with(trial(), |plan| plan.rounds_alike = Some(false));
    assert_eq!(study.trials[0].over_rounds, crate::trial_result::Trends::default());
}

/// Returns the same with a load of 1,000 requests, some of which failed.
fn with_failures(mut trial: TrialRecord, failed: u64) -> TrialRecord {
    let report = serde_json::json!({
        "round": 1, "requests": 1000, "succeeded": 1000 - failed, "failed": failed,
        "latency_s": {"mean": 0.5},
    });
    trial.loads.push(Load { round: 1, succeeded: true, wall_s: 8.0, report: Some(report) });
    trial
}

#[test]
fn a_treatment_that_fails_more_requests_than_the_reference_is_not_recommended() {
    let of = |failed: [u64; 2]| {
        let trial = |allocator: &str, repeat, stays, failed| {
            with_failures(one(allocator, repeat, stays, 1.0), failed)
        };
        study(vec![
            trial("glibc", 1, 90.0, failed[0]),
            trial("jemalloc", 1, 20.0, failed[1]),
            trial("glibc", 2, 90.0, failed[0]),
            trial("jemalloc", 2, 20.0, failed[1]),
        ])
    };
    let (treatment, resolved, because) = chosen(&of([0, 20]));
    assert_eq!((treatment.as_deref(), resolved), (Some("glibc"), true), "{because}");
    assert!(because.contains("jemalloc is ruled out (40 of 2000 requests failed)"), "{because}");
    // A difference of one percentage point may be chance, and failures that the reference has too
    // are not held against a treatment.
    for failed in [[0, 10], [300, 305], [300, 0]] {
        assert_eq!(chosen(&of(failed)).0.as_deref(), Some("jemalloc"), "{failed:?}");
    }
}

#[test]
fn a_single_treatment_yields_no_recommendation() {
    assert!(study(vec![one("glibc", 1, 1.0, 1.0)]).recommendation.is_none());
}

mod thresholds {
    use super::*;
    use crate::compare::compare;
    use crate::threshold::Threshold;

    fn crossings(expression: &str, study: &StudyReport) -> usize {
        expression.parse::<Threshold>().unwrap().crossings(study).len()
    }

    #[test]
    fn a_threshold_is_checked_for_each_trial() {
        let study = study(vec![one("glibc", 1, 90.0, 1.0), one("jemalloc", 1, 20.0, 1.0)]);
        assert_eq!(crossings("settled_ratio>0.5", &study), 1);
        assert_eq!(crossings("settled_bytes>=20MiB", &study), 2);
        assert_eq!(crossings("bytes_per_connection>0", &study), 0, "null is never crossed");
        assert_eq!(crossings("load.failed>0", &study), 0, "neither is what is not there");
        let shown = "settled_ratio>0.5".parse::<Threshold>().unwrap().crossings(&study);
        assert!(shown[0].to_string().starts_with("glibc, repeat 1: settled_ratio>0.5 (it is 0.9"));
    }

    #[test]
    fn a_load_metric_is_checked_in_every_round() {
        let mut trial = one("glibc", 1, 1.0, 1.0);
        let report = Some(serde_json::json!({"round": 1, "failed": 3, "latency_s": {"p99": 0.2}}));
        trial.loads.push(Load { round: 1, succeeded: true, wall_s: 1.0, report });
        let study = study(vec![trial]);
        assert_eq!(crossings("load.failed>2", &study), 1);
        assert_eq!(crossings("load.latency_s.p99>500ms", &study), 0);
    }

    #[test]
    fn growth_beyond_the_tolerance_is_a_regression() {
        let before = study(vec![one("glibc", 1, 50.0, 1.0), one("gone", 1, 50.0, 1.0)]);
        let same = study(vec![one("glibc", 1, 52.0, 1.0)]);
        let grown = study(vec![one("glibc", 1, 70.0, 1.0), one("new", 1, 1.0, 1.0)]);
        assert!(compare(&before, &same, 0.10).regressions.is_empty());
        let found = compare(&before, &grown, 0.10);
        let shown: Vec<String> = found.regressions.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["glibc: settled memory grew from 60.0 MiB to 80.0 MiB (+33 %)"]);
        assert_eq!(found.not_compared, ["new", "gone"]);
    }

    #[test]
    fn studies_with_different_memory_metrics_are_not_compared() {
        let before = study(vec![one("glibc", 1, 50.0, 1.0)]);
        let now = study(vec![one("glibc", 1, 90.0, 1.0).of_a_tree()]);
        let found = compare(&before, &now, 0.10);
        assert_eq!((found.regressions, found.not_compared), (Vec::new(), vec!["glibc".to_owned()]));
    }

    #[test]
    fn a_threshold_on_a_metric_that_no_load_reports_is_void() {
        let study = study(vec![one("glibc", 1, 50.0, 1.0)]);
        let void = |text: &str| text.parse::<Threshold>().unwrap().is_void(&study);
        assert!(void("load.failed>0"));
        // No connection was opened.
        assert!(!void("settled_ratio>1") && void("bytes_per_connection>1"));
    }
}
