//! Selection of processes by program, name or control group.
//!
//! The selection is no protection: a process can give itself any name.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::proc::cgroup::Groups;
use crate::proc::links;
use crate::proc::pids;
use crate::proc::stat::Stat;
use crate::tree;

/// A selection of processes by conditions that must all hold. Without conditions, it selects all
/// visible processes of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Path of the program.
    pub exe: Option<PathBuf>,
    /// Short name (`/proc/PID/comm`), of which the kernel keeps 15 bytes.
    pub comm: Option<String>,
    /// A control group, or one above it.
    pub cgroup: Option<String>,
}

/// Maximum length of a short name in the kernel, in bytes (`TASK_COMM_LEN` without the NUL byte).
const LONGEST_COMM: usize = 15;

impl Selection {
    /// Returns the selected processes, except kernel threads, processes that have ended, and
    /// lowtide itself.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read.
    pub fn processes(&self) -> io::Result<BTreeSet<u32>> {
        let own = std::process::id();
        let exe = self.program();
        let mut found = BTreeSet::new();
        for pid in pids()? {
            let pid = pid?;
            if pid != own && self.is_meant(pid, exe.as_deref()) {
                found.insert(pid);
            }
        }
        Ok(found)
    }

    /// Returns whether it currently selects a process.
    pub fn means(&self, pid: u32) -> bool {
        self.is_meant(pid, self.program().as_deref())
    }

    /// Returns the path of the program, in the form that `/proc` shows.
    fn program(&self) -> Option<PathBuf> {
        self.exe.as_deref().map(|exe| exe.canonicalize().unwrap_or(exe.to_owned()))
    }

    fn is_meant(&self, pid: u32, exe: Option<&Path>) -> bool {
        let Ok(text) = fs::read(format!("/proc/{pid}/stat")) else { return false };
        let Ok(stat) = Stat::parse(&String::from_utf8_lossy(&text)) else { return false };
        if stat.has_ended() || stat.is_kernel_thread() {
            return false;
        }
        self.has_all(pid, &stat.name, exe)
    }

    /// Returns whether it selects a process with this short name that is neither a kernel thread
    /// nor has ended.
    pub fn fits(&self, pid: u32, comm: &str) -> bool {
        self.has_all(pid, comm, self.program().as_deref())
    }

    fn has_all(&self, pid: u32, comm: &str, exe: Option<&Path>) -> bool {
        let is_comm = |name: &String| shortened(name) == comm;
        let is_in = |group: &String| Groups::read(pid).is_ok_and(|groups| groups.is_within(group));
        self.comm.as_ref().is_none_or(is_comm)
            && exe.is_none_or(|exe| runs(pid, exe))
            && self.cgroup.as_ref().is_none_or(is_in)
    }
}

/// Returns a name as the kernel keeps it.
fn shortened(name: &str) -> String {
    let bytes = name.as_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_COMM)]).into_owned()
}

/// Returns whether a process runs a program, also if the file was replaced since, for example by an
/// update.
fn runs(pid: u32, exe: &Path) -> bool {
    let Ok(path) = links::exe(pid) else { return false };
    let text = path.to_string_lossy();
    Path::new(text.strip_suffix(" (deleted)").unwrap_or(&text)) == exe
}

/// Returns some processes and all their descendants.
pub fn with_descendants(processes: &BTreeSet<u32>) -> BTreeSet<u32> {
    let below = processes.iter().flat_map(|pid| tree::descendants_of(*pid));
    processes.iter().copied().chain(below).filter(|pid| *pid != std::process::id()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// Starts a program with a unique name, so that no other process runs it.
    fn started(home: &Path, name: &str) -> Child {
        let program = home.join(name);
        let sleep = ["/bin/sleep", "/usr/bin/sleep"].iter().find(|path| Path::new(path).exists());
        // Copied by another process: a fork of this one for another test could keep the copy open
        // for writing.
        let copied = Command::new("cp").arg(sleep.unwrap()).arg(&program).status().unwrap();
        assert!(copied.success());
        let child = Command::new(&program).arg("1000").spawn().unwrap();
        while !fs::read_link(format!("/proc/{}/exe", child.id())).is_ok_and(|path| path == program)
        {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn a_selected_process_matches_all_given_criteria() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        let name = format!("lt{}-with-a-long-name", std::process::id());
        let mut child = started(&home, &name);
        let selected = |selection: &Selection| selection.processes().unwrap();
        let by_comm = Selection { comm: Some(name.clone()), ..Selection::default() };
        let by_exe = Selection { exe: Some(home.join(&name)), ..Selection::default() };
        assert_eq!(selected(&by_comm), BTreeSet::from([child.id()]));
        assert_eq!(selected(&by_exe), BTreeSet::from([child.id()]));
        let group = Some(Groups::read(child.id()).unwrap().path("").unwrap_or("/").to_owned());
        assert_eq!(selected(&Selection { cgroup: group, ..by_exe.clone() }).len(), 1);
        let elsewhere = Selection { cgroup: Some("/no/such/group".to_owned()), ..by_exe.clone() };
        assert!(selected(&elsewhere).is_empty());
        let other = Selection { comm: Some("another".to_owned()), ..by_exe.clone() };
        assert!(selected(&other).is_empty());
        // An update has replaced its file.
        fs::remove_file(home.join(&name)).unwrap();
        assert_eq!(selected(&by_exe).len(), 1);
        assert!(selected(&Selection::default()).contains(&child.id()));
        assert!(!selected(&Selection::default()).contains(&std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(selected(&by_comm).is_empty());
    }
}
