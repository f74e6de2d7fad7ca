//! Long studies: their progress, resuming after an interruption, and shards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{
    free_port, lines, lowtide, number, processes_with, subject, unique_seconds, until,
};

/// A study of two allocators, with three trials each, in a directory.
struct Study {
    home: tempfile::TempDir,
}

impl Study {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns `lowtide study --json` with a named record, and a subject that reports how often it
    /// ran.
    fn command(&self, record: &str, more: &[&str]) -> Command {
        let mut command = lowtide();
        command.args(["study", "--json", "-a", "glibc,jemalloc"]);
        if !more.contains(&"--repeat") {
            command.args(["--repeat", "3"]);
        }
        command.args(["--interval", "20ms", "-o"]).arg(self.at(record)).args(more);
        command.args(["--", &subject(&[]), "fill:4", "ms:1000"]);
        command
    }

    fn run(&self, record: &str, more: &[&str]) -> Output {
        self.command(record, more).output().unwrap()
    }
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the message of a usage error of a study.
fn refused(output: &Output) -> String {
    let error = object(output);
    assert_eq!((output.status.code(), &error["code"]), (Some(2), &"usage".into()), "{error}");
    error["message"].as_str().unwrap().to_owned()
}

/// Returns number, allocator and repeat of each trial, in order.
fn tried(study: &Value) -> Vec<(u64, String, u64)> {
    let trials = study["trials"].as_array().unwrap().iter();
    let of = |t: &Value| {
        let name = t["treatment"]["allocator"].as_str().unwrap().to_owned();
        (t["number"].as_u64().unwrap(), name, t["repeat"].as_u64().unwrap())
    };
    trials.map(of).collect()
}

/// Returns the files of a record's trials with their contents.
fn files(record: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(record.join("trials")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

#[test]
fn a_killed_study_resumes_without_repeating_completed_trials() {
    let study = Study::new();
    let record = study.at("record");
    // The third trial does not end before it was killed.
    let (go_on, numbered) = (study.at("go-on"), "[ $LOWTIDE_TRIAL != 3 ]");
    let cleanup = format!("{numbered} || until [ -e {} ]; do sleep 0.1; done", go_on.display());
    let words = ["--cleanup", cleanup.as_str()];
    let mut killed = study.command("record", &words).stdout(Stdio::null()).spawn().unwrap();
    until("samples of the third trial", || {
        let files = fs::read_dir(record.join("trials")).ok()?.flatten().map(|e| e.path());
        let is_third = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().starts_with("003-");
        let third = files.filter(is_third).find(|p| p.extension().is_some_and(|x| x == "jsonl"))?;
        fs::read_to_string(third).ok()?.contains("\"kind\":\"sample\"").then_some(())
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    fs::write(&go_on, "").unwrap();
    until("nothing of it to be left", || {
        processes_with(record.to_str().unwrap()).is_empty().then_some(())
    });
    // A line that was being written when it was killed may be incomplete.
    let course = record.join("study.jsonl");
    let mut text = fs::read_to_string(&course).unwrap();
    text.push_str("{\"kind\":\"trial_end\",\"num");
    fs::write(&course, text).unwrap();
    let before = files(&record);

    let message = refused(&study.run("record", &words));
    assert!(message.contains("it contains this study, with 2 of 6 trials done"), "{message}");
    assert!(message.contains("continue it with --resume"), "{message}");

    let words = [&words[..], &["--resume"]].concat();
    let output = study.run("record", &words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stderr_of(&output).contains("2 of 6 trials are done"), "{}", stderr_of(&output));
    assert!(
        stderr_of(&output).contains("3/6 ") && !stderr_of(&output).contains("2/6 "),
        "{}",
        stderr_of(&output)
    );
    let found = object(&output);
    assert_eq!(found["complete"], true);
    let numbers: Vec<u64> = tried(&found).into_iter().map(|(number, ..)| number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert!(found["trials"][2]["samples"].as_str().unwrap().ends_with("-attempt-2.jsonl"));
    let after = files(&record);
    assert!(before.iter().all(|file| after.contains(file)), "what was recorded stays as it was");
    let begun = lines(&course).iter().filter(|line| line["kind"] == "trial_begin").count();
    assert_eq!(begun, 7);

    // On another resume, there is nothing left to do.
    let again = study.run("record", &words);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert_eq!(object(&again)["trials"], found["trials"]);
    assert_eq!(files(&record), after);
}

#[test]
fn resuming_with_a_different_plan_is_rejected_and_changes_nothing() {
    let study = Study::new();
    let output = study.run("record", &["--resume", "--repeat", "2"]);
    assert_eq!(output.status.code(), Some(0), "without a record there, one is begun: {output:?}");
    let before = files(&study.at("record"));
    let course = fs::read(study.at("record").join("study.jsonl")).unwrap();
    let other = |more: &[&str]| match more.contains(&"--repeat") {
        true => refused(&study.run("record", more)),
        false => refused(&study.run("record", &[&["--repeat", "2"], more].concat())),
    };
    for resume in [&["--resume"][..], &[]] {
        let other = |more: &[&str]| other(&[resume, more].concat());
        let said = other(&["--seed", "7"]);
        assert!(said.contains("a study whose `seed` is 0, but here it is 7"), "{said}");
        assert!(said.contains("nothing was changed"), "{said}");
        let said = other(&["-t", "glibc/arena_max"]);
        assert!(said.contains("`treatments` is glibc (") && said.contains("arena_max"), "{said}");
        let said = other(&["--cleanup", "true"]);
        assert!(said.contains("`cleanup` is not given, but here it is `true`"), "{said}");
        assert!(other(&["--repeat", "1"]).contains("`repeat` is 2, but here it is 1"));
        assert!(other(&["--shard", "1/2"]).contains("`shard` is all of them, but here it is 1/2"));
    }
    assert_eq!(files(&study.at("record")), before);
    assert_eq!(fs::read(study.at("record").join("study.jsonl")).unwrap(), course);

    // Settings that do not affect a trial may be changed, and repeats may be added.
    let more = study.run("record", &["--resume", "--max-slowdown", "50%"]);
    assert_eq!(more.status.code(), Some(0), "{more:?}");
    assert_eq!(tried(&object(&more)).len(), 6);
    let after = files(&study.at("record"));
    assert!(before.iter().all(|file| after.contains(file)));
}

#[test]
fn a_record_that_cannot_be_resumed_is_reported_in_a_sentence() {
    let study = Study::new();
    let output = lowtide().args(["--json", "study", "--resume", "--", "true"]).output().unwrap();
    assert!(refused(&output).contains("name its directory with --output"));
    fs::create_dir(study.at("mine")).unwrap();
    fs::write(study.at("mine").join("letter"), "precious").unwrap();
    assert!(refused(&study.run("mine", &["--resume"])).contains("is not an empty directory: name"));
    // It was killed before its first line was complete.
    for (name, text) in [("empty", ""), ("torn", "{\"kind\":\"header\",\"sch")] {
        fs::create_dir(study.at(name)).unwrap();
        fs::write(study.at(name).join("study.jsonl"), text).unwrap();
        assert!(refused(&study.run(name, &[])).contains("with 0 of 6 trials done"));
        let output = study.run(name, &["--resume", "--repeat", "1"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    fs::create_dir(study.at("newer")).unwrap();
    let header = fs::read_to_string(study.at("empty").join("study.jsonl")).unwrap();
    let header = header.replace("lowtide.record/1", "lowtide.record/9");
    fs::write(study.at("newer").join("study.jsonl"), header).unwrap();
    let output = study.run("newer", &["--resume"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        object(&output)["message"].as_str().unwrap().contains("in the format `lowtide.record/9`")
    );
    // Another process has locked the record.
    let file = fs::File::open(study.at("empty").join("study.jsonl")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let output = study.run("empty", &["--resume", "--repeat", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let error = object(&output);
    assert!(error["message"].as_str().unwrap().starts_with("another lowtide is writing to "));
}

#[test]
fn failed_trials_are_retried_on_resume_and_the_option_is_printed() {
    let study = Study::new();
    let mended = study.at("mended");
    let ready = format!("[ -e {} ] || [ $LOWTIDE_TRIAL -lt 3 ]", mended.display());
    let words = ["--prepare", ready.as_str()];
    let output = study.run("record", &words);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr_of(&output).contains("2 of 6 trials are done"), "{}", stderr_of(&output));
    for flag in [format!("--output {}", study.at("record").display()), "--resume".to_owned()] {
        assert!(stderr_of(&output).contains(&flag), "{}", stderr_of(&output));
    }
    let again = study.run("record", &[&words[..], &["--resume"]].concat());
    assert!(stderr_of(&again).contains("next: lowtide study "), "{}", stderr_of(&again));
    fs::write(&mended, "").unwrap();
    let output = study.run("record", &[&words[..], &["--resume"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(object(&output)["complete"], true);
}

#[test]
fn joined_shards_give_the_same_results_as_one_run() {
    let study = Study::new();
    let whole = object(&study.run("whole", &[]));
    for (part, trials) in [("1/2", 2), ("2/2", 4)] {
        let name = part.replace('/', "-of-");
        let output = study.run(&name, &["--shard", part]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let found = object(&output);
        assert_eq!(tried(&found).len(), trials, "{part}");
        assert_eq!(found["complete"], true, "all of the part");
        assert_eq!(found["shard"]["part"].as_u64().unwrap().to_string(), part[..1]);
    }
    let report = |parts: &[&str]| {
        let paths = parts.iter().map(|part| study.at(part));
        lowtide().args(["--json", "report"]).args(paths).output().unwrap()
    };
    // The order of the arguments does not matter.
    let joined = object(&report(&["2-of-2", "1-of-2"]));
    assert_eq!(tried(&joined), tried(&whole));
    assert_eq!((&joined["complete"], &joined["shard"]), (&true.into(), &Value::Null));
    assert_eq!(joined["record"], study.home.path().to_str().unwrap());
    for trial in joined["trials"].as_array().unwrap() {
        assert!(study.at(trial["samples"].as_str().unwrap()).exists(), "{trial}");
    }
    for (ours, theirs) in [(0, 0), (1, 1)] {
        let (ours, theirs) = (&joined["treatments"][ours], &whole["treatments"][theirs]);
        assert_eq!(ours["treatment"], theirs["treatment"]);
        assert_eq!(ours["peak_bytes"]["n"], 3, "{ours}");
        assert_eq!(ours["cpu_ratio"]["n"], theirs["cpu_ratio"]["n"], "every pair is found again");
        assert!(number(&ours["peak_bytes"], "median") > 4e6);
    }
    let part = lowtide().arg("report").arg(study.at("1-of-2")).output().unwrap();
    let shown = String::from_utf8_lossy(&part.stdout);
    assert!(shown.contains("1 of 2 parts are given (missing: 2)"), "{shown}");
    // A shard that is given twice, and a record that is not a shard of the study, are reported.
    fs::create_dir(study.at("copy")).unwrap();
    let copy = Command::new("cp").arg("-r").args([study.at("1-of-2"), study.at("copy")]).status();
    assert!(copy.unwrap().success());
    let twice =
        lowtide().arg("report").args([study.at("1-of-2"), study.at("copy/1-of-2")]).output();
    let shown = String::from_utf8_lossy(&twice.unwrap().stdout).into_owned();
    assert!(shown.contains("trial 1 occurs twice"), "{shown}");
    assert!(shown.contains("1 of 2 parts are given (missing: 2)"), "{shown}");
    let other = study.run("other", &["--shard", "2/2", "--seed", "9"]);
    assert_eq!(other.status.code(), Some(0));
    let both = lowtide().arg("report").args([study.at("1-of-2"), study.at("other")]).output();
    let shown = String::from_utf8_lossy(&both.unwrap().stdout).into_owned();
    assert!(
        shown.contains("part 2/2 is not combined with") && shown.contains("`seed` is 0 there"),
        "{shown}"
    );
}

#[test]
fn an_invalid_shard_is_rejected() {
    let study = Study::new();
    let said = refused(&study.run("record", &["--shard", "1/4"]));
    assert!(said.contains("4 parts cannot be made of 3: increase --repeat"), "{said}");
    for text in ["3", "0/2", "3/2", "a/b"] {
        let said = refused(&study.run("record", &["--shard", text]));
        assert!(
            said.contains(&format!("--shard: `{text}` is not a valid part: write I/N")),
            "{said}"
        );
    }
    assert!(!study.at("record").exists());
}

#[test]
fn without_a_terminal_progress_and_the_time_left_are_printed_as_lines() {
    let study = Study::new();
    let output = study.run("record", &["--repeat", "1"]);
    let text = stderr_of(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("recording to "), "{text}");
    // The duration of a trial is unknown, so no estimate is printed.
    assert!(lines[1].starts_with("1/2 ") && lines[1].ends_with(": started"), "{text}");
    assert!(lines[3].starts_with("2/2 ") && lines[3].contains(": started; about "), "{text}");
    assert!(lines[3].ends_with(" left"), "{text}");
    // On a busy machine, the one trial of a treatment may not be enough to recommend any.
    let recommendation = &object(&output)["recommendation"];
    let is_open = recommendation["resolved"] == false && recommendation["treatment"].is_object();
    assert_eq!(lines.len(), if is_open { 7 } else { 5 }, "{text}{recommendation:#}");
    if is_open {
        assert!(lines[5].starts_with("10 more trials, which take about "), "{text}");
        assert!(lines[6].contains("--repeat 6"), "{text}");
    }
}

/// Starts a study in a directory, and waits for its first sample.
fn begun(command: &mut Command, record: &Path) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("a sample", || {
        let files = fs::read_dir(record.join("trials")).ok()?.flatten().map(|e| e.path());
        let texts = files.filter_map(|path| fs::read_to_string(path).ok());
        texts.into_iter().find(|text| text.contains("\"kind\":\"sample\"")).map(|_| ())
    });
    child
}

#[test]
fn a_signal_that_was_ignored_at_startup_does_not_end_a_study() {
    let study = Study::new();
    let inner = study.command("record", &["--repeat", "1"]);
    // Like nohup.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(inner.get_program());
    command.args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let child = begun(&mut command, &study.at("record"));
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(object(&output)["complete"], true);
}

#[test]
fn no_process_remains_if_lowtide_and_the_keeper_are_killed_together() {
    let (seconds, study) = (unique_seconds(), Study::new());
    let mut command = lowtide();
    command.args(["study", "-a", "glibc", "-o"]).arg(study.at("record"));
    command.args(["--", "sleep", &seconds]);
    let mut child = begun(&mut command, &study.at("record"));
    // Its only child.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let keeper = fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let us = Pid::from_child(&child);
    // lowtide must not notice that its keeper is gone.
    kill_process(us, Signal::STOP).unwrap();
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    kill_process(us, Signal::KILL).unwrap();
    child.wait().unwrap();
    until("the subject to end", || processes_with(&seconds).is_empty().then_some(()));
}

#[test]
fn a_study_resumes_after_its_failed_setup_is_fixed() {
    let study = Study::new();
    let file = study.at("study.toml");
    let run = |setup: &str| {
        let text =
            format!("command = [\"sleep\", \"1\"]\nallocator = \"glibc\"\nsetup = \"{setup}\"\n");
        fs::write(&file, text).unwrap();
        let mut command = lowtide();
        command.args(["study", "--json", "--repeat", "1", "--resume", "-o"]);
        command.arg(study.at("record")).arg(&file).output().unwrap()
    };
    assert_eq!(run("false").status.code(), Some(1));
    let output = run("true");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // Now there is a trial that ran after this setup.
    assert!(refused(&run("echo")).contains("`setup` is `true`, but here it is `echo`"));
}

#[test]
fn a_complete_study_is_shown_even_if_its_port_is_in_use() {
    let (study, port) = (Study::new(), free_port());
    let run = |resume: &[&str]| {
        let mut command = lowtide();
        command.args(["study", "--json", "-a", "glibc", "--repeat", "1", "--settle", "100ms"]);
        command.args(["--ready", &format!("tcp:127.0.0.1:{port}"), "--load", "true", "-o"]);
        command.arg(study.at("record")).args(resume);
        command.args(["--", &subject(&[]), &format!("serve:{port}")]).output().unwrap()
    };
    let first = run(&[]);
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    let _somebody = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let shown = run(&["--resume"]);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    assert_eq!(object(&shown)["trials"], object(&first)["trials"]);
}
