//! The open descriptors of the processes of a cgroup: pipes, sockets, and files.
//!
//! Only links and `fdinfo` are read, which ask no file system for anything.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use lowtide_model::cgroup::KernelObjectKind;
use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::machine::thread_cpu_s;
use crate::mounts::{FileSystem, Mounts, kernels_mount, mount_id};
use crate::proc::is_gone;

/// Maximum number of descriptors.
const MAX_DESCRIPTORS: usize = 200_000;
/// Maximum CPU time to read them, in seconds: on a busy machine, elapsed time says little.
const MAX_CPU_S: f64 = 2.0;
/// Maximum number of descriptors that are copied in the search for pipes.
const MAX_COPIES: usize = 20_000;

/// How the links of descriptors begin that are no files.
const OTHERS: [&str; 3] = ["pipe:", "socket:", "anon_inode:"];
/// Maximum length of the list of what a descriptor watches, in bytes.
const MAX_FDINFO: u64 = 8 << 20;

/// A descriptor of a process, with its link.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) pid: u32,
    pub(crate) number: i32,
    pub(crate) link: String,
    /// The number of the mount of its file, and the kind of its file system; `None` for a pipe, a
    /// socket, or another object without a name.
    mount: Option<(u64, FileSystem)>,
}

impl Descriptor {
    /// Returns the kind of its file system; `None` for a pipe or a socket.
    fn file_system(&self) -> Option<FileSystem> {
        self.mount.map(|(_, kind)| kind)
    }

    /// Returns whether its file is on this mount.
    pub(crate) fn is_on(&self, mount: u64) -> bool {
        self.mount.is_some_and(|(own, _)| own == mount)
    }

    /// Returns the path in `/proc` that leads to its file.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.pid, self.number))
    }
}

/// The descriptors of processes that are files, pipes or sockets.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    all: Vec<Descriptor>,
    /// Whether all were read.
    pub(crate) is_complete: bool,
    /// Whether lowtide may read those of each process.
    pub(super) is_permitted: bool,
}

impl Descriptors {
    pub(super) fn read(pids: &[u32]) -> Self {
        Self::read_most(pids, MAX_DESCRIPTORS)
    }

    /// Reads at most `most` descriptors.
    pub(crate) fn read_most(pids: &[u32], most: usize) -> Self {
        let end_s = thread_cpu_s() + MAX_CPU_S;
        let mut found = Self { all: Vec::new(), is_complete: true, is_permitted: true };
        let mut file_systems = DescriptorFileSystems::default();
        for pid in pids {
            let entries = match fs::read_dir(format!("/proc/{pid}/fd")) {
                Ok(entries) => entries,
                Err(error) => {
                    found.is_permitted &= is_gone(&error);
                    continue;
                }
            };
            for entry in entries.flatten() {
                if found.all.len() >= most || thread_cpu_s() > end_s {
                    found.is_complete = false;
                    return found;
                }
                let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
                let (Some(number), Ok(link)) = (number, fs::read_link(entry.path())) else {
                    continue;
                };
                let link = link.to_string_lossy().into_owned();
                let is_file = link.starts_with('/');
                if is_file || OTHERS.iter().any(|begin| link.starts_with(begin)) {
                    let mount = is_file.then(|| file_systems.of(*pid, number)).flatten();
                    found.all.push(Descriptor { pid: *pid, number, link, mount });
                }
            }
        }
        found
    }

    /// Returns the files on a kind of file system.
    pub(crate) fn files(&self, file_system: FileSystem) -> impl Iterator<Item = &Descriptor> {
        self.all.iter().filter(move |found| found.file_system() == Some(file_system))
    }

    /// Returns the process and the inode of each socket.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (u32, u32)> {
        self.all.iter().filter_map(|found| {
            let inode = found.link.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some((found.pid, inode.parse().ok()?))
        })
    }

    /// Returns the number of objects of each kind in each process. Pipes and sockets count once for
    /// all of their descriptors in it.
    pub(super) fn objects(&self) -> BTreeMap<(KernelObjectKind, u32), u64> {
        let (mut seen, mut counts) = (HashSet::new(), BTreeMap::new());
        for found in &self.all {
            let Some(kind) = found.object() else { continue };
            let has_inode = matches!(kind, KernelObjectKind::Pipe | KernelObjectKind::Socket);
            if has_inode && !seen.insert((found.pid, found.link.as_str())) {
                continue;
            }
            let count = match kind {
                KernelObjectKind::InotifyWatch => found.watches(),
                _ => 1,
            };
            *counts.entry((kind, found.pid)).or_default() += count;
        }
        counts
    }

    /// Returns the unread bytes of pipes by process, each pipe once. A pipe with a name is a file.
    pub(super) fn pipes(&self) -> BTreeMap<u32, u64> {
        let (mut seen, mut copies) = (HashSet::new(), 0);
        let mut bytes = BTreeMap::new();
        let mut copier = Copier::default();
        for descriptor in self.all.iter().filter(|found| found.can_be_pipe()) {
            if copies >= MAX_COPIES || seen.contains(&descriptor.link) {
                continue;
            }
            copies += 1;
            // Opening the pipe would add a reader.
            let Some(pipe) = copier.copy(descriptor).filter(is_pipe) else { continue };
            seen.insert(&descriptor.link);
            let unread = rustix::io::ioctl_fionread(&pipe).unwrap_or(0);
            *bytes.entry(descriptor.pid).or_default() += unread;
        }
        bytes
    }
}

fn is_pipe(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

impl Descriptor {
    /// Returns the kind of object that it stands for.
    fn object(&self) -> Option<KernelObjectKind> {
        // Newer kernels have no brackets around some.
        let name = self.link.strip_prefix("anon_inode:").map(|name| name.trim_matches(['[', ']']));
        match name {
            Some("io_uring") => Some(KernelObjectKind::IoUring),
            Some("eventfd") => Some(KernelObjectKind::Eventfd),
            Some("timerfd") => Some(KernelObjectKind::Timerfd),
            Some("eventpoll") => Some(KernelObjectKind::Epoll),
            Some("inotify") => Some(KernelObjectKind::InotifyWatch),
            None if self.link.starts_with("pipe:") => Some(KernelObjectKind::Pipe),
            None if self.link.starts_with("socket:") => Some(KernelObjectKind::Socket),
            _ => None,
        }
    }

    /// Returns the number of files that it watches (inotify).
    fn watches(&self) -> u64 {
        let path = format!("/proc/{}/fdinfo/{}", self.pid, self.number);
        let lines = File::open(path).map(|file| BufReader::new(file.take(MAX_FDINFO)).split(b'\n'));
        let lines = lines.into_iter().flatten().map_while(Result::ok);
        lines.filter(|line| line.starts_with(b"inotify ")).count() as u64
    }

    fn can_be_pipe(&self) -> bool {
        match self.file_system() {
            Some(kind) => kind != FileSystem::Other,
            None => self.link.starts_with("pipe:"),
        }
    }
}

/// Copies descriptors. Those of one process come one after the other, so it is opened once.
#[derive(Debug, Default)]
pub(super) struct Copier(Option<(u32, Option<OwnedFd>)>);

impl Copier {
    /// Returns a copy of a descriptor, as `dup` would make one in the process. Nothing is opened.
    pub(super) fn copy(&mut self, descriptor: &Descriptor) -> Option<OwnedFd> {
        let known = self.0.take().filter(|(pid, _)| *pid == descriptor.pid);
        let (_, process) =
            self.0.insert(known.unwrap_or_else(|| (descriptor.pid, pidfd(descriptor.pid))));
        pidfd_getfd(process.as_ref()?, descriptor.number, PidfdGetfdFlags::empty()).ok()
    }
}

/// The file systems of descriptors. Processes that see the same mounts share their list.
#[derive(Debug, Default)]
struct DescriptorFileSystems {
    namespaces: HashMap<PathBuf, Rc<Mounts>>,
    of_process: Option<(u32, Rc<Mounts>)>,
    /// The mounts that other processes see, once they are needed.
    elsewhere: Option<Mounts>,
}

impl DescriptorFileSystems {
    /// Returns the number of the mount of a descriptor, and the kind of its file system.
    fn of(&mut self, pid: u32, number: i32) -> Option<(u64, FileSystem)> {
        let id = mount_id(&pid.to_string(), number)?;
        if self.of_process.as_ref().is_none_or(|(process, _)| *process != pid) {
            // A process that has ended sees nothing.
            let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap_or_default();
            let mounts =
                self.namespaces.entry(namespace).or_insert_with(|| Rc::new(Mounts::read(pid)));
            self.of_process = Some((pid, Rc::clone(mounts)));
        }
        let known = self.of_process.as_ref().and_then(|(_, mounts)| mounts.file_system(id));
        let kind = match known {
            Some(known) => known,
            None if kernels_mount() == Some(id) => FileSystem::SharedMemory,
            // Opened before the process entered its namespace, or received from another process.
            None => {
                let elsewhere = self.elsewhere.get_or_insert_with(Mounts::of_machine);
                elsewhere.file_system(id).unwrap_or(FileSystem::Other)
            }
        };
        Some((id, kind))
    }
}

/// Opens a process, to copy its descriptors.
fn pidfd(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use rustix::fs::inotify;

    use super::*;

    fn descriptor(pid: u32, link: &str) -> Descriptor {
        Descriptor { pid, number: 3, link: link.to_owned(), mount: None }
    }

    #[test]
    fn objects_are_counted_by_kind_and_those_with_an_inode_once() {
        let links = ["pipe:[1]", "pipe:[1]", "pipe:[2]", "anon_inode:[io_uring]"];
        let others = ["anon_inode:[eventfd]", "anon_inode:[eventfd]", "anon_inode:bpf-map"];
        let all: Vec<_> = links.into_iter().chain(others).map(|link| descriptor(7, link)).collect();
        let counts = Descriptors { all, is_complete: true, is_permitted: true }.objects();
        let expected = [
            ((KernelObjectKind::IoUring, 7), 1),
            ((KernelObjectKind::Pipe, 7), 2),
            ((KernelObjectKind::Eventfd, 7), 2),
        ];
        assert_eq!(counts, BTreeMap::from(expected));
    }

    #[test]
    fn the_files_that_a_process_watches_are_counted() {
        let watcher = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        for name in ["/", "/proc"] {
            inotify::add_watch(&watcher, name, inotify::WatchFlags::CREATE).unwrap();
        }
        let own = std::process::id();
        let counts = Descriptors::read(&[own]).objects();
        assert!(counts[&(KernelObjectKind::InotifyWatch, own)] >= 2, "{counts:?}");
    }
}
