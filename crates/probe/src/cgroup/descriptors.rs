//! The open descriptors of the processes of a cgroup: pipes, and files in shared memory.
//!
//! Only links and `fdinfo` are read, which ask no file system for anything.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Maximum number of descriptors.
const MAX_DESCRIPTORS: usize = 200_000;
/// Maximum time to read them.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Maximum number of pipes that are asked for their content.
const MAX_PIPES: usize = 10_000;

/// A descriptor of a process, with its link.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) pid: u32,
    pub(super) number: i32,
    pub(super) link: String,
}

/// The descriptors of processes that are files or pipes.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    pub(super) all: Vec<Descriptor>,
    /// Whether all were read.
    pub(super) is_complete: bool,
}

impl Descriptors {
    pub(super) fn read(pids: &[u32]) -> Self {
        let end = Instant::now() + MAX_TIME;
        let mut found = Self { all: Vec::new(), is_complete: true };
        for pid in pids {
            // A process that may not be inspected, or has ended.
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            for entry in entries.flatten() {
                if found.all.len() >= MAX_DESCRIPTORS || Instant::now() > end {
                    found.is_complete = false;
                    return found;
                }
                let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
                let (Some(number), Ok(link)) = (number, fs::read_link(entry.path())) else {
                    continue;
                };
                let link = link.to_string_lossy().into_owned();
                if link.starts_with('/') || link.starts_with("pipe:") {
                    found.all.push(Descriptor { pid: *pid, number, link });
                }
            }
        }
        found
    }

    /// Returns the unread bytes of pipes by process, each pipe once.
    pub(super) fn pipes(&self) -> BTreeMap<u32, u64> {
        let mut seen = HashSet::new();
        let mut bytes = BTreeMap::new();
        let mut process: Option<(u32, OwnedFd)> = None;
        for descriptor in self.all.iter().filter(|found| found.link.starts_with("pipe:")) {
            if seen.len() >= MAX_PIPES || !seen.insert(&descriptor.link) {
                continue;
            }
            if process.as_ref().is_none_or(|(pid, _)| *pid != descriptor.pid) {
                process = pidfd(descriptor.pid).map(|pidfd| (descriptor.pid, pidfd));
            }
            // A copy of the descriptor: opening the pipe would add a reader.
            let copy = |pidfd| pidfd_getfd(pidfd, descriptor.number, PidfdGetfdFlags::empty());
            let pipe = process.as_ref().and_then(|(_, pidfd)| copy(pidfd).ok());
            let unread = pipe.and_then(|pipe| rustix::io::ioctl_fionread(&pipe).ok());
            *bytes.entry(descriptor.pid).or_default() += unread.unwrap_or(0);
        }
        bytes
    }
}

fn pidfd(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Returns the number of the mount of a descriptor, as in `mountinfo`.
pub(super) fn mount_id(pid: &str, descriptor: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}
