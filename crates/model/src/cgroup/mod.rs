//! The memory that a cgroup is charged for, by kind: the key `cgroup` of `lowtide.whole/1`.

mod anon;
pub mod growth;
mod names;
mod objects;
mod page_cache;

use serde::Serialize;

pub use anon::{AnonCount, AnonProcess, CgroupAnon};
pub use growth::{ChargeGrowth, ChargeReading, RowGrowth};
pub use names::{known_name, pod_path, pod_uid};
pub use objects::{KernelObjectKind, KernelObjects};
pub use page_cache::{CachedFile, CgroupPageCache};

/// Maximum part of the charge in the row `rest` of a complete ledger.
const MAX_REST: f64 = 0.02;

/// The charge of a cgroup as disjoint rows that add up to it. Unknown values are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CgroupLedger {
    /// Its path, as in `/proc/PID/cgroup`.
    pub path: String,
    /// Version of its hierarchy: 1 or 2.
    pub version: u32,
    /// Bytes that count towards its limit: `memory.current`, in version 1 `memory.usage_in_bytes`.
    pub charged_bytes: u64,
    /// Whether the charge moved while it was read, twice: the rows are of different moments.
    pub moved: bool,
    /// The lowest limit of it and its parents, in bytes.
    pub limit_bytes: Option<u64>,
    /// Each limit, from its own to the topmost.
    pub limits: Vec<CgroupLimit>,
    /// The charge without inactive file pages: what Kubernetes compares and shows.
    pub working_set_bytes: u64,
    /// What the kernel can reclaim before it kills, in bytes: page cache, memory that a program
    /// gave back lazily (`MADV_FREE`), and slab. In version 1, slab is not known: it is a lower
    /// bound.
    pub reclaimable_bytes: u64,
    /// Page cache that the kernel cannot reclaim, at least, in bytes: locked pages, files of a
    /// ramfs, secret memory.
    pub locked_cache_bytes: u64,
    /// The rows.
    pub rows: Vec<CgroupRow>,
    /// The row `anon` by owner and by process; `None` if the processes were not inspected.
    pub anon: Option<CgroupAnon>,
    /// Whether the row `rest` is above 2 % of the charge.
    pub incomplete: bool,
    /// Bytes of the page cache that are to be written back, or are being written.
    pub dirty_bytes: u64,
    /// Files in shared memory that the charge can contain: those first that it is known to contain,
    /// and then the largest.
    pub files: Vec<CgroupFile>,
    /// Whether all places were searched where such files can be.
    pub files_complete: bool,
    /// The page cache by file.
    pub page_cache: CgroupPageCache,
    /// The processes with the largest parts of rows.
    pub holders: Vec<CgroupHolder>,
    /// The objects of the kernel that its processes have most of, those first that need most.
    pub objects: Vec<KernelObjects>,
    /// Number of processes, in the PID namespace of lowtide.
    pub processes: u64,
    /// Number of cgroups, with those below it; `None` if there are too many to count.
    pub groups: Option<u64>,
    /// Number of removed cgroups below it that still have a charge (version 2).
    pub removed_groups: Option<u64>,
    /// Swapped memory, in bytes. It is not part of the charge.
    pub swap_bytes: Option<u64>,
    /// Events since it was created.
    pub events: CgroupEvents,
    /// Share of the last 10 s in which some task waited for memory, in percent (PSI).
    pub stall_percent: Option<f64>,
    /// What was left out or is uncertain, as sentences.
    pub notes: Vec<String>,
}

/// What a cgroup is charged for, without its processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CgroupCharge {
    /// Bytes that count towards its limit.
    pub charged_bytes: u64,
    /// The lowest limit of it and its parents, in bytes.
    pub limit_bytes: Option<u64>,
    /// The charge without inactive file pages: what Kubernetes compares and shows.
    pub working_set_bytes: u64,
    /// What the kernel can reclaim before it kills, in bytes, as in [`CgroupLedger`].
    pub reclaimable_bytes: u64,
    /// The rows, which add up to the charge.
    pub rows: Vec<CgroupRow>,
}

/// The limit of a cgroup.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CgroupLimit {
    /// Its path below the mount point.
    pub path: String,
    /// The limit, in bytes.
    pub limit_bytes: Option<u64>,
    /// The limit above which it is throttled (`memory.high`), in bytes.
    pub high_bytes: Option<u64>,
    /// Its charge, in bytes.
    pub charged_bytes: Option<u64>,
}

/// The kind of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupKind {
    /// Anonymous memory of processes.
    Anon,
    /// Shared memory (tmpfs, memfd, System V) that a process maps.
    ShmemMapped,
    /// Shared memory that no process maps.
    ShmemUnmapped,
    /// Page cache that was used repeatedly.
    FileActive,
    /// Page cache that was used once.
    FileInactive,
    /// Page cache on neither list, such as locked pages.
    FileOther,
    /// Kernel objects that can be reclaimed, such as cached directory entries.
    SlabReclaimable,
    /// Kernel objects that cannot be reclaimed.
    SlabUnreclaimable,
    /// Page tables.
    PageTables,
    /// Kernel stacks of threads.
    KernelStacks,
    /// Buffers of TCP connections.
    Sockets,
    /// Per-processor memory of the kernel.
    Percpu,
    /// Kernel memory in contiguous addresses, such as large tables of file descriptors.
    Vmalloc,
    /// Swapped pages that are kept compressed in memory.
    Zswap,
    /// Huge pages of the kernel's pool.
    Hugetlb,
    /// Other kernel memory: pipes, buffers of unix sockets; in version 1, slab too.
    KernelOther,
    /// Charged in advance, for each processor.
    Stock,
    /// The rest.
    Rest,
}

impl CgroupKind {
    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anon => "anon",
            Self::ShmemMapped => "shmem_mapped",
            Self::ShmemUnmapped => "shmem_unmapped",
            Self::FileActive => "file_active",
            Self::FileInactive => "file_inactive",
            Self::FileOther => "file_other",
            Self::SlabReclaimable => "slab_reclaimable",
            Self::SlabUnreclaimable => "slab_unreclaimable",
            Self::PageTables => "page_tables",
            Self::KernelStacks => "kernel_stacks",
            Self::Sockets => "sockets",
            Self::Percpu => "percpu",
            Self::Vmalloc => "vmalloc",
            Self::Zswap => "zswap",
            Self::Hugetlb => "hugetlb",
            Self::KernelOther => "kernel_other",
            Self::Stock => "stock",
            Self::Rest => "rest",
        }
    }
}

/// A part of the charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CgroupRow {
    /// Its kind.
    pub kind: CgroupKind,
    /// Its bytes. Only those of the rest can be below 0.
    pub bytes: i64,
    /// Whether they are an estimate.
    pub estimated: bool,
    /// Maximum of the stock, in bytes; `None` for the other rows.
    pub bound_bytes: Option<u64>,
}

/// A file in shared memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CgroupFile {
    /// Its path in the mount namespace of a process, or the name of its memory.
    pub path: String,
    /// The row that most of it belongs to.
    pub kind: CgroupKind,
    /// Its bytes, in memory or swapped out.
    pub bytes: u64,
    /// Its bytes that a process maps.
    pub mapped_bytes: u64,
    /// Whether it has no name any more.
    pub deleted: bool,
    /// Whether its pages are charged to this cgroup; `None` if that cannot be read.
    pub charged: Option<bool>,
}

/// What the kernel keeps for a process in a row that has several kinds of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HolderPart {
    /// Data in pipes that was not read yet.
    Pipes,
    /// Data that the process has written to unix sockets and that was not read yet.
    UnixSockets,
    /// Memory that is pinned for the kernel or for a device (`VmPin`), such as the registered
    /// buffers of io_uring: where the process has unmapped it, the kernel counts it nowhere else.
    Pinned,
    /// Memory that the process has locked (`VmLck`: `mlock`, secret memory), in files or not.
    Locked,
}

/// The part of a row that is due to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CgroupHolder {
    /// The row.
    pub kind: CgroupKind,
    /// What it is, if the row has several kinds of memory.
    pub part: Option<HolderPart>,
    /// Its PID.
    pub pid: u32,
    /// Its short name.
    pub name: String,
    /// Bytes. Pages that processes share count for each of them.
    pub bytes: u64,
    /// Its memory, resident or swapped out, in bytes.
    pub used_bytes: u64,
}

/// Events of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CgroupEvents {
    /// How often its limit was reached.
    pub max: Option<u64>,
    /// Number of its processes that the kernel has killed for lack of memory.
    pub oom_kill: Option<u64>,
}

impl CgroupLedger {
    /// Returns the bytes of a kind.
    pub fn bytes(&self, kind: CgroupKind) -> i64 {
        self.rows.iter().filter(|row| row.kind == kind).map(|row| row.bytes).sum()
    }

    /// Sets the processes that have the anonymous memory.
    pub fn set_anon(&mut self, processes: Vec<AnonProcess>) {
        self.anon = Some(CgroupAnon::new(processes, self.bytes(CgroupKind::Anon)));
    }

    /// Sets the rows, and whether they are complete.
    pub fn set_rows(&mut self, rows: Vec<CgroupRow>) {
        self.rows = rows;
        let rest = self.bytes(CgroupKind::Rest).unsigned_abs();
        self.incomplete = rest as f64 > self.charged_bytes as f64 * MAX_REST;
    }
}
