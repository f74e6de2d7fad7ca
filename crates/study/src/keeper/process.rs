//! The keeper itself, which the hidden verb `lowtide keep` runs.

use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, pidfd_send_signal, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use lowtide_probe::proc::directory::ProcessDirectory;
use lowtide_probe::tree;
use lowtide_record::files;
use lowtide_record::v1::TrialUsage;

use super::{ExitReport, KeeperMessage, KeeperRequest, Launch};
use crate::programs::find_program;

/// Starts the program of the request on its stdin, and keeps it until the keeper is told to stop,
/// or until lowtide has ended.
pub fn run() -> ExitCode {
    let mut input = io::stdin().lock();
    let mut line = String::new();
    let request: Option<KeeperRequest> =
        input.read_line(&mut line).ok().and_then(|_| serde_json::from_str(&line).ok());
    drop(input);
    let Some(request) = request else {
        let _ = writeln!(io::stderr(), "lowtide keep: this is an internal command of lowtide");
        return ExitCode::from(2);
    };
    match keep(&request) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&KeeperMessage::CannotStart { because: error.to_string() });
            report(&KeeperMessage::Gone { usage: usage() });
            ExitCode::FAILURE
        }
    }
}

fn keep(request: &KeeperRequest) -> io::Result<()> {
    // Any number other than zero enables it; the kernel ignores the value.
    set_child_subreaper(Pid::from_raw(1))?;
    if let Some(soft) = request.open_files_limit {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard)?;
    }
    let launch = &request.launch;
    let Some((program, arguments)) = launch.command.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    command.stdout(match &launch.stdout {
        Some(path) => Stdio::from(files::create(path)?),
        None => Stdio::from(io::stderr().as_fd().try_clone_to_owned()?),
    });
    if let Some(directory) = &launch.directory {
        command.current_dir(directory);
    }
    for name in &launch.remove {
        command.env_remove(name);
    }
    command.envs(launch.set.iter().map(|(name, value)| (name, value)));
    // A user may terminate the keeper itself (`pkill lowtide`), which has the same effect as
    // `stop`.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    if names_its_kind(launch, program) {
        die_with_us(&mut command);
    }
    let subject = command.spawn().map_err(|error| start_error(&error, launch, program))?;
    let pid = subject.id();
    drop(command);
    report(&KeeperMessage::Started { pid });
    let grace = Duration::from_secs_f64(request.grace_s);
    let (stop, stopped) = mpsc::channel();
    let by_signal = stop.clone();
    thread::spawn(move || signals.forever().next().map(|_| by_signal.send(())));
    thread::spawn(move || {
        wait_for_stop();
        let _ = stop.send(());
    });
    thread::spawn(move || {
        let _ = stopped.recv();
        end_all(grace);
    });
    reap(pid);
    Ok(())
}

/// Returns whether a program is an ELF file, or a script that names its interpreter. If code must
/// run between fork and exec, the standard library starts programs by `execvp`, which passes any
/// other file to `sh`.
fn names_its_kind(launch: &Launch, program: &str) -> bool {
    let path = launch.variable("PATH");
    let found = find_program(program, launch.directory.as_deref(), path.as_deref());
    let mut begins = Vec::new();
    let file = found.and_then(|path| std::fs::File::open(path).ok());
    let read = file.and_then(|file| file.take(4).read_to_end(&mut begins).ok());
    read.is_some() && (begins == b"\x7fELF" || begins.starts_with(b"#!"))
}

/// Makes the kernel kill a program when the thread that started it ends, and so also when the
/// keeper is killed together with lowtide, and no process is left to end it. Processes that the
/// program starts are not covered.
///
/// This thread is the keeper's first one, which continues with [`reap`], and ends with the keeper.
/// A program that is setuid, or has capabilities, loses the setting when it is started
/// (`PR_SET_PDEATHSIG` of prctl(2)).
#[expect(unsafe_code, reason = "pre_exec")]
fn die_with_us(command: &mut Command) {
    let keeper = rustix::process::getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The signal is only sent if the keeper ends after this point.
        match rustix::process::getppid() == Some(keeper) {
            true => Ok(()),
            false => Err(rustix::io::Errno::CHILD.into()),
        }
    };
    // SAFETY: between fork and exec, `ask` makes two system calls (prctl, getppid) through rustix's
    // wrappers and converts a number to an `io::Error`: it takes no lock, allocates nothing and
    // accesses no memory except its own stack and its copy of `keeper`.
    unsafe { command.pre_exec(ask) };
}

/// Returns the reason why a program could not be started: the system's error alone does not name
/// the missing part.
fn start_error(error: &io::Error, launch: &Launch, program: &str) -> io::Error {
    let missing = launch.directory.as_ref().filter(|d| !d.is_dir());
    let what = match missing {
        Some(directory) => format!("its working directory {} does not exist", directory.display()),
        None if error.kind() == io::ErrorKind::NotFound => {
            format!("{program} does not exist, or its interpreter does not")
        }
        None if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            format!(
                "{program} is neither a program nor a script whose first line names its \
                 interpreter: write that before it, as in `sh {program}`"
            )
        }
        None => format!("{program}: {error}"),
    };
    io::Error::new(error.kind(), what)
}

/// Waits for all descendants to end, and reports the exit of the subject.
fn reap(subject: u32) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() as u32 == subject => {
                let exit =
                    ExitReport { code: status.exit_status(), signal: status.terminating_signal() };
                report(&KeeperMessage::Exited(exit));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No child is left.
            Err(_) => break,
        }
    }
    report(&KeeperMessage::Gone { usage: usage() });
}

/// Returns when the keeper is told to stop, or when lowtide has ended, which closes stdin.
fn wait_for_stop() {
    let mut line = String::new();
    let _ = io::stdin().lock().read_line(&mut line);
}

/// Asks all descendants to end, and kills them after a grace period. Never returns: the process
/// ends when [`reap`] finds no child.
fn end_all(grace: Duration) -> ! {
    signal_all(Signal::TERM);
    // A stopped process does not react to signals until it is continued.
    signal_all(Signal::CONT);
    thread::sleep(grace);
    loop {
        signal_all(Signal::KILL);
        thread::sleep(Duration::from_millis(5));
    }
}

fn signal_all(signal: Signal) {
    let us = std::process::id();
    let directories: Vec<(u32, ProcessDirectory)> = tree::descendants_of(us)
        .into_iter()
        .filter_map(|pid| Some((pid, ProcessDirectory::open(pid).ok()?)))
        .collect();
    // They were opened by PID: one is the intended process's only if its PID still belongs to a
    // descendant.
    let still = tree::descendants_of(us);
    for (pid, directory) in directories.iter().filter(|(pid, _)| still.contains(pid)) {
        send(*pid, directory, signal);
    }
}

/// Sends a signal to a process, unless it has ended.
fn send(pid: u32, directory: &ProcessDirectory, signal: Signal) {
    // The kernel accepts the directory as a pidfd (pidfd_send_signal(2)).
    let sent = pidfd_send_signal(directory, signal);
    // Before 5.1, a signal is sent by PID, which another process has only if the kernel has
    // assigned all other PIDs since the check.
    if sent == Err(rustix::io::Errno::NOSYS)
        && !directory.has_ended()
        && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
    {
        let _ = kill_process(pid, signal);
    }
}

fn usage() -> TrialUsage {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else {
        return TrialUsage { cpu_s: 0.0, minor_faults: 0, major_faults: 0, max_rss_bytes: 0 };
    };
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    TrialUsage {
        cpu_s: seconds(usage.user_time()) + seconds(usage.system_time()),
        minor_faults: count(usage.minor_page_faults()),
        major_faults: count(usage.major_page_faults()),
        max_rss_bytes: count(usage.max_rss()) * 1024,
    }
}

fn report(report: &KeeperMessage) {
    // If the reader is gone, the report is dropped.
    if let Ok(mut line) = serde_json::to_vec(report) {
        line.push(b'\n');
        let mut output = io::stdout().lock();
        let _ = output.write_all(&line);
        let _ = output.flush();
    }
}
