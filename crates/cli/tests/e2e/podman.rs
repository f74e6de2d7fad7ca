//! lowtide in and around containers of podman and runc, with the capabilities and the seccomp
//! profile that the runtime gives to every container.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::inspect::object;
use crate::schemas::hold_release;
use crate::supervision::wild::{INTACT, children, program, releases};
use crate::supervision::{Attached, MIB, acts, pid_of};
use crate::support::{copy_program, lowtide, until};

/// The name of the image.
const IMAGE: &str = "lowtide-test";
/// User of a process that is not root, in containers.
const USER: u32 = 1000;
/// Limits that containers on any host may have.
const LIMITS: [&str; 2] = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];

/// An installation of podman with its own storage, and an image with `fixtures/wild.c`, a C library
/// and nothing else.
struct Podman {
    home: tempfile::TempDir,
}

impl Podman {
    fn new() -> Self {
        let podman = Self { home: tempfile::tempdir().unwrap() };
        let root = podman.path("root");
        fs::create_dir(&root).unwrap();
        copy_program(program(), root.join("wild"));
        fs::write(root.join("text"), "no program").unwrap();
        for library in libraries() {
            succeeds(Command::new("cp").args(["--parents", "-L", &library]).arg(&root));
        }
        let (archive, log) = (podman.path("root.tar"), podman.path("acts"));
        succeeds(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg("."));
        succeeds(podman.command().arg("import").arg(&archive).arg(IMAGE));
        fs::create_dir(&log).unwrap();
        std::os::unix::fs::chown(&log, Some(USER), None).unwrap();
        podman
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("podman");
        for (flag, name) in [("--root", "storage"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            command.arg(flag).arg(self.path(name));
        }
        command.arg(format!("--runtime-flag=root={}", self.path("runc").display()));
        command.args(["--runtime=runc", "--storage-driver=vfs", "--cgroup-manager=cgroupfs"]);
        command.args(["--events-backend=file", "--log-level=error"]).stdin(Stdio::null());
        command
    }

    /// Returns a command that runs a program as the first process of a container. The container has
    /// a read-only root, the binary as `/lowtide`, and the directory of the log as `/acts`.
    fn run(&self, flags: &[&str], words: &[&str]) -> Command {
        let mut command = self.command();
        command.args(["run", "--network=none", "--read-only", "--log-driver=k8s-file"]);
        command.arg(format!("--volume={}:/lowtide:ro", env!("CARGO_BIN_EXE_lowtide")));
        command.arg(format!("--volume={}:/acts", self.path("acts").display()));
        command.args(LIMITS).args(flags).arg(IMAGE).args(words);
        command
    }

    /// Starts a container in the background.
    fn start(&self, flags: &[&str], words: &[&str]) -> Container<'_> {
        let id =
            succeeds(self.run(&[&["--detach"], flags].concat(), words).stderr(Stdio::inherit()));
        Container { podman: self, id }
    }

    /// Runs a container to its end, and returns its exit code and its standard error. Nothing is
    /// attached to it: podman sometimes attaches too late to one that ends at once.
    fn code_and_text(&self, flags: &[&str], words: &[&str]) -> (i32, String) {
        let container = self.start(flags, words);
        let code = container.code();
        let logs = container.podman.command().args(["logs", &container.id]).output().unwrap();
        (code, String::from_utf8_lossy(&logs.stderr).into_owned())
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.command().args(["rm", "--all", "--force", "--time=0"]).output();
    }
}

/// Returns the libraries of lowtide and of the program.
fn libraries() -> Vec<String> {
    let listed = succeeds(Command::new("ldd").args([env!("CARGO_BIN_EXE_lowtide"), &program()]));
    // The first lines of each program end with a colon.
    let words = listed.lines().filter(|line| !line.ends_with(':')).flat_map(str::split_whitespace);
    words.filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

/// Runs a command that must succeed, and returns its output.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} ({error})"));
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}: {stderr}");
    stdout.trim().to_owned()
}

/// A container that runs in the background.
struct Container<'p> {
    podman: &'p Podman,
    id: String,
}

impl Container<'_> {
    fn does(&self, verb: &[&str]) -> String {
        succeeds(self.podman.command().args(verb).arg(&self.id))
    }

    /// Returns the PID of its first process on the host.
    fn pid(&self) -> u32 {
        self.does(&["inspect", "--format={{.State.Pid}}"]).parse().unwrap()
    }

    /// Returns the PID on the host of the command that `run` has started in it.
    fn service(&self) -> u32 {
        let is_service = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "wild\n")
        };
        until("the service", || children(self.pid()).into_iter().find(is_service))
    }

    /// Waits until it has ended, and returns its exit code.
    fn code(&self) -> i32 {
        self.does(&["wait"]).parse().unwrap()
    }

    /// Stops it as an orchestrator does: sends SIGTERM, and waits. Returns its exit code.
    fn stop(&self) -> i32 {
        self.does(&["stop", "--time=60"]);
        self.code()
    }

    /// Asserts that it is confined like any container: by a seccomp filter, and without the right
    /// to trace others.
    fn is_confined(&self) {
        const SYS_PTRACE: u32 = 19;
        const SYS_ADMIN: u32 = 21;
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let value =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
        assert_eq!(value("Seccomp:"), "2");
        let bounding = u64::from_str_radix(value("CapBnd:"), 16).unwrap();
        assert_eq!(bounding & (1 << SYS_PTRACE | 1 << SYS_ADMIN), 0, "{status}");
    }
}

/// Waits for a release of most of a hoard, and returns its act.
fn until_released(log: &std::path::Path) -> Value {
    let is_large = |act: &Value| act["returned_bytes"].as_u64() > Some(50 * MIB);
    until("a release", || releases(log).into_iter().find(is_large))
}

#[test]
#[ignore = "needs podman and root"]
fn run_as_entry_point_keeps_memory_low_and_passes_signals_and_the_exit_code_on() {
    let podman = Podman::new();
    for user in ["0", "1000"] {
        // A log is written only in a directory of root or of the user.
        let owner = user.parse().unwrap();
        std::os::unix::fs::chown(podman.path("acts"), Some(owner), None).unwrap();
        let name = format!("acts/{user}.jsonl");
        let run = ["/lowtide", "run", "--log", &format!("/{name}"), "--", "/wild"];
        let words = [&run[..], &["mib:100", "rest:2000"]].concat();
        let container = podman.start(&["--user", user, "--memory=300m"], &words);
        container.is_confined();
        let log = podman.path(&name);
        let act = until_released(&log);
        assert!(act["rss.after"].as_u64() < Some(60 * MIB), "{act:#}");
        assert_eq!(container.stop(), INTACT, "as user {user}");
        assert!(acts(&log, "left_alone").is_empty());
    }
}

#[test]
#[ignore = "needs podman and root"]
fn memory_is_released_when_little_is_left_of_the_limit_of_the_container() {
    let podman = Podman::new();
    let run = ["/lowtide", "run", "-p", "pressure", "--log", "/acts/acts.jsonl", "--", "/wild"];
    let words = [&run[..], &["mib:276", "rest:2000"]].concat();
    let container = podman.start(&["--user=1000", "--memory=300m"], &words);
    let act = until_released(&podman.path("acts/acts.jsonl"));
    assert!(act["reason"].as_str().unwrap().contains(" of 300 MiB are in use"), "{act:#}");
    assert_eq!(container.stop(), INTACT);
}

#[test]
#[ignore = "needs podman and root"]
fn from_the_host_release_and_attach_reach_a_process_in_a_container() {
    let podman = Podman::new();
    let container = podman.start(&["--user=1000"], &["/wild", "mib:100", "rest:1000"]);
    container.is_confined();
    let pid = container.pid().to_string();
    let release = until("a release", || {
        // Between two rests, little is free.
        let output = lowtide().args(["--json", "release", &pid]).output().unwrap();
        let found = object(&output);
        hold_release(&found);
        (found["returned_bytes"].as_u64() > Some(50 * MIB)).then_some(found)
    });
    assert_ne!(release["outcome"], "refused");
    let group = container.does(&["inspect", "--format={{.State.CgroupPath}}"]);
    for (name, scope) in [("pid", &[pid.as_str()][..]), ("group", &["--cgroup", &group])] {
        let log = podman.home.path().join(name);
        let log_flag = ["--log", log.to_str().unwrap()];
        let mut attached = Attached::start(&[scope, &log_flag[..]].concat());
        assert_eq!(until_released(&log)["pid"], container.pid());
        if name == "pid" {
            attached.interrupt();
            continue;
        }
        assert_eq!(container.stop(), INTACT);
        attached.interrupt();
    }
}

#[test]
#[ignore = "needs podman and root"]
fn at_the_limit_on_tasks_the_command_runs_undisturbed() {
    let podman = Podman::new();
    // The two processes of `run` and the command, and at most two threads.
    for limit in 3..=5 {
        let run = ["/lowtide", "run", "-p", "periodic=200ms", "--", "/wild", "ends:20", "rest:50"];
        let flags = ["--user=1000", &format!("--pids-limit={limit}")];
        let (code, said) = podman.code_and_text(&flags, &run);
        assert_eq!(code, INTACT, "{limit}: {said}");
        let is_clean =
            !["panicked", "policy process", "left alone"].iter().any(|w| said.contains(w));
        assert!(is_clean, "{limit}: {said}");
    }
}

#[test]
#[ignore = "needs podman and root"]
fn an_allocator_is_preloaded_in_an_image_without_any_other_program() {
    let podman = Podman::new();
    let run = ["/lowtide", "run", "-a", "jemalloc", "--", "/wild", "ends:2"];
    let (code, said) = podman.code_and_text(&["--user=1000"], &run);
    assert_eq!((code, said.as_str()), (INTACT, ""));
}

#[test]
#[ignore = "needs podman and root"]
fn the_exit_code_of_a_container_is_that_of_its_command_or_describes_the_failure() {
    let podman = Podman::new();
    let nowhere = ["/lowtide", "run", "--log", "/nowhere/log", "--", "/wild"];
    for (words, code, text) in [
        (&["/lowtide", "run", "--", "/wild", "ends:2"][..], INTACT, ""),
        (&["/lowtide", "run", "--", "/nothing"], 127, "was not found"),
        (&["/lowtide", "run", "--", "/text"], 126, "cannot be executed"),
        (&nowhere, 125, "/nowhere/log"),
        (&["/lowtide", "run", "--no-such-flag"], 125, "--no-such-flag"),
    ] {
        let (found, said) = podman.code_and_text(&["--user=1000"], words);
        assert_eq!(found, code, "{words:?}: {said}");
        assert!(said.contains(text), "{words:?}: {said}");
    }
    let words = ["/lowtide", "run", "--", "/wild", "rest:100"];
    let container = podman.start(&["--user=1000"], &words);
    container.service();
    container.does(&["kill", "--signal=HUP"]);
    assert_eq!(container.code(), 128 + Signal::HUP.as_raw());
    let container = podman.start(&["--user=1000"], &words);
    kill_process(pid_of(container.service()), Signal::KILL).unwrap();
    assert_eq!(container.code(), 128 + Signal::KILL.as_raw());
}
