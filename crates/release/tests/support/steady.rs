//! A program that detects every effect of a release on it (`programs/steady.c`).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lowtide_model::release::Release;
use lowtide_probe::target::Target;
use lowtide_release::testing::{TargetStep, release_observed};
use lowtide_release::{Hold, Options, ReleaseError};
use lowtide_testing::Running;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::support;

/// Time after which the program or a release counts as hung.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A part of the reason for which a release fails whose thread in the program has ended, because
/// this process did not run for a second.
pub(crate) const NO_HEARTBEAT: &str = "no heartbeat";

/// The kind of a program.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    pub(crate) program: PathBuf,
    pub(crate) threads: u32,
    pub(crate) wait: &'static str,
    pub(crate) hazard: &'static str,
    /// A preloaded allocator that keeps freed memory.
    pub(crate) allocator: Option<PathBuf>,
    /// The age from which a worker thread runs in it, if it has privileges.
    pub(crate) min_privileged_age: Duration,
    /// Whether our code is written word by word.
    pub(crate) words_only: bool,
    /// The file that holds its releases.
    pub(crate) hold: PathBuf,
}

impl Kind {
    pub(crate) fn new(program: &Path, threads: u32, wait: &'static str) -> Self {
        let (program, min_privileged_age) = (program.to_owned(), Duration::ZERO);
        let (hazard, allocator, words_only, hold) = ("", None, false, PathBuf::new());
        Self { program, threads, wait, hazard, allocator, min_privileged_age, words_only, hold }
    }

    /// Returns the options of a release: if it runs in slices, it needs several.
    pub(crate) fn options(&self) -> Options {
        let max_pause = Duration::from_micros(if self.threads > 1 { 1000 } else { 400 });
        Options {
            max_pause,
            untested: true,
            min_privileged_age: self.min_privileged_age,
            words_only: self.words_only,
            hold: Hold::new(&self.hold),
            ..Options::default()
        }
    }

    /// Returns the command that starts it.
    pub(crate) fn command(&self) -> Vec<String> {
        // More than one batch, unless batches run in slices.
        let megabytes = if self.threads > 1 { 24 } else { 4 };
        let program = self.program.to_string_lossy().into_owned();
        let (threads, megabytes) = (self.threads.to_string(), megabytes.to_string());
        vec![program, threads, self.wait.to_owned(), megabytes, self.hazard.to_owned()]
    }
}

/// The program, which waits. Dropping this ends it.
pub(crate) struct Steady {
    pub(crate) kind: Kind,
    child: Running,
    /// Its PID. If another program has started it, this is not the PID of the child.
    pub(crate) pid: u32,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

/// The errors that the program has detected since the last check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckResult {
    /// `ok`, or a description of the error.
    pub(crate) verdict: String,
    /// Number of waits that returned EINTR although no handler had run.
    pub(crate) interrupted: u32,
    /// Number of handled signals.
    pub(crate) handled: u32,
    /// Number of waits that continued although a handler had run.
    pub(crate) lost: u32,
}

impl CheckResult {
    pub(crate) fn is_well(&self) -> bool {
        (self.verdict.as_str(), self.interrupted, self.lost) == ("ok", 0, 0)
    }
}

impl Steady {
    pub(crate) fn start(kind: &Kind) -> Self {
        Self::start_by(kind, &[])
    }

    /// Starts it; `None` if it reports that something is not supported here.
    pub(crate) fn try_start(kind: &Kind) -> Option<Self> {
        let mut steady = Self::spawn(kind, &[]);
        let line = steady.read_line();
        assert!(line == "unsupported" || line.starts_with("ready "), "it said {line:?}");
        (line != "unsupported").then_some(steady)
    }

    /// Starts it by another program, which receives its command.
    pub(crate) fn start_by(kind: &Kind, by: &[&str]) -> Self {
        let mut steady = Self::spawn(kind, by);
        steady.expect_ready();
        steady
    }

    fn spawn(kind: &Kind, by: &[&str]) -> Self {
        let own = kind.command();
        let mut all = by.iter().copied().chain(own.iter().map(String::as_str));
        let mut command = Command::new(all.next().unwrap());
        if let Some(allocator) = &kind.allocator {
            command.env("LD_PRELOAD", allocator);
            command.env("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1");
            command.env("MIMALLOC_PURGE_DELAY", "1000000");
        }
        let mut child = support::start(command.args(all));
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut steady =
            Self { kind: kind.clone(), pid: child.id(), child: child.into(), input, lines };
        if !by.is_empty() {
            steady.pid = steady.child_of_child();
        }
        steady
    }

    /// Returns the PID of the process that the child has started.
    fn child_of_child(&self) -> u32 {
        let begin = Instant::now();
        loop {
            let file = format!("/proc/{0}/task/{0}/children", self.child.id());
            let text = fs::read_to_string(file).unwrap();
            if let Some(pid) = text.split_ascii_whitespace().next() {
                return pid.parse().unwrap();
            }
            assert!(begin.elapsed() < DEADLINE, "it starts nothing");
            std::thread::yield_now();
        }
    }

    /// Ends it, and starts another one.
    pub(crate) fn replace(&mut self) {
        *self = Self::start(&self.kind);
    }

    pub(crate) fn target(&self) -> Target {
        Target::open(self.pid).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid as i32).unwrap(), signal).unwrap();
    }

    /// Sends it a command.
    pub(crate) fn send(&mut self, line: &str) {
        if let Err(error) = writeln!(self.input, "{line}") {
            panic!("{error} before {line:?}: {:?}, {}", self.child.wait(), self.describe());
        }
        if ["pause", "suspend"].contains(&self.kind.wait) {
            self.signal(Signal::USR2);
        }
    }

    /// Returns whether it prints something within the time.
    pub(crate) fn has_line_within(&mut self, limit: Duration) -> bool {
        if !self.lines.buffer().is_empty() {
            return true;
        }
        let time = rustix::time::Timespec::try_from(limit).unwrap();
        let file = self.lines.get_ref().as_fd();
        poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&time)).unwrap() == 1
    }

    /// Reads the next line that it prints.
    pub(crate) fn read_line(&mut self) -> String {
        let begin = Instant::now();
        // A signal between its check of the input and its wait for signals does not wake it.
        while !self.has_line_within(Duration::from_millis(500)) {
            assert!(begin.elapsed() < DEADLINE, "it says nothing: {}", self.describe());
            if self.kind.wait == "pause" {
                self.signal(Signal::USR2);
            }
        }
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn expect_ready(&mut self) {
        let line = self.read_line();
        assert!(line.starts_with("ready "), "it said {line:?}");
    }

    /// Makes all of its threads check everything.
    pub(crate) fn check(&mut self) -> CheckResult {
        self.send("check");
        let line = self.read_line();
        let words: Vec<&str> = line.rsplitn(7, ' ').collect();
        let [lost, _, handled, _, interrupted, _, verdict] = words[..] else {
            panic!("it said {line:?}")
        };
        let number = |word: &str| word.parse().unwrap();
        CheckResult {
            verdict: verdict.to_owned(),
            interrupted: number(interrupted),
            handled: number(handled),
            lost: number(lost),
        }
    }

    pub(crate) fn hoard(&mut self) {
        self.send("hoard");
        assert_eq!(self.read_line(), "hoarded");
    }

    /// Releases it. On a busy machine, this process may not run for a second. Then the thread of
    /// lowtide ends, and another release follows.
    pub(crate) fn release(&mut self) -> Result<Release, ReleaseError> {
        loop {
            let result = self.release_until(usize::MAX, |_, _| unreachable!("that is no step")).0;
            match result {
                Err(ReleaseError::Failed(reason)) if reason.contains(NO_HEARTBEAT) => {}
                result => return result,
            }
        }
    }

    /// Releases it, and calls `act` before one step of the release. Returns whether there was such
    /// a step as well.
    pub(crate) fn release_until(
        &mut self,
        step: usize,
        act: impl FnOnce(&mut Self, TargetStep),
    ) -> (Result<Release, ReleaseError>, bool) {
        enum News {
            At(TargetStep),
            Done(Box<Result<Release, ReleaseError>>),
        }
        let (target, options) = (self.target(), self.kind.options());
        let (sender, receiver) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (mut count, at) = (0, sender.clone());
            let result = release_observed(&target, &options, &mut move |now| {
                if count == step {
                    at.send(News::At(now)).unwrap();
                    gone.recv().unwrap();
                }
                count += 1;
            });
            let _ = sender.send(News::Done(Box::new(result)));
        });
        let mut act = Some(act);
        loop {
            match receiver.recv_timeout(DEADLINE) {
                Ok(News::At(now)) => {
                    act.take().unwrap()(self, now);
                    go.send(()).unwrap();
                }
                Ok(News::Done(result)) => {
                    thread.join().unwrap();
                    return (*result, act.is_none());
                }
                Err(error) => panic!("the release hangs ({error}) of {}", self.describe()),
            }
        }
    }

    /// Waits until SIGUSR1 is no longer pending: then it has ended the wait.
    pub(crate) fn wait_for_delivery(&self) {
        const SIGUSR1: u64 = 1 << (libc::SIGUSR1 - 1);
        let is_pending = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let masks = status.lines().filter_map(|line| {
                line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))
            });
            masks
                .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
                .any(|m| m & SIGUSR1 != 0)
        };
        let tasks = || fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap().flatten();
        self.wait_while("a signal stays pending", |_| tasks().any(is_pending));
    }

    /// Returns the size of our mappings in it: a page of code without a file, and the mapping right
    /// after it. Not every kernel names them.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left().iter().map(|range| range.end - range.start).sum()
    }

    /// Returns our mappings in it: code, and the block after it.
    pub(crate) fn left(&self) -> Vec<Range<u64>> {
        const LARGEST: u64 = 65 * 4096;
        let maps = self.target().maps().unwrap();
        let is_ours = |name: &str| name.is_empty() || name == "[anon:lowtide]";
        let (mut found, mut last) = (Vec::new(), 0..0);
        for mapping in maps.iter().filter(|m| !m.has_file() && is_ours(&m.name)) {
            let is_block = mapping.start == last.end && mapping.end <= last.start + LARGEST;
            if mapping.permissions == "r-xp" {
                last = mapping.start..mapping.end;
            } else if !is_block {
                continue;
            }
            found.push(mapping.start..mapping.end);
        }
        found
    }

    /// Returns the names and states of its threads, the first one first.
    pub(crate) fn threads(&self) -> Vec<(String, char)> {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return Vec::new() };
        let stats = tasks.flatten().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("stat")).ok()?;
            let (begin, end) = (text.find('(')? + 1, text.rfind(')')?);
            Some((text[begin..end].to_owned(), text[end + 2..].chars().next()?))
        });
        stats.collect()
    }

    /// Returns whether it has more threads than it has started.
    pub(crate) fn has_our_thread(&self) -> bool {
        self.threads().len() > self.kind.threads as usize
    }

    /// Waits until no thread of ours is in it, and none of its own is making calls for us.
    pub(crate) fn wait_for_our_thread(&self) {
        let is_making_calls = |state: char| matches!(state, 'R' | 't');
        self.wait_while("our thread does not leave", |steady| {
            steady.has_our_thread()
                || steady.threads().iter().any(|(_, state)| is_making_calls(*state))
        });
    }

    /// Waits until a condition is over, which `what` describes.
    pub(crate) fn wait_while(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while condition(self) {
            assert!(begin.elapsed() < DEADLINE, "{what}: {}", self.describe());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn has_state(&self, wanted: char) -> bool {
        self.threads().iter().any(|(_, state)| *state == wanted)
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.has_state('t') || self.has_state('T')
    }

    /// Returns the state of its first thread.
    pub(crate) fn first_state(&self) -> char {
        self.threads().first().map_or('X', |(_, state)| *state)
    }

    #[expect(unsafe_code, reason = "system calls that std does not have")]
    /// Sends SIGUSR1 to the thread that is held, or to the first thread if none is.
    pub(crate) fn signal_held(&self) {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap().flatten();
        let held = tasks.into_iter().find(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            !status.contains("TracerPid:\t0\n")
        });
        let held = held.and_then(|task| task.file_name().to_str()?.parse().ok());
        let held: i32 = held.unwrap_or(self.pid as i32);
        // SAFETY: tgkill only takes numbers.
        let done = unsafe { libc::syscall(libc::SYS_tgkill, self.pid, held, libc::SIGUSR1) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Describes it, for failure messages.
    pub(crate) fn describe(&self) -> String {
        let call = fs::read_to_string(format!("/proc/{}/syscall", self.pid)).unwrap_or_default();
        format!("{:?} {:?} {call}", self.kind, self.threads())
    }
}
