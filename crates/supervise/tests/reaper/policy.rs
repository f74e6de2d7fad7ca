//! The policy process next to the service.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{
    RUN_REAPER, Reaper, children, is_alive, pid, send, status, until, until_true,
};

#[test]
fn the_policy_has_the_highest_oom_score_adjustment() {
    let (reaper, _) = Reaper::signals("idle");
    reaper.error("policy: ");
    let policy = reaper.policy();
    let score = fs::read_to_string(format!("/proc/{policy}/oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "1000");
    assert_eq!(status(policy, "SigBlk"), format!("{:016x}", 0));
}

#[test]
fn a_policy_that_records_the_end_of_the_service_is_not_the_first_victim() {
    let (reaper, service) = Reaper::signals("recorder");
    reaper.error("policy: ");
    let [policy, service] = [reaper.policy(), service]
        .map(|pid| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap());
    assert_eq!(policy, service);
}

#[test]
fn the_policy_has_a_process_group_of_its_own() {
    let (reaper, _) = Reaper::signals("idle");
    reaper.error("policy: ");
    let policy = reaper.policy();
    let group = rustix::process::getpgid(Some(pid(policy))).unwrap();
    assert_eq!(group, pid(policy));
}

#[test]
fn a_policy_that_is_killed_is_restarted_and_the_service_survives() {
    let (mut reaper, service) = Reaper::signals("idle");
    for failures in 0..=3 {
        let line = reaper.error("policy: ");
        assert!(line.contains(&format!("service {service} failures {failures} ")), "{line}");
        send(reaper.policy(), Signal::KILL);
        let next = match 3 - failures {
            0 => "it does not start again: the command continues, and no more memory is released"
                .to_owned(),
            _ => format!("it starts again in {} s", 1 << failures),
        };
        assert_eq!(
            reaper.error("lowtide: "),
            format!("lowtide: the policy process was ended by signal 9; {next}")
        );
    }
    reaper.send(Signal::USR1);
    assert_eq!(reaper.line(), format!("{} 0", libc::SIGUSR1));
    reaper.send(Signal::TERM);
    assert!(reaper.wait().success());
}

#[test]
fn a_policy_that_aborts_panics_or_fails_does_not_affect_the_service() {
    for (policy, how) in [
        ("abort", "was ended by signal 6"),
        ("panic", "exited with code 101"),
        ("unknown", "exited with code 2"),
    ] {
        let (mut reaper, service) = Reaper::signals(policy);
        assert!(reaper.error("lowtide: ").contains(how));
        assert!(reaper.error("policy: ").contains("failures 1"));
        assert!(is_alive(service));
        reaper.send(Signal::TERM);
        assert_eq!(reaper.line(), format!("{} 0", libc::SIGTERM));
        assert!(reaper.wait().success());
    }
}

#[test]
fn a_policy_that_succeeds_ends_without_a_message() {
    let (mut reaper, _) = Reaper::signals("done");
    assert!(reaper.error("policy: ").contains("failures 0"));
    until_true("end of the policy", || children(reaper.pid()).len() == 1);
    reaper.send(Signal::TERM);
    assert!(reaper.wait().success());
    assert_eq!(reaper.errors().iter().filter(|line| line.contains("policy")).count(), 0);
}

#[test]
fn the_policy_ends_with_the_service() {
    for (policy, ready) in [("idle", "policy: "), ("deaf", "deaf")] {
        let (mut reaper, _) = Reaper::signals(policy);
        reaper.error(ready);
        let policy = reaper.policy();
        reaper.send(Signal::TERM);
        assert!(reaper.wait().success());
        assert!(!is_alive(policy));
    }
}

#[test]
fn the_policy_can_finish_its_work_even_if_it_was_stopped() {
    for is_stopped in [false, true] {
        let (mut reaper, _) = Reaper::signals("polite");
        reaper.error("polite");
        if is_stopped {
            send(reaper.policy(), Signal::STOP);
        }
        reaper.send(Signal::TERM);
        reaper.error("policy: has finished");
        assert!(reaper.wait().success());
    }
}

/// Starts the service that prints signals, after a line of shell, with stderr in a pipe to a
/// command. Kills the policy process, so that the reaper reports that. Returns the shell that
/// contains all of them, and the PID of the reaper.
fn report_to(command: &str, before: &str) -> (Reaper, u32) {
    let service = format!(r#"sh -c '{before}; exec "$0" signals' "$0""#);
    let script = format!(r#"exec 3>&1; "$0" quiet {service} 2>&1 >&3 3>&- | {command}"#);
    let shell = Reaper::spawn(Command::new("sh").args(["-c", &script, RUN_REAPER]));
    let service = shell.ready();
    let reaper: u32 = status(service, "PPid").parse().unwrap();
    let policy = || {
        let mut children = children(reaper).into_iter();
        Some(children.find(|child| child.name == "lowtide-policy")?.pid)
    };
    let first = until("policy", policy);
    send(first, Signal::KILL);
    until("second policy", || policy().filter(|pid| *pid != first));
    (shell, reaper)
}

#[test]
fn a_closed_stderr_does_not_affect_the_service() {
    let (shell, reaper) = report_to("true", ":");
    // A SIGPIPE of the message would have come first.
    send(reaper, Signal::TERM);
    assert_eq!(shell.line(), format!("{} 0", libc::SIGTERM));
    until_true("end of the reaper", || !is_alive(reaper));
}

#[test]
fn a_full_stderr_pipe_does_not_block_the_reaper() {
    // This is the capacity of the pipe.
    let (shell, reaper) = report_to("sleep 1000", "head -c 65536 /dev/zero >&2");
    send(reaper, Signal::TERM);
    assert_eq!(shell.line(), format!("{} 0", libc::SIGTERM));
    until_true("end of the reaper", || !is_alive(reaper));
}
