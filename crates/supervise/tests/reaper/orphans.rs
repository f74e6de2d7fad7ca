//! Descendants of the service whose parents have ended.

use std::process::Command;

use rustix::process::Signal;

use crate::support::{RUN_REAPER, Reaper, is_alive, send, until, until_true};

#[test]
fn an_orphan_is_adopted_and_reaped() {
    let script = "trap 'exit 0' TERM; (sleep 1000 & echo $!); while :; do sleep 0.05; done";
    let mut reaper = Reaper::script("idle", script);
    let orphan: u32 = reaper.line().parse().unwrap();
    let is_child = || reaper.children().iter().any(|child| child.pid == orphan);
    until_true("adoption", is_child);
    send(orphan, Signal::KILL);
    until_true("reaping", || !is_child());
    reaper.send(Signal::TERM);
    assert!(reaper.wait().success());
}

#[test]
fn many_orphans_leave_no_zombies() {
    let script = "trap 'exit 6' TERM; for i in $(seq 200); do (sh -c 'sleep 0.1' &); done
        echo ready; while :; do sleep 0.05; done";
    let mut reaper = Reaper::script("idle", script);
    assert_eq!(reaper.line(), "ready");
    until_true("reaping of all", || reaper.children().len() == 1);
    reaper.send(Signal::TERM);
    assert_eq!(reaper.wait().code(), Some(6));
}

#[test]
fn the_exit_code_of_a_service_with_many_forks_is_kept_and_orphans_survive() {
    let script = "for i in $(seq 300); do (sh -c 'exit 1' & sh -c 'sleep 0.2' &); done
        (sleep 1000 & echo $!); exit 7";
    let mut reaper = Reaper::script("idle", script);
    let orphan = reaper.line().parse().unwrap();
    assert_eq!(reaper.wait().code(), Some(7));
    assert!(is_alive(orphan));
    send(orphan, Signal::KILL);
}

/// Starts a script as the service of a reaper that is PID 1 of a PID namespace.
fn init(policy: &str, script: &str) -> Reaper {
    let namespace = ["--pid", "--fork", "--mount-proc", "--kill-child", RUN_REAPER, policy];
    Reaper::spawn(Command::new("unshare").args(namespace).args(["sh", "-c", script]))
}

#[test]
#[ignore = "needs root"]
fn pid_1_reaps_orphans() {
    let script = "for i in $(seq 50); do (sh -c 'sleep 0.1' &); done
        while [ \"$(cat /proc/[0-9]*/comm 2>/dev/null | grep -c sleep)\" != 0 ]; do sleep 0.05; done
        cat /proc/1/comm; grep -l '^State:.Z' /proc/[0-9]*/status; exit 8";
    let mut reaper = init("idle", script);
    assert_eq!(reaper.rest(), ["run_reaper"]);
    assert_eq!(reaper.wait().code(), Some(8));
}

#[test]
#[ignore = "needs root"]
fn pid_1_exits_with_128_plus_the_signal_that_ended_the_service() {
    assert_eq!(init("idle", "kill -TERM $$").wait().code(), Some(128 + libc::SIGTERM));
}

#[test]
#[ignore = "needs root"]
fn pid_1_forwards_external_signals_including_sigtstp() {
    let reaper = init("none", &format!("exec {RUN_REAPER} signals"));
    assert_eq!(reaper.ready(), 2);
    let pid_1 = until("PID 1", || Some(reaper.children().first()?.pid));
    for (signal, number) in [(Signal::HUP, libc::SIGHUP), (Signal::TSTP, libc::SIGTSTP)] {
        send(pid_1, signal);
        assert_eq!(reaper.line(), format!("{number} 0"));
    }
}

#[test]
#[ignore = "needs root"]
fn the_remaining_processes_end_with_pid_1() {
    let mut reaper = init("idle", "sleep 1000 & exit 0");
    assert!(reaper.wait().success());
    // The process keeps the pipe open until it ends.
    assert_eq!(reaper.rest(), [""; 0]);
}
