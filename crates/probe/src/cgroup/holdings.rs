//! What the processes of a cgroup hold: the parts of its charge that the kernel does not divide.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_model::cgroup::{
    CgroupHolder, CgroupKind, HolderPart, KernelObjectKind, KernelObjects,
};

use super::cached_files::CachedFiles;
use super::descriptors::Descriptors;
use super::shared_files::SharedFiles;
use super::socket_buffers::SocketBuffers;
use super::tree::CgroupTree;
use crate::proc::stat::Stat;
use crate::proc::status::Status;

/// Size of a thread's kernel stack, in bytes: `THREAD_SIZE` on x86-64 and arm64.
const STACK_BYTES: u64 = 16 << 10;
/// Maximum time to search for files. A file system can appear meanwhile that does not answer.
const MAX_SEARCH: Duration = Duration::from_secs(8);
/// Number of processes that are named for a row.
const NAMED: usize = 3;

/// The processes and the shared memory of a cgroup.
#[derive(Debug, Default)]
pub(super) struct CgroupHoldings {
    processes: Vec<HolderProcess>,
    pub(super) files: SharedFiles,
    pub(super) cached: CachedFiles,
    objects: ObjectCounts,
    pub(super) notes: Vec<String>,
}

/// The number of objects of each kind in each process.
type ObjectCounts = BTreeMap<(KernelObjectKind, u32), u64>;

/// A result of the search in the files and sockets of processes, in this order.
enum Part {
    Objects(ObjectCounts),
    Pipes(BTreeMap<u32, u64>),
    Shared(SharedFiles),
    Sockets(SocketBuffers),
    Cached(CachedFiles),
}

/// Returns the bytes that a process has of a row.
type Bytes = fn(&HolderProcess) -> u64;

#[derive(Debug, Clone, Default)]
struct HolderProcess {
    pid: u32,
    name: String,
    anon_bytes: u64,
    page_tables_bytes: u64,
    stacks_bytes: u64,
    pipes_bytes: u64,
    unix_bytes: u64,
    tcp_bytes: u64,
    pinned_bytes: u64,
    locked_bytes: u64,
    used_bytes: u64,
}

impl HolderProcess {
    /// Reads a process; `None` if it has ended.
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = Stat::parse(&String::from_utf8_lossy(&text)).ok()?;
        let status = Status::read(pid).ok()?;
        Some(Self {
            pid,
            name: stat.name,
            anon_bytes: status.anon_bytes,
            page_tables_bytes: status.page_tables_bytes,
            stacks_bytes: stat.threads.saturating_mul(STACK_BYTES),
            pipes_bytes: 0,
            unix_bytes: 0,
            tcp_bytes: 0,
            pinned_bytes: status.pinned_bytes,
            locked_bytes: status.locked_bytes,
            used_bytes: status.anon_bytes
                + status.file_bytes
                + status.shared_bytes
                + status.swap_bytes,
        })
    }
}

impl CgroupHoldings {
    /// Reads the processes. `shmem_bytes` is the shared memory that the cgroup is charged for.
    pub(super) fn read(tree: &CgroupTree, shmem_bytes: u64) -> Self {
        let pids = &tree.processes;
        let processes = pids.iter().filter_map(|pid| HolderProcess::read(*pid)).collect();
        let mut holdings = Self { processes, ..Self::default() };
        let (sender, receiver) = channel();
        let (pids, own) = (pids.iter().copied().collect::<Vec<_>>(), tree.inodes.clone());
        let search = move || search(&pids, &own, shmem_bytes, &sender);
        let end = Instant::now() + MAX_SEARCH;
        if thread::Builder::new().spawn(search).is_ok() {
            while let Ok(part) =
                receiver.recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                holdings.add(part);
            }
        }
        holdings
    }

    fn add(&mut self, part: Part) {
        let of = |bytes: &BTreeMap<u32, u64>, pid| bytes.get(&pid).copied().unwrap_or(0);
        match part {
            Part::Pipes(bytes) => {
                self.processes.iter_mut().for_each(|p| p.pipes_bytes = of(&bytes, p.pid));
            }
            Part::Objects(counts) => self.objects = counts,
            Part::Shared(files) => self.files = files,
            Part::Sockets(sockets) => {
                for process in &mut self.processes {
                    process.unix_bytes = of(&sockets.unix, process.pid);
                    process.tcp_bytes = of(&sockets.tcp, process.pid);
                }
                if !sockets.is_complete {
                    let note = "the sockets of some network namespaces cannot be read (this requires root, and the kernel's unix_diag and tcp_diag)";
                    self.notes.push(note.to_owned());
                }
            }
            Part::Cached(files) => {
                let of_kind =
                    |(pid, count): (&u32, &u64)| ((KernelObjectKind::Mapping, *pid), *count);
                self.objects.extend(files.mappings.iter().map(of_kind));
                self.cached = files;
            }
        }
    }

    /// Returns what is not known of the files in shared memory, as sentences.
    pub(super) fn shared_notes(&self) -> Vec<String> {
        let mut notes = self.files.notes();
        if !self.files.is_searched() {
            let note = "the files of its shared memory could not be searched in time";
            notes.push(note.to_owned());
        }
        notes
    }

    pub(super) fn page_tables_bytes(&self) -> u64 {
        self.processes.iter().map(|process| process.page_tables_bytes).sum()
    }

    pub(super) fn stacks_bytes(&self) -> u64 {
        self.processes.iter().map(|process| process.stacks_bytes).sum()
    }

    pub(super) fn pipes_bytes(&self) -> u64 {
        self.processes.iter().map(|process| process.pipes_bytes).sum()
    }

    /// Returns the process with most objects of each kind, those first that need most memory.
    pub(super) fn objects(&self) -> Vec<KernelObjects> {
        let mut most: BTreeMap<KernelObjectKind, (u32, u64)> = BTreeMap::new();
        for ((kind, pid), count) in &self.objects {
            let entry = most.entry(*kind).or_default();
            *entry = std::cmp::max_by_key(*entry, (*pid, *count), |(_, count)| *count);
        }
        let named = |(kind, (pid, count)): (KernelObjectKind, (u32, u64))| {
            let process = self.processes.iter().find(|process| process.pid == pid)?;
            Some(KernelObjects { kind, count, pid, name: process.name.clone() })
        };
        let mut objects: Vec<KernelObjects> = most.into_iter().filter_map(named).collect();
        objects.sort_by_key(|found| std::cmp::Reverse(found.least_bytes()));
        objects
    }

    /// Returns the processes with the largest part of each row.
    pub(super) fn holders(&self) -> Vec<CgroupHolder> {
        let parts: [(CgroupKind, Option<HolderPart>, Bytes); 8] = [
            (CgroupKind::Anon, None, |process| process.anon_bytes),
            (CgroupKind::PageTables, None, |process| process.page_tables_bytes),
            (CgroupKind::KernelStacks, None, |process| process.stacks_bytes),
            (CgroupKind::KernelOther, Some(HolderPart::Pipes), |process| process.pipes_bytes),
            (CgroupKind::KernelOther, Some(HolderPart::UnixSockets), |process| process.unix_bytes),
            (CgroupKind::Sockets, None, |process| process.tcp_bytes),
            (CgroupKind::Rest, Some(HolderPart::Pinned), |process| process.pinned_bytes),
            (CgroupKind::FileOther, Some(HolderPart::Locked), |process| process.locked_bytes),
        ];
        let of_row = |(kind, part, bytes): (CgroupKind, Option<HolderPart>, Bytes)| {
            let mut largest: Vec<&HolderProcess> = self.processes.iter().collect();
            largest.sort_by_key(|process| std::cmp::Reverse(bytes(process)));
            let holders = largest.into_iter().filter(move |process| bytes(process) > 0);
            holders.take(NAMED).map(move |process| CgroupHolder {
                kind,
                part,
                pid: process.pid,
                name: process.name.clone(),
                bytes: bytes(process),
                used_bytes: process.used_bytes,
            })
        };
        parts.into_iter().flat_map(of_row).collect()
    }
}

/// Searches the files and sockets of processes, and sends each result; of the shared memory, first
/// what is open. `own` are the inodes of the cgroup and of all below it.
fn search(pids: &[u32], own: &HashSet<u64>, shmem_bytes: u64, to: &Sender<Part>) {
    let descriptors = Descriptors::read(pids);
    // The receiver may have stopped waiting.
    let _ = to.send(Part::Objects(descriptors.objects()));
    let _ = to.send(Part::Pipes(descriptors.pipes()));
    let mut shared = SharedFiles::open(&descriptors, own);
    let _ = to.send(Part::Shared(shared.clone()));
    shared.search(pids, own, shmem_bytes);
    let _ = to.send(Part::Shared(shared));
    let _ = to.send(Part::Sockets(SocketBuffers::read(&descriptors)));
    let _ = to.send(Part::Cached(CachedFiles::read(pids, &descriptors, own)));
}
