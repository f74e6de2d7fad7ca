use super::*;
use crate::analyze::analyze;
use crate::study_report::StudyReport;
use lowtide_record::fixtures::{MIB, trial};
use lowtide_record::v1::LedgerReading;
use lowtide_record::{StudyRecord, TrialRecord};

use lowtide_model::ledger::Ledger;
use lowtide_model::pins::{BlockShare, BlockSummary};

/// Returns a trial of a version that keeps some MiB in blocks of 1,040 bytes.
fn version(label: &str, repeat: u32, kept_mib: f64) -> TrialRecord {
    let mut record = trial("own", repeat, true).with_round(210.0, 10.0 + kept_mib);
    record.trial.treatment.tune = Some(label.to_owned());
    let kept_bytes = (kept_mib * MIB as f64) as u64;
    let mut ledger = Ledger::default();
    ledger.add(Owner::File, 10 * MIB);
    ledger.add(Owner::Allocated, kept_bytes);
    let share = BlockShare {
        size_bytes: 1040,
        block_type: Some("C++ Session".to_owned()),
        blocks: kept_bytes / 1040,
        bytes: kept_bytes,
    };
    record.ledgers.push(LedgerReading {
        t_s: 19.5,
        processes: 1,
        rss_bytes: ledger.total(),
        ledger,
        managers: Vec::new(),
        heap: None,
        pins: None,
        blocks: Some(BlockSummary { groups: vec![share], ..BlockSummary::default() }),
    });
    record
}

/// Analyzes a study of repeats, each with the MiB that the older and the newer version keep.
fn study(repeats: &[[f64; 2]]) -> StudyReport {
    let mut trials = Vec::new();
    for (place, [base, head]) in repeats.iter().enumerate() {
        let repeat = place as u32 + 1;
        for (label, kept) in [(BASE, base), (HEAD, head)] {
            trials.push(("t.jsonl".to_owned(), version(label, repeat, *kept)));
        }
    }
    let plan = StudyPlan {
        treatments: vec![trials[0].1.trial.treatment.clone(), trials[1].1.trial.treatment.clone()],
        order: vec![0; trials.len()],
        repeats: repeats.len() as u32,
        recommend: Some(false),
        against: Some(Against { command: vec!["old".to_owned()], tolerance: 0.01 }),
        ..StudyPlan::default()
    };
    let header = trials[0].1.header.clone();
    let record = StudyRecord { header, plan, begun: Vec::new(), ended: Vec::new() };
    analyze("record", record, &trials)
}

/// Returns uniform numbers from -0.5 to 0.5, the same each time.
fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
    }
}

#[test]
fn a_version_that_keeps_more_is_worse_and_its_owner_and_blocks_are_named() {
    let mut next = noise(1);
    let repeats: Vec<[f64; 2]> = (0..10).map(|_| [50.0 + next(), 56.0 + next()]).collect();
    let comparison = study(&repeats).comparison.unwrap();
    assert_eq!(comparison.settled.verdict, VersionVerdict::Worse);
    assert_eq!(comparison.peak.verdict, VersionVerdict::Same);
    let [grown] = &comparison.grew[..] else { panic!("{:?}", comparison.grew) };
    assert_eq!((grown.owner, grown.blocks.len()), (Owner::Allocated, 1));
    let blocks = &grown.blocks[0];
    assert_eq!((blocks.size_bytes, blocks.block_type.as_deref()), (1040, Some("C++ Session")));
    assert!((4 << 20..8 << 20).contains(&blocks.growth_bytes), "{blocks:?}");
}

#[test]
fn equal_versions_have_no_owner_that_grew() {
    let repeats = [[50.0, 50.2]; 12];
    let comparison = study(&repeats).comparison.unwrap();
    assert_eq!(comparison.settled.verdict, VersionVerdict::Same);
    assert!(comparison.grew.is_empty());
}

#[test]
fn a_repeat_counts_only_with_a_usable_trial_of_both_versions() {
    let mut failed = study(&[[50.0, 90.0]; 10]);
    failed.trials[3].outcome = crate::trial_result::TrialOutcome::Failed;
    let comparison = compare(&failed.plan, &failed.trials).unwrap();
    assert_eq!(comparison.settled.repeats, 9);
    assert_eq!(comparison.settled.verdict, VersionVerdict::NotResolved);
    assert_eq!(comparison.settled.repeats_needed, Some(1));
    assert_eq!(failed.undecided_versions(), None, "it was decided with all repeats");
}

#[test]
fn studies_of_treatments_have_no_comparison() {
    let mut other = study(&[[50.0, 50.0]; 2]);
    other.plan.against = None;
    assert_eq!(compare(&other.plan, &other.trials), None);
}

/// Equal versions under noise that drifts, is skewed, and jumps between two levels: the verdict is
/// never `worse` more often than the rule permits.
#[test]
fn equal_versions_are_alarms_in_at_most_one_of_a_thousand_comparisons() {
    const COMPARISONS: usize = 4_000;
    type Course = fn(&mut dyn FnMut() -> f64, usize, &mut f64) -> f64;
    let courses: [(&str, Course); 4] = [
        ("even", |next, _, _| 40.0 * next()),
        ("skewed", |next, _, _| 3.0 / (0.51 - next())),
        ("drifting", |next, trial, _| 3.0 * trial as f64 + 2.0 * next()),
        ("wandering", |next, _, level| {
            *level += 8.0 * next();
            *level + next()
        }),
    ];
    for (name, course) in courses {
        let mut next = noise(11);
        let mut alarms = 0;
        for _ in 0..COMPARISONS {
            let mut level = 0.0;
            let mut pairs = Vec::new();
            for repeat in 0..10 {
                let is_first = next() < 0.0;
                let (a, b) = (
                    100.0 + course(&mut next, 2 * repeat, &mut level),
                    100.0 + course(&mut next, 2 * repeat + 1, &mut level),
                );
                let pair = if is_first { [a, b] } else { [b, a] };
                pairs.push(pair.map(|mib| mib * MIB as f64));
            }
            let metric = ComparedMetric::new(&pairs, |_| 0.0);
            alarms += usize::from(metric.verdict == VersionVerdict::Worse);
        }
        // Even without a margin; 4 are expected, and 13 are improbable.
        assert!(alarms <= 13, "{name}: {alarms} of {COMPARISONS}");
    }
}
