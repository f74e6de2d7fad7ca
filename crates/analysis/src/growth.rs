//! Detects whether memory in use grows, from several inspections of a process.
//!
//! A trend is detected by the test of Mann and Kendall (Mann 1945, Kendall 1975), which counts the pairs of
//! samples that rise and those that fall. Its rate is the estimate of Theil and Sen: the median of the
//! slopes of all pairs. Both are robust against a single burst.

use crate::stats;
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::inspection::{Bin, Observation};
use lowtide_model::ledger::Owner;
use lowtide_model::verdict::{Verdict, VerdictKind};

/// Minimum number of samples that can show a trend.
pub const MIN_SAMPLES: usize = 5;
/// Normal quantile of the 1 % level: chance alone produces such a trend in 1 of 100 cases.
const SIGNIFICANT: f64 = 2.326;
/// Minimum growth, in bytes; less is noise.
const MIN_BYTES: f64 = 256.0 * 1024.0;
/// Minimum growth, as a part of the memory in use at the first sample.
const MIN_SHARE: f64 = 0.005;
/// Maximum number of samples that a tracker keeps.
const MAX_SAMPLES: usize = 80;
/// Maximum number of size classes in a verdict.
const MAX_CLASSES: usize = 3;

/// The part of an observation that growth is detected from.
#[derive(Debug, Clone, PartialEq)]
pub struct GrowthSample {
    /// Seconds since the first sample.
    pub t_s: f64,
    /// Identifies the program, as in [`Observation::image`].
    pub image: (u64, u64),
    /// Memory in use, in bytes: allocated, managed by a runtime, or mapped by the program itself.
    pub in_use_bytes: u64,
    /// Whether the heap was walked: only then is free memory distinguished from memory in use.
    pub is_walked: bool,
    /// Chunks in use, by size.
    pub by_size: Vec<Bin>,
}

impl GrowthSample {
    /// Takes the sample from an observation.
    pub fn new(t_s: f64, observation: &Observation) -> Self {
        let counted = [Owner::Allocated, Owner::Runtime, Owner::AnonymousOther];
        Self {
            t_s,
            image: observation.image,
            is_walked: observation.heap.is_some(),
            in_use_bytes: counted.iter().map(|o| observation.ledger.bytes(*o)).sum(),
            by_size: observation.allocated_by_size.clone(),
        }
    }
}

/// Samples of a watch that may run forever: at most `MAX_SAMPLES`, equally spaced, and the newest.
#[derive(Debug, Clone, Default)]
pub struct GrowthTracker {
    samples: Vec<GrowthSample>,
    /// Number of times that every other sample was dropped.
    halvings: u32,
    seen: u64,
    /// Whether the next sample replaces the newest.
    is_passing: bool,
}

impl GrowthTracker {
    /// Adds a sample. Starts anew if the process executes another program, or if the heap can no longer (or
    /// again) be walked.
    pub fn add(&mut self, sample: GrowthSample) {
        let key = |sample: &GrowthSample| (sample.image, sample.is_walked);
        if self.samples.last().is_some_and(|last| key(last) != key(&sample)) {
            *self = Self::default();
        }
        if self.is_passing {
            self.samples.pop();
        }
        if self.samples.len() >= MAX_SAMPLES {
            let mut place = 0;
            self.samples.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.halvings += 1;
        }
        self.is_passing = !self.seen.is_multiple_of(1 << self.halvings);
        self.seen += 1;
        self.samples.push(sample);
    }

    /// Returns the number of samples and the seconds that they span.
    pub fn span(&self) -> (usize, f64) {
        let time = self.samples.first().zip(self.samples.last()).map(|(a, b)| b.t_s - a.t_s);
        (self.samples.len(), time.unwrap_or(0.0))
    }

    /// Returns the verdict `growing` if memory in use grew over the whole observation and still grows in
    /// its newer half. A program that has warmed up has stopped growing.
    pub fn detect(&self) -> Option<Verdict> {
        let verdict = detect(&self.samples)?;
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        let middle = f64::midpoint(first.t_s, last.t_s);
        let newer = &self.samples[self.samples.partition_point(|sample| sample.t_s < middle)..];
        (newer.len() < MIN_SAMPLES || detect(newer).is_some()).then_some(verdict)
    }
}

/// Returns the verdict `growing` if memory in use grew over the samples.
pub fn detect(samples: &[GrowthSample]) -> Option<Verdict> {
    let (first, last) = (samples.first()?, samples.last()?);
    let in_use: Vec<(f64, f64)> = samples.iter().map(|l| (l.t_s, l.in_use_bytes as f64)).collect();
    let rate = rising(&in_use)?;
    let time = last.t_s - first.t_s;
    let least = MIN_BYTES.max(first.in_use_bytes as f64 * MIN_SHARE);
    if rate * time < least {
        return None;
    }
    let mut because = vec![format!(
        "memory in use grew from {} to {} in {}: {} a minute, in {} inspections",
        Human(first.in_use_bytes),
        Human(last.in_use_bytes),
        HumanSeconds(time),
        Human((rate * 60.0) as u64),
        samples.len()
    )];
    because.extend(classes(samples).into_iter().map(|class| {
        format!(
            "blocks of {} to {} bytes: {} more, {} a minute",
            class.from,
            class.to - 1,
            class.more,
            Human((class.rate * 60.0) as u64)
        )
    }));
    Some(Verdict { kind: VerdictKind::Growing, because })
}

/// A size class that grows.
struct GrowingClass {
    from: u64,
    to: u64,
    more: u64,
    /// Growth, in bytes a second.
    rate: f64,
}

/// Returns the size classes that grow, the fastest first.
fn classes(samples: &[GrowthSample]) -> Vec<GrowingClass> {
    let Some(last) = samples.last() else { return Vec::new() };
    let count = |sample: &GrowthSample, from| {
        sample.by_size.iter().find(|b| b.from == from).map_or((0, 0), |b| (b.count, b.bytes))
    };
    let mut found: Vec<GrowingClass> = last
        .by_size
        .iter()
        .filter_map(|bin| {
            let series: Vec<(f64, f64)> =
                samples.iter().map(|l| (l.t_s, count(l, bin.from).1 as f64)).collect();
            let more = bin.count.saturating_sub(count(&samples[0], bin.from).0);
            let rate = rising(&series).filter(|_| more > 0)?;
            Some(GrowingClass { from: bin.from, to: bin.to, more, rate })
        })
        .collect();
    found.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    found.truncate(MAX_CLASSES);
    found
}

/// Returns the rate at which a series rises, in its unit per second, if the trend is significant.
pub(crate) fn rising(series: &[(f64, f64)]) -> Option<f64> {
    let n = series.len();
    if n < MIN_SAMPLES {
        return None;
    }
    let mut score = 0.0;
    let mut slopes = Vec::with_capacity(n * (n - 1) / 2);
    for (place, (t0, y0)) in series.iter().enumerate() {
        for (t1, y1) in &series[place + 1..] {
            if y1 != y0 {
                score += (y1 - y0).signum();
            }
            if t1 > t0 {
                slopes.push((y1 - y0) / (t1 - t0));
            }
        }
    }
    let n = n as f64;
    let variance = n * (n - 1.0) * (2.0 * n + 5.0) / 18.0;
    // With few samples, not even a rise at every step would be significant.
    let is_trend = (score - 1.0) / variance.sqrt() >= SIGNIFICANT.min(largest_score(n, variance));
    stats::median(&slopes).filter(|rate| is_trend && *rate > 0.0)
}

/// Returns the largest possible score.
fn largest_score(n: f64, variance: f64) -> f64 {
    (n * (n - 1.0) / 2.0 - 1.0) / variance.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn samples(of: impl Fn(u64) -> u64) -> Vec<GrowthSample> {
        (0..20)
            .map(|i| {
                let bytes = of(i);
                let bin = Bin { from: 64, to: 128, count: bytes / 100, bytes };
                GrowthSample {
                    t_s: i as f64,
                    image: (1, 1),
                    is_walked: true,
                    in_use_bytes: 100 * MIB + bytes,
                    by_size: vec![bin],
                }
            })
            .collect()
    }

    #[test]
    fn memory_that_rises_at_every_sample_is_growing_and_its_size_class_is_named() {
        let verdict = detect(&samples(|i| i * MIB)).unwrap();
        assert_eq!(verdict.kind, VerdictKind::Growing);
        assert_eq!(
            verdict.because[0],
            "memory in use grew from 100 MiB to 119 MiB in 19.0 s: 60.0 MiB a minute, in 20 inspections"
        );
        assert!(verdict.because[1].starts_with("blocks of 64 to 127 bytes: "), "{verdict:?}");
    }

    #[test]
    fn oscillating_memory_or_a_burst_is_not_growing() {
        assert_eq!(detect(&samples(|i| (i % 4) * 10 * MIB)), None);
        assert_eq!(detect(&samples(|i| if i == 7 { 500 * MIB } else { 0 })), None);
        assert_eq!(detect(&samples(|i| i * 1024)), None);
        assert_eq!(detect(&samples(|_| 0)[..4]), None);
        assert_eq!(detect(&[]), None);
    }

    #[test]
    fn noisy_growth_is_detected() {
        assert!(detect(&samples(|i| i * MIB + (i * 7919 % 3) * MIB)).is_some());
    }

    fn tracker(of: impl Fn(u64) -> u64) -> GrowthTracker {
        let mut tracker = GrowthTracker::default();
        for i in 0..1000 {
            tracker.add(GrowthSample {
                t_s: i as f64,
                image: (1, 1),
                is_walked: true,
                in_use_bytes: of(i),
                by_size: Vec::new(),
            });
        }
        tracker
    }

    #[test]
    fn a_tracker_keeps_its_first_sample_and_bounds_the_number_of_samples() {
        let tracker = tracker(|i| i * MIB);
        assert!(tracker.samples.len() <= MAX_SAMPLES, "{}", tracker.samples.len());
        let because = &tracker.detect().unwrap().because[0];
        assert!(because.starts_with("memory in use grew from 0 B to 999 MiB in 16 min 39 s: 60"));
    }

    #[test]
    fn a_slow_leak_is_detected_as_growth() {
        let mut slow = GrowthTracker::default();
        for second in 0..36_000_u64 {
            let in_use_bytes = 2048 * MIB + second * MIB / 60;
            slow.add(GrowthSample {
                t_s: second as f64,
                image: (1, 1),
                is_walked: true,
                in_use_bytes,
                by_size: Vec::new(),
            });
        }
        assert!(slow.detect().is_some());
    }

    #[test]
    fn an_exec_in_the_process_resets_the_tracker() {
        let mut tracker = tracker(|i| i * MIB);
        tracker.add(GrowthSample {
            t_s: 1000.0,
            image: (2, 2),
            is_walked: true,
            in_use_bytes: 0,
            by_size: Vec::new(),
        });
        assert_eq!((tracker.span(), tracker.detect()), ((1, 0.0), None));
    }

    #[test]
    fn a_program_past_its_warm_up_is_not_growing() {
        assert_eq!(tracker(|i| i.min(300) * MIB).detect(), None);
    }
}
