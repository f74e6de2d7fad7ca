//! Two versions of a command: does the newer one keep more memory?
//!
//! Each repeat has a trial of both versions, one directly after the other, and the order of the two
//! is drawn for each repeat ([`FEWEST_PAIRS`] repeats by default). All values are differences
//! within a repeat, newer minus older, so what affects both trials cancels.
//!
//! - `interval`: the difference with its interval, the verdict, and the repeats that would decide
//!   it.
//! - `owners`: memory by owner, and the owners that grew.
//!
//! # The rule, and its false alarms
//!
//! A version is *worse* if the lower end of the interval of the difference exceeds the margin: the
//! tolerance (1 %), and at least 1 MiB. The interval is that of the sign test, with an error of 1
//! in 1,024 on each side. It assumes nothing about the noise: if both versions are equal, the order
//! in which the trials of a repeat ran decides the sign of its difference, and that is a fair coin
//! for each repeat, however slowly the machine drifts and however skewed its noise is. So ten
//! repeats have ten differences above zero in at most 1 of 1,024 comparisons of equal versions, and
//! all of them above the margin in fewer.
//!
//! Each metric has its verdict, but the verdict of the comparison is that of settled memory alone:
//! one test, whose error does not grow with the number of metrics and owners. Owners are named only
//! if that test has shown growth.

mod interval;
mod owners;

use serde::Serialize;

use crate::trial_result::TrialResult;
use lowtide_model::ledger::Owner;
use lowtide_model::treatment::Treatment;
use lowtide_record::plan::{Against, StudyPlan};

pub use interval::{BOTH_TAILS, ComparedMetric, FEWEST_PAIRS, Interval, VersionVerdict};

/// Label of the version that the command is compared with: the reference.
pub const BASE: &str = "base";
/// Label of the command under study.
pub const HEAD: &str = "head";
/// Minimum margin, in bytes, however little memory the versions need.
const MIN_MARGIN: f64 = 1_048_576.0;

/// The comparison of two versions of a command.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VersionComparison {
    /// The command of the older version.
    pub against: Vec<String>,
    /// Settled memory, whose verdict is that of the comparison.
    #[serde(flatten)]
    pub settled: ComparedMetric,
    /// Peak memory.
    pub peak: ComparedMetric,
    /// Settled memory by owner, the largest growth first.
    pub by_owner: Vec<ComparedOwner>,
    /// The owners that grew, the largest growth first; empty unless the verdict is `worse`.
    pub grew: Vec<GrownOwner>,
}

/// Settled memory of one owner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedOwner {
    /// The row of the ledger.
    pub owner: Owner,
    /// The runtime or the allocator, if the row has several.
    pub name: Option<String>,
    /// Whether its bytes are an estimate.
    pub estimated: bool,
    /// Its memory.
    #[serde(flatten)]
    pub metric: ComparedMetric,
}

/// An owner that grew.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GrownOwner {
    /// The row of the ledger.
    pub owner: Owner,
    /// The runtime or the allocator, if the row has several.
    pub name: Option<String>,
    /// Median growth in bytes.
    pub bytes: i64,
    /// The blocks that explain it, as far as the records have them, the largest growth first.
    pub blocks: Vec<GrownBlocks>,
}

/// Blocks of one size and type that explain the growth of an owner: of allocated memory, more
/// blocks in use; of fragmented memory, blocks that pin more free memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GrownBlocks {
    /// The size of a block in bytes, including the overhead of the allocator.
    pub size_bytes: u64,
    /// The type of the blocks, if their content has it.
    #[serde(rename = "type")]
    pub block_type: Option<String>,
    /// Their number in the newer version, as the median.
    pub blocks: u64,
    /// Their bytes in the newer version, as the median.
    pub bytes: u64,
    /// Growth of the owner's memory that is due to them, in bytes, by the medians: at least this
    /// much, where the older version has too few of them to be recorded.
    pub growth_bytes: u64,
}

/// A repeat in which both versions can be compared: the trial of the older and of the newer one.
type Pair<'t> = [&'t TrialResult; 2];

/// Compares the two versions of a plan; `None` if it has none.
pub fn compare(plan: &StudyPlan, trials: &[TrialResult]) -> Option<VersionComparison> {
    let against = plan.against.as_ref()?;
    let pairs = pairs(plan, trials)?;
    let settled = compared(&pairs, against, |trial| trial.settled_bytes);
    let margin = settled.margin_bytes as f64;
    let by_owner = owners::compare(&pairs, margin);
    let grew = match settled.verdict {
        VersionVerdict::Worse => owners::grown(&pairs, &by_owner, &settled),
        _ => Vec::new(),
    };
    Some(VersionComparison {
        against: against.command.clone(),
        peak: compared(&pairs, against, |trial| trial.peak_bytes),
        settled,
        by_owner,
        grew,
    })
}

/// Returns the repeats in which both versions can be compared; `None` if the plan does not have two
/// treatments.
fn pairs<'t>(plan: &StudyPlan, trials: &'t [TrialResult]) -> Option<Vec<Pair<'t>>> {
    let [base, head] = &plan.treatments[..] else { return None };
    let of = |treatment: &Treatment, repeat| {
        let is_it = |t: &&TrialResult| t.treatment == *treatment && t.repeat == repeat;
        trials.iter().filter(|trial| trial.is_usable()).find(is_it)
    };
    let repeats = 1..=plan.repeats;
    Some(repeats.filter_map(|repeat| Some([of(base, repeat)?, of(head, repeat)?])).collect())
}

/// Compares one metric of the versions.
fn compared(
    pairs: &[Pair],
    against: &Against,
    of: impl Fn(&TrialResult) -> Option<u64>,
) -> ComparedMetric {
    // On a busy machine, lowtide may notice the end of a command late, and read before that it has
    // no memory: such a trial has no value.
    let of = |trial: &TrialResult| of(trial).filter(|bytes| *bytes > 0).map(|bytes| bytes as f64);
    let values: Vec<[f64; 2]> =
        pairs.iter().filter_map(|[base, head]| Some([of(base)?, of(head)?])).collect();
    let share = |base: f64| (base * against.tolerance).max(MIN_MARGIN);
    ComparedMetric::new(&values, share)
}

#[cfg(test)]
mod tests;
