//! The verdict and its predictions.

use std::process::Stdio;

use serde_json::Value;

use super::{Subject, because, bytes, object, plain, predicted};
use crate::schemas::hold_inspection;
use crate::support::{fixture, lowtide, until};

const MIB: u64 = 1 << 20;

/// Checks the prediction against the memory that the program's own `malloc_trim(0)` returns.
fn predicts_its_trim(subject: &mut Subject, found: &Value) -> u64 {
    let predicted = predicted(found, "malloc_trim");
    let returned: u64 = subject.send("trim")[0].parse().unwrap();
    let slack = (returned / 1000).max(64 << 10);
    assert!(predicted.abs_diff(returned) <= slack, "{predicted} {returned} {found:#}");
    returned
}

#[test]
fn a_program_that_freed_most_of_its_memory_is_a_hoard_with_a_predicted_trim() {
    let mut subject = Subject::of(&["blocks:200", "keep:10"]);
    let found = subject.inspect();
    assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
    assert!(because(&found).contains("were freed and are still held"), "{found:#}");
    assert_eq!(predicted(&found, "release"), bytes(&found, "reclaimable"));
    let returned = predicts_its_trim(&mut subject, &found);
    assert!(returned > 100 * MIB, "{returned}");
    let after = subject.inspect();
    assert_eq!(bytes(&after, "allocated"), bytes(&found, "allocated"));
    assert_eq!(predicted(&after, "malloc_trim"), 0, "{after:#}");
}

#[test]
fn a_release_of_a_multithreaded_hoard_is_predicted_to_return_at_least_a_trim() {
    let mut subject = Subject::of(&["threads:8:20"]);
    let found = subject.inspect();
    assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
    let returned = predicts_its_trim(&mut subject, &found);
    assert!(returned > 80 * MIB, "{returned}");
    assert!(predicted(&found, "release") >= predicted(&found, "malloc_trim"));
    let after = subject.inspect();
    assert!(bytes(&after, "reclaimable") >= predicted(&after, "release"), "{after:#}");
}

#[test]
fn a_watch_predicts_what_a_release_returns_of_the_heap_of_another_allocator() {
    let jemalloc = lowtide_allocators::bundled().find(|carried| carried.name() == "jemalloc");
    let mut command = plain(&fixture("memory", &["-pthread"]));
    command.env("LD_PRELOAD", jemalloc.unwrap().unpack().unwrap());
    let subject = Subject::start(command.args(["blocks:200", "keep:10"]));
    let now = predicted(&subject.inspect(), "release");
    let watched = subject.inspect_with(&["--watch", "1s"]);
    assert!(now > MIB, "{now}");
    assert_eq!(predicted(&watched, "release"), now, "{watched:#}");
}

#[test]
fn a_program_that_uses_its_memory_is_live() {
    let mut subject = Subject::of(&["blocks:100"]);
    let found = subject.inspect();
    assert_eq!(found["verdict"]["kind"], "live", "{found:#}");
    assert!(because(&found).contains("in use by the program"), "{found:#}");
    assert!(bytes(&found, "allocated") > 95 * MIB, "{found:#}");
    predicts_its_trim(&mut subject, &found);
}

#[test]
fn small_allocated_blocks_among_free_ones_are_fragmentation() {
    let mut subject = Subject::of(&["small:100:200", "keep:2"]);
    let found = subject.inspect();
    assert_eq!(found["verdict"]["kind"], "fragmentation", "{found:#}");
    assert!(bytes(&found, "fragmented") > 40 * MIB, "{found:#}");
    assert!(found["cures"].as_array().unwrap().iter().any(|c| c["cure"] == "allocator"));
    predicts_its_trim(&mut subject, &found);
}

#[test]
fn memory_that_the_program_maps_itself_is_outside_the_heap() {
    let found = Subject::of(&["mapped:100"]).inspect();
    assert_eq!(found["verdict"]["kind"], "outside_heap", "{found:#}");
    assert!(because(&found).contains("were mapped by the program itself"), "{found:#}");
    assert!(bytes(&found, "anonymous_other") >= 100 * MIB);
}

/// Inspects until growth can be judged: on a busy machine, there may be too few inspections.
fn judged(inspect: impl Fn() -> Value) -> Value {
    until("enough inspections", || {
        let found = inspect();
        (!because(&found).contains("too few samples")).then_some(found)
    })
}

#[test]
fn a_steady_leak_is_reported_as_growth_with_its_size_class() {
    let found = judged(|| Subject::of(&["blocks:2", "leak:3000"]).inspect_with(&["--watch", "4s"]));
    // On a busy machine, there may be too few snapshots to know that it is lost.
    let kind = found["verdict"]["kind"].as_str().unwrap();
    assert!(["leak", "growing"].contains(&kind), "{found:#}");
    let because = because(&found);
    assert!(because.contains("memory in use grew from "), "{because}");
    assert!(because.contains("blocks of 2048 to 4095 bytes: "), "{because}");
}

#[test]
fn consecutive_execs_of_a_process_are_not_reported_as_growth() {
    let program = fixture("memory", &["-pthread"]);
    let mut subject = Subject::of(&["blocks:1"]);
    let look_for = |gap_ms| {
        let mut look = lowtide()
            .args(["--json", "inspect", "--watch", "3s", &subject.pid().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Each program uses more memory than the previous one.
        for mib in (2..200).step_by(2) {
            subject.say(&format!("exec:{program}:blocks:{mib}"));
            assert_eq!(subject.line(), "ready");
            if look.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(gap_ms));
        }
        let found = object(&look.wait_with_output().unwrap());
        // On a busy machine, no inspection may fit between two execs.
        found["verdict"].is_object().then_some(found)
    };
    let found = [100, 500, 2000, 10_000].into_iter().find_map(look_for);
    let found = found.expect("an inspection between two execs");
    // The last inspection may come right after an exec, before the new program has a heap.
    assert_ne!(found["verdict"]["kind"], "growing", "{found:#}");
    assert!(!because(&found).contains(" grew from "), "{found:#}");
}

/// Watches a program, which gets a command every 100 ms.
fn watched_while_it_gets(command: &str) -> Value {
    let mut subject = Subject::of(&["blocks:10"]);
    let mut look = lowtide();
    look.args(["--json", "inspect", "--watch", "4s", &subject.pid().to_string()]);
    let mut look = look.stdout(Stdio::piped()).spawn().unwrap();
    while look.try_wait().unwrap().is_none() {
        subject.send(command);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    object(&look.wait_with_output().unwrap())
}

#[test]
fn growth_outside_of_the_heap_is_growing_with_its_owner_and_never_did_not_grow() {
    let found = judged(|| {
        let found = watched_while_it_gets("memfd:2");
        hold_inspection(&found);
        assert!(!because(&found).contains("did not grow"), "{found:#}");
        found
    });
    assert_eq!(found["verdict"]["kind"], "growing", "{found:#}");
    assert!(because(&found).contains("in shared memory (/memfd:subject"), "{found:#}");
    assert!(!because(&found).contains("did not grow"), "{found:#}");
    let growth = &found["growth"];
    let parts = growth["by"].as_array().unwrap().iter();
    let sum: i64 = parts.map(|part| part["bytes"].as_i64().unwrap()).sum();
    let rss = |place: usize| growth["rss_bytes"][place].as_i64().unwrap();
    assert_eq!(sum, rss(1) - rss(0), "{growth:#}");
    assert!(growth["seconds_to_limit"].as_f64().unwrap() > 0.0, "{growth:#}");
}

#[test]
fn files_in_memory_that_are_open_and_not_mapped_are_growing() {
    let found = judged(|| watched_while_it_gets("opened:2"));
    hold_inspection(&found);
    assert_eq!(found["verdict"]["kind"], "growing", "{found:#}");
    let said = because(&found);
    assert!(said.contains("that it has open and does not map"), "{said}");
    assert!(said.contains("(mostly /memfd:opened)"), "{said}");
    assert_eq!(found["open_memory"]["name"], "/memfd:opened", "{found:#}");
    assert!(found["growth"]["seconds_to_limit"].as_f64().unwrap() > 0.0, "{found:#}");
}

#[test]
fn a_child_that_grows_is_named_beside_a_parent_that_does_not() {
    let subject = Subject::of(&["blocks:1", "leaking-child:1000"]);
    // On a busy machine, it takes longer until its growth is noticeable.
    let found = until("a child that has grown", || {
        let found = subject.inspect_with(&["--watch", "4s"]);
        because(&found).contains("; its child process grew by ").then_some(found)
    });
    hold_inspection(&found);
    assert_ne!(found["verdict"]["kind"], "growing", "{found:#}");
    let most = &found["growth"]["descendants"]["most"];
    assert_ne!(most["pid"], subject.pid(), "{found:#}");
    assert!(most["pss_bytes"][1].as_u64() > most["pss_bytes"][0].as_u64(), "{found:#}");
}

#[test]
fn too_few_samples_leave_growth_undecided() {
    let subject = Subject::of(&["blocks:1"]);
    let look = lowtide()
        .args(["--json", "inspect", "--watch", "10m", &subject.pid().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It is in its first wait once it handles Ctrl-C and sleeps. The next inspection is half a
    // minute away.
    let status = || std::fs::read_to_string(format!("/proc/{}/status", look.id())).unwrap();
    until("its waiting", || {
        let listens = status().lines().any(|line| {
            let mask = line.strip_prefix("SigCgt:").map(str::trim);
            mask.is_some_and(|m| u64::from_str_radix(m, 16).unwrap() & 2 != 0)
        });
        (listens && status().contains("State:\tS")).then_some(())
    });
    let pid = rustix::process::Pid::from_raw(i32::try_from(look.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let found = object(&look.wait_with_output().unwrap());
    assert!(because(&found).contains("too few samples to decide whether it grows ("), "{found:#}");
}

#[test]
fn constant_memory_is_not_reported_as_growth() {
    let subject = Subject::of(&["blocks:20"]);
    let found = judged(|| subject.inspect_with(&["--watch", "3s"]));
    assert_eq!(found["verdict"]["kind"], "live", "{found:#}");
    assert!(because(&found).contains("did not grow"), "{found:#}");
}

#[test]
fn a_program_that_allocates_at_full_speed_is_inspected() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let words = ["blocks:50".to_owned(), format!("busy:{cores}")];
    let program = fixture("memory", &["-pthread"]);
    let subject = Subject::start(plain(&program).args(words));
    for _ in 0..5 {
        let found = subject.inspect();
        assert_eq!(found["verdict"]["kind"], "live", "{found:#}");
        let allocated = bytes(&found, "allocated");
        assert!(allocated > 45 * MIB && allocated < 200 * MIB, "{allocated}");
    }
}

#[test]
fn blocks_in_fast_bins_are_free_and_not_in_use() {
    let mut subject = Subject::of(&["small:50:100", "keep:2"]);
    let found = subject.inspect();
    let free = bytes(&found, "fragmented") + bytes(&found, "reclaimable");
    assert!(free > 20 * MIB, "{found:#}");
    predicts_its_trim(&mut subject, &found);
}
