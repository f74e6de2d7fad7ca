//! `inspect CORE`: the heap of a process that has ended, as its allocator left it.

use std::fs;
use std::path::Path;

use lowtide_testing::write_core;
use serde_json::Value;

use super::{Subject, object};
use crate::schemas::{hold_difference, hold_inspection};
use crate::support::lowtide;

/// Returns the inspection of a process or of a file.
fn shown(words: &[&str], what: &str) -> Value {
    let output = lowtide().args(["--json", "inspect"]).args(words).arg(what).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    object(&output)
}

fn text_of(words: &[&str]) -> String {
    let output = lowtide().arg("inspect").args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Starts a program whose heap has blocks of many sizes, free blocks and threads, and waits until
/// nothing of it runs.
fn subject() -> Subject {
    let subject = Subject::of(&["small:8:100", "keep:7", "threads:3:2"]);
    subject.rests();
    subject
}

/// Returns the sums of a census: the number of blocks and bytes by size.
fn by_size(found: &Value) -> Vec<(u64, u64, u64)> {
    let groups = found["blocks"]["groups"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let of = |group: &Value| {
        (number(&group["size_bytes"][0]), number(&group["blocks"]), number(&group["bytes"]))
    };
    groups.iter().map(of).collect()
}

/// Returns what the allocator has in use and free in its arenas.
fn by_arena(found: &Value) -> Vec<[Value; 6]> {
    const KEYS: [&str; 6] = [
        "system_bytes",
        "allocated_bytes",
        "free_bytes",
        "fast_bytes",
        "top_bytes",
        "largest_free_bytes",
    ];
    let arenas = found["arenas"].as_array().unwrap();
    arenas.iter().map(|arena| KEYS.map(|key| arena[key].clone())).collect()
}

#[test]
fn a_core_has_the_same_bytes_in_use_and_free_as_its_process_and_no_rss() {
    const PARTS: [&str; 4] = ["--pins", "--blocks", "--top", "100"];
    let directory = tempfile::tempdir().unwrap();
    let (path, subject) = (directory.path().join("core"), subject());
    let live = shown(&PARTS, &subject.pid().to_string());
    write_core(subject.pid(), &path);
    drop(subject);
    let core = shown(&PARTS, path.to_str().unwrap());
    hold_inspection(&core);
    for key in ["allocator", "pid", "threads"] {
        assert_eq!(core[key], live[key], "{key}");
    }
    assert_eq!(by_arena(&core), by_arena(&live));
    assert!(by_arena(&core).len() > 1, "{core:#}");
    assert_eq!(by_size(&core), by_size(&live));
    assert!(core["blocks"]["bytes"].as_u64() > Some(1 << 20) && core["pins"].is_object());
    assert!(core["rss_bytes"].is_null() && core["kernel_rss_bytes"].is_null(), "{core:#}");
    let rows = core["ledger"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["estimated"] == true || row["bytes"] == 0), "{rows:#?}");
    let text = text_of(&[path.to_str().unwrap()]);
    assert!(text.contains("which pages were resident is not known"), "{text}");
    assert!(text.contains("RSS not known") && !text.contains("of RSS"), "{text}");
}

#[test]
fn a_core_that_was_cut_off_is_read_as_far_as_it_goes_and_has_no_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let (path, subject) = (directory.path().join("core"), subject());
    write_core(subject.pid(), &path);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    let found = shown(&["--blocks"], path.to_str().unwrap());
    hold_inspection(&found);
    assert_eq!(found["verdict"]["kind"], "inconclusive", "{found:#}");
    assert!(found["saved"]["core"]["missing_bytes"].as_u64() > Some(0), "{found:#}");
    let text = text_of(&[path.to_str().unwrap()]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("the core was cut off, as by a limit (ulimit -c)"), "{text}");
}

#[test]
fn a_core_without_the_shared_memory_of_its_process_has_no_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("core");
    let subject = Subject::of(&["small:8:100", "shared:40"]);
    subject.rests();
    write_core(subject.pid(), &path);
    drop(subject);
    let found = shown(&[], path.to_str().unwrap());
    hold_inspection(&found);
    assert_eq!(found["verdict"]["kind"], "inconclusive", "{found:#}");
    let reasons = found["verdict"]["because"].to_string();
    assert!(reasons.contains("the core lacks up to 40.0 MiB of shared memory"), "{reasons}");
}

#[test]
fn a_core_and_a_saved_heap_of_one_process_do_not_differ_in_their_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let (core, heap) = (directory.path().join("core"), directory.path().join("a.heap"));
    let subject = subject();
    let pid = subject.pid().to_string();
    assert!(
        lowtide().args(["inspect", &pid, "--save"]).arg(&heap).output().unwrap().status.success()
    );
    write_core(subject.pid(), &core);
    let found = shown(&[core.to_str().unwrap()], heap.to_str().unwrap());
    hold_difference(&found);
    assert_eq!(found["blocks"].as_array().unwrap().len(), 0, "{found:#}");
    let notes = found["notes"].to_string();
    assert!(notes.contains("a core does not show which pages were resident"), "{notes}");
}

/// Writes a changed core, and returns the error of reading it.
fn refused(path: &Path, bytes: &[u8]) -> String {
    fs::write(path, bytes).unwrap();
    let output = lowtide().arg("inspect").arg(path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn files_that_are_no_cores_of_this_machine_are_refused_in_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let (path, subject) = (directory.path().join("core"), subject());
    write_core(subject.pid(), &path);
    let core = fs::read(&path).unwrap();
    let with = |place: usize, value: u8| {
        let mut changed = core.clone();
        changed[place] = value;
        refused(&path, &changed)
    };
    assert!(with(4, 1).contains("the core of a 32-bit program"));
    assert!(with(18, 8).contains("for another processor"));
    assert!(with(16, 2).contains("it is not a heap file"), "a program");
    assert!(refused(&path, &core[..100]).contains("cut off within its headers"));
    assert!(refused(&path, b"\x28\xb5\x2f\xfd and more bytes").contains("zstd -d decompresses it"));
}
