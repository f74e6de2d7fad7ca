//! Locked memory (`mlock`) in all verbs: it is never promised, never released, and does not prevent
//! the release of other memory.

use serde_json::Value;

use crate::exporter::Exporter;
use crate::inspect::{Subject, because, bytes, object, plain, predicted};
use crate::release::release;
use crate::support::{copy_program, fixture, lowtide};

const MIB: u64 = 1 << 20;
/// Minimum gain of a release, in bytes.
const MIN_GAIN: u64 = 64 << 10;

/// Returns the object of a release, and its exit code.
fn released(pid: u32) -> (Value, Option<i32>) {
    let output = release(&[], pid);
    (object(&output), output.status.code())
}

#[test]
fn a_locked_hoard_is_named_and_not_promised() {
    for lock in ["lock:heap", "lock:onfault"] {
        // 4 MiB: users may lock 8 MiB.
        let subject = Subject::of(&["blocks:4", "keep:10", lock]);
        let found = subject.inspect();
        assert!(bytes(&found, "locked") > 2 * MIB, "{found:#}");
        assert!(bytes(&found, "reclaimable") < MIN_GAIN, "{found:#}");
        assert_eq!(found["heaps"][0]["locked_bytes"], bytes(&found, "locked"), "{found:#}");
        assert_eq!(found["verdict"]["kind"], "locked", "{found:#}");
        assert!(because(&found).contains("locked in memory (mlock)"), "{found:#}");
        assert_eq!(predicted(&found, "release"), 0, "{found:#}");

        let before = subject.status("VmRSS");
        let (refused, exit) = released(subject.pid());
        assert_eq!((exit, &refused["hazard"]), (Some(5), &"locked".into()), "{refused:#}");
        let reason = refused["reason"].as_str().unwrap();
        assert!(reason.contains("is locked (mlock)"), "{reason}");
        assert_eq!(refused["may_pass"], false, "{refused:#}");
        assert_eq!(subject.status("VmRSS"), before);
    }
}

#[test]
fn a_trim_returns_locked_memory_at_the_end_of_the_heap_as_predicted() {
    let program = fixture("memory", &["-pthread"]);
    let mut command = plain(&program);
    command.env("MALLOC_TRIM_THRESHOLD_", "1000000000").env("MALLOC_TOP_PAD_", "0");
    command.args(["blocks:4", "keep:1000000", "lock:heap"]);
    let mut subject = Subject::start(&mut command);
    let found = subject.inspect();
    assert_eq!(found["verdict"]["kind"], "locked", "{found:#}");
    let trim_bytes = predicted(&found, "malloc_trim");
    assert!(trim_bytes > MIN_GAIN && predicted(&found, "release") == 0, "{found:#}");
    let [returned] = &subject.send("trim")[..] else { panic!("no answer") };
    assert_eq!(returned.parse::<u64>().unwrap(), trim_bytes);
}

#[test]
fn a_small_locked_secret_is_kept_while_the_hoard_beside_it_is_released() {
    // One heap whose locks lowtide reads, and one that is too large for that.
    for mib in ["60", "200"] {
        let blocks = format!("blocks:{mib}");
        let mut subject = Subject::of(&["secret:32", &blocks, "keep:10"]);
        let locked = subject.status("VmLck");
        assert_eq!(locked, 32 << 10);
        let before = subject.inspect();
        assert_eq!(before["verdict"]["kind"], "hoard", "{before:#}");
        assert_eq!(bytes(&before, "locked"), 0, "{before:#}");
        let (found, exit) = released(subject.pid());
        assert_eq!(exit, Some(0), "{found:#}");
        assert_eq!(found["predicted_bytes"], predicted(&before, "release"), "{found:#}");
        assert_eq!(found["returned_bytes"], found["predicted_bytes"], "{found:#}");
        assert!(found["returned_bytes"].as_u64().unwrap() > 30 * MIB, "{found:#}");
        assert_eq!(subject.status("VmLck"), locked);
        assert_eq!(subject.send("kept"), ["1"]);
    }
}

#[test]
fn only_the_part_of_a_heap_from_before_the_lock_is_released() {
    // The last blocks first fill the free memory of the others, and then the heap grows.
    let words = ["blocks:10", "keep:10", "lock:future", "small:11:60000", "keep:10"];
    let mut subject = Subject::of(&words);
    let before = subject.inspect();
    let locked = bytes(&before, "locked");
    assert!(locked > MIB && bytes(&before, "reclaimable") > 5 * MIB, "{before:#}");
    assert_eq!(before["verdict"]["kind"], "hoard", "{before:#}");
    let (found, exit) = released(subject.pid());
    assert_eq!(exit, Some(0), "{found:#}");
    assert_eq!(found["predicted_bytes"], predicted(&before, "release"), "{found:#}");
    assert_eq!(found["returned_bytes"], found["predicted_bytes"], "{found:#}");
    let notes = found["notes"].to_string();
    assert!(
        notes.contains("bytes of free memory are locked (mlock), and are left alone"),
        "{notes}"
    );
    let after = subject.inspect();
    assert_eq!(bytes(&after, "locked"), locked, "{after:#}");
    subject.send("small:1:1000");
}

#[test]
fn top_and_the_exporter_do_not_count_a_locked_hoard_as_reclaimable() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("locked");
    copy_program(fixture("memory", &["-pthread"]), &program);
    let program = program.to_str().unwrap();
    let subject = Subject::start(plain(program).args(["blocks:4", "keep:10", "lock:heap"]));
    let output = lowtide().args(["--json", "top", "--once", "--exe", program]).output().unwrap();
    let found = object(&output);
    let process = &found["processes"][0];
    assert_eq!((&process["pid"], &process["verdict"]), (&subject.pid().into(), &"locked".into()));
    assert!(process["reclaimable_bytes"].as_u64().unwrap() < MIN_GAIN, "{process:#}");

    let metrics = Exporter::on_any_port(&["--exe", program]).complete();
    let of = |owner: &str| -> u64 {
        let label = format!("owner=\"{owner}\"");
        let line = metrics
            .lines()
            .find(|line| line.starts_with("lowtide_resident_bytes{") && line.contains(&label));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect(&metrics)
    };
    assert!(of("locked") > 2 * MIB && of("reclaimable") < MIN_GAIN, "{metrics}");
    assert!(
        metrics.lines().any(|l| l.contains("verdict=\"locked\"") && l.ends_with(" 1")),
        "{metrics}"
    );
}
