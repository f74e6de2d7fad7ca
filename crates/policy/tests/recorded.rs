//! Policies on series that were recorded from real programs, under the policy `none`.
//!
//! A release subtracts the reclaimable memory from the recorded size, until the program grows
//! again: then its pages come back.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

use lowtide_model::bytes::Resident;
use lowtide_policy::{Action, LastRelease, PolicyKind, ProcessState, Refaults, Usage};

/// A recorded series.
struct Series {
    /// Time in seconds and name of each mark.
    marks: Vec<(f64, String)>,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
struct Row {
    state: ProcessState,
    reclaimable: u64,
}

impl Series {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/series/{name}.csv"));
        let text = fs::read_to_string(path).unwrap();
        let marks = text.lines().find_map(|line| line.strip_prefix("# marks: ")).unwrap();
        let mark = |word: &str| {
            let (t_s, name) = word.split_once('=').unwrap();
            (t_s.parse().unwrap(), name.to_owned())
        };
        let marks = marks.split(' ').map(mark).collect();
        let is_data = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
        Self { marks, rows: text.lines().filter(is_data).map(Row::parse).collect() }
    }

    /// Returns the times of a mark, in seconds.
    fn times(&self, name: &str) -> Vec<f64> {
        self.marks.iter().filter(|(_, mark)| mark == name).map(|(t_s, _)| *t_s).collect()
    }
}

impl Row {
    /// Parses `t_s,rss_kib,cpu_s,minor_faults,open_files,reclaimable_kib`.
    fn parse(line: &str) -> Self {
        let fields: Vec<f64> = line.split(',').map(|field| field.parse().unwrap()).collect();
        let state = ProcessState {
            t_s: fields[0],
            rss: Resident(fields[1] as u64 * 1024),
            cpu_s: fields[2],
            minor_faults: fields[3] as u64,
            open_files: Some(fields[4] as u64),
            ..ProcessState::default()
        };
        Self { state, reclaimable: fields[5] as u64 * 1024 }
    }
}

/// The outcome of a policy on a series.
#[derive(Debug, Default)]
struct Replay {
    /// Times of the releases that returned memory, in seconds.
    releases: Vec<f64>,
    /// Times of all acts, in seconds.
    acts: Vec<f64>,
    /// RSS at each time, in bytes.
    rss: Vec<(f64, u64)>,
}

impl Replay {
    fn new(kind: PolicyKind, series: &Series) -> Self {
        let mut policy = kind.policy();
        let mut replay = Self::default();
        let (mut away, mut last_rss, mut faults) = (0, 0, 0);
        let mut last: Option<LastRelease> = None;
        let mut refaults: Option<(Refaults, u64)> = None;
        for row in &series.rows {
            let mut state = row.state;
            // Growth first brings back the pages that are away.
            let back = state.rss.0.saturating_sub(last_rss).min(away);
            last_rss = state.rss.0;
            away = (away - back).min(state.rss.0);
            faults += back / 4096;
            state.rss = Resident(state.rss.0 - away);
            state.minor_faults += faults;
            if let Some((refaults, released)) = &mut refaults
                && let Some(reason) = refaults.due(&state)
            {
                let back = refaults.sample(&state, released.saturating_sub(away), reason);
                last = last.map(|last| LastRelease { back, ..last });
            }
            state.last_release = last;
            replay.rss.push((state.t_s, state.rss.0));
            let Action::Release(request) = policy.decide(&state) else { continue };
            replay.acts.push(state.t_s);
            let free = row.reclaimable.saturating_sub(away);
            let gain = if free >= request.min_bytes.max(64 << 10) { free } else { 0 };
            if gain > 0 {
                replay.releases.push(state.t_s);
                away += gain;
                refaults =
                    Some((Refaults::new(state.t_s, gain, state.minor_faults, 4 << 10), gain));
            }
            last = Some(LastRelease {
                id: replay.acts.len() as u64,
                t_s: state.t_s,
                is_refused: false,
                returned_bytes: gain,
                cpu_s: 0.01 + gain as f64 / 4096.0 * 0.5e-6,
                usage: Usage { rss: Resident(state.rss.0.saturating_sub(gain)), ..state.usage() },
                back: lowtide_policy::Returned::default(),
            });
        }
        replay
    }

    /// Returns RSS at a time, in bytes.
    fn rss_at(&self, t_s: f64) -> u64 {
        self.rss.iter().rfind(|(at, _)| *at <= t_s).unwrap().1
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn a_servers_memory_is_released_after_each_close_but_not_under_load() {
    let series = Series::read("million-streams");
    let replay = Replay::new(PolicyKind::Adaptive, &series);
    for close in series.times("closed") {
        assert!(replay.rss_at(close + 3.0) < 40 * MIB, "{close} {replay:?}");
    }
    // While requests are in flight there is nothing to gain.
    let busy = series.times("load_begin").into_iter().zip(series.times("drained"));
    for (begin, drained) in busy {
        let during = |t_s: &&f64| **t_s > begin + 1.0 && **t_s < drained - 1.0;
        assert_eq!(replay.releases.iter().filter(during).count(), 0, "{:?}", replay.releases);
    }
}

#[test]
fn memory_of_closed_node_connections_is_released_within_seconds() {
    let series = Series::read("node-tls");
    let replay = Replay::new(PolicyKind::Adaptive, &series);
    for collected in series.times("collected") {
        assert!(replay.rss_at(collected + 4.0) < 153 * MIB, "{collected} {:?}", replay.releases);
    }
    assert!(replay.acts.len() < 40, "{:?}", replay.acts);
}

#[test]
fn a_script_that_drops_all_its_memory_is_released_within_two_seconds() {
    let series = Series::read("python-httpx");
    let dropped = series.times("load_end")[0];
    let replay = Replay::new(PolicyKind::Adaptive, &series);
    assert!(replay.rss_at(dropped + 2.0) < 50 * MIB, "{:?} {:?}", replay.releases, replay.acts);
    let periodic = Replay::new("periodic=30s".parse().unwrap(), &series);
    assert_eq!(periodic.acts.len(), 2, "{:?}", periodic.acts);
}
