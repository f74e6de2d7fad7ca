//! Records: they stay readable, whatever happens to a run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{lines, lowtide, processes_with, subject, unique_seconds, until};

fn report(record: &Path) -> Value {
    let output = lowtide().args(["--json", "report"]).arg(record).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_killed_study_leaves_a_readable_record_and_no_process() {
    let (subject, seconds) = (subject(&[]), unique_seconds());
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("record");
    let mut child = lowtide()
        .args(["study", "-a", "glibc", "--interval", "10ms", "-o"])
        .arg(&record)
        .args(["--", &subject, &format!("daemon:{seconds}"), "fill:16", "ms:600000"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("thirty samples, and memory in use", || {
        let trials = fs::read_dir(record.join("trials")).ok()?;
        let file = trials.flatten().find(|e| e.path().extension().is_some_and(|x| x == "jsonl"))?;
        let text = fs::read_to_string(file.path()).ok()?;
        // The last line may not be complete yet.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let samples = lines.filter(|line| line["kind"] == "sample");
        let rss: Vec<u64> = samples.filter_map(|sample| sample["rss_bytes"].as_u64()).collect();
        let is_full = rss.iter().max().is_some_and(|rss| *rss > 16 << 20);
        (rss.len() > 30 && is_full).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    until("everything to be gone", || processes_with(&seconds).is_empty().then_some(()));
    until("the subject to be gone", || {
        processes_with(record.to_str().unwrap()).is_empty().then_some(())
    });
    let study = report(&record);
    assert_eq!(study["complete"], false);
    assert_eq!(study["trials"][0]["outcome"], "unfinished");
    assert!(study["trials"][0]["peak_bytes"].as_u64().unwrap() > 16 << 20);
    assert_eq!(study["trials"][0]["settled_bytes"], Value::Null);
    assert_eq!(study["treatments"][0]["standing"], "not_finished");
    let shown = lowtide().arg("report").arg(&record).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("0 of 3 trials ended as planned"), "{shown}");
    assert!(shown.contains("glibc, not finished"), "{shown}");
}

/// Creates a record of two small trials. Returns its parent directory and its path.
fn small() -> (tempfile::TempDir, std::path::PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("record");
    let status = lowtide()
        .args(["study", "-a", "glibc", "--repeat", "2", "--interval", "20ms", "-o"])
        .arg(&record)
        .args(["--", &subject(&[]), "fill:4", "ms:1000"])
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    (home, record)
}

#[test]
fn a_trial_file_is_a_record_too_and_truncation_affects_only_its_trial() {
    let (_home, record) = small();
    let file = record.join("trials/001-glibc.jsonl");
    let whole = report(&file);
    assert_eq!(whole["trials"].as_array().unwrap().len(), 1);
    let bytes = fs::read(&file).unwrap();
    for part in [3, 2] {
        fs::write(&file, &bytes[..bytes.len() * (part - 1) / part]).unwrap();
        assert_eq!(report(&record)["trials"][0]["outcome"], "unfinished");
    }
    // If a file is cut within its first lines, its trial is lost, but the other one is not.
    for kept in [20, 0] {
        fs::write(&file, &bytes[..kept]).unwrap();
        let study = report(&record);
        assert_eq!(study["trials"].as_array().unwrap().len(), 1, "{kept}");
        assert_eq!(study["complete"], false);
    }
}

#[test]
fn damaged_and_foreign_files_are_reported_in_a_sentence() {
    let (home, record) = small();
    let file = record.join("trials/002-glibc.jsonl");
    let mut text: Vec<String> =
        fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
    text[4] = "{\"kind\":\"sample\",\"t_s\":".to_owned();
    fs::write(&file, text.join("\n") + "\n").unwrap();
    let message = |path: &Path| {
        let output = lowtide().args(["--json", "report"]).arg(path).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        object["message"].as_str().unwrap().to_owned()
    };
    assert!(message(&file).contains("002-glibc.jsonl line 5 is damaged"));
    let all = lowtide().arg("report").arg(&record).output().unwrap();
    let reported = String::from_utf8_lossy(&all.stdout);
    assert!(reported.contains("002-glibc.jsonl: line 5 is damaged"), "{reported}");
    assert!(reported.contains("this trial is left out"), "{reported}");
    let foreign = home.path().join("pidstat.txt");
    fs::write(&foreign, "11:19:33 PM   UID       PID  minflt/s\n").unwrap();
    assert!(message(&foreign).contains("is not a record of lowtide"));
    assert!(message(Path::new("/dev/null")).contains("is empty"));
    assert!(
        message(&record.join("trials")).contains("is not a record: it contains no study.jsonl")
    );
    assert!(message(Path::new("/dev/zero")).contains("is not a record of lowtide"));
    assert!(message(&home.path().join("nothing")).contains("cannot be read: No such file"));
    let newer = home.path().join("newer.jsonl");
    let header = fs::read_to_string(record.join("study.jsonl")).unwrap();
    fs::write(&newer, header.replace("lowtide.record/1", "lowtide.record/9")).unwrap();
    assert!(message(&newer).contains("in the format `lowtide.record/9`"));
}

#[test]
fn a_path_that_leaves_the_directory_of_the_record_is_not_followed() {
    let (home, record) = small();
    let path = record.join("study.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("trials/001-glibc.jsonl", "../elsewhere.jsonl")).unwrap();
    fs::copy(record.join("trials/001-glibc.jsonl"), home.path().join("elsewhere.jsonl")).unwrap();
    assert_eq!(report(&record)["trials"].as_array().unwrap().len(), 1);
}

#[test]
fn everything_that_pidstat_prints_can_be_derived() {
    let (_home, record) = small();
    let all = lines(&record.join("trials/001-glibc.jsonl"));
    let process = all.iter().find(|l| l["kind"] == "process").unwrap();
    let header = &all[0];
    let sample = all.iter().find(|l| l["kind"] == "process_sample").unwrap();
    for key in ["minor_faults", "major_faults", "vsz_bytes", "rss_bytes", "pid"] {
        assert!(sample[key].is_u64(), "{key}");
    }
    assert!(process["uid"].is_u64() && process["name"].is_string());
    assert!(header["machine"]["memory_bytes"].is_u64());
}

#[test]
fn a_report_never_overwrites_a_record() {
    let (_home, record) = small();
    let file = record.join("trials/001-glibc.jsonl");
    let before = fs::read(&file).unwrap();
    let output = lowtide().args(["report", "--csv"]).arg(&file).arg(&record).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(
        reported.contains("would be overwritten: put the records before the options"),
        "{reported}"
    );
    assert_eq!(fs::read(&file).unwrap(), before);
    let both = lowtide().args(["report", "--json"]).arg(&record).arg("--csv").output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_record_contains_a_copy_of_the_record_drawn_beside_it() {
    let home = tempfile::tempdir().unwrap();
    let (other, record) = (home.path().join("other"), home.path().join("record"));
    let subject = subject(&[]);
    let study = |words: &[&str]| {
        let output = lowtide().current_dir(home.path()).arg("study").args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    let run = ["-a", "glibc", "--repeat", "1", "--name", "the other", "-o", "other", "--"];
    study(&[&run[..], &[&subject, "ms:1000"]].concat());
    let file = format!(
        "command = [{subject:?}, \"ms:1000\"]\nallocator = \"glibc\"\nrepeat = 1\nbeside = [\"other\", \"none\"]\n"
    );
    fs::write(home.path().join("two.toml"), file).unwrap();
    study(&["two.toml", "-o", "record"]);
    fs::remove_dir_all(&other).unwrap();
    let shown = lowtide().arg("report").arg(&record).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("For comparison: the other"), "{shown}");
    assert!(shown.contains("not drawn for comparison: "), "{shown}");
}
