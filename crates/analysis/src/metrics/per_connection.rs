//! The memory cost of a connection, from the slope of memory over connections while a round opens
//! them.
//!
//! The ramp of a round starts at the last moment with the fewest connections and ends at the first
//! moment with the most. The number of connections is the subject's own metric `connections`; if it
//! has too few values for a slope, it is the kernel's count; if that is not known either, it is the
//! number that the load has opened. The memory is that of the same moment: RSS or PSS, and the
//! memory that the subject reports as allocated (`inner_memory_bytes`; for V8, the heap in use).
//!
//! If a load sends many requests over each connection, memory rises with the requests, and no cost
//! is reported.

use serde::Serialize;
use serde_json::Value;

use super::{LEAST_CONNECTIONS, Series};
use crate::regression::{FEWEST_POINTS, Slope};
use lowtide_record::TrialRecord;
use lowtide_record::v1::{CONNECTIONS, Event, INNER_MEMORY, Load};

/// The memory cost of a connection, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PerConnection {
    /// Memory, by the metric of the study.
    pub memory_bytes: Slope,
    /// Memory that the program itself reports as allocated; `null` if it reports none.
    pub inner_memory_bytes: Option<Slope>,
}

/// The readings while a round opened its connections.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ramp {
    /// Its number, from 1.
    pub round: u32,
    /// Connections, and bytes of memory.
    pub memory: Vec<(f64, f64)>,
    /// Connections, and bytes that the program reports as allocated.
    pub inner: Vec<(f64, f64)>,
}

impl PerConnection {
    /// Returns the common slope of all these ramps, each with its own level.
    pub(crate) fn from_ramps<'r>(
        ramps: impl IntoIterator<Item = &'r Ramp> + Clone,
    ) -> Option<Self> {
        let memory_bytes = Slope::fit(ramps.clone().into_iter().map(|ramp| &ramp.memory))?;
        let inner_memory_bytes = Slope::fit(ramps.into_iter().map(|ramp| &ramp.inner));
        Some(Self { memory_bytes, inner_memory_bytes })
    }
}

/// Returns the ramps of a trial, one for each round that has one; `series` is its memory.
pub fn ramps(trial: &TrialRecord, series: &Series) -> Vec<Ramp> {
    let moment = |moment, round| {
        let of_round = |m: &&lowtide_record::v1::Mark| m.mark == moment && m.round == Some(round);
        trial.marks.iter().find(of_round).map(|m| m.t_s)
    };
    let rounds = trial.marks.iter().filter(|m| m.mark == Event::LoadBegin).filter_map(|m| m.round);
    let span = |round| Some((moment(Event::LoadBegin, round)?, moment(Event::LoadEnd, round)?));
    rounds
        .filter(|round| *round > 0)
        .filter_map(|round| ramp(trial, series, round, span(round)?))
        .collect()
}

fn ramp(trial: &TrialRecord, series: &Series, round: u32, span: (f64, f64)) -> Option<Ramp> {
    let readings = |name: &'static str| {
        trial.figures.iter().filter_map(move |f| Some((f.t_s, *f.values.get(name)?)))
    };
    let counted = trial.samples.iter().filter_map(|s| Some((s.t_s, s.sockets_established? as f64)));
    let made = trial.load_samples.iter().filter_map(|s| Some((s.t_s, s.connections? as f64)));
    let rise = rising(readings(CONNECTIONS), span)
        .or_else(|| rising(counted, span))
        .or_else(|| rising(made, span))?;
    let counts = || rise.iter().map(|point| point.1);
    let opened = counts().fold(f64::MIN, f64::max) - counts().fold(f64::MAX, f64::min);
    let mut loads = trial.loads.iter().filter(|load| load.round == round);
    if !loads.all(|load| opens_connections(load, opened)) {
        return None;
    }
    let memory =
        rise.iter().filter_map(|(t, count)| Some((*count, series.at(*t)? as f64))).collect();
    let (first, last) = (rise.first()?.0, rise.last()?.0);
    let inner = readings(INNER_MEMORY)
        .filter(|(t, _)| (first..=last).contains(t))
        .filter_map(|(t, bytes)| Some((count_at(&rise, t)?, bytes)))
        .collect();
    Some(Ramp { round, memory, inner })
}

/// Maximum number of requests per connection of a load that opens connections for their own sake.
const MOST_REQUESTS: f64 = 3.0;

/// Returns whether a load mainly opens connections: bare ones, or hardly more requests than
/// connections. This is assumed for a load without a report.
pub(super) fn opens_connections(load: &Load, connections: f64) -> bool {
    let field = |name| load.report.as_ref().and_then(|report| report.get(name));
    let is_bare = field("url")
        .and_then(Value::as_str)
        .is_some_and(|url| url.starts_with("tcp:") || url.starts_with("tls:"));
    let requests =
        ["succeeded", "failed"].iter().filter_map(|name| field(name)?.as_f64()).sum::<f64>();
    is_bare || requests <= connections * MOST_REQUESTS
}

/// Returns the part of a course, within a span, from the last time that it was lowest to the first
/// time that it was highest after that; `None` if it has too few points or too few connections.
fn rising(
    course: impl Iterator<Item = (f64, f64)>,
    (from, to): (f64, f64),
) -> Option<Vec<(f64, f64)>> {
    let within: Vec<(f64, f64)> = course.filter(|(t, _)| (from..=to).contains(t)).collect();
    let most = within.iter().map(|p| p.1).fold(f64::MIN, f64::max);
    let top = within.iter().position(|p| p.1 == most)?;
    let before = &within[..=top];
    let least = before.iter().map(|p| p.1).fold(f64::MAX, f64::min);
    let begin = before.iter().rposition(|p| p.1 == least)?;
    let rise = &before[begin..];
    (rise.len() >= FEWEST_POINTS && most - least >= LEAST_CONNECTIONS as f64).then(|| rise.to_vec())
}

/// Returns the count at a moment, interpolated between the points before and after it.
fn count_at(course: &[(f64, f64)], t: f64) -> Option<f64> {
    let behind = course.partition_point(|p| p.0 < t);
    let after = course.get(behind)?;
    let before = course.get(behind.saturating_sub(1))?;
    let part = (t - before.0) / (after.0 - before.0).max(f64::MIN_POSITIVE);
    Some(before.1 + (after.1 - before.1) * part.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metric, memory_over_time};
    use lowtide_record::fixtures::{MIB, trial};
    use lowtide_record::v1::{LoadSample, SubjectMetrics};
    use std::collections::BTreeMap;

    const KIB: f64 = 1024.0;

    /// Returns a trial with 100 connections a second from 2 s to 12 s, which stay until 15 s; the
    /// same from 20 s. Each costs 40 KiB in the first round and 10 in the second.
    fn loaded() -> TrialRecord {
        let mib = |count: f64, kib: f64| count * kib / KIB;
        trial("glibc", 1, true)
            .with_samples(0.0, 40.0, |t| match t {
                t if t < 17.0 => 50.0 + mib(count(t), 40.0),
                t => 90.0 + mib(count(t), 10.0),
            })
            .with_mark(2.0, Event::LoadBegin, Some(1))
            .with_mark(15.0, Event::LoadEnd, Some(1))
            .with_mark(20.0, Event::LoadBegin, Some(2))
            .with_mark(33.0, Event::LoadEnd, Some(2))
    }

    fn count(t: f64) -> f64 {
        match t {
            t if t <= 15.0 => (100.0 * (t - 2.0)).clamp(0.0, 1000.0),
            t if t <= 33.0 => (100.0 * (t - 20.0)).clamp(0.0, 1000.0),
            _ => 0.0,
        }
    }

    fn with_figures(mut trial: TrialRecord) -> TrialRecord {
        trial.figures = (0..40)
            .map(|second| {
                let t_s = f64::from(second) + 0.05;
                let inner = 4.0 * MIB as f64 + 8.0 * KIB * count(t_s);
                let values = [(CONNECTIONS, count(t_s)), (INNER_MEMORY, inner)];
                let values: BTreeMap<String, f64> =
                    values.map(|(name, value)| (name.to_owned(), value)).into();
                SubjectMetrics { t_s, values }
            })
            .collect();
        trial
    }

    fn each(trial: &TrialRecord, round: u32) -> Option<PerConnection> {
        let ramps = ramps(trial, &memory_over_time(trial, Metric::Rss));
        PerConnection::from_ramps(ramps.iter().filter(|ramp| ramp.round == round))
    }

    fn near(found: Slope, kib: f64) {
        assert!((found.each / KIB - kib).abs() < 0.05 * kib, "{found:?}");
    }

    #[test]
    fn each_round_has_its_own_memory_cost_per_connection() {
        let trial = with_figures(loaded());
        let (first, second) = (each(&trial, 1).unwrap(), each(&trial, 2).unwrap());
        near(first.memory_bytes, 40.0);
        near(second.memory_bytes, 10.0);
        near(second.inner_memory_bytes.unwrap(), 8.0);
        assert!((10..=12).contains(&first.memory_bytes.n), "{first:?}");
        assert_eq!(each(&trial, 3), None);
    }

    #[test]
    fn the_kernel_and_then_the_load_are_fallbacks_for_the_connection_count() {
        let mut counted = loaded();
        for sample in &mut counted.samples {
            sample.sockets_established = Some(count(sample.t_s) as u64);
        }
        let found = each(&counted, 1).unwrap();
        near(found.memory_bytes, 40.0);
        assert_eq!(found.inner_memory_bytes, None);

        let mut made = loaded();
        made.samples.iter_mut().for_each(|sample| sample.sockets_established = None);
        made.load_samples = (0..400)
            .map(|tick| f64::from(tick) / 10.0)
            .map(|t_s| LoadSample {
                t_s,
                connections: Some(count(t_s) as u64),
                ..Default::default()
            })
            .collect();
        near(each(&made, 2).unwrap().memory_bytes, 10.0);
    }

    #[test]
    fn requests_multiplexed_over_few_connections_yield_no_cost_per_connection() {
        let with = |report: Value| {
            let mut trial = with_figures(loaded());
            let load = Load { round: 1, succeeded: true, wall_s: 13.0, report: Some(report) };
            trial.loads.push(load);
            each(&trial, 1)
        };
        assert_eq!(
            with(serde_json::json!({"url": "http://x/", "succeeded": 9000, "failed": 1000})),
            None
        );
        assert!(
            with(serde_json::json!({"url": "http://x/", "succeeded": 1000, "failed": 0})).is_some()
        );
        assert!(
            with(serde_json::json!({"url": "tls:x:1", "succeeded": 9000, "failed": 0})).is_some()
        );
    }

    #[test]
    fn a_burst_or_too_few_connections_yield_no_cost_per_connection() {
        let mut few = loaded();
        for sample in &mut few.samples {
            sample.sockets_established = Some(count(sample.t_s) as u64 / 200);
        }
        assert_eq!(each(&few, 1), None);
        let mut burst = loaded();
        for sample in &mut burst.samples {
            sample.sockets_established = Some(if count(sample.t_s) > 0.0 { 1000 } else { 0 });
        }
        assert_eq!(each(&burst, 1), None);
    }
}
