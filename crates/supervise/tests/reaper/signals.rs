//! Signals to the reaper.

use rustix::process::Signal;

use crate::support::{Process, Reaper, until_true};

#[test]
#[expect(unsafe_code, reason = "signals by number, which rustix does not have")]
fn every_signal_that_can_be_caught_is_forwarded() {
    let (mut reaper, _) = Reaper::signals("idle");
    let faults =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    let of_shells = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT];
    let others = [libc::SIGKILL, libc::SIGCHLD, libc::SIGTERM];
    let left_out = [&faults[..], &of_shells, &others].concat();
    let ordinary = (1..32).filter(|signal| !left_out.contains(signal));
    for signal in ordinary.chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).chain([libc::SIGTERM]) {
        // SAFETY: it takes only numbers.
        assert_eq!(unsafe { libc::kill(reaper.pid() as i32, signal) }, 0);
        assert_eq!(reaper.line(), format!("{signal} 0"));
    }
    assert!(reaper.wait().success());
}

#[test]
#[expect(unsafe_code, reason = "a signal with a value, which rustix does not have")]
fn each_queued_signal_is_forwarded_with_its_value() {
    let (reaper, _) = Reaper::signals("idle");
    for value in 1..=50 {
        let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(value) };
        // SAFETY: it takes only numbers; the pointer is a number, too.
        let result = unsafe { libc::sigqueue(reaper.pid() as i32, libc::SIGRTMIN(), value) };
        assert_eq!(result, 0);
    }
    for value in 1..=50 {
        assert_eq!(reaper.line(), format!("{} {value}", libc::SIGRTMIN()));
    }
}

#[test]
fn a_signal_that_the_service_sends_to_its_group_is_not_forwarded_back() {
    let script = "trap 'echo got' USR1; trap 'exit 4' USR2; kill -USR1 0; echo sent
        while :; do sleep 0.05; done";
    let mut reaper = Reaper::script("idle", script);
    assert_eq!([reaper.line(), reaper.line()], ["got", "sent"]);
    reaper.policy();
    reaper.send(Signal::USR2);
    assert_eq!(reaper.rest(), [""; 0]);
    assert_eq!(reaper.wait().code(), Some(4));
}

#[test]
fn signals_are_still_forwarded_after_the_group_is_stopped_and_continued() {
    // The shell starts no process meanwhile: a shell that waits for vfork is not stopped before its
    // child executes a program.
    let script = "sleep 1000 & trap 'echo got' USR1; trap 'kill $!; exit 5' TERM; echo $$
        while :; do wait; done";
    let mut reaper = Reaper::script("idle", script);
    let service = reaper.line().parse().unwrap();
    let is_stopped = |pid| Process::read(pid).unwrap().state == 'T';
    for _ in 0..3 {
        reaper.send_to_group(Signal::TSTP);
        until_true("stop", || is_stopped(reaper.pid()) && is_stopped(service));
        reaper.send_to_group(Signal::CONT);
        reaper.send(Signal::USR1);
        assert_eq!(reaper.line(), "got");
    }
    reaper.send(Signal::TERM);
    assert_eq!(reaper.wait().code(), Some(5));
}
