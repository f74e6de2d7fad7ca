//! A terminal for tests, with lowtide running in it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{lowtide, until};

/// The use that lowtide makes of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// It shows only stdout.
    None,
    /// It shows stdout, and keys are read from it.
    Read,
    /// It is the controlling terminal, shows stderr, too, and sends SIGHUP when it is closed.
    Control,
    /// It is the controlling terminal, but accepts no output.
    Stalled,
}

/// Makes the terminal on stdin the controlling terminal of a new session.
#[allow(unsafe_code)]
fn control(command: &mut Command) -> &mut Command {
    let lead = || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(std::io::stdin())?;
        Ok(())
    };
    // SAFETY: between fork and exec, it makes two system calls, and allocates no memory.
    unsafe { command.pre_exec(lead) }
}

const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";

/// A terminal with lowtide running in it.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    /// The user's end; `None` once the terminal is closed.
    user: Option<File>,
    /// Set to close the user's end, or to stop reading from it.
    leaves: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
    /// Lowtide's end, kept open to check its mode at the end.
    pub(crate) line: File,
    shown: Arc<Mutex<Vec<u8>>>,
    pub(crate) was_canonical: bool,
}

impl Terminal {
    /// Starts `lowtide watch` with a keyboard.
    pub(crate) fn watch(arguments: &[&str]) -> Self {
        Self::start("watch", arguments, Keys::Read)
    }

    /// Starts a verb in a new terminal. Without keys, its stdin is empty.
    pub(crate) fn start(verb: &str, arguments: &[&str], keys: Keys) -> Self {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let line = File::from(rustix::fs::open(&name, flags, Mode::empty()).unwrap());
        let user = File::from(user);
        let stdin = match keys {
            Keys::None => Stdio::null(),
            Keys::Read | Keys::Control | Keys::Stalled => line.try_clone().unwrap().into(),
        };
        let was_canonical = is_canonical(&line);
        if keys == Keys::Stalled {
            fill(&line);
        }
        let mut command = lowtide();
        command
            .env("TERM", "xterm")
            .arg(verb)
            .args(arguments)
            .stdin(stdin)
            .stdout(line.try_clone().unwrap());
        match keys {
            Keys::Control | Keys::Stalled => control(command.stderr(line.try_clone().unwrap())),
            Keys::Read | Keys::None => command.stderr(Stdio::piped()),
        };
        let mut terminal = Self {
            child: command.spawn().unwrap(),
            was_canonical,
            user: Some(user.try_clone().unwrap()),
            leaves: Arc::default(),
            reader: None,
            line,
            shown: Arc::default(),
        };
        terminal.resize(100, 30);
        if keys == Keys::Stalled {
            return terminal;
        }
        let (shown, leaves) = (Arc::clone(&terminal.shown), Arc::clone(&terminal.leaves));
        let mut reader = user;
        terminal.reader = Some(std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while !leaves.load(Ordering::Relaxed) {
                let mut polled = [PollFd::new(&reader, PollFlags::IN)];
                let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                if poll(&mut polled, Some(&moment)).unwrap() == 0 {
                    continue;
                }
                let Ok(count @ 1..) = reader.read(&mut buffer) else { return };
                shown.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        }));
        terminal
    }

    /// Stops reading the output to the terminal.
    pub(crate) fn stop_reading(&mut self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.reader.take().unwrap().join().unwrap();
    }

    /// Writes to the terminal until it accepts no more output.
    pub(crate) fn fill(&self) {
        fill(&self.line);
    }

    /// Returns whether lowtide is blocked in a write to the terminal.
    pub(crate) fn is_blocked(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.flatten().any(|task| {
            let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            // 1 is `write` on x86-64, 64 on aarch64.
            read("comm") == "terminal\n"
                && ["1 ", "64 "].iter().any(|call| read("syscall").starts_with(call))
        })
    }

    /// Closes the user's end, as when an SSH connection or a terminal emulator dies.
    pub(crate) fn close(&mut self) {
        self.stop_reading();
        self.user = None;
    }

    pub(crate) fn resize(&mut self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.line, size).unwrap();
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until a text was sent to the terminal.
    pub(crate) fn is_sent(&self, what: &str) {
        until(what, || self.text().contains(what).then_some(()));
    }

    /// Waits until a text is on the screen.
    pub(crate) fn shows(&self, what: &str) {
        until(what, || screen(&self.text()).contains(what).then_some(()));
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.user.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until lowtide ends, and checks that the terminal is restored. Returns exit code and
    /// stderr.
    pub(crate) fn ends(mut self) -> (Option<i32>, String) {
        let status = until("its end", || self.child.try_wait().unwrap());
        // Another view may have been left before: the last output has the cursor.
        let is_restored = |text: &String| {
            text.contains(LEFT) && text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
        };
        let text = until("the cursor", || Some(self.text()).filter(is_restored));
        let last_shown = text.rfind(LEFT).unwrap();
        assert!(text.find(ENTERED).unwrap() < last_shown, "{text:?}");
        assert_eq!(is_canonical(&self.line), self.was_canonical);
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        (status.code(), said)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leaves.store(true, Ordering::Relaxed);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the contents of the screen, reconstructed from the output: only changes are sent, each
/// with its position.
fn screen(sent: &str) -> String {
    let mut lines = vec![vec![' '; 200]; 60];
    let (mut row, mut column) = (0, 0);
    let mut parts = sent.split("\x1b[");
    let first = parts.next().unwrap_or_default();
    let sequences = parts.map(|part| {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(part.len());
        (&part[..end], part[end..].chars().next(), part.get(end + 1..).unwrap_or_default())
    });
    for (numbers, command, text) in std::iter::once(("", None, first)).chain(sequences) {
        match command {
            Some('H') => {
                let mut numbers = numbers.split(';').map(|n| n.parse::<usize>().unwrap_or(1) - 1);
                row = numbers.next().unwrap_or(0);
                column = numbers.next().unwrap_or(0);
            }
            Some('J') => lines.iter_mut().for_each(|line| line.fill(' ')),
            _ => {}
        }
        for character in text.chars() {
            if let Some(cell) = lines.get_mut(row).and_then(|line| line.get_mut(column)) {
                *cell = character;
            }
            column += 1;
        }
    }
    lines.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
}

/// Returns whether lowtide has installed its signal handlers.
pub(crate) fn heeds_signals(lowtide: &Child) -> bool {
    const TERM: u64 = 1 << (15 - 1);
    let status = format!("/proc/{}/status", lowtide.id());
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & TERM != 0)
}

/// Writes to a terminal until it accepts no more output.
fn fill(line: &File) {
    let line = format!("/proc/self/fd/{}", line.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut line = File::from(rustix::fs::open(line, flags, Mode::empty()).unwrap());
    while line.write_all(&[b' '; 256]).is_ok() {}
}

/// Returns whether a terminal is in canonical mode with echo, as shells expect.
pub(crate) fn is_canonical(line: &File) -> bool {
    tcgetattr(line).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
}
