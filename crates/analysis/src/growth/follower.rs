//! Follows one process.

use lowtide_model::bytes::Human;
use lowtide_model::counts::{CountGrowth, CountKind, Counts};
use lowtide_model::duration::HumanSeconds;
use lowtide_model::growth::{Growth, GrowthCourse, ProcessLimit, ProcessLimitKind};
use lowtide_model::inspection::{Bin, Inspection, Observation};
use lowtide_model::ledger::Owner;
use lowtide_model::number::HumanCount;
use lowtide_model::stats::thin;
use lowtide_model::verdict::{Verdict, VerdictKind};

use super::course::{course, has_risen, is_noticeable};
use super::owners::{LazilyFreed, OwnerBytes, growth};
use super::trend::{MIN_SAMPLES, line_slope, rising, without_spikes};
use super::words::{
    beside, beside_and_descendants, count_limits, counted, fate, sentence, steady_counts,
};
use crate::diagnose::diagnose;

/// Minimum growth of memory in use, in bytes; less is noise.
const MIN_BYTES: f64 = 256.0 * 1024.0;
/// Minimum growth, as a part of the memory in use at the first sample.
const MIN_SHARE: f64 = 0.005;
/// Minimum number of readings in the newer half, if its course counts.
const MIN_NEWER: usize = 10;
/// Maximum ratio of the rate of the newer half to that of all readings, either way, for one rate.
const MAX_RATIO: f64 = 1.2;
/// Maximum number of size classes in a verdict.
const MAX_CLASSES: usize = 3;

/// The owners of free memory of a heap, and of the allocator's metadata.
const FREE: [Owner; 5] =
    [Owner::Reclaimable, Owner::Locked, Owner::Fragmented, Owner::Cached, Owner::Metadata];

/// Follows one process, for any length of time: its inspections, and readings of RSS between them.
/// Starts over if the process executes another program.
#[derive(Debug, Clone, Default)]
pub struct Follower {
    program: Option<Program>,
    /// Readings of RSS without pages of files that the kernel can drop and lazily freed memory:
    /// times in seconds, and bytes.
    readings: Series<(f64, u64)>,
    /// Readings of what the kernel limits for a single process: times in seconds, and bytes of
    /// address space and of private memory.
    limited: Series<(f64, [u64; 2])>,
    /// Readings of what the kernel counts, and limits by number, with their times in seconds.
    counted: Series<(f64, Counts)>,
    in_use: Series<InUse>,
    owners: Series<(f64, OwnerBytes)>,
    is_brief: bool,
    /// Pages of files that the kernel cannot take back, at the last observation, in bytes.
    kept_file_bytes: u64,
    /// Lazily freed memory at the last observation, in bytes. A reading of RSS does not show it.
    lazyfree_bytes: u64,
}

/// Identifies a program: [`Observation::image`], and whether its heap was walked.
type Program = ((u64, u64), bool);

/// Memory in use at one time.
#[derive(Debug, Clone, PartialEq)]
struct InUse {
    t_s: f64,
    /// Allocated, managed by a runtime, or mapped by the program itself.
    bytes: u64,
    /// Page tables, and files in memory that are open and not mapped: RSS does not count them.
    beside_bytes: u64,
    /// Chunks in use, by size.
    by_size: Vec<Bin>,
}

impl Follower {
    /// Keeps neither the sizes of blocks nor the owners between the first and the last inspection,
    /// which take more memory than everything else.
    #[must_use]
    pub fn brief(self) -> Self {
        Self { is_brief: true, ..self }
    }

    /// Adds a reading of RSS between two inspections, and the part of it that is pages of files,
    /// in bytes. It is left out if much of RSS was freed lazily: only an inspection shows how
    /// much.
    pub fn read(&mut self, t_s: f64, rss_bytes: u64, file_bytes: u64) {
        if !is_noticeable(rss_bytes, self.lazyfree_bytes as f64) {
            self.add_reading(t_s, rss_bytes, file_bytes);
        }
    }

    fn add_reading(&mut self, t_s: f64, rss_bytes: u64, file_bytes: u64) {
        let droppable_bytes = file_bytes.saturating_sub(self.kept_file_bytes);
        let taken_back_bytes = droppable_bytes.saturating_add(self.lazyfree_bytes);
        self.readings.add((t_s, rss_bytes.saturating_sub(taken_back_bytes)));
    }

    /// Adds a reading of what the kernel limits for a single process, in bytes: the address space
    /// and the private memory.
    pub fn read_limited(&mut self, t_s: f64, bytes: [u64; 2]) {
        self.limited.add((t_s, bytes));
    }

    /// Adds a reading of what the kernel counts between two inspections.
    pub fn read_counts(&mut self, t_s: f64, counts: Counts) {
        self.counted.add((t_s, counts));
    }

    /// Returns the counts that have risen, also those whose rise is noticeable only if its limit is
    /// near.
    pub fn counts(&self) -> Vec<CountGrowth> {
        let of = |(place, kind): (usize, CountKind)| {
            let samples = self.counted.samples.iter();
            let readings: Vec<(f64, f64)> =
                samples.filter_map(|(t_s, counts)| Some((*t_s, counts[place]? as f64))).collect();
            let [first, last] = [readings.first()?.1, readings.last()?.1].map(|count| count as u64);
            let newer =
                &readings[(readings.len() / 2).min(readings.len().saturating_sub(MIN_SAMPLES))..];
            let per_s = rising(&readings).and_then(|_| rising(newer));
            CountGrowth::new(kind, [first, last], per_s)
        };
        CountKind::ALL.into_iter().enumerate().filter_map(of).collect()
    }

    /// Returns what is used of these, and how fast it grows, in bytes an hour, as far as it grows
    /// steadily.
    pub fn limited(&self) -> Vec<ProcessLimit> {
        let kinds = [ProcessLimitKind::AddressSpace, ProcessLimitKind::Data];
        let of = |(place, kind): (usize, ProcessLimitKind)| {
            let samples = self.limited.samples.iter();
            let readings: Vec<(f64, u64)> =
                samples.map(|(t_s, bytes)| (*t_s, bytes[place])).collect();
            let (_, used_bytes) = *readings.last()?;
            let bytes_per_hour = (rate(&readings) * 3600.0) as u64;
            (course(&readings) == GrowthCourse::Steady && bytes_per_hour > 0)
                .then_some(ProcessLimit { kind, used_bytes, bytes_per_hour })
        };
        kinds.into_iter().enumerate().filter_map(of).collect()
    }

    /// Adds an observation, `t_s` seconds after the first. One that lacks parts is left out.
    pub fn add(&mut self, t_s: f64, observation: &Observation) {
        const IN_USE: [Owner; 3] = [Owner::Allocated, Owner::Runtime, Owner::AnonymousOther];
        if observation.unreadable.is_some() {
            return;
        }
        let program = (observation.image, observation.heap.is_some());
        match self.program {
            Some((image, _)) if image != program.0 => {
                *self = Self { is_brief: self.is_brief, ..Self::default() };
            }
            // What is in use is counted in another way.
            Some(known) if known != program => self.in_use = Series::default(),
            _ => {}
        }
        self.program = Some(program);
        let Observation { open_files, mappings, threads, ended_children, .. } = *observation;
        self.read_counts(t_s, [open_files, mappings, Some(threads), ended_children]);
        let rss_bytes = observation.kernel_rss_bytes.unwrap_or(observation.rss_bytes);
        self.kept_file_bytes = observation.kept_file_bytes;
        let lazily_freed = LazilyFreed::new(observation);
        self.lazyfree_bytes = lazily_freed.bytes();
        self.add_reading(t_s, rss_bytes, observation.ledger.bytes(Owner::File));
        // These counts of the kernel are right although parts of the memory are missing.
        if observation.moved_bytes > 0 {
            return;
        }
        let by_size = match self.is_brief {
            true => Vec::new(),
            false => observation.allocated_by_size.clone(),
        };
        let bytes: u64 = IN_USE.iter().map(|owner| observation.ledger.bytes(*owner)).sum();
        let bytes = bytes.saturating_sub(lazily_freed.of(&IN_USE));
        let open_bytes = observation.open_memory.as_ref().map_or(0, |open| open.bytes);
        let pool_bytes = observation.hugetlb_bytes.unwrap_or(0);
        let beside_bytes = observation.page_tables_bytes.unwrap_or(0) + pool_bytes + open_bytes;
        self.in_use.add(InUse { t_s, bytes, beside_bytes, by_size });
        if self.is_brief {
            self.owners.samples.truncate(1);
        }
        self.owners.add((t_s, OwnerBytes::new(observation)));
    }

    /// Diagnoses an observation, `t_s` seconds after the first. The verdict is `growing` if the
    /// process grew until then.
    pub fn observe(&mut self, t_s: f64, observation: Observation) -> Inspection {
        self.add(t_s, &observation);
        self.diagnose(observation)
    }

    /// Diagnoses an observation that was added. The verdict is `growing` if the process grew until
    /// then.
    pub fn diagnose(&self, observation: Observation) -> Inspection {
        let mut inspection = diagnose(observation);
        if inspection.observation.unreadable.is_none() {
            self.judge(&mut inspection.verdict);
        }
        inspection
    }

    /// Returns the growth from the first observation to the last. Its rates are those of the time
    /// in which it was steady.
    pub fn growth(&self) -> Option<Growth> {
        let owners = &self.owners.samples;
        let ((first_s, _), (last_s, _)) = (owners.first()?, owners.last()?);
        (last_s > first_s).then(|| {
            let (course, since_s) = self.course();
            let growth = growth(owners, since_s);
            let counts = self.counts().into_iter().filter(CountGrowth::is_noticeable).collect();
            Growth { course, counts, ..growth }
        })
    }

    /// Returns the course of RSS without what the kernel takes back, and since when, in seconds. It
    /// is steady if it was steady in all readings, or in the newer half of them: growth may begin,
    /// or become faster or slower, after a long time.
    fn course(&self) -> (GrowthCourse, f64) {
        let readings = &self.readings.samples;
        let newer = &readings[readings.len() / 2..];
        let is_newer_steady = newer.len() >= MIN_NEWER && course(newer) == GrowthCourse::Steady;
        let is_same = || {
            let [all, now] = [readings, newer].map(rate);
            (all / MAX_RATIO..all * MAX_RATIO).contains(&now)
        };
        match course(readings) {
            GrowthCourse::Steady if !is_newer_steady || is_same() => (GrowthCourse::Steady, 0.0),
            _ if is_newer_steady => (GrowthCourse::Steady, newer[0].0),
            course => (course, 0.0),
        }
    }

    /// Returns whether there are enough inspections to say that memory in use does not grow.
    pub fn has_enough_samples(&self) -> bool {
        self.in_use.samples.len() >= MIN_SAMPLES
    }

    /// Returns the number of readings of RSS, at most that of a series.
    pub fn readings(&self) -> usize {
        self.readings.samples.len()
    }

    /// Returns the first and the last reading of RSS without pages of files that the kernel can
    /// drop and lazily freed memory, in bytes.
    pub fn kept_bytes(&self) -> Option<[u64; 2]> {
        let readings = &self.readings.samples;
        Some([readings.first()?.1, readings.last()?.1])
    }

    /// Replaces a verdict on the last observation by `growing` if memory in use or RSS grew. If the
    /// growth is mostly free memory of the heap, keeps the verdict, and adds the growth to its
    /// reasons.
    fn judge(&self, verdict: &mut Verdict) {
        let in_use = self.growing();
        let growth = self.growth();
        let steady = growth.as_ref().filter(|growth| self.is_steady(growth));
        let mut beside = self.growing_beside();
        beside.extend(growth.as_ref().map(steady_counts).unwrap_or_default());
        if in_use.is_none() && steady.is_none() && beside.is_empty() {
            return;
        }
        // Memory in use may be a small part of what grew.
        let risen = growth.as_ref().filter(|growth| has_risen(growth.rss_bytes));
        let said = steady.or(risen.filter(|_| in_use.is_some())).map(sentence);
        if steady.is_some_and(is_in_free_memory) && in_use.is_none() && beside.is_empty() {
            verdict.because.splice(0..0, said);
            return;
        }
        let because = said.into_iter().chain(in_use.into_iter().flatten()).chain(beside).collect();
        *verdict = Verdict { kind: VerdictKind::Growing, because };
    }

    /// Returns sentences on memory beside RSS if it grew from inspection to inspection.
    fn growing_beside(&self) -> Vec<String> {
        let samples = self.in_use.samples.iter();
        let bytes: Vec<(f64, f64)> =
            samples.map(|sample| (sample.t_s, sample.beside_bytes as f64)).collect();
        let growth = rising(&bytes).and_then(|_| self.growth());
        growth.as_ref().map(beside).unwrap_or_default()
    }

    /// Adds sentences on the growth so far, of RSS and beside it, and on limits by number, unless
    /// the verdict or its reasons have them already. The verdict is `growing` if a count rises to a
    /// limit that is near.
    pub fn conclude(&self, verdict: &mut Verdict, growth: Option<&Growth>) {
        let counts = growth.map_or(&[][..], |growth| &growth.counts);
        let near: Vec<String> =
            counts.iter().filter(|count| count.is_near()).map(counted).collect();
        if verdict.kind != VerdictKind::Growing && !near.is_empty() {
            verdict.kind = VerdictKind::Growing;
            verdict.because.splice(0..0, near);
        }
        let is_steady = growth.is_some_and(|growth| self.is_steady(growth));
        if verdict.kind != VerdictKind::Growing && !is_steady {
            verdict.because.push(self.so_far(growth));
        }
        let beside = growth.map(beside_and_descendants).unwrap_or_default();
        for said in beside.into_iter().chain(growth.map(count_limits).unwrap_or_default()) {
            if !verdict.because.contains(&said) {
                verdict.because.push(said);
            }
        }
    }

    /// Returns a sentence on growth of RSS that is not steady.
    fn so_far(&self, growth: Option<&Growth>) -> String {
        let (count, time) = self.span();
        let time = HumanSeconds(time);
        let few = format!("too few samples to decide whether it grows ({count} in {time})");
        let course = growth.map_or(GrowthCourse::Unknown, |growth| growth.course);
        let rose = growth.filter(|growth| match course {
            GrowthCourse::Little => true,
            GrowthCourse::Level => is_taken_back(growth),
            _ => has_risen(growth.rss_bytes),
        });
        let Some(growth) = rose else {
            return match self.has_enough_samples() {
                false => few,
                true => {
                    format!("memory in use and RSS did not grow in {time} ({count} inspections)")
                }
            };
        };
        let remark = match course {
            _ if !self.has_enough_samples() => few,
            GrowthCourse::Little => "this is too little for a verdict".to_owned(),
            _ if is_taken_back(growth) => fate(growth),
            _ => "the growth is not steady and may have stopped".to_owned(),
        };
        format!("{}; {remark}", sentence(growth))
    }

    /// Returns the number of observations and the seconds that they span.
    fn span(&self) -> (usize, f64) {
        let samples = &self.in_use.samples;
        let time = samples.first().zip(samples.last()).map(|(a, b)| b.t_s - a.t_s);
        (samples.len(), time.unwrap_or(0.0))
    }

    /// Returns whether RSS grew steadily, by memory that the kernel cannot drop.
    fn is_steady(&self, growth: &Growth) -> bool {
        self.has_enough_samples()
            && growth.course == GrowthCourse::Steady
            && is_noticeable(growth.rss_bytes[0], growth.kept_bytes() as f64)
    }

    /// Returns sentences on the growth of memory in use if it grew over the whole observation and
    /// still grows in its newer half. A program that has warmed up has stopped growing.
    pub fn growing(&self) -> Option<Vec<String>> {
        let samples = &self.in_use.samples;
        let grew = growth_in_use(samples)?;
        let (first, last) = (samples.first()?, samples.last()?);
        let middle = f64::midpoint(first.t_s, last.t_s);
        let newer = &samples[samples.partition_point(|sample| sample.t_s < middle)..];
        (newer.len() < MIN_SAMPLES || growth_in_use(newer).is_some()).then_some(grew)
    }
}

/// Returns the slope of readings of RSS, in bytes a second.
pub(super) fn rate(readings: &[(f64, u64)]) -> f64 {
    let readings = without_spikes(readings, |(_, rss)| *rss as f64).into_iter();
    let series: Vec<(f64, f64)> = readings.map(|(t_s, rss)| (*t_s, *rss as f64)).collect();
    line_slope(&series)
}

/// Returns whether RSS rose noticeably, and what the kernel takes back (pages of files, or lazily
/// freed memory) explains it: most of the rise if the rest is level, or almost all of it if the
/// rest is not steady.
pub fn is_taken_back(growth: &Growth) -> bool {
    const MAX_KEPT: f64 = 0.5;
    const MAX_UNSTEADY: f64 = 0.1;
    let [before, after] = growth.rss_bytes;
    let max_kept = match growth.course {
        GrowthCourse::Level => MAX_KEPT,
        GrowthCourse::Once | GrowthCourse::Unknown => MAX_UNSTEADY,
        GrowthCourse::Little | GrowthCourse::Steady => return false,
    };
    let kept = growth.kept_bytes() as f64;
    has_risen(growth.rss_bytes) && kept < max_kept * after.saturating_sub(before) as f64
}

/// Returns whether RSS grew mainly by free memory of the heap.
fn is_in_free_memory(growth: &Growth) -> bool {
    let free = growth.by.iter().filter(|part| FREE.iter().any(|owner| part.owner == owner.key()));
    free.map(|part| part.bytes).sum::<i64>() * 2 > growth.kept_bytes()
}

/// A bounded series: at most [`Series::MAX`] evenly spaced samples, including the newest.
#[derive(Debug, Clone)]
pub(super) struct Series<T> {
    pub(super) samples: Vec<T>,
    /// Number of times that every other sample was dropped.
    halvings: u32,
    seen: u64,
    /// Whether the next sample replaces the newest.
    is_passing: bool,
}

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self { samples: Vec::new(), halvings: 0, seen: 0, is_passing: false }
    }
}

impl<T> Series<T> {
    const MAX: usize = 80;

    pub(super) fn add(&mut self, sample: T) {
        if self.is_passing {
            self.samples.pop();
        }
        if self.samples.len() >= Self::MAX {
            thin(&mut self.samples);
            self.halvings += 1;
        }
        self.is_passing = !self.seen.is_multiple_of(1 << self.halvings);
        self.seen += 1;
        self.samples.push(sample);
    }
}

/// Returns sentences on the growth of memory in use over the samples; `None` if it did not grow.
fn growth_in_use(samples: &[InUse]) -> Option<Vec<String>> {
    let (first, last) = (samples.first()?, samples.last()?);
    let in_use: Vec<(f64, f64)> = samples.iter().map(|l| (l.t_s, l.bytes as f64)).collect();
    let rate = rising(&in_use)?;
    let time = last.t_s - first.t_s;
    let least = MIN_BYTES.max(first.bytes as f64 * MIN_SHARE);
    if rate * time < least {
        return None;
    }
    let mut because = vec![format!(
        "memory in use grew from {} to {} in {}: {} a minute, in {} inspections",
        Human(first.bytes),
        Human(last.bytes),
        HumanSeconds(time),
        Human((rate * 60.0) as u64),
        samples.len()
    )];
    because.extend(classes(samples).into_iter().map(|class| {
        format!(
            "blocks of {} to {} bytes: {} more, {} a minute",
            class.from,
            class.to - 1,
            HumanCount(class.more),
            Human((class.rate * 60.0) as u64)
        )
    }));
    Some(because)
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
fn classes(samples: &[InUse]) -> Vec<GrowingClass> {
    let Some(last) = samples.last() else { return Vec::new() };
    let count = |sample: &InUse, from| {
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

#[cfg(test)]
mod tests {
    use super::super::owners::tests::observed;
    use lowtide_model::counts::CountLimit;
    use lowtide_model::inspection::NamedMemory;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Follows a process with these owners, in MiB, for a number of seconds.
    fn followed(seconds: u64, of: impl Fn(u64) -> Vec<(Owner, u64)>) -> Follower {
        let mut follower = Follower::default();
        for second in 0..seconds {
            follower.add(second as f64, &observed(&of(second), &[]));
        }
        follower
    }

    /// Returns the verdict on a process that was live before it was followed.
    fn verdict(follower: &Follower) -> Verdict {
        let because = vec!["as diagnosed".to_owned()];
        let mut verdict = Verdict { kind: VerdictKind::Live, because };
        follower.judge(&mut verdict);
        follower.conclude(&mut verdict, follower.growth().as_ref());
        verdict
    }

    fn is_growing(follower: &Follower) -> bool {
        verdict(follower).kind == VerdictKind::Growing
    }

    #[test]
    fn a_count_that_rises_steadily_is_growing_with_the_time_to_its_limit() {
        type CountsAt = fn(u64) -> Counts;
        let follow = |of: CountsAt| {
            let mut follower = Follower::default();
            for second in 0..20 {
                let found = observed(&[(Owner::Allocated, 100)], &[]);
                let [open_files, mappings, threads, ended_children] = of(second);
                let threads = threads.unwrap_or(1);
                let counted =
                    Observation { open_files, mappings, threads, ended_children, ..found };
                follower.add(second as f64, &counted);
            }
            follower
        };
        let kinds: [(CountsAt, &str); 4] = [
            (
                |s| [Some(137 + 71 * s), None, None, None],
                "open files grew from 137 to 1,486, by 71",
            ),
            (
                |s| [None, Some(400 + 200 * s), None, None],
                "mappings grew from 400 to 4,200, by 200",
            ),
            (|s| [None, None, Some(3 + 2 * s), None], "threads grew from 3 to 41, by 2.0"),
            (|s| [None, None, None, Some(20 * s)], "child processes that have ended"),
        ];
        for (of, said) in kinds {
            let found = verdict(&follow(of));
            assert_eq!(found.kind, VerdictKind::Growing, "{said}");
            assert!(found.because[0].starts_with(said), "{found:?}");
        }
        let mut growth = follow(kinds[0].0).growth().unwrap();
        let (limit, used) = (20_000, 1_486);
        growth.counts[0].set_limit(CountLimit { name: "RLIMIT_NOFILE".to_owned(), limit, used });
        let said = "at 71 open files a second, the limit of 20,000 (RLIMIT_NOFILE) is reached in 4 min 21 s";
        assert_eq!(count_limits(&growth), [said]);
        // It opened many once, or has as many again after a while.
        for of in [
            (|s| [Some(if s < 9 { 50 } else { 90 }), None, None, None]) as CountsAt,
            |s| [Some(100 + s % 5 * 30), None, None, None],
            |s| [None, None, Some(8 + s.min(4) * 10), None],
        ] {
            assert_ne!(verdict(&follow(of)).kind, VerdictKind::Growing);
        }
    }

    #[test]
    fn memory_that_rises_at_every_sample_is_growing_and_its_size_class_is_named() {
        let mut follower = Follower::default();
        for second in 0..20_u64 {
            let mut observation = observed(&[(Owner::Allocated, 100 + second)], &[]);
            let bytes = second * MIB;
            observation.allocated_by_size =
                vec![Bin { from: 64, to: 128, count: bytes / 100, bytes }];
            follower.add(second as f64, &observation);
        }
        let because = verdict(&follower).because;
        assert_eq!(
            because[0],
            "RSS grew by 19.0 MiB, from 100 MiB to 119 MiB: 19.0 MiB in blocks in use"
        );
        assert_eq!(
            because[1],
            "memory in use grew from 100 MiB to 119 MiB in 19.0 s: 60.0 MiB a minute, in 20 inspections"
        );
        assert!(because[2].starts_with("blocks of 64 to 127 bytes: "), "{because:?}");
        assert_eq!(because.len(), 3);
        let without = verdict(&Follower { is_brief: true, ..follower });
        assert_eq!(without.because[..2], because[..2]);
    }

    #[test]
    fn oscillating_memory_a_burst_and_noise_are_not_growing() {
        let live = |mib: u64| vec![(Owner::Allocated, 100 + mib)];
        assert!(!is_growing(&followed(20, |second| live((second % 4) * 10))));
        assert!(!is_growing(&followed(20, |second| live(if second == 7 { 500 } else { 0 }))));
        assert!(!is_growing(&followed(4, live)));
        assert!(!is_growing(&followed(0, live)));
        assert!(is_growing(&followed(20, |second| live(second + second * 7919 % 3))));
    }

    #[test]
    fn growth_of_rss_outside_of_heaps_is_growing_and_says_where() {
        let stacks =
            followed(20, |second| vec![(Owner::Allocated, 5), (Owner::Stacks, 40 + second)]);
        let found = verdict(&stacks);
        assert_eq!(found.kind, VerdictKind::Growing);
        let expected = "RSS grew by 19.0 MiB, from 45.0 MiB to 64.0 MiB: 19.0 MiB in stacks";
        assert!(found.because[0].starts_with(expected), "{found:?}");
        assert_eq!(found.because.len(), 1);
    }

    #[test]
    fn growth_of_memory_in_use_does_not_hide_larger_growth_that_slowed_down() {
        let found = verdict(&followed(20, |second| {
            vec![(Owner::Allocated, 30 + second), (Owner::Stacks, 40 + 20 * second.min(8))]
        }));
        assert_eq!(found.kind, VerdictKind::Growing);
        let expected = "RSS grew by 179 MiB, from 70.0 MiB to 249 MiB: 160 MiB in stacks";
        assert!(found.because[0].starts_with(expected), "{found:?}");
        assert!(found.because[1].starts_with("memory in use grew"), "{found:?}");
    }

    #[test]
    fn growth_by_free_memory_keeps_the_verdict_and_is_said() {
        let ratchet = followed(20, |second| {
            vec![(Owner::Allocated, 30), (Owner::Fragmented, 50 + 10 * second)]
        });
        let found = verdict(&ratchet);
        assert_eq!(found.kind, VerdictKind::Live);
        assert!(found.because[0].ends_with("between blocks in use (fragmentation)"), "{found:?}");
        assert_eq!(found.because[1..], ["as diagnosed"]);
    }

    #[test]
    fn clean_pages_of_files_are_no_growth_but_are_said() {
        let mapped =
            followed(20, |second| vec![(Owner::Allocated, 30), (Owner::File, 10 * second)]);
        let found = verdict(&mapped);
        assert_eq!(found.kind, VerdictKind::Live);
        assert!(found.because[1].contains("190 MiB in pages of mapped files"), "{found:?}");
        assert!(!found.because[1].contains("did not grow"), "{found:?}");
    }

    /// Follows a process that maps memory, of which a part is freed lazily, in MiB a second.
    fn with_lazily_freed(of: impl Fn(u64) -> [u64; 2]) -> Follower {
        let mut follower = Follower::default();
        for second in 0..20 {
            let [mapped, lazy] = of(second);
            let rows = [(Owner::Allocated, 30), (Owner::AnonymousOther, mapped)];
            let mut found = observed(&rows, &[]);
            found.lazyfree_bytes = Some(lazy << 20);
            follower.add(second as f64, &found);
            follower.read(second as f64 + 0.5, (35 + mapped) << 20, 0);
        }
        follower
    }

    #[test]
    fn lazily_freed_memory_is_no_growth_but_is_said() {
        let follower = with_lazily_freed(|second| [1 + 10 * second, 10 * second]);
        let found = verdict(&follower);
        assert_eq!(found.kind, VerdictKind::Live);
        let expected = "RSS grew by 190 MiB, from 31.0 MiB to 221 MiB: 190 MiB that were freed lazily (MADV_FREE); the \
                        kernel takes these pages back when memory is short, so they cause no OOM kill";
        assert_eq!(found.because[1..], [expected]);
        assert_eq!(follower.growth().unwrap().course, GrowthCourse::Level);
        // RSS and the lazily freed part of it are read one after the other.
        let noisy =
            verdict(&with_lazily_freed(|second| [3 + 10 * second, 10 * second + second % 3]));
        assert!(noisy.because[1].ends_with("so they cause no OOM kill"), "{noisy:?}");
    }

    #[test]
    fn memory_in_use_that_grows_beside_lazily_freed_memory_has_its_own_rate() {
        let follower = with_lazily_freed(|second| [1 + 10 * second, 8 * second]);
        let found = verdict(&follower);
        assert_eq!(found.kind, VerdictKind::Growing);
        assert!(found.because[1].contains("120 MiB a minute"), "{found:?}");
        let mut growth = follower.growth().unwrap();
        growth.set_limit(Some(72 << 30), Some(0));
        // 2 MiB a second.
        assert!((growth.seconds_to_limit.unwrap() / 36_864.0 - 1.0).abs() < 0.01, "{growth:?}");
    }

    #[test]
    fn pages_of_files_that_the_kernel_cannot_take_back_are_growth() {
        let mut follower = Follower::default();
        for second in 0..20 {
            let mut found = observed(&[(Owner::Allocated, 30), (Owner::File, 10 * second)], &[]);
            let mut named = NamedMemory::new("/data".to_owned(), (10 * second) << 20, 1);
            named.kept_bytes = named.bytes;
            found.kept_file_bytes = named.bytes;
            found.files = vec![named];
            follower.add(second as f64, &found);
        }
        let found = verdict(&follower);
        assert_eq!(found.kind, VerdictKind::Growing);
        let expected = "190 MiB in pages of /data, which the kernel cannot take back";
        assert!(found.because[0].contains(expected), "{found:?}");
        let growth = follower.growth().unwrap();
        assert_eq!((growth.files_bytes(), growth.kept_bytes()), (0, 190 << 20));
        assert_eq!(growth.lasting_bytes_per_hour(), growth.rss_bytes_per_hour);
    }

    #[test]
    fn growth_of_page_tables_is_growth_that_rss_does_not_have() {
        let of = |mib: fn(u64) -> u64| {
            let mut follower = Follower::default();
            for second in 0..20 {
                let mut found = observed(&[(Owner::Allocated, 30)], &[]);
                found.page_tables_bytes = Some(mib(second) << 20);
                follower.add(second as f64, &found);
            }
            follower
        };
        let growing = of(|second| 1 + second);
        let found = verdict(&growing);
        assert_eq!(found.kind, VerdictKind::Growing);
        assert!(found.because[0].contains("from 1.00 MiB to 20.0 MiB"), "{found:?}");
        let mut growth = growing.growth().unwrap();
        growth.set_limit(Some(2 << 30), Some(1 << 30));
        assert!(growth.seconds_to_limit.is_some_and(|left_s| left_s < 1100.0), "{growth:?}");
        let once = verdict(&of(|second| if second < 19 { 1 } else { 20 }));
        assert_eq!(once.kind, VerdictKind::Live);
        assert!(once.because[2].contains("grew by 19.0 MiB"), "{once:?}");
        assert_eq!(verdict(&of(|_| 20)).kind, VerdictKind::Live);
    }

    #[test]
    fn a_single_step_of_rss_is_neither_growth_nor_its_absence() {
        let once = followed(20, |second| {
            vec![(Owner::Allocated, 30), (Owner::Shared, if second < 12 { 10 } else { 200 })]
        });
        let found = verdict(&once);
        assert_eq!(found.kind, VerdictKind::Live);
        assert!(found.because[1].starts_with("RSS grew by 190 MiB"), "{found:?}");
        assert!(found.because[1].ends_with("may have stopped"), "{found:?}");
    }

    #[test]
    fn a_process_that_does_not_grow_says_so() {
        let level = followed(20, |second| vec![(Owner::Allocated, 100 + second % 2)]);
        let expected = "memory in use and RSS did not grow in 19.0 s (20 inspections)";
        assert_eq!(verdict(&level).because[1..], [expected]);
        let early = followed(3, |_| vec![(Owner::Allocated, 100)]);
        let expected = "too few samples to decide whether it grows (3 in 2.00 s)";
        assert_eq!(verdict(&early).because[1..], [expected]);
    }

    #[test]
    fn a_follower_keeps_its_first_sample_and_bounds_the_number_of_samples() {
        let follower = followed(1000, |second| vec![(Owner::Allocated, second)]);
        assert!(follower.in_use.samples.len() <= Series::<InUse>::MAX);
        assert!(follower.readings.samples.len() <= Series::<InUse>::MAX);
        let because = &verdict(&follower).because;
        assert!(because[0].starts_with("RSS grew by 999 MiB, from 0 B to 999 MiB"), "{because:?}");
        assert!(
            because[1].starts_with("memory in use grew from 0 B to 999 MiB in 16 min 39 s: 60")
        );
    }

    #[test]
    fn a_slow_leak_is_growing_and_a_program_past_its_warm_up_is_not() {
        let slow = followed(36_000, |second| vec![(Owner::Allocated, 2048 + second / 60)]);
        assert!(is_growing(&slow));
        let warm = followed(1000, |second| vec![(Owner::Allocated, second.min(300))]);
        assert!(!is_growing(&warm));
    }

    #[test]
    fn fluctuation_that_ends_high_is_neither_growth_nor_of_files() {
        let found = verdict(&followed(20, |second| {
            vec![(Owner::Stacks, 400 + if second % 2 == 1 { 60 } else { 0 })]
        }));
        assert_eq!(
            found.because[1],
            "memory in use and RSS did not grow in 19.0 s (20 inspections)"
        );
    }

    #[test]
    fn growth_below_the_minimum_is_said_and_not_denied() {
        let found = verdict(&followed(20, |second| vec![(Owner::Stacks, 1000 + second / 2)]));
        assert_eq!(found.kind, VerdictKind::Live);
        assert!(found.because[1].starts_with("RSS grew by 9.00 MiB"), "{found:?}");
        assert!(found.because[1].ends_with("this is too little for a verdict"), "{found:?}");
    }

    #[test]
    fn file_pages_neither_hide_growth_nor_count_as_growth() {
        let both = |files: fn(u64) -> u64| {
            followed(20, move |second| {
                vec![(Owner::Stacks, 40 + second), (Owner::File, files(second))]
            })
        };
        let falling = both(|second| 100 - 4 * second);
        assert!(falling.growth().unwrap().kept_bytes() == 19 << 20);
        assert_eq!(falling.growth().unwrap().course, GrowthCourse::Steady);
        let mut rising = both(|second| 100 * second).growth().unwrap();
        assert_eq!(
            rising.kept_bytes_per_hour(),
            rising.by.iter().find(|part| part.owner == "stacks").unwrap().bytes_per_hour
        );
        rising.set_limit(Some(1 << 40), Some(0));
        assert!(rising.seconds_to_limit.unwrap() > 3600.0 * 100.0, "{rising:?}");
    }

    #[test]
    fn growth_that_begins_after_a_long_time_is_growing() {
        let late = followed(1000, |second| vec![(Owner::Stacks, 100 + second.saturating_sub(600))]);
        assert!(is_growing(&late));
    }

    #[test]
    fn the_rate_is_that_of_the_steady_part_and_of_all_samples_in_it() {
        let per_hour = |follower: &Follower| {
            let growth = follower.growth().unwrap();
            let parts: i64 = growth.by.iter().map(|part| part.bytes_per_hour).sum();
            let rates = [growth.rss_bytes_per_hour, parts];
            assert!(rates[0].abs_diff(rates[1]) <= growth.by.len() as u64, "{growth:#?}");
            rates[0] as f64 / MIB as f64 / 3600.0
        };
        // It grows by 2 MiB a second, in the second half only.
        let late =
            followed(100, |second| vec![(Owner::Stacks, 100 + 2 * second.saturating_sub(48))]);
        assert!((1.9..2.1).contains(&per_hour(&late)), "{}", per_hour(&late));
        let sooner =
            followed(100, |second| vec![(Owner::Stacks, 100 + 2 * second.saturating_sub(30))]);
        assert!((1.9..2.1).contains(&per_hour(&sooner)), "{}", per_hour(&sooner));
        // A block of 30 MiB grows by 2 MiB a second, and is copied to another place now and then.
        let copied = followed(31, |second| {
            let block = 30 + 2 * second;
            let copy = if [17, 20, 24].contains(&second) { block } else { 0 };
            vec![(Owner::Runtime, 20 + block + copy)]
        });
        assert!((1.9..2.1).contains(&per_hour(&copied)), "{}", per_hour(&copied));
        // A heap grows by 1 MiB a second, in chunks of 8 MiB, 2.5 of them in all.
        for begin in 0..8 {
            let chunks =
                followed(21, |second| vec![(Owner::Runtime, (40 + second + begin) / 8 * 8)]);
            assert!((0.85..1.15).contains(&per_hour(&chunks)), "{begin}: {}", per_hour(&chunks));
        }
        // It grows by 4 MiB a second, beside a buffer of up to 45 MiB that is empty at the end.
        let saw = followed(41, |second| {
            vec![(Owner::Allocated, 64 + 4 * second), (Owner::Reclaimable, second * 9 % 50)]
        });
        assert!((3.6..4.4).contains(&per_hour(&saw)), "{}", per_hour(&saw));
    }

    #[test]
    fn a_heap_that_can_no_longer_be_walked_keeps_the_growth() {
        let mut follower = followed(20, |second| vec![(Owner::Allocated, 100 + 10 * second)]);
        let walked = observed(&[(Owner::Allocated, 300)], &[]);
        let heap = Some(lowtide_model::inspection::HeapPrediction::default());
        follower.add(20.0, &Observation { heap, ..walked });
        assert_eq!(follower.growth().unwrap().rss_bytes, [100 << 20, 300 << 20]);
        assert_eq!(follower.span().0, 1);
    }

    #[test]
    fn address_space_that_grows_leads_to_the_limit_of_the_process() {
        let mut follower = followed(20, |second| vec![(Owner::Allocated, 100 + second)]);
        (0..20).for_each(|second| {
            follower.read_limited(second as f64, [(500 + 4 * second) * MIB, 300 * MIB]);
        });
        let found = follower.limited();
        let expected = ProcessLimit {
            kind: ProcessLimitKind::AddressSpace,
            used_bytes: 576 * MIB,
            bytes_per_hour: 4 * 3600 * MIB,
        };
        assert_eq!(found, [expected]);
        let mut growth = follower.growth().unwrap();
        growth.set_limit(Some(1 << 30), Some(0));
        growth.set_process_limit(1 << 30, expected);
        assert_eq!((growth.process_limit, growth.seconds_to_limit), (Some(expected), Some(112.0)));
        growth.set_limit(Some(200 * MIB), Some(190 * MIB));
        growth.set_process_limit(1 << 30, expected);
        assert_eq!(growth.process_limit, None, "the other one is reached first");
    }

    #[test]
    fn an_inspection_that_missed_memory_is_left_out() {
        let mut follower = followed(20, |_| vec![(Owner::Allocated, 100)]);
        let torn = observed(&[(Owner::Allocated, 1), (Owner::Unattributed, 99)], &[]);
        follower.add(20.0, &Observation { moved_bytes: 99 * MIB, ..torn });
        assert_eq!(follower.growth().unwrap().by, []);
        assert_eq!(follower.span(), (20, 19.0));
    }

    #[test]
    fn an_exec_in_the_process_starts_anew() {
        let mut follower = followed(1000, |second| vec![(Owner::Allocated, second)]);
        let other = observed(&[(Owner::Allocated, 1)], &[]);
        follower.add(1000.0, &Observation { image: (2, 2), ..other });
        assert_eq!((follower.span(), follower.growth()), ((1, 0.0), None));
        assert!(!is_growing(&follower));
    }
}
