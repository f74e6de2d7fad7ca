//! Memory pressure: the limits and stalls of a memory cgroup, or of the machine.
//!
//! Sources: Documentation/admin-guide/cgroup-v2.rst (`memory.max`, `memory.current`, `memory.stat`,
//! `memory.pressure`), cgroup-v1/memory.rst (`memory.limit_in_bytes`, `memory.usage_in_bytes`),
//! Documentation/accounting/psi.rst.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lowtide_model::growth::{Growth, ProcessLimitKind};

use crate::cgroup::stat::stat_values;
use crate::cgroup::{CgroupDirectory, MemoryHierarchy};
use crate::memory::{FilePages, PageKind, ProcessMemory};
use crate::target::Target;

/// Maximum number of runs of file pages that are sampled.
const MAX_RUNS: usize = 1 << 18;
/// Minimum value that means no limit, in bytes: version 1 prints a number near 2^63.
pub(crate) const NO_LIMIT: u64 = 1 << 60;

/// The files with the limits and stalls of one process's memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PressureSource {
    /// The directories of the groups, from the process's own to the topmost.
    groups: Vec<PathBuf>,
    /// Version of their hierarchy: 1 or 2.
    version: u32,
}

/// The memory limit of a cgroup or the machine, its use, and the time that tasks waited for it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryPressure {
    /// The limit, in bytes.
    pub limit_bytes: Option<u64>,
    /// The use without file pages, which the kernel can reclaim, in bytes.
    pub used_bytes: Option<u64>,
    /// Share of the last 10 s in which some task waited for memory, in percent. `None` if PSI is
    /// off.
    pub stall_percent: Option<f64>,
}

impl PressureSource {
    /// Finds the files for a process: none if its groups are not visible here.
    pub fn for_process(pid: u32) -> Self {
        let own = MemoryHierarchy::read().and_then(|memory| memory.find_of_process(pid));
        own.as_ref().map(Self::new).unwrap_or_default()
    }

    fn new(own: &CgroupDirectory) -> Self {
        Self { groups: own.ancestors().collect(), version: own.version }
    }

    fn limits(&self) -> impl Iterator<Item = MemoryPressure> {
        self.groups.iter().filter_map(|group| of_group(group, self.version))
    }

    /// Reads limit, use and stalls: those of the group that is closest to its limit, or else those
    /// of the machine, which the caller passes.
    pub fn read(&self, machine: MemoryPressure) -> MemoryPressure {
        let fullest = self.limits().max_by(|a, b| a.fullness().total_cmp(&b.fullness()));
        let scarcer = fullest.filter(|group| group.fullness() > machine.fullness());
        let stall_percent = self.stalls().or(machine.stall_percent);
        MemoryPressure { stall_percent, ..scarcer.unwrap_or(machine) }
    }

    /// Reads the limit that a process reaches first if it grows, and its use: those of the group,
    /// or of the machine, with the least memory left.
    fn nearest(&self, machine: MemoryPressure) -> MemoryPressure {
        let left =
            |limit: &MemoryPressure| Some(limit.limit_bytes?.saturating_sub(limit.used_bytes?));
        let known = self.limits().chain([machine]).filter(|limit| left(limit).is_some());
        known.min_by_key(left).unwrap_or(machine)
    }

    /// Returns whether the limits of another process apply to this one: its groups are those of the
    /// other, or below them.
    fn is_within(&self, other: &Self) -> bool {
        self.version == other.version && self.groups.ends_with(&other.groups)
    }

    /// Returns the free memory of the group that has least of it, in bytes, file pages included,
    /// which the kernel reclaims. `None` if no group has a limit.
    pub fn headroom_bytes(&self) -> Option<u64> {
        let free =
            |limit: MemoryPressure| Some(limit.limit_bytes?.saturating_sub(limit.used_bytes?));
        self.limits().filter_map(free).min()
    }

    /// Returns how many processes the kernel has killed because the process's own group, or a group
    /// above it, had no memory left. If it has no group, those of the machine.
    pub fn oom_kills(&self) -> Option<u64> {
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        let count =
            |group: &PathBuf| field(&fs::read_to_string(group.join(file)).ok()?, "oom_kill");
        let counts = self.groups.iter().filter_map(count);
        let machine = || field(&fs::read_to_string("/proc/vmstat").ok()?, "oom_kill");
        counts.max().or_else(machine)
    }

    /// Reads the stalls of the process's own group.
    fn stalls(&self) -> Option<f64> {
        let group = self.groups.first().filter(|_| self.version == 2)?;
        stall_percent(&fs::read_to_string(group.join("memory.pressure")).ok()?)
    }
}

impl MemoryPressure {
    /// Reads limit, use and stalls of the machine.
    pub fn of_this_machine() -> Self {
        of_machine(Path::new("/proc"))
    }

    /// Reads limit, use and stalls for a process, as [`PressureSource::read`] does.
    pub fn for_process(pid: u32) -> Self {
        PressureSource::for_process(pid).read(Self::of_this_machine())
    }

    /// Reads the limit that a process reaches first if it grows, and its use.
    pub fn nearest_limit(pid: u32) -> Self {
        PressureSource::for_process(pid).nearest(Self::of_this_machine())
    }

    /// Reads the limit that a cgroup reaches first if it grows, and its use.
    pub fn nearest_limit_of(group: &CgroupDirectory) -> Self {
        PressureSource::new(group).nearest(Self::of_this_machine())
    }

    /// Returns the share of the limit that is in use; 0 if it is unknown.
    fn fullness(&self) -> f64 {
        match (self.limit_bytes, self.used_bytes) {
            (Some(limit @ 1..), Some(used)) => used as f64 / limit as f64,
            _ => 0.0,
        }
    }
}

/// The limits of one process, in bytes (`setrlimit`); `None` for those that are unlimited or could
/// not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    address_space: Option<u64>,
    data: Option<u64>,
}

impl ProcessLimits {
    /// Reads those of a process.
    pub fn read(target: &Target) -> Self {
        Self::parse(&fs::read_to_string(target.path("limits")).unwrap_or_default())
    }

    /// Parses the text of `/proc/PID/limits`: the soft limits.
    fn parse(text: &str) -> Self {
        let of = |name: &str| soft_limit_in(text, name);
        Self { address_space: of("Max address space "), data: of("Max data size ") }
    }

    /// Returns the limit of a kind.
    pub fn of(&self, kind: ProcessLimitKind) -> Option<u64> {
        match kind {
            ProcessLimitKind::AddressSpace => self.address_space,
            ProcessLimitKind::Data => self.data,
            // A runtime sets these.
            ProcessLimitKind::JavaHeap | ProcessLimitKind::PhpMemory | ProcessLimitKind::V8Heap => {
                None
            }
        }
    }
}

/// Returns the soft limit with a name, from the text of `/proc/PID/limits`; `None` if there is
/// none.
fn soft_limit_in(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the soft limit of a process with a name of `/proc/PID/limits`; `None` if there is none.
pub(crate) fn soft_limit(target: &Target, name: &str) -> Option<u64> {
    soft_limit_in(&fs::read_to_string(target.path("limits")).ok()?, name)
}

/// Adds to the growth of a process the limit that it reaches first, and how many pages of files may
/// be dirty or locked.
pub fn complete_growth(target: &Target, growth: &mut Growth) {
    let source = PressureSource::for_process(target.pid);
    let limit = source.nearest(MemoryPressure::of_this_machine());
    if let Some(descendants) = &mut growth.descendants {
        let most = PressureSource::for_process(descendants.most.pid);
        descendants.shares_limit = most.is_within(&source);
    }
    growth.set_limit(limit.limit_bytes, limit.used_bytes);
    if growth.files_bytes() > growth.kept_bytes().max(0) {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let sample = sample_of_files(target);
        let least = |known: [Option<u64>; 2]| known.into_iter().flatten().min();
        growth.dirty_files_bytes =
            least([dirty_bytes(&meminfo), sample.map(|sample| sample.dirty_bytes)]);
        growth.locked_files_bytes =
            least([locked_bytes(&meminfo), sample.map(|sample| sample.locked_bytes)]);
    }
}

/// Samples the pages of files in a process.
fn sample_of_files(target: &Target) -> Option<FilePages> {
    let memory = ProcessMemory::pages_only(target.pid).ok()?;
    let maps = target.maps().ok()?;
    let files = maps.iter().filter(|mapping| mapping.has_file());
    let pages = files.filter_map(|mapping| memory.pages(mapping.start..mapping.end).ok()).flatten();
    let pages = pages.filter(|pages| pages.kind == PageKind::File).map(|pages| pages.range);
    let pages: Vec<Range<u64>> = pages.take(MAX_RUNS).collect();
    memory.sample_of_files(&pages).filter(|_| pages.len() < MAX_RUNS)
}

/// Returns the pages of the machine that the kernel cannot take back, because they are locked or
/// exist in memory only, from the text of `/proc/meminfo`.
fn locked_bytes(meminfo: &str) -> Option<u64> {
    field(meminfo, "Unevictable:")?.checked_mul(1024)
}

/// Returns the dirty pages of all files of the machine, and those that are being written, from the
/// text of `/proc/meminfo`.
fn dirty_bytes(meminfo: &str) -> Option<u64> {
    let kib = |key| field(meminfo, key);
    // The last two are counted separately for FUSE and NFS by kernels that have them.
    let others = ["WritebackTmp:", "NFS_Unstable:"].into_iter().filter_map(kib).sum::<u64>();
    (kib("Dirty:")? + kib("Writeback:")?).checked_add(others)?.checked_mul(1024)
}

fn of_group(group: &Path, version: u32) -> Option<MemoryPressure> {
    let (limit, used) = match version {
        2 => ("memory.max", "memory.current"),
        _ => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    };
    let limit_bytes = number(&group.join(limit)).filter(|limit| *limit < NO_LIMIT)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let is_file = |key: &str| matches!(key, "inactive_file" | "active_file");
    let files = stat_values(version, &stat).filter(|(key, _)| is_file(key)).map(|(_, bytes)| bytes);
    let used_bytes = files.fold(number(&group.join(used))?, u64::saturating_sub);
    let stall_percent = None;
    Some(MemoryPressure {
        limit_bytes: Some(limit_bytes),
        used_bytes: Some(used_bytes),
        stall_percent,
    })
}

fn of_machine(proc: &Path) -> MemoryPressure {
    let memory = fs::read_to_string(proc.join("meminfo")).unwrap_or_default();
    let kib = |key: &str| field(&memory, key)?.checked_mul(1024);
    let limit_bytes = kib("MemTotal:");
    let available = kib("MemAvailable:");
    let stalls = fs::read_to_string(proc.join("pressure/memory")).ok();
    MemoryPressure {
        limit_bytes,
        used_bytes: limit_bytes.zip(available).map(|(total, free)| total.saturating_sub(free)),
        stall_percent: stalls.as_deref().and_then(stall_percent),
    }
}

/// Parses PSI: `some avg10=0.00 avg60=…`.
pub(crate) fn stall_percent(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = some.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    value.parse().ok().filter(|percent: &f64| percent.is_finite())
}

/// Returns the number after a key at the start of a line.
pub(crate) fn field(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| (words.next()? == key).then(|| words.next()?.parse().ok())?)
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::directory::tests::hierarchy_at;

    fn source(version: u32, mount: &Path, group: &str) -> PressureSource {
        PressureSource::new(&hierarchy_at(version, mount, "/").find(group).unwrap())
    }

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    const MACHINE: [(&str, &str); 2] = [
        ("proc/meminfo", "MemTotal:       8000 kB\nMemFree: 100 kB\nMemAvailable:    6000 kB\n"),
        (
            "proc/pressure/memory",
            "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00\n",
        ),
    ];

    #[test]
    fn the_soft_limits_of_a_process_are_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max data size             unlimited            unlimited            bytes     \n\
                    Max address space         1073741824           unlimited            bytes     \n";
        let limits = ProcessLimits::parse(text);
        assert_eq!(limits.of(ProcessLimitKind::AddressSpace), Some(1 << 30));
        assert_eq!(limits.of(ProcessLimitKind::Data), None);
        assert_eq!(ProcessLimits::parse(""), ProcessLimits::default());
    }

    #[test]
    fn the_limit_of_the_cgroup_closest_to_its_limit_is_reported() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), &MACHINE);
        write(
            root.path(),
            &[
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/b/memory.current", "900\n"),
                ("sys/fs/cgroup/a/b/memory.pressure", "some avg10=7.25 avg60=0\nfull avg10=0.1\n"),
                ("sys/fs/cgroup/a/b/memory.events", "low 0\noom 9\noom_kill 2\n"),
                ("sys/fs/cgroup/a/memory.max", "1000\n"),
                ("sys/fs/cgroup/a/memory.current", "950\n"),
                ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 20\nactive_file 30\n"),
            ],
        );
        let source = source(2, &root.path().join("sys/fs/cgroup"), "/a/b");
        let expected = MemoryPressure {
            limit_bytes: Some(1000),
            used_bytes: Some(900),
            stall_percent: Some(7.25),
        };
        assert_eq!(source.read(of_machine(&root.path().join("proc"))), expected);
        assert_eq!((source.headroom_bytes(), source.oom_kills()), (Some(100), Some(2)));
    }

    #[test]
    fn under_cgroup_v1_the_group_has_the_limit_and_the_machine_the_stalls() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), &MACHINE);
        let group = "sys/fs/cgroup/memory/job";
        write(
            root.path(),
            &[
                (&format!("{group}/memory.limit_in_bytes"), "4096000"),
                (&format!("{group}/memory.usage_in_bytes"), "4000000"),
                (&format!("{group}/memory.stat"), "total_inactive_file 1000000\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9000000"),
            ],
        );
        let source = source(1, &root.path().join("sys/fs/cgroup/memory"), "/job");
        let expected = MemoryPressure {
            limit_bytes: Some(4_096_000),
            used_bytes: Some(3_000_000),
            stall_percent: Some(1.5),
        };
        assert_eq!(source.read(of_machine(&root.path().join("proc"))), expected);
    }

    #[test]
    fn without_a_cgroup_limit_the_memory_of_the_machine_is_used_even_without_psi() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), &MACHINE[..1]);
        let source = PressureSource::default();
        let expected = MemoryPressure {
            limit_bytes: Some(8_192_000),
            used_bytes: Some(2_048_000),
            stall_percent: None,
        };
        assert_eq!(source.read(of_machine(&root.path().join("proc"))), expected);
    }

    #[test]
    fn the_memory_use_of_this_machine_is_within_its_limit() {
        let now = MemoryPressure::for_process(std::process::id());
        assert!(now.used_bytes.unwrap() <= now.limit_bytes.unwrap(), "{now:?}");
    }
}
