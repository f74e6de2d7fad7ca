//! A keeper is a small process between lowtide and the programs that it starts.
//!
//! It is a subreaper: every process that the subject starts, even in another session, stays a
//! descendant of the keeper. So lowtide can follow and end all of these processes, and no others.
//! When lowtide itself is gone (`kill -9`), the keeper notices that the other end of its stdin is
//! closed, and ends everything too.
//!
//! They exchange JSON Lines: one request and then `stop` to the keeper's stdin, [`KeeperMessage`]s
//! from its stdout. Its stderr is the subject's output.

pub(crate) mod process;

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use lowtide_probe::tree;
use lowtide_record::v1::TrialUsage;

/// The command that starts a keeper: a program and its first arguments, such as `lowtide keep`.
#[derive(Debug, Clone)]
pub struct KeeperCommand {
    /// The program.
    pub path: PathBuf,
    /// The arguments that make it a keeper.
    pub arguments: Vec<String>,
    /// The soft limit of open files for the subject, if lowtide has raised its own.
    pub open_files_limit: Option<u64>,
}

/// A program to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The working directory; lowtide's own if absent.
    pub directory: Option<PathBuf>,
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// Variables to remove.
    pub remove: Vec<String>,
    /// A file for stdout, if it is to be separate from stderr.
    pub stdout: Option<PathBuf>,
}

impl Launch {
    /// Returns the launch of a shell command.
    pub fn shell(line: &str, directory: Option<PathBuf>, set: Vec<(String, String)>) -> Self {
        let command = ["sh", "-c", line].map(str::to_owned).to_vec();
        Self { command, directory, set, ..Self::default() }
    }

    /// Returns the value of a variable that is set; the last one if it is set several times.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.set.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }
}

/// The request to a keeper.
#[derive(Debug, Serialize, Deserialize)]
struct KeeperRequest {
    launch: Launch,
    open_files_limit: Option<u64>,
    /// Grace period of the processes to end by themselves after they are told to, in seconds.
    grace_s: f64,
}

/// A message from a keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum KeeperMessage {
    /// The program was started.
    Started {
        /// Its PID.
        pid: u32,
    },
    /// It could not be started.
    CannotStart {
        /// The reason.
        because: String,
    },
    /// It has ended; other processes may be left.
    Exited(ExitReport),
    /// No process is left.
    Gone {
        /// The resources that all of them used.
        usage: TrialUsage,
    },
}

/// The exit of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitReport {
    /// Its exit status, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl ExitReport {
    /// Returns whether it succeeded.
    pub(crate) fn is_success(self) -> bool {
        self.code == Some(0)
    }
}

impl std::fmt::Display for ExitReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => write!(f, "an unknown status"),
        }
    }
}

/// A report, and the time of its arrival.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeeperEvent {
    /// The time of its arrival.
    pub at: Instant,
    /// The report.
    pub report: KeeperMessage,
}

/// A program under a keeper. Dropping it ends the program and all processes that it started.
#[derive(Debug)]
pub(crate) struct KeptProgram {
    keeper: Child,
    /// The keeper's stdin; closing it ends everything.
    control: Option<ChildStdin>,
    events: Receiver<KeeperEvent>,
    /// The program's PID, once it runs.
    subject: Option<u32>,
    /// The total usage, after the keeper has reported it.
    usage: Option<TrialUsage>,
    gone: bool,
}

/// Grace period of processes to end by themselves after they are told to.
const GRACE: Duration = Duration::from_secs(2);
/// Maximum time for the kernel to kill them.
const FORCE: Duration = Duration::from_secs(20);

impl KeptProgram {
    /// Starts a program under a keeper. The program's output goes to `output`.
    ///
    /// # Errors
    /// Fails if the keeper itself cannot be started. The first event reports whether the program
    /// could be.
    pub(crate) fn start(
        program: &KeeperCommand,
        launch: Launch,
        output: PipeWriter,
    ) -> io::Result<Self> {
        let mut keeper = Command::new(&program.path)
            .args(&program.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(output)
            // Ctrl-C is meant for lowtide, which then ends the others in order.
            .process_group(0)
            .spawn()?;
        let mut control = keeper.stdin.take();
        let request = KeeperRequest {
            launch,
            open_files_limit: program.open_files_limit,
            grace_s: GRACE.as_secs_f64(),
        };
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        if let Some(control) = &mut control {
            control.write_all(&line)?;
        }
        let (sender, events) = mpsc::channel();
        if let Some(reports) = keeper.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(reports).lines().map_while(Result::ok) {
                    let Ok(report) = serde_json::from_str(&line) else { continue };
                    if sender.send(KeeperEvent { at: Instant::now(), report }).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { keeper, control, events, subject: None, usage: None, gone: false })
    }

    /// Returns the keeper's PID: the root of all processes that it keeps.
    pub(crate) fn root(&self) -> u32 {
        self.keeper.id()
    }

    /// Returns the next event, if one arrives in time.
    pub(crate) fn next_event(&mut self, patience: Duration) -> Option<KeeperEvent> {
        match self.events.recv_timeout(patience) {
            Ok(event) => {
                match event.report {
                    KeeperMessage::Started { pid } => self.subject = Some(pid),
                    KeeperMessage::Gone { usage } => {
                        self.usage = Some(usage);
                        self.gone = true;
                    }
                    KeeperMessage::CannotStart { .. } | KeeperMessage::Exited(_) => {}
                }
                Some(event)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // The keeper ended without a report: it was killed.
                self.gone = true;
                thread::sleep(patience.min(Duration::from_millis(10)));
                None
            }
        }
    }

    /// Returns whether no process is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Ends all remaining processes, and waits until they are gone. Returns their total usage, and
    /// the processes that could not be ended.
    pub(crate) fn end(&mut self) -> Ended {
        // Closing stdin would be enough, but `stop` lets the keeper answer before it ends.
        if let Some(control) = &mut self.control {
            let _ = control.write_all(b"stop\n");
        }
        let deadline = Instant::now() + GRACE + FORCE;
        while !self.gone && Instant::now() < deadline {
            self.next_event(Duration::from_millis(100));
        }
        drop(self.control.take());
        let mut left = BTreeSet::new();
        if !self.gone {
            // A process survives SIGKILL: it waits for a device, or belongs to another user.
            left = tree::descendants_of(self.root());
            let _ = self.keeper.kill();
        }
        let _ = self.keeper.wait();
        if self.usage.is_none() {
            // The keeper was killed. Only their process group still holds the others together.
            if let Some(group) = self.subject.and_then(|pid| Pid::from_raw(pid as i32))
                && kill_process_group(group, Signal::KILL).is_ok()
            {
                left.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
            }
        }
        Ended { usage: self.usage, left }
    }
}

/// The outcome after all processes were ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ended {
    /// The resources that all of them used.
    pub usage: Option<TrialUsage>,
    /// The processes that could not be ended.
    pub left: BTreeSet<u32>,
}

impl Ended {
    /// Returns a sentence about processes that could not be ended; `None` if all of them are gone.
    pub(crate) fn complaint(&self) -> Option<String> {
        let numbers: Vec<String> = self.left.iter().map(u32::to_string).collect();
        (!numbers.is_empty()).then(|| {
            let numbers = numbers.join(" ");
            format!("some processes could not be ended: end them with `sudo kill -9 {numbers}`")
        })
    }
}

impl Drop for KeptProgram {
    fn drop(&mut self) {
        if self.control.is_some() {
            self.end();
        }
    }
}
