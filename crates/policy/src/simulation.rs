//! A simulated process under a policy, for tests: its load, its heap, and the pages that come back.

use lowtide_model::bytes::Resident;

use crate::{Action, LastRelease, PolicyKind, ProcessState, Refaults, Returned, Usage};

/// A load in waves. The process allocates at the start of a wave, and frees at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaveLoad {
    pub(crate) period_s: f64,
    pub(crate) busy_s: f64,
    /// Memory that a wave needs, in MiB.
    pub(crate) hoard_mib: u64,
    /// Memory that is always in use, in MiB.
    pub(crate) base_mib: u64,
    /// CPU use during a wave.
    pub(crate) cores: f64,
}

/// The outcome of a simulation.
#[derive(Debug, Default)]
pub(crate) struct SimulationOutcome {
    /// Times of the releases that returned memory, in seconds.
    pub(crate) releases: Vec<f64>,
    /// Free resident memory over time, in MiB × seconds.
    pub(crate) excess_mib_s: f64,
    pub(crate) faults: u64,
}

const MIB: u64 = 1 << 20;
const TICK_S: f64 = 0.2;
/// CPU time of a release per MiB, in seconds.
const RELEASE_S_PER_MIB: f64 = 0.2e-3;

/// Simulates a process under a load for a number of seconds.
pub(crate) fn simulate(kind: PolicyKind, load: WaveLoad, seconds: f64) -> SimulationOutcome {
    simulate_until(kind, load, seconds, seconds)
}

/// Simulates a process whose load ends at a time.
pub(crate) fn simulate_until(
    kind: PolicyKind,
    load: WaveLoad,
    load_end_s: f64,
    seconds: f64,
) -> SimulationOutcome {
    let mut policy = kind.policy();
    let mut outcome = SimulationOutcome::default();
    // Free memory that is resident, and the pages of the last release that are away, in MiB.
    let (mut free, mut used, mut away) = (0, load.base_mib, load.hoard_mib);
    let (mut cpu_s, mut faults, mut id) = (0.0, 0_u64, 0);
    let mut last: Option<LastRelease> = None;
    let mut refaults: Option<(Refaults, u64)> = None;
    for tick in 0..(seconds / TICK_S) as u64 {
        let t_s = tick as f64 * TICK_S;
        let is_busy = t_s < load_end_s && t_s % load.period_s < load.busy_s;
        if is_busy {
            cpu_s += load.cores * TICK_S;
            if used == load.base_mib {
                used += load.hoard_mib;
                faults += away * 256;
                (free, away) = (0, 0);
            }
        } else if used > load.base_mib {
            used = load.base_mib;
            free = load.hoard_mib;
        }
        outcome.excess_mib_s += free as f64 * TICK_S;
        let mut state = ProcessState {
            t_s,
            rss: Resident((used + free) * MIB),
            cpu_s,
            minor_faults: faults,
            last_release: last,
            ..ProcessState::default()
        };
        if let Some((refaults, released)) = &mut refaults
            && let Some(reason) = refaults.due(&state)
        {
            let back = refaults.sample(&state, *released - away.min(*released / MIB) * MIB, reason);
            last = last.map(|last| LastRelease { back, ..last });
            state.last_release = last;
        }
        if let Action::Release(request) = policy.decide(&state) {
            id += 1;
            let gain = if free * MIB >= request.min_bytes { free } else { 0 };
            if gain > 0 {
                outcome.releases.push(t_s);
                (free, away) = (0, away + gain);
                refaults = Some((Refaults::new(t_s, gain * MIB, faults, MIB / 256), gain * MIB));
            }
            last = Some(LastRelease {
                id,
                t_s,
                is_refused: false,
                returned_bytes: gain * MIB,
                cpu_s: 0.005 + gain as f64 * RELEASE_S_PER_MIB,
                usage: Usage { rss: Resident((used + free) * MIB), ..state.usage() },
                back: Returned::default(),
            });
        }
    }
    outcome.faults = faults;
    outcome
}
