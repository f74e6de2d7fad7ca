use super::*;
use lowtide_model::bytes::Resident;

use crate::PolicyKind;
use crate::simulation::{SimulationOutcome, WaveLoad, simulate};

/// Returns a load that is busy for a time and then rests.
fn waves(period_s: f64, busy_s: f64) -> WaveLoad {
    WaveLoad { period_s, busy_s, hoard_mib: 200, base_mib: 50, cores: 0.8 }
}

fn adaptive(load: WaveLoad, seconds: f64) -> SimulationOutcome {
    simulate(PolicyKind::Adaptive, load, seconds)
}

#[test]
fn memory_is_released_within_a_second_after_the_load_ends() {
    let outcome = adaptive(waves(1000.0, 10.0), 30.0);
    assert_eq!(outcome.releases.len(), 1, "{outcome:?}");
    let at = outcome.releases[0];
    assert!((10.0..=11.0).contains(&at), "{at}");
}

#[test]
fn memory_is_released_only_once_while_nothing_changes() {
    let outcome = adaptive(waves(1e9, 5.0), 4000.0);
    assert_eq!(outcome.releases.len(), 1, "{outcome:?}");
}

#[test]
fn memory_that_is_reused_at_once_is_soon_no_longer_released() {
    let outcome = adaptive(waves(2.0, 1.0), 600.0);
    let late = outcome.releases.iter().filter(|t_s| **t_s > 60.0).count();
    assert!(outcome.releases.len() <= 4 && late == 0, "{outcome:?}");
}

#[test]
fn memory_is_released_after_each_burst_that_a_pause_follows() {
    for period_s in [20.0, 120.0, 300.0] {
        let seconds = period_s * 20.0;
        let outcome = adaptive(waves(period_s, 5.0), seconds);
        let none = simulate(PolicyKind::None, waves(period_s, 5.0), seconds);
        assert!(
            outcome.excess_mib_s <= none.excess_mib_s / 10.0,
            "{period_s} {outcome:?} {none:?}"
        );
        assert_eq!(outcome.releases.len(), 20, "{outcome:?}");
    }
}

#[test]
fn adaptive_keeps_less_excess_memory_and_costs_less_than_periodic() {
    for period_s in [120.0, 300.0] {
        let load = waves(period_s, 40.0);
        let outcome = adaptive(load, 3000.0);
        let periodic = "periodic=30s".parse().unwrap();
        let periodic = simulate(periodic, load, 3000.0);
        assert!(outcome.excess_mib_s <= periodic.excess_mib_s, "{outcome:?} {periodic:?}");
        assert!(outcome.faults <= periodic.faults, "{outcome:?} {periodic:?}");
        assert!(outcome.releases.len() <= periodic.releases.len());
    }
}

#[test]
fn releases_resume_after_the_waves_of_a_process_have_ended() {
    let mut load = waves(2.0, 1.0);
    load.period_s = 2.0;
    let outcome = crate::simulation::simulate_until(PolicyKind::Adaptive, load, 120.0, 200.0);
    let last = outcome.releases.last().copied().unwrap_or_default();
    assert!((120.0..=145.0).contains(&last), "{outcome:?}");
}

#[test]
fn memory_is_released_at_once_when_it_is_short() {
    let mut policy = AdaptivePolicy::default();
    let state = |t_s: f64| ProcessState {
        t_s,
        cpu_s: t_s,
        rss: Resident(100 << 20),
        stall_percent: Some(30.0),
        has_huge_pages: true,
        ..ProcessState::default()
    };
    let Action::Release(request) = policy.decide(&state(0.0)) else { panic!("it waits") };
    assert!(matches!(request.reason, Reason::Short(_)) && !request.keep_huge_pages);
    assert_eq!(policy.decide(&state(1.0)), Action::None);
}

#[test]
fn a_gap_in_observation_does_not_count_as_quiet_time() {
    let mut policy = AdaptivePolicy { patience_s: 5.0, ..AdaptivePolicy::default() };
    let mut cpu_s = 0.0;
    // Waves every two seconds. Observed for ten seconds, and not for ten.
    for tick in 0..600 {
        cpu_s += if tick % 20 == 0 { 0.04 } else { 0.0 };
        let is_observed = tick / 100 % 2 == 0;
        let t_s = f64::from(tick) * 0.1;
        let rss = Resident(100 << 20);
        let state = ProcessState { t_s, cpu_s, rss, ..ProcessState::default() };
        if is_observed {
            assert_eq!(policy.decide(&state), Action::None, "{t_s}");
        }
    }
}

#[test]
fn an_idle_process_is_released_once_during_a_long_memory_shortage() {
    let mut policy = AdaptivePolicy::default();
    let mut state = ProcessState { rss: Resident(100 << 20), ..ProcessState::default() };
    state.stall_percent = Some(30.0);
    let mut acts = 0;
    for tick in 0..20_000 {
        state.t_s = f64::from(tick) * 0.1;
        acts += i32::from(policy.decide(&state) != Action::None);
    }
    assert_eq!(acts, 1);
}

#[test]
fn refaults_just_before_the_next_release_raise_the_patience() {
    let mut policy = AdaptivePolicy::default();
    let mut state = ProcessState { rss: Resident(100 << 20), ..ProcessState::default() };
    state.last_release =
        Some(LastRelease { back: Returned::default(), ..came_back(0.0, 0.0, 1.0) });
    policy.decide(&state);
    state.previous_release = Some(came_back(1.5, 1.5, 0.0));
    state.last_release =
        Some(LastRelease { id: 2, back: Returned::default(), ..came_back(0.0, 0.0, 1.0) });
    policy.decide(&state);
    assert!(policy.patience_s >= break_even_s(&came_back(1.5, 1.5, 0.0)), "{policy:?}");
}

#[test]
fn a_burst_that_ends_before_the_next_state_still_causes_another_release() {
    let mut policy = AdaptivePolicy::default();
    let mut state = ProcessState { rss: Resident(100 << 20), ..ProcessState::default() };
    let mut acts = Vec::new();
    for tick in 0..50 {
        state.t_s = f64::from(tick) * 0.2;
        if policy.decide(&state) != Action::None {
            acts.push(state.t_s);
            let usage = Usage { rss: Resident(10 << 20), ..state.usage() };
            let back = Returned::default();
            let id = acts.len() as u64;
            state.last_release = Some(LastRelease {
                id,
                t_s: state.t_s,
                is_refused: false,
                returned_bytes: 90 << 20,
                cpu_s: 0.01,
                usage,
                back,
            });
            // The first time, the memory is back at the next state, and then nothing changes.
            state.rss = Resident(if id == 1 { 100 << 20 } else { 10 << 20 });
        }
    }
    assert_eq!(acts.len(), 2, "{acts:?}");
}

/// Returns a release of 100 MiB whose memory came back after a time, except for a part.
fn came_back(after_s: f64, away_s: f64, kept: f64) -> LastRelease {
    let released = f64::from(100 << 20);
    let back = Returned {
        after_s,
        bytes: (released * (1.0 - kept)) as u64,
        away_byte_s: released * ((1.0 - kept) * away_s + kept * after_s),
    };
    LastRelease {
        id: 1,
        t_s: 0.0,
        is_refused: false,
        returned_bytes: released as u64,
        cpu_s: 0.02,
        usage: Usage::default(),
        back,
    }
}

#[test]
fn a_release_whose_pages_refault_soon_has_a_negative_net_gain() {
    assert!(net_gain_s(&came_back(1.5, 1.5, 0.0)) < 0.0);
    assert!(net_gain_s(&came_back(15.0, 15.0, 0.0)) > 0.0);
    assert!(net_gain_s(&came_back(60.0, 0.0, 1.0)) > 0.0);
    // A costly release whose memory stays away was right.
    let costly = LastRelease { cpu_s: 2.0, ..came_back(60.0, 0.0, 1.0) };
    assert!(net_gain_s(&costly) > 0.0);
}

#[test]
fn a_single_small_release_does_not_raise_the_patience() {
    let mut policy = AdaptivePolicy::default();
    let mut state = ProcessState { rss: Resident(100 << 20), ..ProcessState::default() };
    let kept = came_back(60.0, 0.0, 1.0);
    state.last_release = Some(kept);
    policy.decide(&state);
    let back = Returned { after_s: 1.5, bytes: 1 << 20, away_byte_s: 1.5 * f64::from(1 << 20) };
    state.last_release = Some(LastRelease { id: 2, returned_bytes: 1 << 20, back, ..kept });
    policy.decide(&state);
    assert_eq!(policy.patience_s, MIN_PATIENCE_S);
    // After many of them, they are typical of this process.
    for id in 3..100 {
        state.last_release = Some(LastRelease { id, returned_bytes: 1 << 20, back, ..kept });
        policy.decide(&state);
    }
    assert!(policy.patience_s > MIN_PATIENCE_S);
}

#[test]
fn a_costlier_release_has_a_longer_break_even_time() {
    let cheap = came_back(20.0, 20.0, 0.0);
    let costly = LastRelease { cpu_s: 0.5, ..cheap };
    assert!(net_gain_s(&cheap) > 0.0 && net_gain_s(&costly) < 0.0);
    assert!(break_even_s(&cheap) < 20.0 && break_even_s(&costly) > 20.0);
}

#[test]
fn memory_freed_with_little_cpu_time_after_a_cheap_miss_is_released() {
    let mut policy = AdaptivePolicy::default();
    let mut state = ProcessState { rss: Resident(200 << 20), ..ProcessState::default() };
    let mut acts = Vec::new();
    for tick in 0..100 {
        state.t_s = f64::from(tick) * 0.1;
        // It rests with its memory in use, and frees all of it after five seconds.
        state.cpu_s = if tick < 50 { 0.1 } else { 0.13 };
        if policy.decide(&state) != Action::None {
            acts.push(tick);
            let cpu_s = 0.025;
            let (usage, back) = (state.usage(), Returned::default());
            let (id, t_s) = (acts.len() as u64, state.t_s);
            let is_refused = false;
            state.last_release =
                Some(LastRelease { id, t_s, is_refused, returned_bytes: 0, cpu_s, usage, back });
        }
    }
    assert_eq!(acts.len(), 2, "{acts:?}");
    assert!((53..=56).contains(&acts[1]), "{acts:?}");
}

#[test]
fn a_few_pages_that_stay_away_do_not_offset_the_early_refaults_of_the_others() {
    assert!(net_gain_s(&came_back(1e5, 1.5, 0.05)) < 0.0);
}
