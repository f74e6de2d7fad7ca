//! Processes with a reaper, for tests.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub(crate) use lowtide_testing::{until, until_true};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Maximum time to wait in a test, on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The program of these tests.
pub(crate) const RUN_REAPER: &str = env!("CARGO_BIN_EXE_run_reaper");

/// A reaper in a process group of its own. Dropping it kills the group.
pub(crate) struct Reaper {
    child: Child,
    status: Option<ExitStatus>,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Reaper {
    /// Starts a service under a reaper, with a policy of `run_reaper`.
    pub(crate) fn start(policy: &str, service: &[&str]) -> Self {
        Self::spawn(Command::new(RUN_REAPER).arg(policy).args(service))
    }

    /// Starts a shell script as the service.
    pub(crate) fn script(policy: &str, script: &str) -> Self {
        Self::start(policy, &["sh", "-c", script])
    }

    /// Starts the service that prints signals. Also returns its PID.
    pub(crate) fn signals(policy: &str) -> (Self, u32) {
        let reaper = Self::start(policy, &[RUN_REAPER, "signals"]);
        let service = reaper.ready();
        (reaper, service)
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self::spawn_in_group(command.stdin(Stdio::null()).process_group(0))
    }

    /// Starts a command that makes itself the leader of a process group.
    pub(crate) fn spawn_in_group(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Self { child, status: None, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn send_to_group(&self, signal: Signal) {
        kill_process_group(pid(self.pid()), signal).unwrap();
    }

    /// Waits for a line of stdout, and returns it.
    pub(crate) fn line(&self) -> String {
        self.stdout.recv_timeout(DEADLINE).expect("a line on stdout")
    }

    /// Waits for the line by which the service that prints signals reports its PID.
    pub(crate) fn ready(&self) -> u32 {
        self.line().strip_prefix("ready ").unwrap().parse().unwrap()
    }

    /// Waits for the end of stdout, and returns the remaining lines.
    pub(crate) fn rest(&self) -> Vec<String> {
        rest(&self.stdout)
    }

    /// Waits for the end of stderr, and returns the remaining lines.
    pub(crate) fn errors(&self) -> Vec<String> {
        rest(&self.stderr)
    }

    /// Waits for a line of stderr that contains a text, and returns it.
    pub(crate) fn error(&self, text: &str) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            let remaining = end.saturating_duration_since(Instant::now());
            let line = self.stderr.recv_timeout(remaining).expect(text);
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Waits until the reaper has ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the end of the reaper", || {
            self.status = self.child.try_wait().unwrap();
            self.status
        })
    }

    /// Returns the children of the reaper that are not the policy.
    pub(crate) fn children(&self) -> Vec<Process> {
        let mut children = children(self.pid());
        children.retain(|child| child.name != "lowtide-policy");
        children
    }

    /// Waits for the policy process, and returns its PID.
    pub(crate) fn policy(&self) -> u32 {
        until("a policy process", || {
            let mut all = children(self.pid()).into_iter();
            Some(all.find(|child| child.name == "lowtide-policy" && child.state != 'Z')?.pid)
        })
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // Once the reaper was reaped, its PID may belong to another group, or to none.
        if self.status.is_none() {
            let _ = kill_process_group(pid(self.pid()), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// A process as `/proc` shows it.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) state: char,
    parent: u32,
}

impl Process {
    /// Reads a process; `None` if it was reaped.
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let (state, rest) = rest.split_once(' ')?;
        let parent = rest.split_once(' ')?.0.parse().ok()?;
        Some(Self { pid, name: name.to_owned(), state: state.chars().next()?, parent })
    }
}

/// Returns whether a process runs: it was not reaped, and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    Process::read(pid).is_some_and(|process| process.state != 'Z')
}

/// Returns the children of a process, zombies included.
pub(crate) fn children(parent: u32) -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::read).filter(|process| process.parent == parent).collect()
}

/// Returns a field of `/proc/PID/status`.
pub(crate) fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut fields = status.lines().filter_map(|line| line.split_once(":\t"));
    fields.find(|(name, _)| *name == field).unwrap().1.to_owned()
}

pub(crate) fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

pub(crate) fn send(number: u32, signal: Signal) {
    kill_process(pid(number), signal).unwrap();
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // The test may have ended.
            let _ = sender.send(line);
        }
    });
    receiver
}

fn rest(lines: &Receiver<String>) -> Vec<String> {
    let end = Instant::now() + DEADLINE;
    let mut rest = Vec::new();
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => rest.push(line),
            Err(error) => {
                assert_eq!(error, std::sync::mpsc::RecvTimeoutError::Disconnected, "{rest:?}");
                return rest;
            }
        }
    }
}
