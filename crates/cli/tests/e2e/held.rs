//! A file that holds all releases.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::inspect::{Subject, object, predicted};
use crate::schemas::hold_release;
use crate::supervision::{Attached, MIB, acts, until_below};
use crate::support::{fixture, lowtide, until};

/// A directory with a hold.
struct Held {
    home: tempfile::TempDir,
}

impl Held {
    fn new() -> Self {
        let held = Self { home: tempfile::tempdir().unwrap() };
        held.place("INC-1234 \u{1b}[2J");
        held
    }

    fn file(&self) -> PathBuf {
        self.home.path().join("hold")
    }

    fn place(&self, reason: &str) {
        fs::write(self.file(), reason).unwrap();
    }

    fn lift(&self) {
        fs::remove_file(self.file()).unwrap();
    }

    fn lowtide(&self) -> Command {
        let mut command = lowtide();
        command.env("LOWTIDE_HOLD", self.file());
        command
    }

    /// Returns the sentence that names the file.
    fn sentence(&self) -> String {
        let file = self.file().display().to_string();
        format!(
            r#"releases are held by {file} ("INC-1234 \u{{1b}}[2J"): remove this file to permit them"#
        )
    }
}

fn on(command: &mut Command, words: &[&str], subject: &Subject) -> Output {
    command.arg("--json").args(words).arg(subject.pid().to_string()).output().unwrap()
}

#[test]
fn a_held_release_is_refused_until_the_file_is_removed() {
    let (held, subject) = (Held::new(), Subject::of(&["blocks:60", "keep:20"]));
    for words in [&["release"][..], &["release", "--dry-run"], &["release", "--method", "trim"]] {
        let output = on(&mut held.lowtide(), words, &subject);
        let found = object(&output);
        hold_release(&found);
        assert_eq!(output.status.code(), Some(5), "{found:#}");
        assert_eq!((&found["hazard"], &found["may_pass"]), (&"held".into(), &true.into()));
        assert_eq!(found["reason"], held.sentence());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&held.sentence()), "{said}");
        assert!(said.contains(&format!("next: ls -l {}", held.file().display())), "{said}");
    }
    let found = object(&on(&mut held.lowtide(), &["inspect"], &subject));
    let notes = found["notes"].as_array().unwrap();
    let note = format!("lowtide release would refuse it: {}", held.sentence());
    assert!(notes.contains(&note.into()), "{found:#}");
    assert_eq!(predicted(&found, "release"), 0);
    held.lift();
    let found = object(&on(&mut held.lowtide(), &["release"], &subject));
    assert_eq!(found["outcome"], "released", "{found:#}");
}

/// Waits until a log has this many acts of a hold.
fn until_held(log: &Path, count: usize) -> Vec<Value> {
    until("a hold", || {
        let held = acts(log, "held_back");
        (held.len() >= count).then_some(held)
    })
}

#[test]
fn a_supervision_reports_each_hold_once_and_resumes_after_it() {
    let (held, mut subject) = (Held::new(), Subject::of(&["blocks:60", "keep:20"]));
    let log = held.home.path().join("acts.jsonl");
    let pid = subject.pid().to_string();
    let mut command = held.lowtide();
    command.args(["attach", &pid, "-p", "periodic=100ms", "--log"]).arg(&log);
    let mut attached = Attached::spawn(&mut command);
    let act = until_held(&log, 1).remove(0);
    assert_eq!((&act["hazard"], &act["message"]), (&"held".into(), &held.sentence().into()));
    attached.until_said(&held.sentence());
    held.lift();
    until_below(subject.pid(), 30 * MIB);
    held.place("INC-1234 \u{1b}[2J");
    until_held(&log, 2);
    subject.send("blocks:60");
    subject.send("keep:20");
    held.lift();
    until_below(subject.pid(), 60 * MIB);
    let said = String::from_utf8_lossy(&attached.interrupt().stderr).into_owned();
    assert_eq!(said.matches(&held.sentence()).count(), 2, "{said}");
    assert_eq!(acts(&log, "held_back").len(), 2);
    assert!(acts(&log, "left_alone").is_empty());
}

#[test]
fn run_reports_a_hold_beside_the_output_of_its_command() {
    let held = Held::new();
    let mut command = held.lowtide();
    command.args(["run", "-p", "periodic=100ms", "--", &fixture("memory", &["-pthread"])]);
    command.args(["blocks:60", "keep:20"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let attached = Attached::spawn(&mut command);
    attached.until_said(&held.sentence());
}
