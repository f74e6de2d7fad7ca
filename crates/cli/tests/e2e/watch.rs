//! `lowtide watch`: at a terminal of its own, as lines, and as a record.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use crate::support::{lines, lowtide, number, subject, until};

/// A process that is watched; it is ended with the test.
struct Subject(Child);

impl Subject {
    /// One that holds what it has freed.
    fn hoard() -> Self {
        let mut child = Command::new(subject(&[]))
            .args(["fill:24", "pin", "free", "say:ready", "ms:600000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";

/// A terminal, and lowtide in front of it.
struct Terminal {
    child: Child,
    user: File,
    /// Kept open, so that it can be asked how it was left.
    line: File,
    shown: Arc<Mutex<Vec<u8>>>,
    was_canonical: bool,
}

impl Terminal {
    fn watch(arguments: &[&str]) -> Self {
        Self::start(arguments, true)
    }

    fn start(arguments: &[&str], has_keys: bool) -> Self {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let line = File::from(rustix::fs::open(&name, flags, Mode::empty()).unwrap());
        let user = File::from(user);
        let stdin = if has_keys { line.try_clone().unwrap().into() } else { Stdio::null() };
        let was_canonical = is_canonical(&line);
        let mut terminal = Self {
            child: lowtide()
                .env("TERM", "xterm")
                .arg("watch")
                .args(arguments)
                .stdin(stdin)
                .stdout(line.try_clone().unwrap())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
            was_canonical,
            user: user.try_clone().unwrap(),
            line,
            shown: Arc::default(),
        };
        terminal.resize(100, 30);
        let shown = Arc::clone(&terminal.shown);
        let mut reader = user;
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                shown.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        terminal
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.line, size).unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until something was sent to the terminal.
    fn is_sent(&self, what: &str) {
        until(what, || self.text().contains(what).then_some(()));
    }

    /// Waits until something stands on the screen.
    fn shows(&self, what: &str) {
        until(what, || screen(&self.text()).contains(what).then_some(()));
    }

    fn press(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until it ends, with the terminal as it was. Gives the exit code and what it said.
    fn ends(mut self) -> (Option<i32>, String) {
        let status = until("its end", || self.child.try_wait().unwrap());
        self.is_sent(LEFT);
        let text = self.text();
        let last_shown = text.rfind(LEFT).unwrap();
        assert!(text.find(ENTERED).unwrap() < last_shown, "{text:?}");
        assert!(text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "no cursor: {text:?}");
        assert_eq!(is_canonical(&self.line), self.was_canonical);
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        (status.code(), said)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What stands on the screen. Only what changed is sent, wherever it stands, and so has to be put
/// together again.
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

/// Whether a terminal gives whole lines and echoes them, as shells expect it.
fn is_canonical(line: &File) -> bool {
    tcgetattr(line).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
}

#[test]
fn at_a_terminal_it_draws_and_leaves_the_terminal_as_it_was_on_q() {
    let subject = Subject::hoard();
    let mut terminal = Terminal::watch(&[&subject.pid(), "--interval", "100ms"]);
    for what in ["PID", "RSS", "reclaimable", "hoard:", "malloc_trim"] {
        terminal.shows(what);
    }
    assert!(!is_canonical(&terminal.line));
    terminal.press("a");
    terminal.shows("1 to 1 of 1");
    terminal.press("?");
    terminal.shows("longer or shorter interval");
    terminal.press("q");
    let (code, said) = terminal.ends();
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[test]
fn control_c_and_escape_quit_too() {
    for key in ["\x03", "\x1b"] {
        let subject = Subject::hoard();
        let mut terminal = Terminal::watch(&[&subject.pid()]);
        terminal.shows("hoard:");
        terminal.press(key);
        assert_eq!(terminal.ends().0, Some(0), "{key:?}");
    }
}

#[test]
fn a_larger_terminal_is_filled() {
    let subject = Subject::hoard();
    let mut terminal = Terminal::watch(&[&subject.pid(), "--interval", "100ms"]);
    terminal.shows("hoard:");
    terminal.resize(120, 44);
    terminal.is_sent("\x1b[44;1H");
    terminal.press("q");
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
fn when_the_process_ends_it_says_so_and_waits_for_q() {
    let mut subject = Subject::hoard();
    let mut terminal = Terminal::watch(&[&subject.pid()]);
    terminal.shows("hoard:");
    subject.end();
    terminal.shows("it has ended, after");
    assert_eq!(terminal.child.try_wait().unwrap(), None);
    terminal.press("q");
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
fn where_nobody_can_press_a_key_it_ends_with_the_process() {
    let mut subject = Subject::hoard();
    let terminal = Terminal::start(&[&subject.pid()], false);
    terminal.shows("hoard:");
    subject.end();
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
fn a_signal_ends_it_with_the_terminal_as_it_was_and_the_record_complete() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("r.jsonl");
    let subject = Subject::hoard();
    let terminal = Terminal::watch(&[&subject.pid(), "-o", file.to_str().unwrap()]);
    terminal.shows("hoard:");
    kill_process(Pid::from_child(&terminal.child), Signal::TERM).unwrap();
    let (code, said) = terminal.ends();
    assert_eq!(code, Some(0));
    assert!(said.contains("next: lowtide report "), "{said}");
    let record = lines(&file);
    let of = |kind: &str| record.iter().filter(|l| l["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(of("end")[0]["outcome"]["result"], "done");
    assert_eq!(of("mark").last().unwrap()["mark"], "stop");
}

#[test]
fn objects_come_one_a_line_as_many_as_were_asked_for() {
    let subject = Subject::hoard();
    let output = lowtide()
        .args(["watch", "--json", "-n", "3", "-i", "100ms", &subject.pid()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(objects.len(), 3);
    for object in &objects {
        assert_eq!(object["schema"], "lowtide.inspect/1");
        assert_eq!(object["verdict"]["kind"], "hoard");
        let rows = object["ledger"].as_array().unwrap();
        let sum: f64 = rows.iter().map(|row| number(row, "bytes")).sum();
        assert_eq!(sum, number(object, "rss_bytes"));
    }
}

#[test]
fn without_a_terminal_there_is_a_line_for_each_look_until_the_process_ends() {
    let mut subject = Subject::hoard();
    let mut child = lowtide()
        .args(["watch", "-i", "100ms", &subject.pid()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[2], words[5], words[8]), ("RSS", "allocated", "reclaimable"), "{line}");
        assert_eq!(words.last(), Some(&"hoard"), "{line}");
    }
    subject.end();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn control_c_ends_the_lines_and_is_no_error() {
    let subject = Subject::hoard();
    let mut child =
        lowtide().args(["watch", &subject.pid()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_reader_that_has_seen_enough_ends_it() {
    let subject = Subject::hoard();
    let mut child = lowtide()
        .args(["watch", "-i", "100ms", &subject.pid()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_was_seen_is_a_record_that_report_draws() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("r.jsonl");
    let mut subject = Subject::hoard();
    let mut child = lowtide()
        .args(["watch", "-i", "100ms", "-o", file.to_str().unwrap(), &subject.pid()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..3 {
        reader.read_line(&mut String::new()).unwrap();
    }
    subject.end();
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let record = lines(&file);
    crate::schemas::hold_record(&record);
    let of = |kind: &str| record.iter().filter(|l| l["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(record[0]["holds"], "trial");
    assert_eq!(record[1]["kind"], "trial");
    assert_eq!(record[1]["treatment"]["allocator"], "glibc");
    assert!(of("sample").len() >= 3 && of("ledger").len() >= 3, "{record:#?}");
    let marks: Vec<&Value> = of("mark").into_iter().map(|m| &m["mark"]).collect();
    assert_eq!(marks, ["start", "exit"]);
    assert_eq!(of("process").last().unwrap()["allocator"]["active"], true);
    assert_eq!(record.last().unwrap()["kind"], "end");

    let report = lowtide().arg("report").arg(&file).output().unwrap();
    assert_eq!(report.status.code(), Some(0), "{report:?}");
    let text = String::from_utf8(report.stdout).unwrap();
    assert!(text.contains("glibc") && text.contains("RSS over time"), "{text}");

    let own = std::process::id().to_string();
    let again = lowtide().args(["watch", &own, "-o"]).arg(&file).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("is there already"));
    assert_eq!(lines(&file), record);
}

#[test]
fn what_cannot_be_watched_is_told_with_its_exit_code() {
    let run = |arguments: &[&str]| {
        let output = lowtide().arg("watch").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mut ended = Subject::hoard();
    ended.end();
    let (code, said) = run(&[&ended.pid()]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("there is no process"), "{said}");
    let own = std::process::id().to_string();
    let (code, said) = run(&[&own, "--interval", "10ms"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("give it at least 100 ms"), "{said}");
    assert_eq!(run(&[&own, "-n", "0"]).0, Some(2));
    assert_eq!(run(&["4711", "4712"]).0, Some(2));
    assert_eq!(run(&[&own, "-n", "1", "-o", "/nowhere/r.jsonl"]).0, Some(1));
}
