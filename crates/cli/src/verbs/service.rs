//! A process as a service: what starts it, with which command, and where it listens.

use std::path::{Path, PathBuf};

use lowtide_probe::proc::cgroup::Groups;
use lowtide_probe::proc::links;
use lowtide_probe::process::ProcReader;
use lowtide_probe::sockets::{Listening, listening};
use lowtide_probe::target::Target;

use crate::shell::copyable;

/// The start command of a process, and the address at which it listens.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Service {
    /// Its command line; `None` if the process has overwritten it with a title.
    pub(super) command: Option<Vec<String>>,
    /// Its working directory, if it differs from that of lowtide.
    pub(super) directory: Option<String>,
    /// The address at which it listens.
    pub(super) listening: Option<Listening>,
    /// What starts it.
    pub(super) starter: Starter,
    /// Names of the variables that it was started with and that decide how memory is kept.
    pub(super) settings: Vec<String>,
    /// Where its paths lead, if not where those of lowtide do: `in …`.
    pub(super) elsewhere: Option<String>,
}

/// What starts a process, and thus where its variables are set.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Starter {
    /// A unit of systemd.
    Unit(String),
    Kubernetes,
    /// A container of Docker, Podman or another engine.
    Container,
    #[default]
    Unknown,
}

impl Starter {
    /// Returns the starter that the names of the control groups show.
    fn of(groups: &Groups) -> Self {
        let path = groups.path("").filter(|path| *path != "/");
        let path = path.or_else(|| groups.path("memory")).or_else(|| groups.path("pids"));
        let path = path.unwrap_or_default();
        let has = |names: &[&str]| names.iter().any(|name| path.contains(name));
        if has(&["kubepods"]) {
            Self::Kubernetes
        } else if has(&["docker", "libpod", "containerd", "crio", "lxc", "buildkit"]) {
            Self::Container
        } else {
            unit_of(groups).map_or(Self::Unknown, Self::Unit)
        }
    }
}

impl Service {
    /// Reads the service from `/proc`. Unreadable fields stay unknown.
    pub(super) fn read(target: &Target) -> Self {
        let (directory, elsewhere) = place(target.pid);
        let process = ProcReader::open(target.pid).ok().flatten().map(|(process, _)| process);
        Self {
            command: started_with(target.pid),
            directory,
            listening: process.as_ref().and_then(listening),
            starter: Groups::read(target.pid)
                .map(|groups| Starter::of(&groups))
                .unwrap_or_default(),
            settings: lowtide_study::settings_of(target),
            elsewhere,
        }
    }
}

/// Returns the working directory of a process, as the process sees it, if it is not that of
/// lowtide; and where its paths lead, if not where those of lowtide do.
fn place(pid: u32) -> (Option<String>, Option<String>) {
    let root = links::root(pid).ok().filter(|root| root.as_os_str() != "/");
    let inside = |directory: PathBuf| match &root {
        None => Some(directory),
        Some(root) => Some(Path::new("/").join(directory.strip_prefix(root).ok()?)),
    };
    let own = std::env::current_dir().ok();
    let directory = links::directory(pid).ok().filter(|theirs| Some(theirs) != own.as_ref());
    let directory = directory.and_then(inside).map(|path| path.display().to_string());
    let elsewhere = match &root {
        Some(root) => Some(match copyable(&[root.display().to_string()]) {
            None => "in a root directory of its own".to_owned(),
            Some(root) => format!("in the root directory {root}"),
        }),
        None => links::has_other_mounts(pid)
            .then(|| "in another mount namespace, such as a container's".to_owned()),
    };
    (directory, elsewhere)
}

/// Returns the command that started a process. A process that has overwritten its command line with
/// a title is usually a worker, and its parent, which runs the same program, has the command.
fn started_with(pid: u32) -> Option<Vec<String>> {
    /// Maximum number of processes that are checked, from child to parent.
    const MAX_ANCESTORS: usize = 8;
    let exe = links::exe(pid).ok()?;
    let mut pid = pid;
    for _ in 0..MAX_ANCESTORS {
        let (process, stat) = ProcReader::open(pid).ok().flatten()?;
        let command = process.command();
        if is_command(&command, &exe) {
            return Some(command);
        }
        pid = stat.parent;
        if links::exe(pid).ok().as_ref() != Some(&exe) {
            return None;
        }
    }
    None
}

/// Returns whether words are a command line, and not a title such as `nginx: worker process` or
/// `[wait]`, which is one word and no path. The process chooses them, so none is looked up in its
/// directories: their file system may not answer.
fn is_command(words: &[String], exe: &Path) -> bool {
    let Some(first) = words.first().filter(|first| !first.is_empty()) else { return false };
    let is_title = first.starts_with(['[', '-']) || first.ends_with(':') || first.contains(' ');
    !is_title || Path::new(first) == exe
}

/// Returns the systemd unit of a service: the last part of its cgroup's path that is a service.
fn unit_of(groups: &Groups) -> Option<String> {
    let path = groups.path("name=systemd").or_else(|| groups.path(""))?;
    let part = path.rsplit('/').find(|part| part.ends_with(".service"))?;
    // A user's unit may have the name of a system unit, and so may a path that systemd did not
    // create.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":_.\\@-".contains(c);
    let is_systems = !path.starts_with("/user.slice") && part.chars().all(is_plain);
    is_systems.then(|| part.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_not_a_command() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let exe = Path::new("/opt/my server/bin/server");
        for title in ["postgres: a b 127.0.0.1(49014) idle", "[wait]", "nginx:", "-bash", ""] {
            assert!(!is_command(&[title.to_owned()], exe), "{title}");
        }
        assert!(is_command(&words("sh -c true"), exe) && is_command(&words("/bin/sh"), exe));
        assert!(is_command(&["/opt/my server/bin/server".to_owned()], exe));
    }

    #[test]
    fn the_starter_of_a_process_is_in_the_names_of_its_groups() {
        let starter = |text: &str| Starter::of(&Groups::parse(text));
        assert_eq!(starter("0::/system.slice/a.service"), Starter::Unit("a.service".to_owned()));
        assert_eq!(
            starter("0::/kubepods.slice/kubepods-pod1.slice/cri-1.scope"),
            Starter::Kubernetes
        );
        assert_eq!(starter("0::/system.slice/docker-1.scope"), Starter::Container);
        assert_eq!(starter("4:memory:/docker/abc\n0::/"), Starter::Container);
        assert_eq!(starter("0::/"), Starter::Unknown);
    }

    #[test]
    fn the_systemd_unit_is_found_under_cgroup_v1_and_v2() {
        let unit = |text: &str| unit_of(&Groups::parse(text));
        assert_eq!(unit("0::/system.slice/a.service/sub").as_deref(), Some("a.service"));
        assert_eq!(
            unit("1:name=systemd:/system.slice/b.service\n0::/").as_deref(),
            Some("b.service")
        );
        assert_eq!(unit("0::/docker/abc"), None);
        assert_eq!(unit("0::/user.slice/user-1000.slice/sshd.service"), None);
        assert_eq!(unit("0::/system.slice/\x1b]0;x.service"), None);
    }
}
