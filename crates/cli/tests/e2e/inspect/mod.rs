//! `lowtide inspect`, on real processes.

mod bad_input;
mod bounds;
mod cgroup;
mod cores;
mod heap_files;
mod hostile;
mod ledger;
mod looking;
mod odd_ones;
mod pins;
mod pins_over_time;
mod programs;
mod verdicts;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use lowtide_testing::Running;
use serde_json::Value;

use crate::support::{fixture, lowtide};

/// A program that is inspected while it waits for a line of input. It is ended on drop.
pub(crate) struct Subject {
    child: Running,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Subject {
    /// Starts `fixtures/memory.c`, and waits until it has carried out its commands.
    pub(crate) fn of(words: &[&str]) -> Self {
        Self::built(&[], words)
    }

    /// Starts `fixtures/memory.c`, built with additional flags.
    pub(crate) fn built(flags: &[&str], words: &[&str]) -> Self {
        let flags = [&["-pthread"], flags].concat();
        Self::start(plain(&fixture("memory", &flags)).args(words))
    }

    /// Starts a program that prints a line when it is ready, and waits for the line.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut subject = Self::silent(command);
        assert_eq!(subject.line(), "ready", "{command:?}");
        subject
    }

    /// Starts a program that prints nothing.
    pub(crate) fn silent(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} ({error}): .ci/run installs it"));
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Self { child: child.into(), stdin, stdout: BufReader::new(stdout.unwrap()) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until all its threads sleep: until then, the compared memory may still change.
    pub(crate) fn rests(&self) {
        let tasks = format!("/proc/{}/task", self.pid());
        crate::support::until("its threads to wait", || {
            let states = fs::read_dir(&tasks).ok()?.flatten().map(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).ok()?;
                stat.rsplit(')').next().map(|rest| rest.starts_with(" S "))
            });
            states.into_iter().all(|state| state == Some(true)).then_some(())
        });
    }

    /// Sends a command, and returns the lines that it prints until the command is done.
    pub(crate) fn send(&mut self, what: &str) -> Vec<String> {
        self.say(what);
        std::iter::from_fn(|| Some(self.line()).filter(|line| line != "done")).collect()
    }

    /// Sends a line, and returns the line that answers it.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.say(what);
        self.line()
    }

    /// Sends a line without waiting.
    pub(crate) fn say(&mut self, what: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    /// Closes its input, and waits until it ends.
    pub(crate) fn end(&mut self) {
        self.stdin = None;
        self.child.wait().unwrap();
    }

    /// Inspects it.
    pub(crate) fn inspect(&self) -> Value {
        self.inspect_with(&[])
    }

    /// Inspects it with flags.
    pub(crate) fn inspect_with(&self, flags: &[&str]) -> Value {
        let output = inspect(flags, self.pid());
        let object = object(&output);
        assert_eq!(output.status.code(), Some(0), "{object}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        adds_up(&object);
        object
    }

    /// Returns the text of one of its files in `/proc`.
    pub(crate) fn proc(&self, file: &str) -> String {
        let bytes = fs::read(format!("/proc/{}/{file}", self.pid())).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns a value of its `status`, in bytes if it is a size.
    pub(crate) fn status(&self, key: &str) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':')).unwrap();
        let number: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        if line.ends_with("kB") { number * 1024 } else { number }
    }
}

/// Returns a command without environment variables of the developer that would change its heap.
pub(crate) fn plain(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars() {
        if name.starts_with("MALLOC_") || name == "GLIBC_TUNABLES" {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `lowtide inspect --json`.
pub(crate) fn inspect(flags: &[&str], pid: u32) -> Output {
    lowtide().args(["--json", "inspect"]).args(flags).arg(pid.to_string()).output().unwrap()
}

/// Runs a verb that must fail. Returns the error message.
pub(crate) fn failure_of(verb: &str, flags: &[&str], exit: i32, code: &str) -> String {
    let output = lowtide().args(["--json", verb]).args(flags).output().unwrap();
    let found = object(&output);
    assert_eq!(output.status.code(), Some(exit), "{found}");
    assert_eq!((&found["schema"], &found["code"]), (&"lowtide.error/1".into(), &code.into()));
    found["message"].as_str().unwrap().to_owned()
}

/// Returns the PID of a process that has ended.
pub(crate) fn nobody() -> String {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id().to_string()
}

/// Returns the only object that was printed.
pub(crate) fn object(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("panicked"), "{text}");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {} {text}", String::from_utf8_lossy(&output.stdout)))
}

/// Returns the memory of an owner, in bytes.
pub(crate) fn bytes(found: &Value, owner: &str) -> u64 {
    let rows = found["ledger"].as_array().unwrap().iter().filter(|row| row["owner"] == owner);
    let bytes: Vec<u64> = rows.map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert!(!bytes.is_empty(), "no {owner} in {found}");
    bytes.iter().sum()
}

/// Returns the predicted effect of a remedy, in bytes.
pub(crate) fn predicted(found: &Value, cure: &str) -> u64 {
    let cures = found["cures"].as_array().unwrap();
    let cure = cures.iter().find(|c| c["cure"] == cure);
    cure.map_or(0, |cure| cure["predicted_bytes"].as_u64().unwrap())
}

/// Checks that the rows add up to RSS, and that almost all memory has an owner.
pub(crate) fn adds_up(found: &Value) {
    let rows = found["ledger"].as_array().unwrap();
    let total: u64 = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    let rss = found["rss_bytes"].as_u64().unwrap();
    assert_eq!(total, rss, "{found:#}");
    assert!(bytes(found, "unattributed") * 100 <= rss, "{found:#}");
    assert_eq!(found["stopped_s"].as_f64(), Some(0.0));
}

/// Returns the joined sentences of the verdict.
pub(crate) fn because(found: &Value) -> String {
    let because = found["verdict"]["because"].as_array().unwrap();
    because.iter().map(|b| b.as_str().unwrap()).collect::<Vec<_>>().join("; ")
}
