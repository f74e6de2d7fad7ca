//! A reaper that is the leader of a terminal's session, as in a container with a terminal.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{RUN_REAPER, Reaper};

/// Starts the service that prints signals in a session with a new terminal. Returns the user's end
/// of the terminal.
#[expect(unsafe_code, reason = "pre_exec")]
fn start() -> (File, Reaper) {
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let line = rustix::fs::open(&name, flags, Mode::empty()).unwrap();
    let mut command = Command::new(RUN_REAPER);
    command.args(["idle", RUN_REAPER, "signals"]).stdin(Stdio::from(line));
    let lead = || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(std::io::stdin())?;
        Ok(())
    };
    // SAFETY: between fork and exec, it makes two system calls, and does not allocate.
    unsafe { command.pre_exec(lead) };
    let reaper = Reaper::spawn_in_group(&mut command);
    reaper.ready();
    (File::from(user), reaper)
}

/// Asserts that the service receives a signal once: the next signal is one that is sent to the
/// reaper afterwards.
fn assert_once(reaper: &Reaper, signal: i32) {
    assert_eq!(reaper.line(), format!("{signal} 0"));
    reaper.send(Signal::USR1);
    assert_eq!(reaper.line(), format!("{} 0", libc::SIGUSR1));
}

#[test]
fn each_terminal_key_delivers_exactly_one_signal() {
    let (mut user, reaper) = start();
    for _ in 0..20 {
        user.write_all(b"\x03").unwrap();
        assert_once(&reaper, libc::SIGINT);
        user.write_all(b"\x1c").unwrap();
        assert_once(&reaper, libc::SIGQUIT);
    }
}

#[test]
fn a_terminal_resize_delivers_exactly_one_signal() {
    let (user, reaper) = start();
    for columns in 80..100 {
        let size = Winsize { ws_row: 25, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&user, size).unwrap();
        assert_once(&reaper, libc::SIGWINCH);
    }
}

#[test]
fn a_hangup_reaches_the_service() {
    let (user, mut reaper) = start();
    drop(user);
    // The kernel sends both to the session leader.
    let mut signals = [reaper.line(), reaper.line()];
    signals.sort();
    assert_eq!(signals, [libc::SIGHUP, libc::SIGCONT].map(|signal| format!("{signal} 0")));
    reaper.send(Signal::TERM);
    assert!(reaper.wait().success());
}
