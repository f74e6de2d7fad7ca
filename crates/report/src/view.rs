//! The content of the charts: lines, time span, colours. It does no I/O; every format draws the
//! same view.

use std::path::Path;

use lowtide_analysis::metrics::{Metric, memory_over_time};
use lowtide_analysis::study_report::{Standing, TreatmentSummary};
use lowtide_analysis::trial_result::TrialResult;
use lowtide_model::act;
use lowtide_model::bytes::Human;
use lowtide_model::sample::Sample;
use lowtide_model::stats::Estimate;
use lowtide_record::TrialRecord;
use lowtide_record::v1::{ALIVE_TASKS, Event, HookRun, INNER_MEMORY};
use serde_json::Value;

use crate::read::LoadedRecord;

/// The content of the pictures of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// The names of the records.
    pub title: String,
    /// The origin of the time axis: `the load began`, or `the start`.
    pub time_from: &'static str,
    /// The metric by which memory is judged.
    pub metric: Metric,
    /// One for each treatment of each record, in order.
    pub groups: Vec<CurveGroup>,
}

/// A treatment of a record.
#[derive(Debug, Clone, PartialEq)]
pub struct CurveGroup {
    /// Its name in the legend.
    pub label: String,
    /// Its place in the palette.
    pub colour: usize,
    /// Its repeats; the one that is drawn in full comes first.
    pub curves: Vec<Curve>,
    /// Baseline, peak and settled memory, in bytes.
    pub bars: [Option<Estimate>; 3],
}

/// One trial over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// The number of the repeat.
    pub repeat: u32,
    /// The readings, in order of time.
    pub points: Vec<Point>,
    /// Events: seconds and a word.
    pub marks: Vec<(f64, String)>,
    /// Hooks that ran on the subject: seconds and a word.
    pub acts: Vec<(f64, String)>,
    /// Bytes that the program reports as allocated, over time; empty if it reports nothing.
    pub inner: Vec<(f64, u64)>,
    /// Requests in flight over time; empty if the load does not report them.
    pub in_flight: Vec<(f64, u64)>,
    /// Live tasks over time; empty if the program does not report them.
    pub tasks: Vec<(f64, u64)>,
}

/// One reading.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// Seconds since the origin of the time axis.
    pub t_s: f64,
    /// Resident bytes.
    pub rss: u64,
    /// The anonymous part of them.
    pub anon: u64,
    /// Bytes of address space.
    pub vsz: u64,
    /// Proportional bytes, at the readings that have them.
    pub pss: Option<u64>,
    /// Lazily freed bytes, at the readings that have them.
    pub lazyfree: Option<u64>,
    /// Established connections.
    pub connections: Option<u64>,
}

/// The names of the bars.
pub(crate) const BARS: [&str; 3] = ["baseline", "peak", "settled"];
/// Maximum number of points of a line in a picture.
const MAX_POINTS: usize = 1500;

impl View {
    /// Returns the view of some records.
    pub fn new(records: &[LoadedRecord]) -> Self {
        // A trial that was aborted before its load does not change the alignment of the others.
        let loaded = records
            .iter()
            .all(|r| r.trials.iter().all(|(_, t)| t.trial.loaded) && !r.trials.is_empty());
        let names = names(records);
        let metric = if records.iter().any(|r| r.study.metric == Metric::Pss) {
            Metric::Pss
        } else {
            Metric::Rss
        };
        let mut groups = Vec::new();
        for (record, name) in records.iter().zip(&names) {
            let name = Some(name.as_str()).filter(|_| records.len() > 1);
            for summary in &record.study.treatments {
                let group = CurveGroup::new(record, summary, groups.len(), name, loaded);
                if group.curves.iter().any(|c| !c.points.is_empty()) {
                    groups.push(group);
                }
            }
        }
        Self {
            title: names.join(" · "),
            time_from: if loaded { "the load began" } else { "the start" },
            metric,
            groups,
        }
    }

    /// Returns the view of some records, then those of others beside them, each on axes of its own.
    pub fn with_those_beside(records: &[LoadedRecord], beside: &[LoadedRecord]) -> Vec<Self> {
        let main = Self::new(records);
        let others = beside.iter().map(std::slice::from_ref);
        let others: Vec<Self> = others.map(|one| Self::new(one).coloured_like(&main)).collect();
        std::iter::once(main).chain(others).collect()
    }

    /// Gives treatments the colours that they have in another view.
    fn coloured_like(mut self, other: &Self) -> Self {
        let mut next = other.groups.len();
        for group in &mut self.groups {
            let same = other.groups.iter().find(|g| g.label == group.label);
            group.colour = same.map_or(next, |g| g.colour);
            next += usize::from(same.is_none());
        }
        self
    }

    /// Returns the times of the first and the last point of all lines.
    pub(crate) fn span(&self) -> (f64, f64) {
        let times =
            self.curves().filter_map(|c| Some((c.points.first()?.t_s, c.points.last()?.t_s)));
        let (low, high) = times.fold((f64::MAX, f64::MIN), |(a, b), (c, d)| (a.min(c), b.max(d)));
        if low < high { (low, high) } else { (0.0, 1.0) }
    }

    /// Returns the top of the memory axis. It may cut off the address space, which an allocator may
    /// reserve a hundred times over, so that resident memory is not drawn flat.
    pub(crate) fn top(&self) -> f64 {
        let highest = |of: &dyn Fn(&Point) -> u64| {
            self.curves().flat_map(|c| &c.points).map(of).max().unwrap_or(0) as f64
        };
        let rss = highest(&|p| p.rss);
        let top = highest(&|p| p.vsz).clamp(rss, rss * 1.6);
        if top > 0.0 { top * 1.05 } else { 1.0 }
    }

    /// Returns the maximum number of open connections.
    pub(crate) fn most_connections(&self) -> u64 {
        let all = self.curves().flat_map(|c| &c.points).filter_map(|p| p.connections);
        all.max().unwrap_or(0)
    }

    /// Returns the maximum of all counts on the right axis: connections, requests, tasks.
    pub fn most_counted(&self) -> u64 {
        let counts = self.curves().flat_map(|c| c.in_flight.iter().chain(&c.tasks)).map(|p| p.1);
        counts.max().unwrap_or(0).max(self.most_connections())
    }

    /// Returns whether a load reported its requests in flight.
    pub fn has_in_flight(&self) -> bool {
        self.curves().any(|c| !c.in_flight.is_empty())
    }

    /// Returns whether a program reported what it has allocated.
    pub(crate) fn has_inner(&self) -> bool {
        self.curves().any(|c| !c.inner.is_empty())
    }

    /// Returns whether a program reported its live tasks.
    pub(crate) fn has_tasks(&self) -> bool {
        self.curves().any(|c| !c.tasks.is_empty())
    }

    fn curves(&self) -> impl Iterator<Item = &Curve> {
        self.groups.iter().flat_map(|g| &g.curves)
    }
}

impl CurveGroup {
    fn new(
        record: &LoadedRecord,
        summary: &TreatmentSummary,
        colour: usize,
        name: Option<&str>,
        loaded: bool,
    ) -> Self {
        let mut label = summary.treatment.label();
        match summary.standing {
            Standing::NotInForce => label += ", not in force",
            Standing::Failed => label += ", failed",
            Standing::NotFinished => label += ", not finished",
            _ => {}
        }
        let results: Vec<&TrialResult> =
            record.study.trials.iter().filter(|t| t.treatment == summary.treatment).collect();
        let mut curves: Vec<(u64, Curve)> = record
            .trials
            .iter()
            .filter(|(_, trial)| trial.trial.treatment == summary.treatment)
            .map(|(file, trial)| {
                let settled =
                    results.iter().find(|r| r.samples == *file).and_then(|r| r.settled_bytes);
                // Trials without this value come last.
                let median = summary.settled_bytes.map_or(0, |e| e.median as u64);
                let distance = settled.map_or(u64::MAX, |s| s.abs_diff(median));
                (distance, Curve::new(trial, loaded, record.study.metric))
            })
            .collect();
        curves.sort_by_key(|(distance, curve)| (*distance, curve.repeat));
        Self {
            label: name.map_or_else(|| label.clone(), |name| format!("{label} ({name})")),
            colour,
            curves: curves.into_iter().map(|(_, curve)| curve).collect(),
            bars: [summary.baseline_bytes, summary.peak_bytes, summary.settled_bytes],
        }
    }

    /// Returns the line that is drawn in full.
    pub fn main(&self) -> Option<&Curve> {
        self.curves.first()
    }

    /// Returns the label of a bar.
    pub(crate) fn bar_text(&self, bar: usize) -> String {
        match self.bars[bar] {
            None => "–".to_owned(),
            Some(e) => Human(e.median as u64).to_string(),
        }
    }
}

/// Returns distinct names of records: their own, or, where two are equal, their directories.
pub(crate) fn names(records: &[LoadedRecord]) -> Vec<String> {
    let named = |name: &str| records.iter().filter(|r| r.study.name == name).count();
    let name = |record: &LoadedRecord| match Path::new(&record.study.record).file_name() {
        Some(directory) if named(&record.study.name) > 1 => {
            directory.to_string_lossy().into_owned()
        }
        _ => record.study.name.clone(),
    };
    records.iter().map(name).collect()
}

impl Curve {
    fn new(trial: &TrialRecord, loaded: bool, metric: Metric) -> Self {
        let start = trial.marks.iter().find(|m| m.mark == Event::Start).map_or(0.0, |m| m.t_s);
        let zero = if loaded { load_begin(trial) } else { Some(start) };
        let Some(zero) = zero else {
            return Self { repeat: trial.trial.repeat, ..Self::default() };
        };
        let end = trial.marks.iter().find_map(|m| match m.mark {
            // A process releases its memory before its parent learns that it has ended. A server
            // that moves to the background ends its first process at once, while others continue.
            Event::Exit if !trial.trial.loaded => Some(m.t_s - trial.trial.interval_s),
            Event::Stop => Some(m.t_s),
            _ => None,
        });
        // Where memory is judged by PSS, it is drawn by PSS: estimated from RSS between two
        // readings.
        let judged = (metric == Metric::Pss).then(|| memory_over_time(trial, Metric::Pss));
        let pss = |s: &Sample| match &judged {
            Some(series) => series.reading_at(s.t_s),
            None => s.slow.map(|slow| slow.pss_bytes.0),
        };
        let points: Vec<Point> = trial
            .samples
            .iter()
            .filter(|s| {
                s.processes > 0 && s.total.vsz_bytes.0 > 0 && end.is_none_or(|end| s.t_s < end)
            })
            .map(|s| Point {
                t_s: s.t_s - zero,
                rss: s.total.rss_bytes.0,
                anon: s.total.anon_bytes.0,
                vsz: s.total.vsz_bytes.0,
                pss: pss(s),
                lazyfree: s.slow.map(|slow| slow.lazyfree_bytes.0),
                connections: s.sockets_established,
            })
            .collect();
        let ends_at = |t: f64| end.is_none_or(|end| t < end);
        let metric_line = |name: &str| -> Vec<(f64, u64)> {
            let all = trial.figures.iter().filter(|f| ends_at(f.t_s));
            let values = all.filter_map(|f| Some((f.t_s - zero, *f.values.get(name)? as u64)));
            thinned_line(values.collect())
        };
        let in_flight = trial.load_samples.iter().filter(|s| ends_at(s.t_s));
        Self {
            repeat: trial.trial.repeat,
            marks: marks(trial, zero),
            acts: acts(trial, zero),
            points: thinned(points),
            inner: metric_line(INNER_MEMORY),
            in_flight: thinned_line(in_flight.map(|s| (s.t_s - zero, s.in_flight)).collect()),
            tasks: metric_line(ALIVE_TASKS),
        }
    }

    /// Returns the judged memory, as points of seconds and bytes.
    pub(crate) fn memory(&self, metric: Metric) -> Vec<(f64, u64)> {
        match metric {
            Metric::Rss => self.points.iter().map(|p| (p.t_s, p.rss)).collect(),
            Metric::Pss => self.points.iter().filter_map(|p| Some((p.t_s, p.pss?))).collect(),
        }
    }
}

/// Returns the runs of hooks, and the releases of a policy that returned memory.
fn acts(trial: &TrialRecord, zero: f64) -> Vec<(f64, String)> {
    let is_drawn = |act: &&HookRun| match act.report.as_ref() {
        Some(report) if report.get("schema").and_then(Value::as_str) == Some(act::SCHEMA) => {
            let event = report.get("event").and_then(Value::as_str);
            let returned = report.get("returned_bytes").and_then(Value::as_u64);
            event == Some("act") && returned.is_some_and(|bytes| bytes > 0)
        }
        _ => true,
    };
    let drawn = trial.acts.iter().filter(is_drawn);
    drawn.map(|act| (act.t_s - zero, act.name.clone())).collect()
}

/// Returns the events of a trial, in words.
fn marks(trial: &TrialRecord, zero: f64) -> Vec<(f64, String)> {
    let marks = trial.marks.iter().filter_map(|m| {
        let word = match (m.mark, m.round, &m.name) {
            (Event::LoadBegin, Some(round), _) if round > 1 => format!("load {round}"),
            (Event::LoadBegin, _, _) => "load".to_owned(),
            (Event::LoadEnd, _, _) => "load ends".to_owned(),
            (Event::Drained, _, _) => "drained".to_owned(),
            (Event::Closed, _, _) => "closed".to_owned(),
            (Event::Phase, _, Some(name)) => phase_word(trial, name, m.t_s),
            _ => return None,
        };
        Some((m.t_s - zero, word))
    });
    marks.collect()
}

/// Maximum time in seconds after which a subject reports the duration of a phase.
const REPORTED_WITHIN_S: f64 = 2.0;

/// Returns the name of a phase with its duration, if the subject reports one as a metric:
/// `refresh_ms` for `refresh`.
fn phase_word(trial: &TrialRecord, name: &str, t_s: f64) -> String {
    let word = name.replace('_', " ");
    let after = trial.figures.iter().find(|f| f.t_s >= t_s && f.t_s - t_s <= REPORTED_WITHIN_S);
    match after.and_then(|figures| figures.values.get(&format!("{name}_ms"))) {
        Some(ms) if *ms > 0.0 => format!("{word} {ms:.2} ms"),
        _ => word,
    }
}

fn load_begin(trial: &TrialRecord) -> Option<f64> {
    trial.marks.iter().find(|m| m.mark == Event::LoadBegin).map(|m| m.t_s)
}

/// Thins points out if there are more than a picture can show. Keeps the highest and the lowest of
/// each stretch, by RSS and by PSS, so that no peak is lost.
fn thinned(points: Vec<Point>) -> Vec<Point> {
    if points.len() <= MAX_POINTS {
        return points;
    }
    let stretch = points.len().div_ceil(MAX_POINTS / 2);
    let mut kept = Vec::with_capacity(MAX_POINTS);
    for chunk in points.chunks(stretch) {
        let high = chunk.iter().enumerate().max_by_key(|(_, p)| p.rss).map(|(i, _)| i);
        let low = chunk.iter().enumerate().min_by_key(|(_, p)| p.rss).map(|(i, _)| i);
        let slow = || chunk.iter().enumerate().filter_map(|(i, p)| Some((i, p.pss?)));
        let slow_high = slow().max_by_key(|(_, pss)| *pss).map(|(i, _)| i);
        let slow_low = slow().min_by_key(|(_, pss)| *pss).map(|(i, _)| i);
        let mut places: Vec<usize> =
            [high, low, slow_high, slow_low].into_iter().flatten().collect();
        places.sort_unstable();
        places.dedup();
        kept.extend(places.into_iter().map(|i| chunk[i]));
    }
    kept
}

/// Thins a single line out. Keeps the highest and the lowest point of each stretch.
fn thinned_line(points: Vec<(f64, u64)>) -> Vec<(f64, u64)> {
    if points.len() <= MAX_POINTS {
        return points;
    }
    let stretch = points.len().div_ceil(MAX_POINTS / 2);
    let mut kept = Vec::with_capacity(MAX_POINTS);
    for chunk in points.chunks(stretch) {
        let high = (0..chunk.len()).max_by_key(|i| chunk[*i].1).unwrap_or(0);
        let low = (0..chunk.len()).min_by_key(|i| chunk[*i].1).unwrap_or(0);
        kept.push(chunk[high.min(low)]);
        if high != low {
            kept.push(chunk[high.max(low)]);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_peak_and_the_order() {
        let points: Vec<Point> = (0..100_000)
            .map(|i| Point {
                t_s: f64::from(i),
                rss: if i == 54_321 { 999 } else { 1 },
                pss: (i % 10 == 0).then_some(if i == 12_340 { 77 } else { 1 }),
                ..Point::default()
            })
            .collect();
        let thin = thinned(points);
        assert!(thin.len() <= 2 * MAX_POINTS, "{}", thin.len());
        assert!(thin.iter().any(|p| p.rss == 999));
        assert!(thin.iter().any(|p| p.pss == Some(77)));
        assert!(thin.windows(2).all(|w| w[0].t_s < w[1].t_s));
    }

    #[test]
    fn thinning_a_line_keeps_its_maximum_and_minimum() {
        let value = |i: u32| match i {
            54_321 => 999,
            54_322 => 0,
            _ => 5,
        };
        let thin = thinned_line((0..100_000).map(|i| (f64::from(i), value(i))).collect());
        assert!(thin.len() <= MAX_POINTS, "{}", thin.len());
        assert!(thin.contains(&(54_321.0, 999)) && thin.contains(&(54_322.0, 0)));
        assert!(thin.windows(2).all(|w| w[0].0 < w[1].0));
    }
}
