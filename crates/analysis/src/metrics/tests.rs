use super::*;
use lowtide_record::fixtures::{MIB, trial};
use lowtide_record::v1::Outcome;

/// Returns a trial of 10 MiB until the load starts at 2 s, and 110 MiB from 3 s. The load ends at
/// 10 s, and memory falls in steps to `stays` at 12 s. The settle time ends at 20 s.
fn loaded(stays: f64) -> TrialRecord {
    let course = move |t: f64| match t {
        t if t < 2.05 => 10.0,
        t if t < 2.95 => 10.0 + 100.0 * (t - 2.0),
        t if t < 10.05 => 110.0,
        t if t < 12.05 => 110.0 - (110.0 - stays) * (t - 10.0) / 2.0,
        _ => stays,
    };
    trial("glibc", 1, true)
        .with_samples(0.0, 20.0, course)
        .with_mark(0.0, Event::Start, None)
        .with_mark(0.5, Event::Ready, None)
        .with_mark(2.0, Event::Baseline, None)
        .with_mark(2.0, Event::LoadBegin, Some(1))
        .with_mark(10.0, Event::LoadEnd, Some(1))
        .with_mark(20.0, Event::Settled, Some(1))
        .with_mark(20.0, Event::Stop, None)
        .ended(20.1, Outcome::Done)
}

/// Rises to 100 MiB at 5 s, falls to 40 MiB at 10 s, exits at 20 s, tearing down in the last 0.3 s.
fn own() -> TrialRecord {
    let course = |t: f64| match t {
        t if t < 4.95 => 2.0 + 19.6 * t,
        t if t < 9.95 => 100.0,
        t if t < 19.75 => 40.0,
        _ => 0.0,
    };
    trial("glibc", 1, false)
        .with_samples(0.0, 20.0, course)
        .with_mark(0.0, Event::Start, None)
        .with_mark(20.0, Event::Exit, None)
        .ended(20.0, Outcome::Done)
}

#[test]
fn a_loaded_trial_has_a_baseline_a_peak_and_a_settled_value() {
    let f = measure(&loaded(60.0), Metric::Rss);
    assert_eq!((f.baseline, f.peak, f.settled), (Some(10 * MIB), Some(110 * MIB), Some(60 * MIB)));
    assert!((f.settled_ratio.unwrap() - 0.5).abs() < 1e-9);
    assert_eq!(f.settle_span, Some((10.0, 20.0)));
    // 50 MiB above the baseline for 10 s, and 50 MiB more that fall over the first 2 s.
    let expected = (500.0 + 50.0) * MIB as f64;
    assert!((f.excess_byte_seconds.unwrap() - expected).abs() < 0.01 * expected, "{f:?}");
    assert_eq!(f.excess_mean.unwrap() / MIB, 54);
    assert_eq!(f.vsz_peak, Some(220 * MIB));
    assert_eq!(f.wall_s, Some(20.0));
    assert_eq!(f.rounds.len(), 1);
}

#[test]
fn memory_below_the_baseline_does_not_reduce_the_excess() {
    let f = measure(&loaded(5.0), Metric::Rss);
    assert!(f.settled_ratio.unwrap() < 0.0);
    assert!(f.excess_byte_seconds.unwrap() < 110.0 * MIB as f64);
}

#[test]
fn a_trial_without_a_material_rise_has_no_settled_ratio() {
    assert_eq!(ratio(Some(100 * MIB), Some(100 * MIB + MIB / 2), Some(100 * MIB)), None);
    assert_eq!(ratio(Some(200 * MIB), Some(201 * MIB + MIB / 2), Some(200 * MIB)), None);
    assert_eq!(ratio(Some(10 * MIB), Some(9 * MIB), Some(10 * MIB)), None);
    assert_eq!(ratio(Some(0), Some(10 * MIB), None), None);
    assert_eq!(ratio(Some(0), Some(10 * MIB), Some(5 * MIB)), Some(0.5));
}

#[test]
fn a_self_loading_command_is_measured_from_its_own_trace() {
    let f = measure(&own(), Metric::Rss);
    assert_eq!((f.baseline, f.start), (None, Some(2 * MIB)));
    assert_eq!((f.peak, f.settled), (Some(100 * MIB), Some(40 * MIB)));
    // From the time at which it came within 2 % of its peak.
    assert!((f.settle_span.unwrap().0 - 4.9).abs() < 0.11, "{f:?}");
    assert_eq!(f.settle_span.unwrap().1, 20.0);
}

#[test]
fn phases_override_the_values_derived_from_the_trace() {
    let f = measure(
        &own()
            .with_phase(3.0, "baseline")
            .with_phase(4.0, "peak")
            .with_phase(9.0, "load_end")
            .with_phase(9.5, "settled"),
        Metric::Rss,
    );
    assert_eq!(f.baseline.unwrap() / MIB, (2.0 + 19.6 * 2.5) as u64);
    assert_eq!(f.peak.unwrap() / MIB, (2.0 + 19.6 * 4.0) as u64);
    assert_eq!(f.settled, Some(100 * MIB));
    assert_eq!(f.settle_span, Some((9.0, 9.5)));
    assert_eq!(f.phases.len(), 4);
}

#[test]
fn metrics_of_events_that_a_trial_did_not_reach_are_unknown() {
    let mut cut = loaded(60.0);
    cut.samples.retain(|s| s.t_s < 6.0);
    cut.marks.retain(|m| m.t_s < 6.0);
    cut.end = None;
    let f = measure(&cut, Metric::Rss);
    assert_eq!((f.baseline, f.peak, f.settled), (Some(10 * MIB), Some(110 * MIB), None));
    assert_eq!((f.settled_ratio, f.excess_byte_seconds), (None, None));
    let mut cut = own();
    cut.samples.retain(|s| s.t_s < 6.0);
    cut.marks.retain(|m| m.t_s < 6.0);
    assert_eq!(measure(&cut, Metric::Rss).settled, None);
}

#[test]
fn a_trial_without_samples_has_no_metrics_and_does_not_panic() {
    let f = measure(&trial("glibc", 1, true), Metric::Rss);
    assert_eq!((f.baseline, f.peak, f.settled, f.wall_s), (None, None, None, None));
}

#[test]
fn a_short_lived_helper_does_not_make_a_process_tree() {
    let mut one = loaded(60.0);
    for sample in one.samples.iter_mut().take(9) {
        sample.processes = 2;
    }
    assert_eq!(metric_of(&one), Metric::Rss);
    let tree = loaded(60.0).of_a_tree();
    assert_eq!(metric_of(&tree), Metric::Pss);
    let f = measure(&tree, Metric::Pss);
    assert_eq!((f.baseline, f.settled), (Some(5 * MIB), Some(30 * MIB)));
}

#[test]
fn each_round_has_its_own_peak_and_settled_value() {
    let trial = loaded(60.0)
        .with_mark(20.0, Event::LoadBegin, Some(2))
        .with_samples(20.1, 30.0, |t| if t < 24.0 { 150.0 } else { 70.0 })
        .with_mark(23.9, Event::LoadEnd, Some(2))
        .with_mark(30.0, Event::Settled, Some(2));
    let f = measure(&trial, Metric::Rss);
    let rounds: Vec<(u64, u64)> =
        f.rounds.iter().map(|r| (r.peak.unwrap() / MIB, r.settled.unwrap() / MIB)).collect();
    assert_eq!(rounds, [(110, 60), (150, 70)]);
    assert_eq!(f.settled, Some(70 * MIB));
    assert_eq!(f.settle_span, Some((23.9, 30.0)));
}

#[test]
fn bytes_per_connection_require_a_minimum_number_of_connections() {
    let mut few = loaded(60.0);
    few.samples[50].sockets_established = Some(9);
    assert_eq!(measure(&few, Metric::Rss).bytes_per_connection, None);
    few.samples[50].sockets_established = Some(100);
    assert_eq!(measure(&few, Metric::Rss).bytes_per_connection, Some(MIB));
}

/// Returns the trial of a command that loads itself: its course until it exits.
fn short(exit: f64, course: impl Fn(f64) -> f64) -> TrialRecord {
    trial("glibc", 1, false)
        .with_samples(0.0, exit, course)
        .with_mark(0.0, Event::Start, None)
        .with_mark(exit, Event::Exit, None)
        .ended(exit, Outcome::Done)
}

#[test]
fn a_short_command_that_keeps_its_memory_settles_at_its_peak() {
    let f = measure(&short(4.0, |t| (t * 167.0).min(500.0)), Metric::Rss);
    assert_eq!((f.settled, f.settled_ratio), (Some(500 * MIB), Some(1.0)), "{f:?}");
}

#[test]
fn a_command_whose_memory_rises_until_exit_has_no_settled_value() {
    let f = measure(&short(4.0, |t| t * 100.0), Metric::Rss);
    assert_eq!((f.settled, f.settled_ratio), (None, None), "{f:?}");
    assert!(rise(f.start, f.peak).is_some());
}

#[test]
fn a_server_that_forks_into_the_background_is_measured_until_it_is_stopped() {
    let f = measure(&loaded(60.0).with_mark(0.05, Event::Exit, None), Metric::Rss);
    assert_eq!((f.wall_s, f.settled), (Some(20.0), Some(60 * MIB)));
}

#[test]
fn startup_helpers_do_not_make_a_process_tree() {
    let mut one = loaded(60.0);
    // Before its load, its memory is a tenth of the later value.
    for sample in one.samples.iter_mut().take(20) {
        sample.processes = 4;
    }
    assert_eq!(metric_of(&one), Metric::Rss);
    for sample in one.samples.iter_mut().skip(60).take(10) {
        sample.processes = 2;
    }
    assert_eq!(metric_of(&one), Metric::Pss);
}

#[test]
fn pss_is_estimated_between_its_readings() {
    let tree = loaded(60.0).of_a_tree();
    let series = memory_over_time(&tree, Metric::Pss);
    assert_eq!(series.at(10.65), Some((110.0 - 25.0 * 0.6) as u64 * MIB / 2));
    // When a process starts, the ratio to RSS is that of the reading with the same number of
    // processes.
    let mut grows = tree.clone();
    for sample in grows.samples.iter_mut().skip(105) {
        sample.processes = 4;
    }
    let series = memory_over_time(&grows, Metric::Pss);
    assert_eq!(series.at(10.65), Some((110.0 - 25.0 * 0.6) as u64 * MIB / 2));
    // If a tree rises and falls between two readings of PSS, its PSS does so as well.
    let mut burst = tree.clone();
    burst.samples[115].total.rss_bytes.0 = 400 * MIB;
    let at = burst.samples[115].t_s;
    let highest = memory_over_time(&burst, Metric::Pss).max_between(at - 0.01, at + 0.01);
    assert_eq!(highest, Some(200 * MIB));
}

#[test]
fn a_reading_before_the_end_of_the_load_is_not_the_settled_value() {
    let mut tree = loaded(60.0).of_a_tree();
    for sample in tree.samples.iter_mut().filter(|s| s.t_s > 9.0) {
        sample.slow = None;
    }
    assert_eq!(measure(&tree, Metric::Pss).settled, None);
    // While nothing changes, the last reading stays valid.
    let mut still = loaded(108.0).of_a_tree();
    for sample in still.samples.iter_mut().filter(|s| s.t_s > 9.0) {
        sample.slow = None;
    }
    assert_eq!(measure(&still, Metric::Pss).settled, Some(54 * MIB));
}

#[test]
fn the_plateau_of_a_self_loading_command_is_not_its_settled_value() {
    let course = |t: f64| match t {
        t if t < 1.0 => 10.0 + 490.0 * t,
        t if t < 8.0 => 500.0,
        _ => 30.0,
    };
    let f = measure(&short(9.5, course), Metric::Rss);
    assert_eq!(f.settled, Some(30 * MIB), "{f:?}");
    // The change in its last second may be its teardown, or memory that it freed.
    assert_eq!(measure(&short(9.0, course), Metric::Rss).settled, None);
    // A command that falls in steps is judged by the last step.
    let steps =
        |t: f64| if t < 8.0 { course(t) } else { 400.0 - 100.0 * ((t - 8.0) / 2.0).floor() };
    let f = measure(&short(16.0, steps), Metric::Rss);
    assert_eq!(f.settled, Some(100 * MIB), "{f:?}");
}

#[test]
fn the_baseline_of_a_self_loading_command_is_its_plateau_before_the_rise() {
    let course = |t: f64| match t {
        t if t < 0.25 => 1.0 + 40.0 * t,
        t if t < 2.0 => 40.0,
        t if t < 3.0 => 40.0 + 460.0 * (t - 2.0),
        _ => 500.0,
    };
    assert_eq!(measure(&short(9.0, course), Metric::Rss).baseline, Some(40 * MIB));
    let at_once = |t: f64| (t * 167.0).min(500.0);
    let begun = at_once(0.1) * MIB as f64;
    let f = measure(&short(9.0, at_once), Metric::Rss);
    assert_eq!((f.baseline, f.start), (None, Some(begun as u64)));
}
