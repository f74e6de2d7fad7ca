//! `inspect --save`: a file has the same conclusions as the process, and no content of its memory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use lowtide_leaks::heap_file;
use serde_json::Value;

use super::{Subject, object, plain};
use crate::schemas::{hold_difference, hold_inspection};
use crate::support::{fixture, lowtide};

/// The secret of `fixtures/secrets.c`, and one in the environment.
const SECRETS: [&str; 2] = ["Zq7XkPw9-JvT3mRb8QyLn5-Hd2GsW6cF", "Ux4NfBe8KzWp1SdC"];
/// Number of bytes that occur in no file by chance.
const WINDOW: usize = 5;

fn save(subject: &Subject, path: &Path) -> Value {
    let pid = subject.pid().to_string();
    let words = ["--json", "inspect", &pid, "--pins", "--blocks", "--save"];
    let output = lowtide().args(words).arg(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    object(&output)
}

fn shown(words: &[&str], path: &Path) -> Value {
    let output = lowtide().args(["--json", "inspect"]).args(words).arg(path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    object(&output)
}

fn secretive() -> Subject {
    let program = fixture("secrets", &["-pthread"]);
    Subject::start(plain(&program).env("SECRET_TOKEN", SECRETS[1]))
}

#[test]
fn a_file_contains_no_part_of_a_secret_in_the_memory_or_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.heap");
    let found = save(&secretive(), &path);
    let bytes = std::fs::read(&path).unwrap();
    let body = heap_file::body(&bytes).unwrap();
    for part in SECRETS.iter().flat_map(|secret| secret.as_bytes().windows(WINDOW)) {
        let is_in = |bytes: &[u8]| bytes.windows(WINDOW).any(|window| window == part);
        assert!(!is_in(&bytes) && !is_in(&body), "{}", String::from_utf8_lossy(part));
    }
    let rss_bytes = found["rss_bytes"].as_u64().unwrap();
    assert!(bytes.len() as u64 <= rss_bytes / 50, "{} of {rss_bytes}", bytes.len());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777 & !0o640, 0);
}

#[test]
fn a_file_leads_to_the_same_conclusions_as_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.heap");
    let subject = secretive();
    let mut live = save(&subject, &path);
    // The process is not needed any more.
    drop(subject);
    let mut saved = shown(&["--pins", "--blocks"], &path);
    hold_inspection(&saved);
    assert!(saved["saved"]["mappings"].as_array().unwrap().len() > 10);
    for found in [&mut live, &mut saved] {
        let found = found.as_object_mut().unwrap();
        found.retain(|key, _| !["saved", "cures", "cpu_s"].contains(&key.as_str()));
        found["pins"]["cpu_s"] = 0.into();
        found["blocks"]["cpu_s"] = 0.into();
    }
    assert_eq!(live, saved);
    assert!(live["blocks"]["blocks"].as_u64().unwrap() > 2000);
}

#[test]
fn a_file_is_reported_as_text_as_a_page_and_as_charts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.heap");
    save(&secretive(), &path);
    let report = |words: &[&str]| {
        let mut command = lowtide();
        command.args(words).arg("report").arg(&path).current_dir(directory.path());
        command.args(["--html", "s.html", "--svg", "s.svg", "--png", "s.png"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let found = object(&report(&["--json"]));
    hold_inspection(&found);
    assert!(found["pins"].is_object() && found["blocks"].is_object(), "{found:#}");
    let written = |name| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let [page, svg] = ["s.html", "s.svg"].map(written);
    assert!(page.contains("blocks in use") && svg.contains("RSS by owner"), "{svg}");
    let text = lowtide().arg("report").arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("blocks in use, resident or not"), "{text}");
}

#[test]
fn the_difference_of_two_files_names_what_grew() {
    let directory = tempfile::tempdir().unwrap();
    let (before, after) = (directory.path().join("a.heap"), directory.path().join("b.heap"));
    save(&Subject::of(&["blocks:2"]), &before);
    save(&secretive(), &after);
    let difference = shown(&[before.to_str().unwrap()], &after);
    hold_difference(&difference);
    let rows = difference["ledger"].as_array().unwrap();
    let sum: i64 = rows.iter().map(|row| row["difference_bytes"].as_i64().unwrap()).sum();
    assert_eq!(difference["difference_bytes"], sum);
    assert_eq!(difference["blocks"][0]["size_bytes"], (1 << 20) + 4096, "{difference:#}");
    let text = lowtide().arg("inspect").args([&before, &after]).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("different commands"), "{text:?}");
}

#[test]
fn bad_files_and_combinations_are_refused_in_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.heap");
    let subject = secretive();
    save(&subject, &path);
    let (pid, name) = (subject.pid().to_string(), path.to_str().unwrap());
    let cut = directory.path().join("cut.heap");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    for (words, code, sentence) in [
        (&["inspect", &pid, "--save", name][..], 2, "already exists"),
        (&["inspect", name, &pid], 2, "save the process first"),
        (&["inspect", name, name, name], 2, "two to compare them"),
        (&["inspect", name, "--watch", "5s"], 2, "--watch needs a process"),
        (&["inspect", name, "--save", "other.heap"], 2, "--save needs a process"),
        (&["inspect", "--save", "other.heap", &pid, "1"], 2, "name one PID"),
        (&["inspect", cut.to_str().unwrap()], 1, "was not copied completely"),
        (&["inspect", "./missing.heap"], 1, "cannot be read"),
        (&["inspect", "/proc/self/mem"], 1, "cannot be read"),
        (&["release", name], 2, "process"),
        (&["report", name, name], 2, "report each separately"),
        (&["report", name, "--csv"], 2, "can be shown as text"),
        (&["report", cut.to_str().unwrap()], 1, "was not copied completely"),
    ] {
        let output = lowtide().args(words).current_dir(directory.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(sentence) && !text.contains("panicked"), "{words:?}: {text}");
    }
    assert!(!directory.path().join("other.heap").exists());
}
