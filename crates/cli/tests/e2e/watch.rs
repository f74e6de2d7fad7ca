//! `lowtide watch`: in a terminal, as lines, and as a record.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use lowtide_testing::Running;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{lines, lowtide, number, subject, until};
use crate::terminal::{Keys, Terminal, heeds_signals, is_canonical};

/// A watched process that is killed when the test ends.
pub(crate) struct Subject(Running);

impl Subject {
    /// Starts a process that keeps its freed memory.
    pub(crate) fn hoard() -> Self {
        let mut child = Command::new(subject(&[]))
            .args(["fill:24", "pin", "free", "say:ready", "ms:600000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child.into())
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    pub(crate) fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_live_view_is_drawn_and_q_restores_the_terminal() {
    let subject = Subject::hoard();
    let mut terminal = Terminal::watch(&[&subject.pid(), "--interval", "100ms"]);
    for what in ["PID", "hoard:", "lowtide release", "RSS", "reclaimable"] {
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
fn the_live_view_shows_the_acts_of_a_log_as_they_are_appended() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts.jsonl");
    std::fs::write(&log, "").unwrap();
    let subject = Subject::hoard();
    let mut terminal =
        Terminal::watch(&[&subject.pid(), "-i", "100ms", "--log", log.to_str().unwrap()]);
    terminal.shows("has no entry for process");
    let act = serde_json::json!({
        "schema": "lowtide.act/1", "event": "act", "id": 1, "pid": subject.0.id(), "command": "x",
        "time": humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string(),
        "policy": "adaptive", "reason": "because", "dry_run": false, "outcome": "released",
        "message": "", "elapsedMs": 1.0, "rss.before": 2_097_152, "rss.after": 1_048_576,
        "rss.diff": -1_048_576, "predicted_bytes": 0, "returned_bytes": 1_048_576,
        "longest_pause_s": 0.001, "cpu_s": 0.01,
    });
    std::fs::write(&log, format!("{act}\n")).unwrap();
    terminal.shows("▼");
    terminal.shows("policy adaptive: 1 release, 1.00 MiB returned");
    terminal.shows("longest pause 1.00 ms (because)");
    terminal.press("q");
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
fn ctrl_c_and_escape_quit_the_live_view() {
    for key in ["\x03", "\x1b"] {
        let subject = Subject::hoard();
        let mut terminal = Terminal::watch(&[&subject.pid()]);
        terminal.shows("hoard:");
        terminal.press(key);
        assert_eq!(terminal.ends().0, Some(0), "{key:?}");
    }
}

#[test]
fn the_live_view_fills_a_resized_terminal() {
    let subject = Subject::hoard();
    let mut terminal = Terminal::watch(&[&subject.pid(), "--interval", "100ms"]);
    terminal.shows("hoard:");
    terminal.resize(120, 44);
    terminal.is_sent("\x1b[44;1H");
    terminal.press("q");
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
fn the_live_view_ends_when_its_process_ends_and_prints_a_summary() {
    for keys in [Keys::Read, Keys::None] {
        let mut subject = Subject::hoard();
        let terminal = Terminal::start("watch", &[&subject.pid()], keys);
        terminal.shows("hoard:");
        subject.end();
        terminal.is_sent(" ended; peak RSS ");
        assert_eq!(terminal.ends().0, Some(0));
    }
}

#[test]
fn the_live_view_ends_when_its_terminal_closes_and_its_record_is_complete() {
    let home = tempfile::tempdir().unwrap();
    for keys in [Keys::Read, Keys::None] {
        let file = home.path().join(format!("{keys:?}.jsonl"));
        let subject = Subject::hoard();
        let mut terminal =
            Terminal::start("watch", &[&subject.pid(), "-o", file.to_str().unwrap()], keys);
        terminal.shows("hoard:");
        // It is not the leader of a session: no SIGHUP reaches it.
        terminal.close();
        let status = until("its end", || terminal.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{keys:?}");
        assert_eq!(lines(&file).last().unwrap()["kind"], "end", "{keys:?}");
    }
}

#[test]
fn a_signal_ends_the_live_view_even_if_its_terminal_takes_no_output() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("r.jsonl");
        let subject = Subject::hoard();
        let mut terminal =
            Terminal::watch(&[&subject.pid(), "-i", "100ms", "-o", file.to_str().unwrap()]);
        terminal.shows("hoard:");
        terminal.stop_reading();
        until("a picture that cannot be drawn", || {
            // The kernel forwards written bytes, which makes room again.
            terminal.fill();
            terminal.is_blocked().then_some(())
        });
        kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        let status = until("its end", || terminal.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{signal:?}");
        assert_eq!(is_canonical(&terminal.line), terminal.was_canonical, "{signal:?}");
        assert_eq!(lines(&file).last().unwrap()["kind"], "end", "{signal:?}");
    }
}

#[test]
fn a_signal_ends_the_line_output_even_if_its_reader_has_stalled() {
    for arguments in [&["watch", "-i", "100ms"][..], &["watch", "-i", "100ms", "--json"]] {
        let subject = Subject::hoard();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let bytes = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        writer.write_all(&vec![b'\n'; bytes]).unwrap();
        let mut child =
            lowtide().args(arguments).arg(subject.pid()).stdout(writer).spawn().unwrap();
        until("its handlers", || heeds_signals(&child).then_some(()));
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let status = until("its end", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{arguments:?}");
        drop(reader);
    }
}

#[test]
fn a_signal_to_the_live_view_restores_the_terminal_and_completes_the_record() {
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
fn json_prints_one_object_per_line_up_to_the_requested_count() {
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
fn without_a_terminal_each_inspection_prints_a_line_until_the_process_ends() {
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
fn ctrl_c_ends_the_line_output_without_an_error() {
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
fn a_closed_output_pipe_ends_the_watch_without_an_error() {
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
fn the_record_of_a_watch_can_be_reported() {
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
    assert!(String::from_utf8_lossy(&again.stderr).contains("already exists"));
    assert_eq!(lines(&file), record);
}

#[test]
fn a_watch_that_cannot_start_is_reported_with_its_exit_code() {
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
    assert!(said.contains("use at least 100 ms"), "{said}");
    assert_eq!(run(&[&own, "-n", "0"]).0, Some(2));
    assert_eq!(run(&["4711", "4712"]).0, Some(2));
    assert_eq!(run(&[&own, "-n", "1", "-o", "/nowhere/r.jsonl"]).0, Some(1));
    for (log, reason) in [("/nowhere/acts.jsonl", "No such file"), ("/dev/null", "regular file")] {
        let (code, said) = run(&[&own, "-n", "1", "--log", log]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(log) && said.contains(reason), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
