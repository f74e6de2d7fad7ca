//! The start of a service, what it inherits, and how the reaper ends after it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use crate::support::{RUN_REAPER, Reaper, children, is_alive, send, status, until_true};
use rustix::process::Signal;

/// Runs a service to completion. Returns its lines on stdout.
fn output(service: &[&str]) -> Vec<String> {
    let mut reaper = Reaper::start("none", service);
    let lines = reaper.rest();
    assert!(reaper.wait().success(), "{:?}", reaper.errors());
    lines
}

/// Runs a service that does not start. Returns the exit code and the message.
fn failure(command: &mut Command) -> (Option<i32>, String) {
    let mut reaper = Reaper::spawn(command);
    let code = reaper.wait().code();
    (code, reaper.errors().join("\n"))
}

/// Returns the bit of a signal in a field of `/proc/self/status`.
fn has_signal(line: &str, signal: i32) -> bool {
    let mask = u64::from_str_radix(line.split_once(":\t").unwrap().1, 16).unwrap();
    mask & (1 << (signal - 1)) != 0
}

#[test]
fn the_exit_code_of_the_service_is_passed_on() {
    for code in [0, 1, 7, 255] {
        let mut reaper = Reaper::script("none", &format!("exit {code}"));
        assert_eq!(reaper.wait().code(), Some(code));
    }
}

#[test]
fn termination_by_a_signal_is_passed_on_without_a_core_dump() {
    let home = tempfile::tempdir().unwrap();
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV, libc::SIGABRT, libc::SIGUSR1] {
        let script = format!(r#"ulimit -c unlimited; exec "$0" none sh -c 'kill -{signal} $$'"#);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, RUN_REAPER]).current_dir(home.path());
        let status = Reaper::spawn(&mut shell).wait();
        assert_eq!(status.signal(), Some(signal));
        assert!(!status.core_dumped());
    }
}

#[test]
fn a_program_that_is_not_found_makes_the_reaper_exit_with_127() {
    for program in ["lowtide-no-such-program", "/no/such/program", "./no-such-program", ""] {
        let (code, message) = failure(Command::new(RUN_REAPER).args(["none", program]));
        assert_eq!(code, Some(127), "{message}");
        assert!(message.contains("was not found"), "{message}");
    }
}

#[test]
fn a_program_that_cannot_be_executed_makes_the_reaper_exit_with_126() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("text"), "exit 0").unwrap();
    let text = home.path().join("text");
    let (code, message) = failure(Command::new(RUN_REAPER).arg("none").arg(&text));
    assert_eq!(code, Some(126), "{message}");
    assert!(message.contains("cannot be executed: Permission denied"), "{message}");
    // A later directory of PATH does not contain it: the first error counts.
    let path = format!("{}:/bin", home.path().display());
    let (code, _) = failure(Command::new(RUN_REAPER).args(["none", "text"]).env("PATH", path));
    assert_eq!(code, Some(126));
}

#[test]
fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("script");
    fs::write(&script, "echo \"$0 $1 $2\"\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("/no/such/directory:{}", home.path().display());
    let mut command = Command::new(RUN_REAPER);
    let reaper = Reaper::spawn(command.args(["none", "script", "a", "b c"]).env("PATH", path));
    assert_eq!(reaper.rest(), [format!("{} a b c", script.display())]);
}

#[test]
fn a_process_with_more_than_one_thread_cannot_start_the_reaper() {
    let (code, message) = failure(Command::new(RUN_REAPER).args(["threads", "true"]));
    assert_eq!(code, Some(125), "{message}");
    assert!(message.contains("one thread; this one has 2"), "{message}");
}

#[test]
fn a_service_inherits_the_environment_directory_and_process_group() {
    let home = tempfile::tempdir().unwrap();
    let script = "echo $REAPER_TEST $OTHER; pwd; cut -d' ' -f5 /proc/$$/stat";
    let mut command = Command::new(RUN_REAPER);
    command.args(["none", "sh", "-c", script]).env("OTHER", "kept").current_dir(home.path());
    let reaper = Reaper::spawn(&mut command);
    let home = home.path().canonicalize().unwrap();
    let group = reaper.pid().to_string();
    assert_eq!(reaper.rest(), ["set kept", home.to_str().unwrap(), &group]);
}

#[test]
fn a_service_has_the_default_disposition_of_sigpipe() {
    let lines = output(&["grep", "SigIgn", "/proc/self/status"]);
    assert!(!has_signal(&lines[0], libc::SIGPIPE), "{lines:?}");
}

/// Starts `grep FIELD /proc/self/status` under a reaper that has prepared its signals as a parent
/// may. Returns the line.
#[expect(unsafe_code, reason = "pre_exec")]
fn inherited(field: &str, prepare: fn()) -> String {
    let mut command = Command::new(RUN_REAPER);
    command.args(["idle", "grep", field, "/proc/self/status"]);
    let prepare = move || {
        prepare();
        Ok(())
    };
    // SAFETY: between fork and exec, the functions of these tests only make system calls, and do
    // not allocate.
    unsafe { command.pre_exec(prepare) };
    let mut reaper = Reaper::spawn(&mut command);
    let line = reaper.line();
    assert!(reaper.wait().success());
    line
}

const IGNORED: [i32; 3] = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGHUP];

#[test]
#[expect(unsafe_code, reason = "dispositions, which std does not have")]
fn a_service_inherits_the_ignored_signals() {
    let line = inherited("SigIgn", || {
        for signal in IGNORED {
            // SAFETY: no code runs for an ignored signal.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    });
    assert!(IGNORED.iter().all(|signal| has_signal(&line, *signal)), "{line}");
    assert!(!has_signal(&line, libc::SIGTERM), "{line}");
}

#[test]
#[expect(unsafe_code, reason = "a signal mask, which std does not have")]
fn a_service_inherits_the_signal_mask() {
    let line = inherited("SigBlk", || {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: sigemptyset initializes the set that the others read.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR2);
            libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
        }
    });
    assert_eq!(line, format!("SigBlk:\t{:016x}", 1u64 << (libc::SIGUSR2 - 1)));
}

#[test]
fn a_service_has_no_additional_file_descriptors() {
    let alone = Reaper::spawn(Command::new("ls").arg("/proc/self/fd"));
    assert_eq!(output(&["ls", "/proc/self/fd"]), alone.rest());
}

#[test]
fn a_reader_sees_end_of_file_when_the_service_closes_its_output() {
    let script = r#"exec 3>&1; exec "$0" idle sh -c 'trap "exit 3" USR1
        exec >&- 3>&-; while :; do sleep 0.05; done'"#;
    let mut reaper = Reaper::spawn(Command::new("sh").args(["-c", script, RUN_REAPER]));
    assert_eq!(reaper.rest(), [""; 0]);
    assert!(is_alive(reaper.pid()));
    for pid in [reaper.pid(), reaper.policy()] {
        let input = fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
        assert_eq!(input.to_str(), Some("/dev/null"));
    }
    reaper.send(Signal::USR1);
    assert_eq!(reaper.wait().code(), Some(3));
}

#[test]
fn a_service_may_gain_privileges() {
    let (_reaper, service) = Reaper::signals("none");
    assert_eq!(status(service, "NoNewPrivs"), "0");
}

#[test]
fn a_service_survives_the_reaper() {
    let (reaper, service) = Reaper::signals("idle");
    let policy = reaper.policy();
    reaper.send(Signal::KILL);
    until_true("end of the policy", || !is_alive(policy));
    send(service, Signal::USR1);
    assert_eq!(reaper.line(), format!("{} 0", libc::SIGUSR1));
    assert!(children(reaper.pid()).is_empty());
    send(service, Signal::TERM);
    assert_eq!(reaper.rest(), [format!("{} 0", libc::SIGTERM)]);
}
