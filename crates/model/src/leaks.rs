//! The report that `lowtide leaks` prints.

use serde::{Deserialize, Serialize};

use crate::growth::Growth;
use crate::ledger::Coverage;

/// The trend of a group of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakKind {
    /// It grows, and the program has no pointer to its blocks any more.
    Lost,
    /// It grows, and the program still has pointers to its blocks, or it is not known whether it
    /// does.
    Growing,
    /// Its blocks are freed, but more of them are allocated.
    Backlog,
    /// Its growth slows down, or its older blocks are freed, or it was allocated before and becomes
    /// resident.
    Filling,
    /// Memory grows that is not in the blocks of a heap, such as that of a runtime, stacks or
    /// shared memory.
    Elsewhere,
    /// It does not grow, or no longer does, but the program has no pointer to blocks that it
    /// allocated earlier: before the first snapshot, or before the leak stopped.
    LostBefore,
    /// It does not grow.
    Level,
    /// Not observed for long enough.
    TooEarly,
}

impl LeakKind {
    /// Returns whether it grows, and will go on.
    pub fn is_growth(self) -> bool {
        matches!(self, Self::Lost | Self::Growing | Self::Backlog)
    }

    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Growing => "growing",
            Self::Backlog => "backlog",
            Self::Filling => "filling",
            Self::Elsewhere => "elsewhere",
            Self::LostBefore => "lost before",
            Self::Level => "level",
            Self::TooEarly => "too early",
        }
    }
}

/// A verdict with its reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakVerdict {
    /// The most serious of the groups.
    pub kind: LeakKind,
    /// The reasons: sentences with metrics, the most important first.
    pub because: Vec<String>,
}

/// Memory that points to blocks of a group, directly or through other blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    /// Its kind: a type, a variable of a file, a stack.
    pub what: String,
    /// The part of the sampled blocks that it points to.
    pub share: f64,
}

/// The type of the blocks of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockType {
    /// Its name, prefixed with its language.
    pub name: String,
    /// The part of the sampled blocks that have this type.
    pub share: f64,
}

/// The ages of blocks, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AgeRange {
    /// The youngest.
    pub youngest: f64,
    /// The oldest; `null` for blocks that were there before the first snapshot.
    pub oldest: Option<f64>,
}

/// A function in a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakFrame {
    /// Its name; without symbols, the file and the address in it.
    pub function: String,
    /// The source file; `null` without debug information.
    pub file: Option<String>,
    /// The line of the call; `null` without debug information.
    pub line: Option<u32>,
    /// The program or library; `null` for code that is not in a file, and for code that a runtime
    /// executes.
    pub module: Option<String>,
    /// Whether the frame may stand for another function, as with code that a runtime executes.
    #[serde(default)]
    pub estimated: bool,
}

/// The rate of the call that leads to survivors, counted by a probe at its return.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CallProof {
    /// Number of calls that were counted.
    pub calls: u64,
    /// Duration of the count, in seconds.
    pub seconds: f64,
    /// Calls in an hour at this rate.
    pub calls_per_hour: f64,
    /// Blocks of the group that survive in an hour, according to the snapshots.
    pub survivors_per_hour: f64,
}

/// A stack that allocated blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeakStack {
    /// The part of the group's sampled survivors that have this stack.
    pub share: f64,
    /// Number of sampled survivors.
    pub samples: u64,
    /// Whether the outermost functions are missing, because only the top of a stack is copied.
    #[serde(rename = "cut")]
    pub is_cut: bool,
    /// The functions, the innermost first: the first one calls the allocator.
    pub frames: Vec<LeakFrame>,
    /// The rate of its call; `null` if that was not counted.
    pub proof: Option<CallProof>,
}

/// The extent of stack sampling, and its cost to the process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StackSampling {
    /// Number of windows in which the process had probes.
    pub windows: u64,
    /// Number of allocations in them.
    pub hits: u64,
    /// Number of allocations that were followed.
    pub samples: u64,
    /// The part of the samples whose stack could not be unwound completely.
    pub cut_share: f64,
    /// Cost of a hit to the process, in seconds: an estimate from a function of lowtide.
    pub hit_s: f64,
    /// Maximum delay of a request with 1,000 allocations in a window, in seconds, by the same
    /// estimate.
    pub max_delay_s: f64,
}

/// Blocks of similar sizes that outlive others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeakGroup {
    /// The kind: blocks of some sizes, or one block that grows.
    #[serde(default)]
    pub kind: LeakGroupKind,
    /// Its trend.
    pub verdict: LeakKind,
    /// The reasons.
    pub because: Vec<String>,
    /// The smallest and the largest block, in bytes. For a growing block: its first and its current
    /// size.
    pub size_bytes: [u64; 2],
    /// Number of blocks that outlived others, or of all blocks of a backlog; an estimate where the
    /// heap is sampled.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their growth, in bytes per hour.
    pub bytes_per_hour: u64,
    /// The 95 % interval of [`LeakGroup::bytes_per_hour`].
    pub bytes_per_hour_interval: [u64; 2],
    /// The part of them that remains from when they were half as old; `null` if that is not known.
    pub survival: Option<f64>,
    /// Their age.
    pub age_s: AgeRange,
    /// The type of most of them; `null` if it was not recognised.
    #[serde(rename = "type")]
    pub block_type: Option<String>,
    /// All types that were recognised, the most frequent first.
    pub types: Vec<BlockType>,
    /// Memory that points to them, the most frequent first.
    pub holders: Vec<Holder>,
    /// The starts of the shortest pointer paths to them, the most frequent first: variables,
    /// stacks.
    pub roots: Vec<Holder>,
    /// The part of them to which no pointer was found; `null` if no search was made.
    pub unreachable_share: Option<f64>,
    /// The part of them to which only words lead that may be links of former free chunks, or new
    /// blocks that nothing leads to: it is unknown whether the program can reach them. `null` if no
    /// search was made.
    pub unsure_share: Option<f64>,
    /// The stacks that allocated them, the most frequent first. Empty if stacks were not sampled,
    /// or if no sampled block is among them.
    pub stacks: Vec<LeakStack>,
}

/// What a group consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakGroupKind {
    /// Blocks of some sizes.
    #[default]
    Blocks,
    /// One block that grows: in place, or because a larger copy replaces it.
    GrowingBlock,
}

impl LeakGroup {
    /// Creates a group of blocks without evidence on them. Its numbers are 0.
    pub fn new(verdict: LeakKind, because: Vec<String>) -> Self {
        Self {
            kind: LeakGroupKind::Blocks,
            verdict,
            because,
            size_bytes: [0; 2],
            count: 0,
            bytes: 0,
            bytes_per_hour: 0,
            bytes_per_hour_interval: [0; 2],
            survival: None,
            age_s: AgeRange { youngest: 0.0, oldest: None },
            block_type: None,
            types: Vec::new(),
            holders: Vec::new(),
            roots: Vec::new(),
            unreachable_share: None,
            unsure_share: None,
            stacks: Vec::new(),
        }
    }

    /// Sets the types of its blocks, the most frequent first, and the type of most of them.
    pub fn set_types(&mut self, types: Vec<BlockType>) {
        let first = types.first().filter(|found| found.share >= 0.5);
        self.block_type = first.map(|found| found.name.clone());
        self.types = types;
    }

    /// Adds types of another group, which has these numbers of blocks beside the own.
    fn add_types(&mut self, others: Vec<BlockType>, [own, other]: [u64; 2]) {
        let all = (own + other).max(1) as f64;
        let mut types = std::mem::take(&mut self.types);
        for found in &mut types {
            found.share *= own as f64 / all;
        }
        for found in others {
            let share = found.share * other as f64 / all;
            match types.iter_mut().find(|known| known.name == found.name) {
                Some(known) => known.share += share,
                None => types.push(BlockType { share, ..found }),
            }
        }
        types.sort_by(|a, b| b.share.total_cmp(&a.share));
        self.set_types(types);
    }

    /// Adds stacks of another group.
    fn add_stacks(&mut self, others: Vec<LeakStack>) {
        // The list of a group does not contain all of its stacks.
        let all = |stacks: &[LeakStack]| {
            stacks.first().map_or(0.0, |first| first.samples as f64 / first.share)
        };
        let all = all(&self.stacks) + all(&others);
        for other in others {
            match self.stacks.iter_mut().find(|known| known.frames == other.frames) {
                Some(known) => known.samples += other.samples,
                None => self.stacks.push(other),
            }
        }
        for stack in &mut self.stacks {
            stack.share = stack.samples as f64 / all;
        }
        self.stacks.sort_by_key(|stack| std::cmp::Reverse(stack.samples));
    }

    /// Adds the blocks of another group with the same trend. Keeps the reasons and holders of the
    /// larger one.
    pub fn merge(&mut self, other: Self) {
        let bytes = (self.bytes + other.bytes).max(1) as f64;
        let (own, others) = (self.bytes as f64 / bytes, other.bytes as f64 / bytes);
        let mean = |one: Option<f64>, two: Option<f64>| Some(one? * own + two? * others);
        self.survival = mean(self.survival, other.survival);
        self.unreachable_share = mean(self.unreachable_share, other.unreachable_share);
        self.unsure_share = mean(self.unsure_share, other.unsure_share);
        let [smallest, largest] = other.size_bytes;
        self.size_bytes = [self.size_bytes[0].min(smallest), self.size_bytes[1].max(largest)];
        self.add_types(other.types, [self.count, other.count]);
        self.count += other.count;
        self.bytes += other.bytes;
        self.bytes_per_hour += other.bytes_per_hour;
        // The errors of two sizes of the same sample are not independent, so the ends are added.
        for (end, other) in
            self.bytes_per_hour_interval.iter_mut().zip(other.bytes_per_hour_interval)
        {
            *end += other;
        }
        self.age_s.youngest = self.age_s.youngest.min(other.age_s.youngest);
        self.age_s.oldest = self.age_s.oldest.zip(other.age_s.oldest).map(|(a, b)| a.max(b));
        self.add_stacks(other.stacks);
        if self.bytes / 2 < other.bytes {
            self.because = other.because;
            self.holders = other.holders;
            self.roots = other.roots;
        }
    }
}

/// The method by which stacks were sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakTier {
    /// None: the memory of the process was only read.
    Read,
    /// By return probes with a BPF program, all attached at once (`uprobe_multi`).
    Bpf,
    /// By return probes with a BPF program, each attached by an event of perf: kernels before 6.10.
    Perf,
}

/// The findings of `lowtide leaks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeakReport {
    /// Always `lowtide.leaks/1`.
    pub schema: String,
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub command: Vec<String>,
    /// The method by which stacks were sampled.
    pub tier: LeakTier,
    /// Number of snapshots.
    pub looks: u64,
    /// Number of snapshots that were incomplete and were left out.
    pub torn_looks: u64,
    /// Time from the first snapshot to the last, in seconds.
    pub elapsed_s: f64,
    /// CPU time that lowtide used, in seconds.
    pub cpu_s: f64,
    /// Age from which on blocks count as survivors, in seconds.
    pub older_s: f64,
    /// The part of the time in which the process had probes; 0 if its memory was only read.
    pub exposure: f64,
    /// The extent and cost of stack sampling; `null` if stacks were not sampled.
    pub sampling: Option<StackSampling>,
    /// The part of the heap that was sampled.
    pub sampled_share: f64,
    /// Blocks in use, in bytes; an estimate where the heap is sampled.
    pub in_use_bytes: u64,
    /// The verdict on the process.
    pub verdict: LeakVerdict,
    /// Growth in bytes per hour: that of lost, growing and backlog blocks, or of RSS if RSS grows
    /// steadily and faster.
    pub bytes_per_hour: u64,
    /// Seconds until the process reaches its memory limit at this rate; `null` if it does not grow
    /// or has no limit.
    pub seconds_to_limit: Option<f64>,
    /// How much of RSS was walked at the last inspection; `null` if the process was not inspected.
    #[serde(default)]
    pub coverage: Option<Coverage>,
    /// The growth of the whole process; `null` if it was inspected only once.
    #[serde(default)]
    pub growth: Option<Growth>,
    /// The groups, the most serious first.
    pub groups: Vec<LeakGroup>,
    /// Number of groups that were left out.
    #[serde(default)]
    pub omitted_groups: u64,
    /// The code that mapped memory which is still there, the most frequent first, if memory that
    /// the program mapped itself grew. `share` and `samples` are those of calls of `mmap`, as seen
    /// by the kernel. Empty if stacks were not taken.
    #[serde(default)]
    pub mapped_by: Vec<LeakStack>,
    /// A command, or code to run in the program, that divides memory which is not followed, with a
    /// remark in brackets; `null` unless the verdict is `elsewhere`.
    #[serde(default)]
    pub next: Option<String>,
    /// Other remarks for the user.
    pub notes: Vec<String>,
}

impl LeakReport {
    /// Schema of the report.
    pub const SCHEMA: &'static str = "lowtide.leaks/1";
}
