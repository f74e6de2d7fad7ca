//! The growth of a whole process, by owner.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::counts::CountGrowth;
use crate::ledger::Owner;
use crate::open_memory::OpenMemory;
use crate::runtime_kind::RuntimeKind;

/// The growth of the RSS of a process, divided by owner. The parts add up to the whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// RSS at the beginning and at the end, in bytes.
    pub rss_bytes: [u64; 2],
    /// Page tables at the beginning and at the end, in bytes. RSS does not count them, but the
    /// limit of a cgroup does. `null` if they were not read.
    #[serde(default)]
    pub page_tables_bytes: Option<[u64; 2]>,
    /// Memory in huge pages of the kernel's pool (hugetlb) at the beginning and at the end, in
    /// bytes. RSS does not count it. `null` if it was not read.
    #[serde(default)]
    pub hugetlb_bytes: Option<[u64; 2]>,
    /// Number of open files at the beginning and at the end. `null` if they were not counted.
    #[serde(default)]
    pub open_files: Option<[u64; 2]>,
    /// The counts that have risen noticeably, such as that of open files.
    #[serde(default)]
    pub counts: Vec<CountGrowth>,
    /// Files in memory that the process has open and does not map, at the beginning and at the end.
    /// RSS does not count them, but the limit of a cgroup does. `null` if they were not read.
    #[serde(default)]
    pub open_memory: Option<[OpenMemory; 2]>,
    /// The growth of its descendant processes; `null` if there is none, or it was not read.
    #[serde(default)]
    pub descendants: Option<DescendantGrowth>,
    /// Time between them, in seconds.
    pub elapsed_s: f64,
    /// The course of RSS without pages of files and lazily freed memory.
    #[serde(default)]
    pub course: GrowthCourse,
    /// Growth of RSS in bytes per hour; negative if RSS fell. It is the slope of a line through all
    /// inspections, or, if only the newer ones show steady growth, through those.
    pub rss_bytes_per_hour: i64,
    /// The part of the growth that is in blocks in use of the heaps that lowtide follows; 0 if RSS
    /// did not grow.
    pub followed_share: f64,
    /// Memory limit of the process, of its cgroup or of the machine, in bytes; `null` if it is not
    /// known.
    pub limit_bytes: Option<u64>,
    /// Time until this limit is reached, in seconds, by growth without pages of files; `null`
    /// without such growth, if it happened only once, or without a limit.
    pub seconds_to_limit: Option<f64>,
    /// Maximum number of bytes in dirty pages of files, which the kernel writes to their files
    /// before it drops them: those of the process by a sample of its pages (the upper end of the
    /// 95 % interval), or those of all files of the machine. `null` if it is not known, or if RSS
    /// does not grow mainly by pages of files.
    #[serde(default)]
    pub dirty_files_bytes: Option<u64>,
    /// Maximum number of bytes in pages of files that some process has locked in memory, which the
    /// kernel does not drop: those of the process by a sample, as for `dirty_files_bytes`, or those
    /// of the machine. `null` as there.
    #[serde(default)]
    pub locked_files_bytes: Option<u64>,
    /// The limit of the process itself that [`Growth::limit_bytes`] is; `null` if the limit of its
    /// cgroup or of the machine is reached first.
    #[serde(default)]
    pub process_limit: Option<ProcessLimit>,
    /// The growth of each owner, the largest first.
    pub by: Vec<GrowthPart>,
    /// Whether the owners that have no bound grow steadily by themselves.
    #[serde(skip)]
    pub has_steady_unbounded: bool,
}

/// The owner of lazily freed memory in [`GrowthPart::owner`]. No row of a ledger has it.
pub const LAZILY_FREED: &str = "lazily_freed";

/// A limit of one process, and what grows towards it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimit {
    /// What is limited.
    pub kind: ProcessLimitKind,
    /// What is used of it, in bytes.
    pub used_bytes: u64,
    /// Growth in bytes per hour.
    pub bytes_per_hour: u64,
}

/// What a process is limited to: by `setrlimit`, or by a runtime in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessLimitKind {
    /// Its address space, whether it is resident or not (`RLIMIT_AS`).
    AddressSpace,
    /// Its private writable memory, whether it is resident or not (`RLIMIT_DATA`).
    Data,
    /// The heap of Java objects: its reserved addresses (`-Xmx`, or its default).
    JavaHeap,
    /// The memory of a PHP request (`memory_limit`).
    PhpMemory,
    /// The heap of V8 (`--max-old-space-size`).
    V8Heap,
}

/// A limit that a runtime has set for its own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeLimit {
    /// What is limited.
    pub kind: ProcessLimitKind,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// What is used of it, in bytes.
    pub used_bytes: u64,
}

impl ProcessLimitKind {
    /// The limits that runtimes set.
    const OF_RUNTIMES: [Self; 3] = [Self::JavaHeap, Self::PhpMemory, Self::V8Heap];

    /// Returns the name of the limit.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddressSpace => "RLIMIT_AS",
            Self::Data => "RLIMIT_DATA",
            Self::JavaHeap => "-Xmx, or its default",
            Self::PhpMemory => "memory_limit",
            Self::V8Heap => "--max-old-space-size",
        }
    }

    /// Returns what it limits, in words.
    pub fn what(self) -> &'static str {
        match self {
            Self::AddressSpace => "address space",
            Self::Data => "private memory, mapped or used,",
            Self::JavaHeap => "Java heap",
            Self::PhpMemory => "PHP memory",
            Self::V8Heap => "V8 heap",
        }
    }

    /// Returns the runtime that sets the limit; `None` if the kernel does.
    pub fn runtime(self) -> Option<RuntimeKind> {
        match self {
            Self::AddressSpace | Self::Data => None,
            Self::JavaHeap => Some(RuntimeKind::HotSpot),
            Self::PhpMemory => Some(RuntimeKind::Php),
            Self::V8Heap => Some(RuntimeKind::V8),
        }
    }

    /// Returns whose limit it is, in words.
    pub fn whose(self) -> &'static str {
        if self.runtime().is_some() { "its own limit" } else { "the limit of the process" }
    }
}

/// The course of RSS over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthCourse {
    /// No growth beyond the fluctuation.
    Level,
    /// Steady growth that is too little for a verdict.
    Little,
    /// Growth that is not steady, such as a single step.
    Once,
    /// Steady growth.
    Steady,
    /// There are too few readings.
    #[default]
    Unknown,
}

/// The growth of the descendants of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescendantGrowth {
    /// Number of descendants at the beginning and at the end.
    pub processes: [u64; 2],
    /// The sum of their PSS at the beginning and at the end, in bytes. Of large ones, it is the
    /// anonymous memory.
    pub pss_bytes: [u64; 2],
    /// Whether the growth of some of them is that of their anonymous memory, because their PSS was
    /// not read: they are large or many.
    #[serde(default)]
    pub estimated: bool,
    /// Growth in bytes per hour.
    #[serde(default)]
    pub bytes_per_hour: u64,
    /// Whether the limit of the process also applies to the one that grew most.
    #[serde(default)]
    pub shares_limit: bool,
    /// The one that grew most.
    pub most: ProcessGrowth,
}

/// The growth of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessGrowth {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its PSS at the beginning and at the end, in bytes; 0 at first for a new process.
    pub pss_bytes: [u64; 2],
}

/// The growth of one owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrowthPart {
    /// The owner, as in the ledger of an inspection: `allocated`, `stacks`, `runtime`; or
    /// [`LAZILY_FREED`], memory of any owner that was freed with `MADV_FREE`.
    pub owner: String,
    /// The runtime, allocator, file or shared memory; `null` if the part has no name.
    pub name: Option<String>,
    /// Number of threads (`stacks`) or mappings (`shared`, `file`, `anonymous_other`); `null` if
    /// they are not counted.
    pub count: Option<u64>,
    /// Change of `count`; `null` if it is not known.
    #[serde(default)]
    pub more: Option<i64>,
    /// Whether these are pages of files that the kernel cannot take back: of a file that exists in
    /// memory only (ramfs), or locked by the process (`mlock`).
    #[serde(default)]
    pub kept: bool,
    /// Whether this is free memory of a runtime whose heap was walked. Of HotSpot, it includes
    /// objects that are newer than the last collection.
    #[serde(default)]
    pub free: bool,
    /// Growth in bytes; negative if it shrank.
    pub bytes: i64,
    /// Growth in bytes per hour. The rates of all owners add up to that of RSS.
    pub bytes_per_hour: i64,
    /// Maximum number of bytes by which this owner can still grow, all its parts together: they
    /// fill blocks or mappings that did not grow, or the heap of a runtime up to its own limit.
    /// `null` if no such bound was read.
    #[serde(default)]
    pub bound_bytes: Option<u64>,
}

impl GrowthPart {
    /// Returns whether a search for leaks follows these blocks. Of HotSpot and V8, it knows what
    /// the objects take, but not the objects.
    pub fn is_followed(&self) -> bool {
        let has_no_blocks = |name: &str| {
            [RuntimeKind::HotSpot, RuntimeKind::V8].iter().any(|kind| kind.name() == name)
        };
        self.owner == Owner::Allocated.key() && !self.name.as_deref().is_some_and(has_no_blocks)
    }

    /// Returns whether this is memory of the heap of a runtime. Beside a heap that is walked, what
    /// the runtime manages is other memory, such as that of classes and code.
    pub fn is_of(&self, runtime: RuntimeKind) -> bool {
        let is_in_heap = self.free || runtime == RuntimeKind::Php;
        self.name.as_deref() == Some(runtime.name())
            && (self.owner == Owner::Allocated.key()
                || self.owner == Owner::Runtime.key() && is_in_heap)
    }

    /// Returns whether the kernel takes this memory back before a limit is reached: pages of files
    /// that it can drop, or lazily freed memory.
    pub fn is_taken_back(&self) -> bool {
        self.is_droppable_file() || self.owner == LAZILY_FREED
    }

    /// Returns whether these are pages of files that the kernel can drop.
    fn is_droppable_file(&self) -> bool {
        self.owner == Owner::File.key() && !self.kept
    }

    /// Returns the owner to which the bound of this part applies.
    fn bounded(&self) -> (&str, Option<&str>) {
        let is_of_runtime = ProcessLimitKind::OF_RUNTIMES
            .iter()
            .filter_map(|kind| kind.runtime())
            .any(|runtime| self.is_of(runtime));
        match self.name.as_deref().filter(|_| is_of_runtime) {
            Some(name) => ("", Some(name)),
            None => (&self.owner, None),
        }
    }
}

/// Growth that cannot continue beyond a bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BoundedGrowth {
    /// Growth from the beginning to the end, in bytes.
    pub bytes: u64,
    /// The same in an hour.
    pub bytes_per_hour: u64,
    /// Maximum number of bytes by which it can continue.
    pub bound_bytes: u64,
}

/// Minimum part of the growth that has no bound, for it to lead to a limit although it is not known
/// to be steady.
const MIN_UNBOUNDED: f64 = 0.1;

/// Returns the time until a memory limit is reached, in seconds, by growth in bytes per hour;
/// `None` without growth, or without a limit. `used_bytes` is what is used of it.
pub fn seconds_to_limit(
    limit_bytes: Option<u64>,
    used_bytes: Option<u64>,
    bytes_per_hour: i64,
) -> Option<f64> {
    let left = limit_bytes?.saturating_sub(used_bytes?);
    (bytes_per_hour > 0).then(|| left as f64 / bytes_per_hour as f64 * 3600.0)
}

impl Growth {
    /// Sets the memory limit of the process's cgroup or of the machine, and what is used of it, in
    /// bytes.
    pub fn set_limit(&mut self, limit_bytes: Option<u64>, used_bytes: Option<u64>) {
        self.process_limit = None;
        self.limit_bytes = limit_bytes;
        let rate = match self.course {
            GrowthCourse::Level | GrowthCourse::Once => 0,
            _ => self.lasting_bytes_per_hour(),
        };
        let all = rate.max(0).saturating_add(self.beside_rss_bytes_per_hour());
        let bounded = self.bounded();
        self.seconds_to_limit = seconds_to_limit(limit_bytes, used_bytes, all).and_then(|left_s| {
            if !self.ends_before(left_s, rate) {
                return Some(left_s);
            }
            let lasting = self.beyond_bounds(rate);
            let is_noticeable =
                self.has_steady_unbounded || lasting as f64 >= MIN_UNBOUNDED * all as f64;
            let used_bytes = used_bytes?.saturating_add(bounded.bound_bytes);
            let left_s = seconds_to_limit(limit_bytes, Some(used_bytes), lasting);
            left_s.filter(|_| is_noticeable)
        });
    }

    /// Returns the growth that leads to the limit, in bytes per hour: of all memory, or, if what
    /// has a bound reaches it before, without that.
    pub fn limit_bytes_per_hour(&self) -> i64 {
        let rate = self.lasting_bytes_per_hour();
        match self.seconds_to_limit {
            Some(left_s) if self.ends_before(left_s, rate) => self.beyond_bounds(rate),
            _ => rate.max(0).saturating_add(self.beside_rss_bytes_per_hour()),
        }
    }

    /// Returns whether the growth that has a bound reaches it within a time, in seconds. `rate` is
    /// the growth of all resident memory, in bytes per hour.
    fn ends_before(&self, left_s: f64, rate: i64) -> bool {
        let bounded = self.bounded();
        let bounded_rate = (bounded.bytes_per_hour as f64).min(rate as f64);
        bounded_rate * left_s / 3600.0 > bounded.bound_bytes as f64
    }

    /// Returns the growth, in bytes per hour, once all memory that has a bound has reached it.
    /// `rate` is the growth of all resident memory until then.
    fn beyond_bounds(&self, rate: i64) -> i64 {
        let bounded = i64::try_from(self.bounded().bytes_per_hour).unwrap_or(i64::MAX).min(rate);
        let all = rate.max(0).saturating_add(self.beside_rss_bytes_per_hour());
        // Memory that shrinks meanwhile does not slow down what grows without a bound.
        all.saturating_sub(bounded.max(0)).max(match rate > 0 {
            true => self.unbounded_bytes_per_hour(),
            false => 0,
        })
    }

    /// Returns the growth of all owners that have no bound, in bytes per hour, without memory that
    /// the kernel takes back.
    fn unbounded_bytes_per_hour(&self) -> i64 {
        let is_unbounded = |part: &&GrowthPart| part.bound_bytes.is_none() && !part.is_taken_back();
        self.by.iter().filter(is_unbounded).map(|part| part.bytes_per_hour.max(0)).sum()
    }

    /// Returns the growth of all owners that have a bound.
    pub fn bounded(&self) -> BoundedGrowth {
        let mut all = BoundedGrowth::default();
        let mut owners = BTreeSet::new();
        for part in &self.by {
            let Some(bound_bytes) = part.bound_bytes else { continue };
            all.bytes += u64::try_from(part.bytes).unwrap_or(0);
            all.bytes_per_hour += u64::try_from(part.bytes_per_hour).unwrap_or(0);
            if owners.insert(part.bounded()) {
                all.bound_bytes = all.bound_bytes.saturating_add(bound_bytes);
            }
        }
        all
    }

    /// Takes a limit that a runtime has set for its own memory into account, if its memory in use
    /// grows steadily: the rate is that of its parts in use. A limit that is reached later than
    /// that of the cgroup or of the machine changes nothing.
    pub fn set_runtime_limit(&mut self, limit: RuntimeLimit) {
        let is_in_use = |part: &&GrowthPart| {
            !part.free && limit.kind.runtime().is_some_and(|runtime| part.is_of(runtime))
        };
        let rate: i64 =
            self.by.iter().filter(is_in_use).map(|part| part.bytes_per_hour.max(0)).sum();
        // The growth of another part is not that of this one.
        let is_large = rate as f64 >= MIN_UNBOUNDED * self.lasting_bytes_per_hour() as f64;
        if self.course == GrowthCourse::Steady && rate > 0 && is_large {
            let RuntimeLimit { kind, limit_bytes, used_bytes } = limit;
            let bytes_per_hour = rate.unsigned_abs();
            let found = ProcessLimit { kind, used_bytes, bytes_per_hour };
            self.set_process_limit(limit_bytes, found);
        }
    }

    /// Takes a limit of the process itself into account, in bytes, if it is reached before the
    /// other one.
    pub fn set_process_limit(&mut self, limit_bytes: u64, limit: ProcessLimit) {
        let rate = i64::try_from(limit.bytes_per_hour).unwrap_or(i64::MAX);
        let left_s = seconds_to_limit(Some(limit_bytes), Some(limit.used_bytes), rate);
        let is_first = left_s
            .is_some_and(|left_s| self.seconds_to_limit.is_none_or(|known_s| left_s < known_s));
        if is_first {
            (self.limit_bytes, self.seconds_to_limit) = (Some(limit_bytes), left_s);
            self.process_limit = Some(limit);
        }
    }

    /// Returns the growth without memory that the kernel takes back before a limit is reached, in
    /// bytes.
    pub fn kept_bytes(&self) -> i64 {
        let rise = self.rss_bytes[1] as i64 - self.rss_bytes[0] as i64;
        rise - self.sum(GrowthPart::is_taken_back, |part| part.bytes)
    }

    /// Returns the same in an hour.
    pub fn kept_bytes_per_hour(&self) -> i64 {
        let taken_back = self.sum(GrowthPart::is_taken_back, |part| part.bytes_per_hour);
        self.rss_bytes_per_hour - taken_back
    }

    /// Returns the growth of pages of files that the kernel can drop, in bytes.
    pub fn files_bytes(&self) -> i64 {
        self.sum(GrowthPart::is_droppable_file, |part| part.bytes)
    }

    /// Returns the growth of the blocks that a search for leaks follows, in bytes.
    pub fn followed_bytes(&self) -> i64 {
        self.sum(GrowthPart::is_followed, |part| part.bytes)
    }

    /// Returns the rate that leads to a limit, in bytes per hour: that of RSS without memory that
    /// the kernel takes back, or the larger one of blocks in use, which also grow within memory
    /// that is resident already.
    pub fn lasting_bytes_per_hour(&self) -> i64 {
        let followed = self.sum(GrowthPart::is_followed, |part| part.bytes_per_hour);
        self.kept_bytes_per_hour().max(followed)
    }

    /// Returns the growth of all memory beside RSS that leads to the limit of the process, in an
    /// hour: [`Growth::beside_bytes_per_hour`], and the descendants to which the limit applies.
    pub fn beside_rss_bytes_per_hour(&self) -> i64 {
        let shared = self.descendants.as_ref().filter(|descendants| descendants.shares_limit);
        let shared = shared.filter(|_| self.descendants_rise().is_some());
        let bytes = shared.map_or(0, |descendants| descendants.bytes_per_hour);
        self.beside_bytes_per_hour().saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX))
    }

    /// Returns the growth of what RSS does not count (page tables, huge pages of the kernel's pool,
    /// and open files in memory) from the beginning to the end, in an hour; 0 if it did not grow
    /// noticeably.
    pub fn beside_bytes_per_hour(&self) -> i64 {
        let rises = [self.page_tables_rise(), self.hugetlb_rise(), self.open_memory_rise()];
        let rise = rises.into_iter().flatten().sum::<u64>() as f64;
        if self.elapsed_s > 0.0 { (rise * 3600.0 / self.elapsed_s) as i64 } else { 0 }
    }

    /// Returns the growth of page tables in bytes, if it is noticeable beside that of RSS.
    pub fn page_tables_rise(&self) -> Option<u64> {
        self.rise_beside(self.page_tables_bytes?)
    }

    /// Returns the growth of memory in the kernel's pool of huge pages in bytes, if it is
    /// noticeable beside that of RSS.
    pub fn hugetlb_rise(&self) -> Option<u64> {
        self.rise_beside(self.hugetlb_bytes?)
    }

    /// Returns the growth of open files in memory in bytes, if it is noticeable beside that of RSS.
    pub fn open_memory_rise(&self) -> Option<u64> {
        let [before, after] = self.open_memory.as_ref()?;
        self.rise_beside([before.bytes, after.bytes])
    }

    /// Returns the growth of the descendants in bytes, if it is noticeable beside that of RSS.
    pub fn descendants_rise(&self) -> Option<u64> {
        self.rise_beside(self.descendants.as_ref()?.pss_bytes)
    }

    /// Returns a growth if it is noticeable beside that of RSS: at least 1 MiB, 2 % of RSS, and
    /// half of the growth of RSS.
    fn rise_beside(&self, [before, after]: [u64; 2]) -> Option<u64> {
        let rise = after.saturating_sub(before);
        let rss_rise = self.rss_bytes[1].saturating_sub(self.rss_bytes[0]);
        let least = (self.rss_bytes[0] / 50).max(1 << 20).max(rss_rise / 2);
        (rise >= least).then_some(rise)
    }

    /// Adds up the growth of some owners.
    fn sum(&self, is_wanted: fn(&GrowthPart) -> bool, bytes: fn(&GrowthPart) -> i64) -> i64 {
        self.by.iter().filter(|part| is_wanted(part)).map(bytes).sum()
    }
}
