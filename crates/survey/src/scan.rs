//! Lists the processes of the host, and reads the RSS of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::time::Instant;

use lowtide_model::cgroup::CgroupCharge;
use lowtide_probe::proc::cgroup::Groups;
use lowtide_probe::proc::kcmp::AddressSpaces;
use lowtide_probe::proc::links;
use lowtide_probe::proc::pids;
use lowtide_probe::proc::stat::Stat;
use lowtide_probe::proc::task::program_threads;
use lowtide_probe::selection::Selection;

use crate::process::{HostProcess, Identity};

/// The selection of processes.
#[derive(Debug, Clone, Default)]
pub struct ScanFilter {
    /// The properties of selected processes.
    pub selection: Selection,
    /// Whether the descendants of such processes are selected, too.
    pub subprocesses: bool,
}

/// The known processes of the host.
#[derive(Debug)]
pub struct Host {
    /// Processes that the filter selects, and others.
    all: BTreeMap<u32, HostProcess>,
    /// Time when the survey started.
    pub began: Instant,
    /// Time when the last scan ended.
    pub scanned: Option<Instant>,
    /// Number of attempts to inspect a process that have ended.
    pub inspections: u64,
    /// The charges of cgroups, by path.
    charges: BTreeMap<String, CgroupCharge>,
    /// Whether charges are to be read, and were not read yet.
    lacks_charges: bool,
}

impl Host {
    /// Returns a host without processes. `has_charges` is whether charges of cgroups are read.
    pub(crate) fn new(began: Instant, has_charges: bool) -> Self {
        Self {
            all: BTreeMap::new(),
            began,
            scanned: None,
            inspections: 0,
            charges: BTreeMap::new(),
            lacks_charges: has_charges,
        }
    }

    /// Returns the charge of a cgroup, if it is read and known.
    pub fn charge(&self, path: &str) -> Option<&CgroupCharge> {
        self.charges.get(path)
    }

    pub(crate) fn set_charges(&mut self, charges: BTreeMap<String, CgroupCharge>) {
        (self.charges, self.lacks_charges) = (charges, false);
    }

    /// Returns the processes that the filter selects, by PID.
    pub fn processes(&self) -> impl Iterator<Item = &HostProcess> {
        self.all.values().filter(|process| process.is_selected)
    }

    /// Returns a selected process.
    pub fn process(&self, pid: u32) -> Option<&HostProcess> {
        self.all.get(&pid).filter(|process| process.is_selected)
    }

    /// Returns the time since the survey started, in seconds.
    pub fn elapsed_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Returns the age of the last scan, in seconds; `None` before the first.
    pub fn scan_age_s(&self) -> Option<f64> {
        Some(self.scanned?.elapsed().as_secs_f64())
    }

    /// Returns whether an attempt to inspect each process has ended, or none will be made.
    pub fn is_complete(&self) -> bool {
        self.scanned.is_some()
            && !self.lacks_charges
            && !self.processes().any(HostProcess::is_waiting)
    }

    pub(crate) fn process_mut(&mut self, pid: u32) -> Option<&mut HostProcess> {
        self.all.get_mut(&pid)
    }

    pub(crate) fn remove(&mut self, pid: u32) {
        self.all.remove(&pid);
    }

    /// Stores the result of a scan.
    pub(crate) fn update(&mut self, found: Vec<Found>, page_bytes: u64, filter: &ScanFilter) {
        let t_s = self.elapsed_s();
        let mut before = std::mem::take(&mut self.all);
        for Found { pid, stat, new } in found {
            let known = before.remove(&pid).filter(|process| process.is(&stat));
            let mut process = match (new, known) {
                (Some(new), _) => *new,
                (None, Some(known)) => known,
                // It has executed another program since the scan started: the next scan finds it.
                (None, None) => continue,
            };
            process.read(t_s, &stat, page_bytes);
            self.all.insert(pid, process);
        }
        if filter.subprocesses {
            self.select_descendants();
        }
        self.find_same_memory();
        self.scanned = Some(Instant::now());
    }

    /// Finds the selected processes that use the same memory.
    fn find_same_memory(&mut self) {
        let mut spaces = AddressSpaces::default();
        for process in self.all.values_mut().filter(|process| process.is_selected) {
            process.same_memory_as = spaces.add(process.pid, process.image);
        }
    }

    fn select_descendants(&mut self) {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for process in self.all.values() {
            children.entry(process.parent).or_default().push(process.pid);
        }
        let selected = self.all.values().filter(|process| process.is_selected);
        let mut next: Vec<u32> = selected.map(|process| process.pid).collect();
        let mut seen: BTreeSet<u32> = next.iter().copied().collect();
        while let Some(pid) = next.pop() {
            for child in children.get(&pid).into_iter().flatten() {
                if seen.insert(*child) {
                    next.push(*child);
                }
            }
        }
        for process in self.all.values_mut() {
            process.is_selected = seen.contains(&process.pid);
        }
    }

    /// Returns the identity of each known process and of its program, for the next scan.
    pub(crate) fn known(&self) -> BTreeMap<u32, Identity> {
        let known = |process: &HostProcess| (process.pid, process.identity());
        self.all.values().map(known).collect()
    }
}

/// A process that a scan has found.
pub(crate) struct Found {
    pid: u32,
    stat: Stat,
    /// The process, if it was not known, or executes another program.
    new: Option<Box<HostProcess>>,
}

/// Lists the processes: all except those of the kernel, those that have ended, and lowtide itself.
///
/// # Errors
/// Fails if `/proc` cannot be read.
pub(crate) fn scan(known: &BTreeMap<u32, Identity>, filter: &ScanFilter) -> io::Result<Vec<Found>> {
    let own = std::process::id();
    let mut found = Vec::new();
    let mut text = Vec::new();
    for pid in pids()? {
        let pid = pid?;
        let found_stat = (pid != own).then(|| stat(pid, &mut text)).flatten();
        let Some((shown_by, stat)) = found_stat.and_then(|stat| shown(pid, stat)) else { continue };
        if stat.has_ended() || stat.is_kernel_thread() {
            continue;
        }
        let is_known = known.get(&pid).is_some_and(|(start_ticks, image, comm)| {
            (*start_ticks, *image) == (stat.start_ticks, stat.image) && *comm == stat.name
        });
        let new = (!is_known).then(|| {
            let exe = links::exe(shown_by).ok().map(|path| path.to_string_lossy().into_owned());
            let groups = Groups::read(shown_by).unwrap_or_default();
            let mut process = HostProcess::new(pid, &stat, exe, groups);
            process.is_selected = filter.selection.fits(pid, &stat.name);
            Box::new(process)
        });
        found.push(Found { pid, stat, new });
    }
    Ok(found)
}

/// Returns the thread by which the kernel shows the memory of a process, with its state: another
/// than the first if that has ended before others. `None` if none is left.
fn shown(pid: u32, stat: Stat) -> Option<(u32, Stat)> {
    if !stat.has_ended() || stat.threads <= 1 {
        return Some((pid, stat));
    }
    let thread = program_threads(pid).ok()?.into_iter().next()?;
    let of_thread = thread.stat().ok()?;
    Some((thread.tid, Stat { name: stat.name, parent: stat.parent, ..of_thread }))
}

fn stat(pid: u32, text: &mut Vec<u8>) -> Option<Stat> {
    text.clear();
    File::open(format!("/proc/{pid}/stat")).ok()?.read_to_end(text).ok()?;
    Stat::parse(&String::from_utf8_lossy(text)).ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn scanned(host: &mut Host, filter: &ScanFilter) {
        let found = scan(&host.known(), filter).unwrap();
        host.update(found, 4096, filter);
    }

    #[test]
    fn a_scan_finds_processes_and_forgets_those_that_have_ended() {
        let child = Ended(Command::new("sleep").arg("1000").spawn().unwrap());
        let pid = child.0.id();
        let mut host = Host::new(Instant::now(), false);
        scanned(&mut host, &ScanFilter::default());
        assert!(host.process(pid).is_some());
        assert!(host.process(std::process::id()).is_none());
        assert!(!host.is_complete());
        let ended = child;
        drop(ended);
        scanned(&mut host, &ScanFilter::default());
        assert!(host.process(pid).is_none());
    }

    #[test]
    fn descendants_of_selected_processes_are_selected_on_request() {
        let home = tempfile::tempdir().unwrap();
        let name = format!("sv{}", std::process::id());
        let program = home.path().join(&name);
        // A link: a copy could not be executed while another test's fork holds it open for writing.
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let parent = Command::new(&program)
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut parent = Ended(parent);
        let mut line = String::new();
        let output = parent.0.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(output), &mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        // Until it executes `sleep`, the child has its parent's name.
        while std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap().trim() == name {
            std::thread::yield_now();
        }
        let selection = Selection { comm: Some(name), ..Selection::default() };
        for subprocesses in [false, true] {
            let filter = ScanFilter { selection: selection.clone(), subprocesses };
            let mut host = Host::new(Instant::now(), false);
            scanned(&mut host, &filter);
            assert!(host.process(parent.0.id()).is_some());
            assert_eq!(host.process(child).is_some(), subprocesses);
        }
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(child as i32).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
    }
}
