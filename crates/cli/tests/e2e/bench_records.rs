//! Checks that each record under `bench/` still yields the summary beside it, and that the folders
//! of `bench/` follow the rule of its README.
//!
//! `LOWTIDE_UPDATE_SUMMARIES=1 cargo test -p lowtide --test e2e bench_records` rewrites the
//! summaries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::lowtide;

/// Returns the records with their summaries: `record-NAME.tar.gz` holds the directory NAME, and
/// `summary-NAME.txt` holds the output of `lowtide report`.
fn records() -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for directory in fs::read_dir(root().join("bench")).unwrap() {
        let directory = directory.unwrap().path();
        // Beside the folders is the index, README.md.
        if !directory.is_dir() {
            continue;
        }
        for file in fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if let Some(name) = name.strip_prefix("record-").and_then(|n| n.strip_suffix(".tar.gz"))
            {
                let summary = path.with_file_name(format!("summary-{name}.txt"));
                found.push((path.clone(), summary));
            }
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_reports_of_the_benchmark_records_match_their_summaries() {
    let records = records();
    assert!(records.len() >= 13, "{records:?}");
    let mut changed = Vec::new();
    for (record, summary) in records {
        let home = tempfile::tempdir().unwrap();
        let unpacked =
            Command::new("tar").arg("-xzf").arg(&record).arg("-C").arg(home.path()).status();
        assert!(unpacked.unwrap().success(), "{}", record.display());
        let directory = fs::read_dir(home.path()).unwrap().next().unwrap().unwrap().path();
        let plan = fs::read_to_string(directory.join("study.jsonl")).unwrap();
        assert!(!plan.contains("\"beside\":[\"/"), "an absolute path in {}", record.display());
        // Documents that are drawn beside a study have paths relative to the root of the
        // repository.
        let output = lowtide()
            .current_dir(root())
            .env("COLUMNS", "150")
            .arg("report")
            .arg(&directory)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        if std::env::var_os("LOWTIDE_UPDATE_SUMMARIES").is_some() {
            fs::write(&summary, &text).unwrap();
        } else if fs::read_to_string(&summary).unwrap() != text {
            changed.push(summary);
        }
    }
    assert!(changed.is_empty(), "no longer what the records say: {changed:#?}");
}

#[test]
fn each_folder_of_measurements_is_small_and_in_the_index() {
    const MAX_BYTES: u64 = 50_000;
    const MAX_BYTES_OF_ALL: u64 = 5_000_000;
    let bench = root().join("bench");
    let index = fs::read_to_string(bench.join("README.md")).unwrap();
    let (mut all, mut faults) = (0, Vec::new());
    for folder in fs::read_dir(&bench).unwrap().map(|folder| folder.unwrap()) {
        if !folder.file_type().unwrap().is_dir() {
            continue;
        }
        let name = folder.file_name().into_string().unwrap();
        let mut own = 0;
        for file in files_in(&folder.path()) {
            let bytes = fs::metadata(&file).unwrap().len();
            all += bytes;
            let file = file.file_name().unwrap().to_str().unwrap();
            if !file.starts_with("record-") && !file.starts_with("summary-") {
                own += bytes;
            }
        }
        if own > MAX_BYTES {
            faults.push(format!("bench/{name}: {own} bytes without records and their summaries"));
        }
        if !index.contains(&format!("({name}/README.md)")) {
            faults.push(format!("bench/{name}: not in bench/README.md"));
        }
    }
    assert!(faults.is_empty() && all < MAX_BYTES_OF_ALL, "{all} bytes; {faults:#?}");
}

/// Returns the files of a directory and of those in it.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let (directories, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.extend(directories.iter().flat_map(|directory| files_in(directory)));
    files
}
