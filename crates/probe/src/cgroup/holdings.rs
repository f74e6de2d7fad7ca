//! What the processes of a cgroup hold: the parts of its charge that the kernel does not divide.

use std::fs;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use lowtide_model::cgroup::{CgroupHolder, CgroupKind};

use super::descriptors::Descriptors;
use super::shared_files::SharedFiles;
use super::tree::Tree;
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
pub(super) struct Holdings {
    processes: Vec<Process>,
    pub(super) files: SharedFiles,
    pub(super) notes: Vec<String>,
}

/// Returns the bytes that a process has of a row.
type Part = fn(&Process) -> u64;

#[derive(Debug, Clone, Default)]
struct Process {
    pid: u32,
    name: String,
    anon_bytes: u64,
    page_tables_bytes: u64,
    stacks_bytes: u64,
    pipes_bytes: u64,
}

impl Process {
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
        })
    }
}

impl Holdings {
    pub(super) fn read(tree: &Tree) -> Self {
        let pids = &tree.processes;
        let mut processes: Vec<Process> = pids.iter().filter_map(|p| Process::read(*p)).collect();
        let (sender, receiver) = channel();
        let (of_thread, inodes): (Vec<u32>, _) =
            (pids.iter().copied().collect(), tree.inodes.clone());
        let searched = thread::Builder::new().spawn(move || {
            let descriptors = Descriptors::read(&of_thread);
            let pipes = descriptors.pipes();
            let _ = sender.send((pipes, SharedFiles::search(&of_thread, &descriptors, &inodes)));
        });
        let found = searched.ok().and_then(|_| receiver.recv_timeout(MAX_SEARCH).ok());
        let Some((pipes, files)) = found else {
            let note = "the files of its shared memory could not be searched in time".to_owned();
            return Self { processes, notes: vec![note], ..Self::default() };
        };
        for process in &mut processes {
            process.pipes_bytes = pipes.get(&process.pid).copied().unwrap_or(0);
        }
        let notes = files.notes();
        Self { processes, files, notes }
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

    /// Returns the processes with the largest part of each row.
    pub(super) fn holders(&self) -> Vec<CgroupHolder> {
        let parts: [(CgroupKind, Part); 4] = [
            (CgroupKind::Anon, |process| process.anon_bytes),
            (CgroupKind::PageTables, |process| process.page_tables_bytes),
            (CgroupKind::KernelStacks, |process| process.stacks_bytes),
            (CgroupKind::KernelOther, |process| process.pipes_bytes),
        ];
        let of_row = |(kind, bytes): (CgroupKind, Part)| {
            let mut largest: Vec<&Process> = self.processes.iter().collect();
            largest.sort_by_key(|process| std::cmp::Reverse(bytes(process)));
            let holders = largest.into_iter().filter(move |process| bytes(process) > 0);
            holders.take(NAMED).map(move |process| CgroupHolder {
                kind,
                pid: process.pid,
                name: process.name.clone(),
                bytes: bytes(process),
            })
        };
        parts.into_iter().flat_map(of_row).collect()
    }
}
