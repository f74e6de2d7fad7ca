//! The verdict on a trend.

use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::leaks::{AgeRange, LeakGroup, LeakGroupKind, LeakKind, LeakVerdict};
use lowtide_model::number::{HumanCount, counted};

use super::trend::{MIN_COHORTS, MIN_NOTICEABLE_BYTES, Trend, TrendKind};

/// Minimum part of the sampled blocks to which no pointer was found, for the blocks to be lost.
const MIN_UNREACHABLE: f64 = 0.9;
/// Minimum share of blocks of unknown reachability for a sentence on them.
pub const MIN_UNSURE: f64 = 0.05;
/// Minimum number of lost blocks, and of their bytes, for a verdict on memory that was lost before.
const MIN_LOST_BLOCKS: u64 = 10;
const MIN_LOST_BYTES: u64 = 64 << 10;
/// The same of large blocks.
const MIN_LARGE_LOST_BLOCKS: u64 = 3;
const MIN_LARGE_LOST_BYTES: u64 = MIN_NOTICEABLE_BYTES;

/// Minimum part of the growth of all groups that those with one verdict must have to lead.
const MIN_LEADING: f64 = 0.05;

/// The results of the search for pointers to the blocks of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reachability {
    /// Number of blocks for which pointers were sought.
    pub sampled: u64,
    /// The part of them to which no pointer was found in any search.
    pub unreachable_share: f64,
    /// The part of them to which, in each search, at most words led that may be links of former
    /// free chunks, or new blocks that nothing leads to, or on which the searches disagree.
    pub unsure_share: f64,
    /// Number of searches through all memory.
    pub rounds: u32,
}

/// Facts about the whole process that influence its verdicts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The reason why some pointers may be invisible, such as swapped pages or an `io_uring`. If
    /// set, no block is called lost.
    pub hidden_pointers: Option<String>,
    /// Whether the process used more memory earlier: growth may then be a return to an earlier
    /// level.
    pub is_below_peak: bool,
}

/// Memory that was allocated before the first snapshot, and to which the program has no pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostBefore {
    /// The smallest and the largest block, in bytes.
    pub size_bytes: [u64; 2],
    /// Number of blocks.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Returns the group of a trend, without the types and the holders of its blocks.
pub fn group(trend: &Trend, reached: Option<&Reachability>, others: &Surroundings) -> LeakGroup {
    let is_unreachable =
        reached.is_some_and(|r| r.sampled > 0 && r.unreachable_share >= MIN_UNREACHABLE);
    // It does not grow, or no longer: too few were lost for a rate, or none of late.
    let is_lost_by_now = is_unreachable
        && others.hidden_pointers.is_none()
        && !is_early(trend.cohorts)
        && is_much_lost(trend.count.round() as u64, trend.bytes as u64);
    let kind = match trend.kind {
        TrendKind::Growing if is_unreachable && others.hidden_pointers.is_none() => LeakKind::Lost,
        TrendKind::Growing if others.is_below_peak && !is_unreachable => LeakKind::Filling,
        TrendKind::Growing => LeakKind::Growing,
        TrendKind::Backlog if others.is_below_peak => LeakKind::Filling,
        TrendKind::Backlog => LeakKind::Backlog,
        TrendKind::Filling | TrendKind::Level if is_lost_by_now => LeakKind::LostBefore,
        TrendKind::Filling => LeakKind::Filling,
        // They accumulate, but not for long enough to know whether they go on.
        TrendKind::Level if is_unknown(trend) => LeakKind::TooEarly,
        TrendKind::Level => LeakKind::Level,
    };
    let has_rate = trend.kind != TrendKind::Level && kind != LeakKind::LostBefore;
    let (bytes_per_hour, bytes_per_hour_interval) = match has_rate {
        true => trend.bytes_per_hour(),
        false => (0, [0, 0]),
    };
    LeakGroup {
        size_bytes: trend.size_bytes,
        count: trend.count.round() as u64,
        bytes: trend.bytes as u64,
        bytes_per_hour,
        bytes_per_hour_interval,
        survival: trend.survival,
        age_s: AgeRange { youngest: trend.age_s[0], oldest: Some(trend.age_s[1]) },
        unreachable_share: reached.map(|r| r.unreachable_share),
        unsure_share: reached.map(|r| r.unsure_share),
        ..LeakGroup::new(kind, reasons(kind, trend, reached, others))
    }
}

fn reasons(
    kind: LeakKind,
    trend: &Trend,
    reached: Option<&Reachability>,
    others: &Surroundings,
) -> Vec<String> {
    if let Some(counts) = trend.backlog {
        return reasons_of_backlog(counts, trend.per_s);
    }
    let mut because = vec![format!(
        "{} blocks ({}) that were allocated {} to {} ago are still in use",
        HumanCount(trend.count.round() as u64),
        Human(trend.bytes as u64),
        HumanSeconds(trend.age_s[0]),
        HumanSeconds(trend.age_s[1]),
    )];
    match kind {
        LeakKind::LostBefore => {
            because.push(reason_of_lost_before(trend));
            because.extend(
                reached.map(|reached| reasons_of_pointers(reached, others)).unwrap_or_default(),
            );
            return because;
        }
        _ if trend.kind == TrendKind::Level => {
            because.push(reason_of_level(trend));
            return because;
        }
        _ => because.push(format!(
            "they accumulate at {} per second, in {} of {} intervals",
            per_second(trend.per_s),
            trend.growing_cohorts,
            trend.cohorts
        )),
    }
    if let Some(survival) = trend.survival {
        because.push(format!(
            "{} of the blocks that reached half that age are still in use",
            percent(survival.min(1.0))
        ));
    }
    if kind == LeakKind::Filling {
        if let Some(rate) = trend.later_rate.filter(|rate| *rate < 0.5) {
            because.push(format!("the rate fell to {} of the initial rate", percent(rate)));
        }
        if others.is_below_peak && trend.kind == TrendKind::Growing {
            because.push("the process used more memory earlier than it does now".to_owned());
        }
    }
    match reached {
        None => because.push("lowtide did not search for pointers to them".to_owned()),
        Some(reached) => because.extend(reasons_of_pointers(reached, others)),
    }
    because
}

fn reasons_of_backlog([before, now]: [f64; 2], per_s: f64) -> Vec<String> {
    vec![
        format!(
            "the number of these blocks rose from {} to {}, by {} per second: more are \
             allocated than freed",
            HumanCount(before as u64),
            HumanCount(now as u64),
            per_second(per_s)
        ),
        "older blocks are freed, or their content changes: they are probably entries of a queue that fills \
         faster than it drains, or of a table that moves them as it grows"
            .to_owned(),
    ]
}

/// Returns why lost blocks have no rate.
fn reason_of_lost_before(trend: &Trend) -> String {
    match trend.kind {
        TrendKind::Level => format!(
            "they were allocated in {} of {} intervals: too few for a rate",
            trend.growing_cohorts, trend.cohorts
        ),
        _ => format!(
            "the rate fell to {} of the initial rate: this leak may have stopped",
            percent(trend.later_rate.unwrap_or(0.0))
        ),
    }
}

fn reason_of_level(trend: &Trend) -> String {
    if trend.net < trend.count / 2.0 {
        return "they replaced freed blocks: the number of blocks of this age did not rise"
            .to_owned();
    }
    format!(
        "they were allocated in {} of {} intervals: too few for steady growth",
        trend.growing_cohorts, trend.cohorts
    )
}

fn reasons_of_pointers(reached: &Reachability, others: &Surroundings) -> Vec<String> {
    let sampled = counted(reached.sampled, "sampled block");
    let searches = counted(reached.rounds.into(), "search");
    let mut because = vec![match reached.unreachable_share {
        1.0.. => {
            format!("no pointer leads to any of the {sampled}, in {searches} of all memory")
        }
        share if share > 0.0 => {
            let unreached = below_all(share);
            format!("no pointer leads to {unreached} of the {sampled}, in {searches} of all memory")
        }
        _ => format!("pointers lead to all {sampled}"),
    }];
    if reached.unsure_share >= MIN_UNSURE {
        because.push(format!(
            "{} were reached only by words that may be links of memory that was free once, from new \
             blocks that nothing leads to, or not while their pointers may have moved: they may be \
             lost",
            percent(reached.unsure_share)
        ));
    }
    if let Some(hidden) = &others.hidden_pointers {
        because.push(format!(
            "no block is reported as lost, because pointers may be hidden: {hidden}"
        ));
    }
    because
}

/// Formats a share below 1, which is not rounded to 100 %.
pub fn below_all(share: f64) -> String {
    if share < 0.995 { percent(share) } else { "more than 99 %".to_owned() }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats a rate with two decimals, or as a count if it is large.
fn per_second(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.2}") } else { HumanCount(rate.round() as u64).to_string() }
}

/// Returns the group of memory that was lost before the first snapshot, if it is large enough to be
/// reported.
pub fn lost_before(found: &LostBefore, elapsed_s: f64, rounds: u32) -> Option<LeakGroup> {
    let because = vec![
        format!(
            "{} blocks ({}) were unreachable in each of {rounds} searches of all memory",
            HumanCount(found.count),
            Human(found.bytes)
        ),
        format!("all of them were allocated more than {} ago", HumanSeconds(elapsed_s)),
    ];
    is_much_lost(found.count, found.bytes).then(|| LeakGroup {
        size_bytes: found.size_bytes,
        count: found.count,
        bytes: found.bytes,
        survival: Some(1.0),
        age_s: AgeRange { youngest: elapsed_s, oldest: None },
        unreachable_share: Some(1.0),
        unsure_share: Some(0.0),
        ..LeakGroup::new(LeakKind::LostBefore, because)
    })
}

/// A block that grows: in place, or because a larger copy replaces it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrownBlock {
    /// Its size when it was first seen, and now, in bytes.
    pub bytes: [u64; 2],
    /// Number of snapshots in which it was larger than before.
    pub steps: u32,
    /// The times of these sizes, in seconds.
    pub first_s: f64,
    /// See `first_s`.
    pub now_s: f64,
}

impl GrownBlock {
    fn time_s(&self) -> f64 {
        (self.now_s - self.first_s).max(1e-3)
    }

    fn bytes_per_hour(&self) -> u64 {
        let [before, now] = self.bytes;
        (now.saturating_sub(before) as f64 / self.time_s() * 3600.0) as u64
    }
}

/// Returns the group of blocks that grow. There is at least one; several have the same holder.
pub fn growing_blocks(found: &[GrownBlock], others: &Surroundings) -> LeakGroup {
    let sum = |of: fn(&GrownBlock) -> u64| found.iter().map(of).sum::<u64>();
    let (before, now) = (sum(|block| block.bytes[0]), sum(|block| block.bytes[1]));
    let time_s = found.iter().map(GrownBlock::time_s).fold(0.0, f64::max);
    let bytes_per_hour = sum(GrownBlock::bytes_per_hour);
    let verdict = if others.is_below_peak { LeakKind::Filling } else { LeakKind::Growing };
    let steps = found.iter().map(|block| block.steps);
    let (least, most) = (steps.clone().min().unwrap_or(0), steps.max().unwrap_or(0));
    let most_steps = counted(most.into(), "snapshot");
    let steps = if least == most { most_steps } else { format!("{least} to {most_steps}") };
    let blocks = match found.len() {
        1 => "one block grew".to_owned(),
        count => format!("{} blocks with one holder grew, each", HumanCount(count as u64)),
    };
    let together = if found.len() == 1 { "" } else { "together " };
    let because = vec![format!(
        "{blocks} in {steps}, {together}from {} to {} in {}",
        Human(before),
        Human(now),
        HumanSeconds(time_s)
    )];
    LeakGroup {
        kind: LeakGroupKind::GrowingBlock,
        size_bytes: [before, now],
        count: found.len() as u64,
        bytes: now,
        bytes_per_hour,
        bytes_per_hour_interval: [bytes_per_hour; 2],
        age_s: AgeRange { youngest: time_s, oldest: None },
        ..LeakGroup::new(verdict, because)
    }
}

/// Returns whether lost blocks are enough to be reported: many, or a few large ones.
fn is_much_lost(count: u64, bytes: u64) -> bool {
    let is_large = count >= MIN_LARGE_LOST_BLOCKS && bytes >= MIN_LARGE_LOST_BYTES;
    bytes >= MIN_LOST_BYTES && (count >= MIN_LOST_BLOCKS || is_large)
}

/// Returns whether too few cohorts are old enough for a verdict on growth.
fn is_early(cohorts: usize) -> bool {
    cohorts < MIN_COHORTS
}

/// Returns whether blocks of a level trend accumulate, but too few of them, or for too short a
/// time, to know whether that goes on.
fn is_unknown(trend: &Trend) -> bool {
    trend.net >= trend.count / 2.0 && (is_early(trend.cohorts) || trend.is_noticeable)
}

/// Returns whether the groups with a verdict can give it to the process: not if they grow by a
/// small part of what all groups grow by. Lost blocks are a fault whatever their rate.
fn leads(groups: &[LeakGroup], kind: LeakKind) -> bool {
    let rate = |is_it: &dyn Fn(LeakKind) -> bool| -> u64 {
        let of_kind = groups.iter().filter(|group| is_it(group.verdict));
        of_kind.map(|group| group.bytes_per_hour).sum()
    };
    let (own, all) = (rate(&|other| other == kind), rate(&|_| true));
    kind == LeakKind::Lost || !kind.is_growth() || own as f64 >= MIN_LEADING * all as f64
}

/// Returns the verdict on a process: that of its most serious group, unless others grow much
/// faster. `cohorts` is the number of cohorts that are old enough, and `looks` the number of
/// complete snapshots.
pub fn overall(groups: &[LeakGroup], cohorts: usize, looks: u64) -> LeakVerdict {
    let worst = groups.iter().map(|group| group.verdict).filter(|kind| leads(groups, *kind)).min();
    // Lost memory is certain immediately. It takes longer to establish that nothing grows.
    let kind = match worst {
        Some(LeakKind::LostBefore) => LeakKind::LostBefore,
        _ if is_early(cohorts) => LeakKind::TooEarly,
        Some(kind) => kind,
        None => LeakKind::Level,
    };
    let of_kind: Vec<&LeakGroup> = groups.iter().filter(|group| group.verdict == kind).collect();
    let because = match (kind, of_kind.first()) {
        (LeakKind::TooEarly, _) => vec![format!(
            "only {cohorts} of the 4 required intervals are old enough after {}",
            counted(looks, "complete snapshot")
        )],
        (LeakKind::Level, _) => {
            vec![format!("no block size grew, in {}", counted(looks, "snapshot"))]
        }
        (_, Some(first)) => {
            let bytes: u64 = of_kind.iter().map(|group| group.bytes_per_hour).sum();
            // The sum is of all groups, the reasons are of the first of them.
            let mut sum = format!("{} an hour", Human(bytes));
            let mut because = first.because.clone();
            if of_kind.len() > 1 {
                sum += &format!(" in {} groups", of_kind.len());
                if let Some(reason) = because.first_mut() {
                    reason.insert_str(0, "the first group: ");
                }
            }
            if bytes > 0 {
                because.insert(0, sum);
            }
            because
        }
        (_, None) => Vec::new(),
    };
    LeakVerdict { kind, because }
}
