//! Common parts of the tests: the binary, the subject, and waiting for conditions.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(crate) use lowtide_testing::until;
use serde_json::Value;

/// Restores the default signal actions: tests in the background may have been started with signals
/// ignored.
#[allow(unsafe_code)]
fn as_from_a_terminal(command: &mut Command) {
    use nix::sys::signal::{SigHandler, Signal, signal};
    let restore = || {
        for ends in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTERM] {
            // SAFETY: the default action installs no handler of this process.
            unsafe { signal(ends, SigHandler::SigDfl) }?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec, it only makes system calls, and allocates no memory.
    unsafe { command.pre_exec(restore) };
}

/// A file that does not exist: a hold on this host must not hold the releases of a test.
pub(crate) const NO_HOLD: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-hold");

/// Returns the binary with its own cache, without environment variables of the developer that would
/// change its output.
pub(crate) fn lowtide() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowtide"));
    command
        .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
        .env("LOWTIDE_HOLD", NO_HOLD)
        .env("NO_COLOR", "1")
        .env("COLUMNS", "110")
        .env_remove("GITHUB_ACTIONS")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        if name.starts_with("MALLOC_") || name == "GLIBC_TUNABLES" {
            command.env_remove(name);
        }
    }
    as_from_a_terminal(&mut command);
    command
}

/// Compiles the subject of studies, once for each set of flags.
pub(crate) fn subject(flags: &[&str]) -> String {
    fixture("subject", flags)
}

/// Compiles a program of `fixtures`, once for each set of flags.
pub(crate) fn fixture(name: &str, flags: &[&str]) -> String {
    compiled(name, &format!("tests/fixtures/{name}.c"), flags)
}

/// Compiles a source to a program of this name, once for each set of flags. The path of the source
/// is relative to this crate.
pub(crate) fn compiled(name: &str, source: &str, flags: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}{}", flags.concat()));
    lowtide_testing::compile_if_older(&target, &source, ["-O1"].iter().chain(flags));
    target.display().to_string()
}

/// Copies a program in another process: if this process made the copy, a fork for another test
/// could still have it open, and a file that is open for writing cannot be executed.
pub(crate) fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().unwrap();
    assert!(copied.success());
}

/// A completed run of a study.
pub(crate) struct Ran {
    pub(crate) output: Output,
    pub(crate) record: PathBuf,
    /// Keeps the directory.
    _home: tempfile::TempDir,
}

/// Runs `lowtide study --json` with its record in a separate directory.
pub(crate) fn study<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("record");
    let output = lowtide()
        .args(["study", "--json", "--output"])
        .arg(&record)
        .args(arguments)
        .output()
        .unwrap();
    Ran { output, record, _home: home }
}

impl Ran {
    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {} {}", self.stdout(), self.stderr()))
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Returns the trials. The study must have succeeded.
    pub(crate) fn trials(&self) -> Vec<Value> {
        assert_eq!(self.code(), Some(0), "{}\n{}", self.stdout(), self.stderr());
        self.json()["trials"].as_array().unwrap().clone()
    }

    /// Returns the lines of a trial's file.
    pub(crate) fn lines(&self, trial: &Value) -> Vec<Value> {
        lines(&self.record.join(trial["samples"].as_str().unwrap()))
    }

    /// Returns the output of a trial's subject.
    pub(crate) fn log(&self, trial: &Value) -> String {
        let samples = trial["samples"].as_str().unwrap().replace(".jsonl", ".log");
        fs::read_to_string(self.record.join(samples)).unwrap()
    }
}

/// Returns the lines of a JSONL file, except one that is still being written.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the other processes with a word in their command line.
pub(crate) fn processes_with(word: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&command).replace('\0', " ");
        if pid != std::process::id() && text.contains(word) {
            found.push(pid);
        }
    }
    found
}

/// Returns a number that no other test uses, by which a process can be found.
pub(crate) fn unique_seconds() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = u64::from(std::process::id()) * 100 + NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}", 1_000_000_000 + own)
}

/// Returns a port on which no process listens.
pub(crate) fn free_port() -> u16 {
    let any = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    any.local_addr().unwrap().port()
}

/// Returns a number in an object.
pub(crate) fn number(object: &Value, key: &str) -> f64 {
    object[key].as_f64().unwrap_or_else(|| panic!("{key} is {} in {object}", object[key]))
}
