//! A keeper is a small process between lowtide and the programs that it starts.
//!
//! It is a subreaper: whatever the subject starts, also in a session of its own, stays below the
//! keeper, so that all of it is followed, nothing else is, and all of it can be ended. When lowtide
//! itself is gone (`kill -9`), the keeper notices that nobody holds the other end of its input, and
//! ends everything too.
//!
//! The two speak JSON Lines: one request and then `stop` into the keeper's standard input,
//! [`KeeperReport`]s out of its standard output. Its standard error is the subject's output.

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
use lowtide_record::v1::Usage;

/// The command that starts a keeper: a program and its first arguments, such as `lowtide keep`.
#[derive(Debug, Clone)]
pub struct KeeperCommand {
    /// The program.
    pub path: PathBuf,
    /// The arguments that make it a keeper.
    pub arguments: Vec<String>,
    /// The soft limit of open files that the subject gets, when lowtide has raised its own.
    pub open_files_limit: Option<u64>,
}

/// A program to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The working directory; lowtide's own when absent.
    pub directory: Option<PathBuf>,
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// Variables to take away.
    pub remove: Vec<String>,
    /// A file for the standard output, when it is to be kept apart from the standard error.
    pub stdout: Option<PathBuf>,
}

impl Launch {
    /// A line for the shell.
    pub fn shell(line: &str, directory: Option<PathBuf>, set: Vec<(String, String)>) -> Self {
        let command = ["sh", "-c", line].map(str::to_owned).to_vec();
        Self { command, directory, set, ..Self::default() }
    }

    /// A variable that is set: of several, the last.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.set.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }
}

/// The request to a keeper.
#[derive(Debug, Serialize, Deserialize)]
struct KeeperRequest {
    launch: Launch,
    open_files_limit: Option<u64>,
    /// How long the processes have to end by themselves, once they are told to.
    grace_s: f64,
}

/// A message from a keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum KeeperReport {
    /// The program runs.
    Started {
        /// Its number.
        pid: u32,
    },
    /// It could not be started.
    CannotStart {
        /// Why.
        because: String,
    },
    /// It has ended; others may be left.
    Exited(ExitReport),
    /// Nothing is left.
    Gone {
        /// What all of them used.
        usage: Usage,
    },
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitReport {
    /// Its exit status, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl ExitReport {
    /// Whether it ended well.
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

/// A report, and when it came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeeperEvent {
    /// When it came.
    pub at: Instant,
    /// What it said.
    pub report: KeeperReport,
}

/// A program under a keeper. Dropping it ends the program and all that it started.
#[derive(Debug)]
pub(crate) struct Kept {
    keeper: Child,
    /// Closing it ends everything.
    control: Option<ChildStdin>,
    events: Receiver<KeeperEvent>,
    /// The program's number, once it runs.
    subject: Option<u32>,
    /// What was received and not yet asked for.
    usage: Option<Usage>,
    gone: bool,
}

/// How long processes have to end by themselves, once they are told to.
const GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end them by force.
const FORCE: Duration = Duration::from_secs(20);

impl Kept {
    /// Starts a program under a keeper; what it prints goes to `output`.
    ///
    /// # Errors
    /// When the keeper itself cannot be started. Whether the program can be is told by the first
    /// event.
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
            // Ctrl-C is for lowtide, which then ends the others in order.
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

    /// The keeper's number: the root of everything that it keeps.
    pub(crate) fn root(&self) -> u32 {
        self.keeper.id()
    }

    /// The next event, if one comes in time.
    pub(crate) fn next_event(&mut self, patience: Duration) -> Option<KeeperEvent> {
        match self.events.recv_timeout(patience) {
            Ok(event) => {
                match event.report {
                    KeeperReport::Started { pid } => self.subject = Some(pid),
                    KeeperReport::Gone { usage } => {
                        self.usage = Some(usage);
                        self.gone = true;
                    }
                    KeeperReport::CannotStart { .. } | KeeperReport::Exited(_) => {}
                }
                Some(event)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // The keeper is gone without a word: somebody has killed it.
                self.gone = true;
                thread::sleep(patience.min(Duration::from_millis(10)));
                None
            }
        }
    }

    /// Whether nothing is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Ends everything that is left, and waits until it is gone. Gives what all of it used, and the
    /// processes that could not be ended.
    pub(crate) fn end(&mut self) -> Ended {
        // Closing is as good as asking; asking lets the keeper answer before it ends.
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
            // Something does not end even by force: it waits for a device, or belongs to another
            // user.
            left = tree::descendants_of(self.root());
            let _ = self.keeper.kill();
        }
        let _ = self.keeper.wait();
        if self.usage.is_none() {
            // The keeper was killed. Nobody holds the others together any more but their group.
            if let Some(group) = self.subject.and_then(|pid| Pid::from_raw(pid as i32))
                && kill_process_group(group, Signal::KILL).is_ok()
            {
                left.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
            }
        }
        Ended { usage: self.usage, left }
    }
}

/// What is left to tell of what was kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ended {
    /// What all of it used.
    pub usage: Option<Usage>,
    /// The processes that could not be ended.
    pub left: BTreeSet<u32>,
}

impl Ended {
    /// The sentence for processes that could not be ended; none when all of them are gone.
    pub(crate) fn complaint(&self) -> Option<String> {
        let numbers: Vec<String> = self.left.iter().map(u32::to_string).collect();
        (!numbers.is_empty()).then(|| {
            let numbers = numbers.join(" ");
            format!(
                "processes are left that could not be ended: end them by `sudo kill -9 {numbers}`"
            )
        })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.control.is_some() {
            self.end();
        }
    }
}
