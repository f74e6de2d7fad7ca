//! What the kernel counts of a process, and the limits on it.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use lowtide_model::counts::{CountKind, CountLimit, Counts};

use crate::pressure::soft_limit;
use crate::proc::cgroup::Groups;
use crate::proc::hierarchy::Hierarchy;
use crate::proc::links::is_in_first_pid_namespace;
use crate::proc::pids;
use crate::proc::stat::Stat;
use crate::proc::status::Status;
use crate::process::ProcReader;
use crate::target::Target;
use crate::tree::children_of;

/// Maximum number of children whose state is read.
const MAX_CHILDREN: usize = 64 << 10;

/// Counts what a process has; `None` for what cannot be read.
pub fn counts(target: &Target) -> Counts {
    let process = ProcReader::open(target.pid).ok().flatten();
    let open_files =
        process.and_then(|(process, _)| Some(process.descriptors().ok()?.len() as u64));
    let mappings = target.file("maps").and_then(lines).ok();
    let threads = target.stat().ok().map(|stat| stat.threads);
    [open_files, mappings, threads, ended_children(target.pid)]
}

/// Counts the lines of a text, without the whole text in memory.
fn lines(text: impl Read) -> io::Result<u64> {
    let (mut text, mut lines) = (BufReader::new(text), 0);
    loop {
        let bytes = text.fill_buf()?;
        if bytes.is_empty() {
            return Ok(lines);
        }
        lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let length = bytes.len();
        text.consume(length);
    }
}

/// Counts the children of a process that have ended, and for which it has not waited; `None` if
/// they are not known.
pub(crate) fn ended_children(pid: u32) -> Option<u64> {
    let children = children_of(pid)?;
    let count = || children.iter().filter(|pid| has_ended(**pid)).count() as u64;
    (children.len() <= MAX_CHILDREN).then(count)
}

/// Returns whether a process has ended, and only waits for its parent.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat"));
    let stat = stat.map(|bytes| Stat::parse(&String::from_utf8_lossy(&bytes)));
    stat.is_ok_and(|stat| stat.is_ok_and(|stat| stat.has_ended()))
}

/// Returns the limits on a count of a process. `used` is what it has now.
pub fn count_limits(target: &Target, kind: CountKind, used: u64) -> Vec<CountLimit> {
    let own = |name: &str, limit: Option<u64>| {
        limit.map(|limit| CountLimit { name: name.to_owned(), limit, used })
    };
    match kind {
        CountKind::OpenFiles => {
            own("RLIMIT_NOFILE", soft_limit(target, "Max open files ")).into_iter().collect()
        }
        CountKind::Mappings => {
            own("vm.max_map_count", number(Path::new("/proc/sys/vm/max_map_count")))
                .into_iter()
                .collect()
        }
        CountKind::Threads | CountKind::EndedChildren => {
            tasks(target.pid).into_iter().chain(tasks_of_user(target)).collect()
        }
    }
}

/// Returns the limits on tasks, that is on threads of all processes, with those that have ended:
/// those of the process's cgroups, and that of the machine.
fn tasks(pid: u32) -> Vec<CountLimit> {
    let groups = Groups::read(pid).unwrap_or_default();
    let groups = groups_of_tasks(&groups, Hierarchy::read("pids"));
    let of_group = |group: PathBuf| {
        let limit = number(&group.join("pids.max"))?;
        let used = number(&group.join("pids.current"))?;
        let name = format!("pids.max of {}", group.display());
        Some(CountLimit { name, limit, used })
    };
    let mut found: Vec<CountLimit> = groups.into_iter().filter_map(of_group).collect();
    let loadavg = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    for name in ["pid_max", "threads-max"] {
        let limit = number(&Path::new("/proc/sys/kernel").join(name));
        if let Some((limit, used)) = limit.zip(all_tasks(&loadavg)) {
            found.push(CountLimit { name: format!("kernel.{name}"), limit, used });
        }
    }
    found
}

/// Returns the limit on tasks of the user of a process (`RLIMIT_NPROC`): all its processes count,
/// with their threads. `None` if it does not apply to the process, or if not all of them are seen.
fn tasks_of_user(target: &Target) -> Option<CountLimit> {
    let limit = soft_limit(target, "Max processes ")?;
    let user = target.status().ok().filter(has_limited_tasks)?.uid;
    let namespace = |path: String| fs::read_link(path).ok();
    let is_own = namespace(target.path("ns/user"))? == namespace("/proc/self/ns/user".to_owned())?;
    let tasks_of = |pid: u32| {
        let text = |file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
        let status = Status::parse(&String::from_utf8_lossy(&text("status")?)).ok()?;
        let is_of_user = status.uid == user;
        let stat = is_of_user.then(|| Stat::parse(&String::from_utf8_lossy(&text("stat")?)).ok());
        Some(stat??.threads.max(1))
    };
    let used = || Some(pids().ok()?.flatten().filter_map(tasks_of).sum());
    let name = format!("RLIMIT_NPROC of user {user}");
    (is_own && is_in_first_pid_namespace()).then(used).flatten().map(|used| CountLimit {
        name,
        limit,
        used,
    })
}

/// Returns whether the kernel limits the tasks of the user of a process: not for root, nor with
/// CAP_SYS_ADMIN or CAP_SYS_RESOURCE (`copy_process` in kernel/fork.c).
fn has_limited_tasks(status: &Status) -> bool {
    const EXEMPT: u64 = 1 << 21 | 1 << 24;
    status.uid != 0 && status.capabilities & EXEMPT == 0
}

/// Returns the directories of the groups that limit the tasks of a process, from its own to the
/// mount point.
fn groups_of_tasks(groups: &Groups, hierarchy: Option<Hierarchy>) -> Vec<PathBuf> {
    let path = groups.path("pids").or_else(|| groups.path(""));
    let own = hierarchy.and_then(|hierarchy| hierarchy.directory(path?));
    own.map_or(Vec::new(), |own| own.mount.ancestors(&own.directory))
}

/// Returns the number of tasks of the machine, from the text of `/proc/loadavg`.
fn all_tasks(loadavg: &str) -> Option<u64> {
    loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Returns the number in a file; `None` for `max`, and if it cannot be read.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::proc::mountinfo::mounts;

    #[test]
    fn the_group_that_limits_tasks_is_found_in_both_versions() {
        let group = |mount: &str, text: &str| {
            let (mount, groups) = (format!("30 24 0:26 / {mount}\n"), Groups::parse(text));
            let hierarchy = Hierarchy::new(mounts(&mount).collect(), &groups, "pids");
            groups_of_tasks(&groups, hierarchy)
        };
        let v1 = "12:pids:/docker/ab\n1:name=systemd:/x\n0::/system.slice\n";
        let of_v1 = group("/sys/fs/cgroup/pids rw - cgroup cgroup rw,pids", v1);
        assert_eq!(of_v1[0], Path::new("/sys/fs/cgroup/pids/docker/ab"));
        let mount = "/sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        let of_v2 = group(mount, "0::/system.slice/a.service\n");
        assert_eq!(of_v2[0], Path::new("/sys/fs/cgroup/system.slice/a.service"));
        assert_eq!(of_v2.len(), 3);
        assert!(group(mount, "0::/../outside\n").is_empty());
        assert!(group(mount, "1:cpu:/\n").is_empty());
        assert_eq!(all_tasks("0.5 0.6 0.7 3/812 9000\n"), Some(812));
    }

    #[test]
    fn tasks_of_a_user_are_limited_unless_it_is_root_or_has_a_capability() {
        let with = |uid, capabilities| Status { uid, capabilities, ..Status::default() };
        assert!(has_limited_tasks(&with(1000, 1 << 19)));
        let exempt = [with(0, 0), with(1000, 1 << 21), with(1000, 1 << 24)];
        assert!(!exempt.iter().any(has_limited_tasks));
    }

    #[test]
    fn the_tasks_of_a_user_count_with_their_threads() {
        // Only root can start a process of a user that has no other, and in a namespace of users,
        // this one need not exist.
        let users = fs::read_to_string("/proc/self/uid_map").unwrap();
        let has_all = users.split_whitespace().eq(["0", "0", "4294967295"]);
        if !rustix::process::geteuid().is_root() || !has_all {
            return;
        }
        let user = 3_000_000_000 + std::process::id();
        let script = "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(99,)).start()\n\
                      print('ready', flush=True)";
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), "--clear-groups".to_owned()]);
        command.args(["prlimit", "--nproc=77", "python3", "-c", script]);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let found = tasks_of_user(&Target::open(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        // In a namespace of PIDs, not all processes are seen.
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
        let sees_all = namespace.to_string_lossy() == "pid:[4026531836]";
        let name = format!("RLIMIT_NPROC of user {user}");
        let expected = CountLimit { name, limit: 77, used: 5 };
        assert_eq!(found, sees_all.then_some(expected));
    }

    #[test]
    fn lines_are_counted_across_the_parts_of_a_text() {
        let text = "a line\n".repeat(10_000);
        assert_eq!(lines(text.as_bytes()).unwrap(), 10_000);
        assert_eq!(lines(io::empty()).unwrap(), 0);
    }

    #[test]
    fn the_counts_are_those_of_the_process() {
        let own = Target::open(std::process::id()).unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        while !has_ended(child.id()) {
            std::thread::yield_now();
        }
        let [open_files, mappings, threads, ended] = counts(&own);
        child.wait().unwrap();
        assert!(open_files.unwrap() >= 3 && mappings.unwrap() > 10 && threads.unwrap() >= 1);
        // Other tests may have children of their own.
        assert!(ended.is_none_or(|ended| ended >= 1));
        let limits = count_limits(&own, CountKind::OpenFiles, open_files.unwrap());
        assert!(limits.iter().all(|limit| limit.used < limit.limit), "{limits:?}");
        assert!(!count_limits(&own, CountKind::Threads, 1).is_empty());
    }
}
