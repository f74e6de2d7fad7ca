//! Watches the heap of a process, and reports the blocks that grow in it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use lowtide_analysis::leaks::{
    GrownBlock, History, LostBefore, LostCounts, Reachability, Surroundings, Trend, TrendKind,
    group, growing_blocks, lost_before, lost_trends, overall, survivors, trends,
};
use lowtide_heap::ranges::bytes;
use lowtide_model::growth::seconds_to_limit;
use lowtide_model::leaks::{LeakGroup, LeakGroupKind, LeakKind, LeakReport, LeakTier};
use lowtide_model::survivors::ClassSizes;
use lowtide_probe::inspect::{BlockReader, BlockWalk};
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::pressure::MemoryPressure;
use lowtide_probe::target::{Target, TargetError};

use crate::book::{Book, ByPart, FIRST_COHORT, MAX_BLOCKS};
use crate::evidence::{self, Evidence, MAX_SAMPLED, Sampled, Search};
use crate::group::GroupKey;
use crate::grown::{LargeBlocks, MAX_FOLLOWED};
use crate::history::SnapshotHistory;
use crate::stacks::sampler::{StackSamples, Summary};
use crate::stacks::survivors::SurvivingStacks;
use crate::whole::{MAX_TORN, has_heap, is_whole};

/// Maximum number of groups that are investigated.
const MAX_SUSPECTS: usize = 10;
/// Maximum number of size classes of memory that was lost before the first snapshot.
const MAX_LOST_BEFORE: usize = 50;
/// Maximum number of groups in a report.
const MAX_GROUPS: usize = 200;

/// The cost of a snapshot, and whether it was complete.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// CPU time in seconds.
    pub cpu_s: f64,
    /// Whether nearly all of the heap was walked.
    pub is_whole: bool,
    /// The allocator, if no heap of the process can be walked.
    pub unreadable: Option<String>,
}

/// Watches the heap of a process.
pub struct LeakFinder {
    reader: BlockReader,
    book: Book,
    history: SnapshotHistory,
    large: LargeBlocks,
    sizes: BTreeMap<u16, ClassSizes>,
    looks: u64,
    torn_looks: u64,
    elapsed_s: f64,
    /// Time of the last snapshot.
    looked: Option<Instant>,
    cpu_s: f64,
    notes: Vec<String>,
    evidence: Option<Evidence>,
    /// How stacks were sampled.
    sampling: Option<Summary>,
    /// Reasons why stacks may be incomplete.
    sampling_notes: Vec<String>,
    /// Largest RSS of the process before the first snapshot, in bytes.
    peak_before_bytes: u64,
}

impl LeakFinder {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// Fails if its memory may not be read, or if the process has ended.
    pub fn open(target: &Target) -> Result<Self, TargetError> {
        Self::with_max_blocks(target, MAX_BLOCKS)
    }

    /// Opens the memory of a process, with another limit on the number of blocks that are followed.
    ///
    /// # Errors
    /// Fails if its memory may not be read, or if the process has ended.
    pub fn with_max_blocks(target: &Target, max_blocks: usize) -> Result<Self, TargetError> {
        Ok(Self {
            reader: BlockReader::open(target)?,
            book: Book::new(max_blocks),
            history: SnapshotHistory::default(),
            large: LargeBlocks::default(),
            sizes: BTreeMap::new(),
            looks: 0,
            torn_looks: 0,
            elapsed_s: 0.0,
            looked: None,
            cpu_s: 0.0,
            notes: Vec::new(),
            evidence: None,
            sampling: None,
            sampling_notes: Vec::new(),
            peak_before_bytes: target.status().map_or(0, |status| status.peak_rss_bytes),
        })
    }

    /// Returns the process.
    pub fn target(&self) -> &Target {
        self.reader.target()
    }

    /// Takes a snapshot. `t_s` is the time since the first, in seconds.
    ///
    /// # Errors
    /// Fails if the process has ended, or executes another program.
    pub fn look(&mut self, t_s: f64) -> Result<Look, TargetError> {
        self.book.begin();
        let walk = self.reader.walk(&mut self.book)?;
        let is_whole = is_whole(&walk) && self.has_read_most(&walk);
        let counted = self.book.end(is_whole);
        self.cpu_s += walk.cpu_s;
        self.elapsed_s = t_s;
        self.looked = Some(Instant::now());
        self.notes.clone_from(&walk.observation.notes);
        let unreadable = (!has_heap(&walk.observation)).then(|| {
            let allocator = walk.observation.allocator.as_ref();
            allocator.map_or("an unknown allocator".to_owned(), |found| found.kind.to_string())
        });
        if is_whole {
            self.looks += 1;
            let shares = [self.book.sampled_share(), self.book.large_sampled_share()];
            self.history.add(t_s, &counted, shares);
            self.sizes = counted.sizes;
            self.large.follow(t_s, self.book.largest(MAX_FOLLOWED));
            if let Some(renumbered) = self.history.merge() {
                self.book.renumber(&renumbered);
            }
        } else if unreadable.is_none() {
            self.torn_looks += 1;
        }
        Ok(Look { cpu_s: walk.cpu_s, is_whole, unreadable })
    }

    /// Determines the types of the blocks that grow, their holders, and whether the program can
    /// reach them. This reads all memory several times.
    ///
    /// # Errors
    /// Fails if the process has ended, or executes another program.
    pub fn seek(&mut self, older_s: Option<f64>, search: &Search<'_>) -> Result<(), TargetError> {
        let cpu = thread_cpu_s();
        let older_s = self.older_s(older_s);
        let reached = evidence::search(&mut self.reader, search)?;
        let is_lost = |at, print| reached.is_lost(at, print);
        self.book.mark_lost(is_lost);
        // A block that grows may have moved since the last snapshot.
        let since = self.looked.map_or(Duration::ZERO, |at| at.elapsed());
        let now_s = self.elapsed_s + since.as_secs_f64();
        if let Some(blocks) = reached.largest_blocks(MAX_FOLLOWED) {
            self.large.follow(now_s, blocks);
        }
        let suspects = self.suspects(older_s);
        let stacks = search
            .samples
            .map(|samples| SurvivingStacks::find(samples, &mut self.reader, &is_lost))
            .transpose()?;
        let reader = &self.reader;
        let mut found =
            evidence::describe(reader, &reached, suspects, stacks.as_ref(), older_s, search);
        found.surroundings.is_below_peak = self.is_below_peak();
        self.evidence = Some(found);
        self.sampling = search.samples.map(StackSamples::summary);
        self.sampling_notes = search.samples.map(StackSamples::notes).unwrap_or_default();
        self.cpu_s += thread_cpu_s() - cpu;
        Ok(())
    }

    /// Returns the blocks to investigate: a sample of each of the groups that grow or are lost.
    fn suspects(&self, older_s: f64) -> Vec<Sampled> {
        let Found { old, held, lost, before } = self.find(older_s);
        let of = |trends: Vec<Trend>, is_lost| {
            let is_sought = |trend: &Trend| trend.kind != TrendKind::Level || trend.is_noticeable;
            let grow = trends.into_iter().filter(move |trend| is_lost || is_sought(trend));
            grow.take(MAX_SUSPECTS).map(move |trend| GroupKey::of_trend(&trend, is_lost))
        };
        let keys =
            of(held, false).chain(of(lost, true)).chain(before.into_iter().map(|found| found.key));
        let mut found: Vec<Sampled> = keys.map(|key| Sampled { key, sample: Vec::new() }).collect();
        let mut seen = vec![0_u64; found.len()];
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        self.book.each(|survivor| {
            let place = found.iter().position(|Sampled { key, .. }| key.has(&survivor, &old));
            let Some(place) = place else { return };
            seen[place] += 1;
            let sample = &mut found[place].sample;
            if sample.len() < MAX_SAMPLED {
                sample.push(survivor);
                return;
            }
            // Each block has the same chance to be in the sample (Vitter's algorithm R).
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let slot = random % seen[place];
            if slot < MAX_SAMPLED as u64 {
                sample[slot as usize] = survivor;
            }
        });
        let grown = self.large.growing().into_iter();
        found.extend(
            grown.map(|grown| Sampled {
                key: GroupKey::of_block(&grown.now),
                sample: vec![grown.now],
            }),
        );
        found
    }

    /// Returns the memory that was lost before the first snapshot, by size class, most bytes first.
    fn lost_before(&self, lost: &LostCounts) -> Vec<BeforeFirst> {
        let Some(now) = self.history.snapshots().last() else { return Vec::new() };
        let mut found: Vec<BeforeFirst> = lost
            .counts
            .iter()
            .filter_map(|(class, cohorts)| {
                let seen = *cohorts.get(&FIRST_COHORT)? as f64;
                let sizes = self.sizes.get(class)?;
                let count = seen / now.share_of(*class);
                let bytes = count * sizes.mean_bytes();
                Some(BeforeFirst {
                    key: GroupKey::lost_before(*class),
                    amount: LostBefore {
                        size_bytes: [sizes.smallest_bytes, sizes.largest_bytes],
                        count: count as u64,
                        bytes: bytes as u64,
                    },
                })
            })
            .collect();
        found.sort_by_key(|found| Reverse(found.amount.bytes));
        found.truncate(MAX_LOST_BEFORE);
        found
    }

    /// Finds the blocks that grow, and those that are lost. Blocks of at least the age `older_s`
    /// count as survivors.
    fn find(&self, older_s: f64) -> Found {
        let (snapshots, cohorts) = (self.history.snapshots(), self.history.cohorts());
        let old = survivors(cohorts, older_s);
        let ByPart { survivors: parts, all } = self.book.by_part(&old);
        let lost = self.book.lost(&old);
        let (parts, parts_of_all, sizes) = (&parts, &all, &self.sizes);
        let history = History { snapshots, cohorts, sizes, parts, parts_of_all, older_s };
        Found {
            held: trends(&history, &lost),
            lost: lost_trends(&history, &lost),
            before: self.lost_before(&lost),
            old,
        }
    }

    /// Returns whether the blocks of nearly all of the heap were read.
    fn has_read_most(&self, walk: &BlockWalk) -> bool {
        let all = bytes(&walk.heaps.areas);
        let unread = self.book.unread_bytes();
        unread.is_some_and(|unread| unread as f64 <= MAX_TORN * all as f64)
    }

    fn in_use_bytes(&self) -> u64 {
        let Some(now) = self.history.snapshots().last() else { return 0 };
        let of = |(class, sizes): (&u16, &ClassSizes)| sizes.bytes as f64 / now.share_of(*class);
        self.sizes.iter().map(of).sum::<f64>() as u64
    }

    /// Returns the minimum age of survivors in seconds: half of the run, unless the user requests
    /// another.
    fn older_s(&self, wanted_s: Option<f64>) -> f64 {
        wanted_s.unwrap_or(self.elapsed_s / 2.0)
    }

    /// Reports the blocks that grow. `older_s` is the minimum age of survivors, and `top` the
    /// maximum number of groups.
    pub fn report(&self, older_s: Option<f64>, top: usize) -> LeakReport {
        let older_s = self.older_s(older_s);
        let found = self.find(older_s);
        let mut groups = self.groups(&found);
        let verdict = overall(&groups, found.old.len(), self.looks);
        let growing = groups.iter().filter(|group| group.verdict.is_growth());
        let bytes_per_hour = growing.map(|group| group.bytes_per_hour).sum();
        let omitted_groups = groups.len().saturating_sub(top) as u64;
        groups.truncate(top);
        let pressure = self.pressure();
        LeakReport {
            schema: LeakReport::SCHEMA.to_owned(),
            pid: self.reader.target().pid,
            command: self.reader.command().to_vec(),
            tier: self.sampling.map_or(LeakTier::Read, |summary| summary.tier),
            looks: self.looks,
            torn_looks: self.torn_looks,
            elapsed_s: self.elapsed_s,
            cpu_s: self.cpu_s,
            older_s,
            exposure: self.sampling.map_or(0.0, |summary| summary.exposure),
            sampling: self.sampling.map(|summary| summary.sampling),
            sampled_share: self.book.sampled_share(),
            in_use_bytes: self.in_use_bytes(),
            verdict,
            bytes_per_hour,
            seconds_to_limit: seconds_to_limit(
                pressure.limit_bytes,
                pressure.used_bytes,
                i64::try_from(bytes_per_hour).unwrap_or(i64::MAX),
            ),
            coverage: None,
            growth: None,
            groups,
            omitted_groups,
            mapped_by: Vec::new(),
            next: None,
            notes: self.all_notes(),
        }
    }

    /// Returns the groups of all blocks that grow or are lost, with their evidence, the worst
    /// first.
    fn groups(&self, Found { held, lost, before, .. }: &Found) -> Vec<LeakGroup> {
        let rounds = self.evidence.as_ref().map_or(0, |evidence| evidence.rounds);
        let mut groups: Vec<LeakGroup> = Vec::new();
        for (is_lost, trends) in [(false, held), (true, lost)] {
            let largest = trends.iter().take(MAX_GROUPS);
            groups.extend(largest.map(|trend| self.group(trend, is_lost)));
        }
        for found in before {
            let group = lost_before(&found.amount, self.elapsed_s, rounds);
            groups.extend(group.map(|group| self.with_evidence(&found.key, group)));
        }
        groups.extend(self.growing_blocks());
        let mut groups = merged(groups);
        groups.sort_by(|a, b| {
            (a.verdict, b.bytes_per_hour, b.bytes).cmp(&(b.verdict, a.bytes_per_hour, a.bytes))
        });
        groups
    }

    /// Returns the groups of the blocks that grow: one for all that have the same holder.
    fn growing_blocks(&self) -> Vec<LeakGroup> {
        let others = self.surroundings();
        let mut all: Vec<(Vec<GrownBlock>, LeakGroup)> = Vec::new();
        for grown in self.large.growing() {
            let found = GrownBlock {
                bytes: [grown.first_bytes, grown.now.bytes],
                steps: grown.steps,
                first_s: grown.first_s,
                now_s: self.large.now_s,
            };
            let key = GroupKey::of_block(&grown.now);
            let group = self.with_evidence(&key, growing_blocks(&[found], &others));
            match all.iter_mut().find(|(_, known)| has_one_holder(known, &group)) {
                Some((blocks, known)) => {
                    blocks.push(found);
                    known.merge(group);
                }
                None => all.push((vec![found], group)),
            }
        }
        let of_all = |(blocks, group): (Vec<GrownBlock>, LeakGroup)| {
            let LeakGroup { size_bytes, because, .. } = growing_blocks(&blocks, &others);
            LeakGroup { size_bytes, because, ..group }
        };
        all.into_iter().map(of_all).collect()
    }

    /// Returns the group of a trend.
    fn group(&self, trend: &Trend, is_lost: bool) -> LeakGroup {
        let evidence = self.evidence.as_ref();
        let key = GroupKey::of_trend(trend, is_lost);
        // The total includes all lost blocks, also those of groups that were not investigated.
        let all = Reachability {
            sampled: trend.count as u64,
            unreachable_share: 1.0,
            unsure_share: 0.0,
            rounds: evidence.map_or(0, |evidence| evidence.rounds),
        };
        let described = evidence.and_then(|evidence| evidence.of(&key));
        let reached = described.and_then(|described| described.reachability);
        let reached = reached.or(is_lost.then_some(all));
        self.with_evidence(&key, group(trend, reached.as_ref(), &self.surroundings()))
    }

    /// Returns the other facts that affect verdicts.
    fn surroundings(&self) -> Surroundings {
        let evidence = self.evidence.as_ref();
        evidence.map(|evidence| evidence.surroundings.clone()).unwrap_or_default()
    }

    /// Adds the evidence on a group, if there is any.
    fn with_evidence(&self, key: &GroupKey, mut group: LeakGroup) -> LeakGroup {
        if let Some(described) = self.evidence.as_ref().and_then(|evidence| evidence.of(key)) {
            described.describe(&mut group);
        }
        group
    }

    /// Returns the notes of the snapshots, of the searches and of the stacks.
    fn all_notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        if self.torn_looks > self.looks {
            notes.push(
                "most snapshots are incomplete: the heap changes too fast, or its free lists are encoded"
                    .to_owned(),
            );
        }
        notes.extend(self.evidence.iter().flat_map(|evidence| evidence.notes.iter().cloned()));
        notes.extend(self.sampling_notes.iter().cloned());
        notes
    }

    /// Returns whether the process had more memory before the first snapshot than it has now. (The
    /// copy of a block that grows needs twice its memory for a moment.)
    fn is_below_peak(&self) -> bool {
        const MUCH: f64 = 1.1;
        const MUCH_BYTES: u64 = 4 << 20;
        let now = self.reader.target().status().map(|status| status.rss_bytes());
        let peak = self.peak_before_bytes;
        now.is_ok_and(|now| {
            peak as f64 > now as f64 * MUCH && peak > now.saturating_add(MUCH_BYTES)
        })
    }

    /// Returns the memory limit that the process reaches first, and its use.
    fn pressure(&self) -> MemoryPressure {
        MemoryPressure::nearest_limit(self.reader.target().pid)
    }
}

/// The trends of the blocks that grow, and of those that are lost.
struct Found {
    /// The cohorts whose blocks are survivors.
    old: Range<u8>,
    /// The trend of each size, without lost blocks.
    held: Vec<Trend>,
    /// The trend of the lost blocks of each size.
    lost: Vec<Trend>,
    before: Vec<BeforeFirst>,
}

/// Memory of one size class that was lost before the first snapshot.
struct BeforeFirst {
    key: GroupKey,
    amount: LostBefore,
}

/// Merges groups of one cause, which have the same trend: those that are allocated by the same
/// stack, and those of the same type and holder. The largest comes first.
fn merged(mut groups: Vec<LeakGroup>) -> Vec<LeakGroup> {
    groups.sort_by_key(|group| (group.verdict, Reverse(group.bytes)));
    let mut all: Vec<LeakGroup> = Vec::new();
    for group in groups {
        match all.iter_mut().find(|known| is_same_cause(known, &group)) {
            Some(known) => known.merge(group),
            None => all.push(group),
        }
    }
    all
}

/// Returns whether most blocks of two groups have the same type, and the same holder.
fn has_one_holder(one: &LeakGroup, other: &LeakGroup) -> bool {
    let holder = |group: &LeakGroup| {
        group.holders.first().filter(|found| found.share > 0.5).map(|found| found.what.clone())
    };
    holder(one).is_some() && holder(one) == holder(other) && one.block_type == other.block_type
}

/// Returns whether two groups have the same trend and the same cause.
fn is_same_cause(one: &LeakGroup, other: &LeakGroup) -> bool {
    let is_of_blocks =
        |group: &LeakGroup| group.kind == LeakGroupKind::Blocks && group.verdict != LeakKind::Level;
    if one.verdict != other.verdict || !is_of_blocks(one) || !is_of_blocks(other) {
        return false;
    }
    // The stack of most of the blocks.
    let stack = |group: &LeakGroup| {
        let first = group.stacks.first().filter(|stack| stack.share > 0.5 && !stack.is_cut);
        first.map(|stack| stack.frames.clone())
    };
    if let (Some(stack), Some(others)) = (stack(one), stack(other)) {
        return stack == others;
    }
    let holder = |group: &LeakGroup| group.holders.first().map(|holder| holder.what.clone());
    let is_known = one.block_type.is_some() || one.verdict == LeakKind::LostBefore;
    is_known
        && one.block_type == other.block_type
        && (holder(one) == holder(other) || one.holders.is_empty() || other.holders.is_empty())
}
