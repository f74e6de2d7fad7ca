//! Releases that are carried out, and processes that are left alone.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::ptrace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{release, stderr};
use crate::inspect::{Subject, bytes, object, plain, predicted};
use crate::schemas::hold_release;
use crate::support::{fixture, lowtide, until};

const MIB: u64 = 1 << 20;

/// Releases the memory of a process. Returns the object that was printed.
fn released(flags: &[&str], pid: u32, exit: i32) -> Value {
    let output = release(flags, pid);
    let found = object(&output);
    assert_eq!(output.status.code(), Some(exit), "{found} {}", stderr(&output));
    hold_release(&found);
    found
}

/// Attempts a release that must be refused. Returns the hazard and the text on stderr.
fn refused(flags: &[&str], pid: u32) -> (String, String) {
    let before = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let output = release(flags, pid);
    let found = object(&output);
    assert_eq!(output.status.code(), Some(5), "{found} {}", stderr(&output));
    hold_release(&found);
    assert_eq!(found["outcome"], "refused");
    let said = stderr(&output);
    assert!(said.contains(found["reason"].as_str().unwrap()), "{said} {found}");
    assert!(said.contains("\n  next: "), "{said}");
    assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap(), before);
    (found["hazard"].as_str().unwrap().to_owned(), said)
}

fn number(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

#[test]
fn a_release_returns_a_hoard_and_the_program_continues() {
    let mut subject = Subject::of(&["blocks:200", "keep:10"]);
    let before = subject.inspect();
    let found = released(&[], subject.pid(), 0);
    assert_eq!(found["outcome"], "released", "{found:#}");
    assert_eq!(found["predicted_bytes"], predicted(&before, "release"), "{found:#}");
    assert_eq!(found["returned_bytes"], found["predicted_bytes"], "{found:#}");
    assert!(found["returned_bytes"].as_u64().unwrap() > 100 * MIB, "{found:#}");
    let after = subject.inspect();
    assert_eq!(bytes(&after, "allocated"), bytes(&before, "allocated"));
    assert!(bytes(&after, "reclaimable") < MIB, "{after:#}");
    subject.send("blocks:20");
    assert_eq!(released(&[], subject.pid(), 0)["pid"], subject.pid());
}

#[test]
fn a_release_returns_the_top_chunks_of_thread_heaps_which_a_trim_cannot() {
    let subject = Subject::of(&["threads:4:20"]);
    let before = subject.inspect();
    let found = released(&[], subject.pid(), 0);
    // A young process of root might still drop its privileges.
    let runs_in = if rustix::process::geteuid().is_root() { "slices" } else { "own_thread" };
    assert_eq!(found["runs_in"], runs_in, "{found:#}");
    assert_eq!(found["returned_bytes"], found["predicted_bytes"], "{found:#}");
    assert!(found["returned_bytes"].as_u64().unwrap() > predicted(&before, "malloc_trim"));
    let threads = std::fs::read_dir(format!("/proc/{}/task", subject.pid())).unwrap().count();
    assert_eq!(threads, 5, "a thread of ours is left");
    assert!(!subject.proc("maps").contains("lowtide"), "a mapping of ours is left");
}

#[test]
fn a_release_consolidates_fast_bins_and_returns_at_least_what_a_trim_does() {
    // Since glibc 2.43, there are no fast bins, and blocks are coalesced when they are freed.
    let subject = Subject::of(&["small:60:100", "keep:100"]);
    let before = subject.inspect();
    let found = released(&[], subject.pid(), 0);
    assert_eq!(found["runs_in"], "slices", "{found:#}");
    assert_eq!(found["returned_bytes"], found["predicted_bytes"], "{found:#}");
    let trim = predicted(&before, "malloc_trim");
    assert!(trim > 10 * MIB && found["returned_bytes"].as_u64().unwrap() >= trim, "{found:#}");
    let fast: u64 = before["arenas"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["fast_count"].as_u64().unwrap())
        .sum();
    assert!(found["joined_blocks"].as_u64().unwrap() >= fast, "{found:#}");
}

#[test]
fn a_trim_returns_the_predicted_bytes_with_and_without_threads() {
    for arguments in [&["threads:2:20"][..], &["blocks:40", "keep:10"][..]] {
        let subject = Subject::of(arguments);
        let before = subject.inspect();
        let found = released(&["--method", "trim"], subject.pid(), 0);
        assert_eq!((&found["method"], &found["runs_in"]), (&"trim".into(), &"slices".into()));
        assert_eq!(found["predicted_bytes"], predicted(&before, "malloc_trim"), "{found:#}");
        assert_eq!(found["returned_bytes"], found["predicted_bytes"], "{found:#}");
    }
}

#[test]
#[ignore = "needs huge pages: /sys/kernel/mm/transparent_hugepage/enabled, always or madvise"]
fn huge_pages_that_a_release_leaves_half_empty_are_split() {
    let huge = |found: &Value| found["anon_huge_bytes"].as_u64().unwrap();
    // After other tests, free memory may be too scattered for huge pages until the kernel has
    // compacted it.
    let (subject, before) = until("huge pages", || {
        let mut command = plain(&fixture("memory", &["-pthread"]));
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        let subject = Subject::start(command.args(["blocks:100", "keep:20"]));
        let before = subject.inspect();
        (huge(&before) > 50 * MIB).then_some((subject, before))
    });
    let found = released(&[], subject.pid(), 0);
    assert!(found["split_bytes"].as_u64().unwrap() > 50 * MIB, "{found:#}");
    let after = subject.inspect();
    assert!(huge(&after) < 20 * MIB, "{after:#}");
    let gone = found["huge_gone_bytes"].as_u64().unwrap();
    assert!(gone.abs_diff(huge(&before) - huge(&after)) <= 2 * MIB, "{gone} {before:#} {after:#}");
}

#[test]
fn a_dry_run_reports_the_predicted_release_and_changes_nothing() {
    let subject = Subject::of(&["threads:4:20"]);
    subject.rests();
    let before = subject.inspect();
    let found = released(&["--dry-run"], subject.pid(), 0);
    assert_eq!((&found["outcome"], &found["dry_run"]), (&"released".into(), &true.into()));
    assert_eq!(found["predicted_bytes"], predicted(&before, "release"), "{found:#}");
    assert_eq!(found["returned_bytes"], 0);
    assert!(found["runs_in"].is_string() && found["thread"].is_u64(), "{found:#}");
    let after = subject.inspect();
    assert_eq!(bytes(&after, "reclaimable"), bytes(&before, "reclaimable"));
}

#[test]
fn a_process_without_free_memory_has_nothing_to_release() {
    let subject = Subject::silent(plain("sleep").arg("1000"));
    until("its sleep", || subject.proc("status").contains("State:\tS").then_some(()));
    let found = released(&[], subject.pid(), 0);
    assert_eq!(found["outcome"], "nothing_to_release", "{found:#}");
    assert_eq!((&found["pauses"], &found["returned_bytes"]), (&0.into(), &0.into()));
    let output = lowtide().args(["release", &subject.pid().to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("nothing to release: "), "{text}");
    assert!(!text.contains("next:"), "{text}");
}

#[test]
fn the_free_memory_of_other_allocators_is_released_as_predicted() {
    for name in ["jemalloc", "mimalloc", "mimalloc2"] {
        let subject = with_allocator(name);
        let pid = subject.pid().to_string();
        // The owner of the memory gets its turn late on a busy machine.
        let words = ["release", &pid, "--json", "--wait", "60s"];
        let done = object(&lowtide().args(words).output().unwrap());
        assert_eq!(done["outcome"], "released", "{done:#}");
        assert_eq!(done["allocator"], name.trim_end_matches('2'));
        let bytes = |key: &str| done[key].as_u64().unwrap();
        assert!(bytes("returned_bytes") > 1 << 20, "{done:#}");
        assert!(bytes("returned_bytes") <= bytes("predicted_bytes") + (1 << 20), "{done:#}");
        assert!(bytes("rss_after_bytes") < bytes("rss_before_bytes"), "{done:#}");
        let (hazard, said) = refused(&["--method", "trim"], subject.pid());
        assert_eq!(hazard, "no_trim", "{said}");
    }
}

/// Returns allocator, library and outcome of each heap of a release, and whether more than a
/// mebibyte of it was returned.
fn heaps(done: &Value) -> Vec<(String, Option<String>, String, bool)> {
    let word = |heap: &Value, key: &str| heap[key].as_str().map(str::to_owned);
    let row = |heap: &Value| {
        let returned = heap["returned_bytes"].as_u64().unwrap();
        let (allocator, outcome) = (word(heap, "allocator"), word(heap, "outcome"));
        (allocator.unwrap(), word(heap, "library"), outcome.unwrap(), returned > MIB)
    };
    done["heaps"].as_array().unwrap().iter().map(row).collect()
}

fn heap(
    allocator: &str,
    library: Option<&str>,
    outcome: &str,
    returned: bool,
) -> (String, Option<String>, String, bool) {
    (allocator.to_owned(), library.map(str::to_owned), outcome.to_owned(), returned)
}

/// Asserts that the figures of a release are the sums of those of its heaps.
fn is_sum_of_heaps(done: &Value) {
    for key in ["predicted_bytes", "returned_bytes"] {
        let heaps = done["heaps"].as_array().unwrap().iter();
        let sum: u64 = heaps.map(|heap| heap[key].as_u64().unwrap()).sum();
        assert_eq!(done[key], sum, "{done:#}");
    }
}

#[test]
fn the_heaps_of_both_allocators_of_a_program_are_released_and_a_refused_one_hides_no_other() {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_lowtide"));
    let program = binary.with_file_name("examples").join("own_allocator");
    let start = || {
        let mut command = plain(&program.to_string_lossy());
        Subject::start(command.arg("hoards").env("MIMALLOC_PURGE_DELAY", "1000000"))
    };
    let mut subject = start();
    let before = subject.inspect();
    let flags = ["--wait", "60s", "--untested"];
    let done = released(&flags, subject.pid(), 0);
    let both = [heap("mimalloc", None, "released", true), heap("glibc", None, "released", true)];
    assert_eq!(heaps(&done), both, "{done:#}");
    is_sum_of_heaps(&done);
    // An inspection does not count what only `--untested` returns.
    let of_glibc = &done["heaps"][1]["predicted_bytes"];
    assert_eq!(*of_glibc, predicted(&before, "release"), "{before:#} {done:#}");
    assert_eq!(subject.ask("check"), "[true, true] true");
    let again = released(&flags, subject.pid(), 0);
    assert_eq!(again["outcome"], "nothing_to_release", "{again:#}");
    assert!(!subject.proc("maps").contains("[anon:lowtide"), "a mapping of ours is left");

    // The linker has removed the version of mimalloc, and malloc_trim is a function of glibc.
    for flags in [&["--wait", "60s"][..], &["--method", "trim"]] {
        let mut subject = start();
        let done = released(flags, subject.pid(), 0);
        let one = [heap("mimalloc", None, "refused", false), heap("glibc", None, "released", true)];
        assert_eq!(heaps(&done), one, "{done:#}");
        let notes = done["notes"].to_string();
        assert!(notes.contains("the heap of mimalloc was left alone"), "{notes}");
        assert_eq!(subject.ask("check"), "[true, true] true");
    }
}

#[test]
fn the_heap_of_an_allocator_in_a_library_is_released_beside_that_of_the_program() {
    for name in ["jemalloc", "mimalloc", "mimalloc2"] {
        let carried = lowtide_allocators::bundled().find(|found| found.name() == name).unwrap();
        let library = carried.unpack().unwrap();
        let file = library.file_name().unwrap().to_str().unwrap();
        let mut command = plain(&fixture("library_heap", &["-ldl"]));
        command.env("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1");
        command.env("MIMALLOC_PURGE_DELAY", "1000000");
        // They have more thread-local variables than are reserved for libraries that are opened.
        command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536");
        let mut subject = Subject::start(command.arg(&library));
        let before = subject.inspect();
        let done = released(&["--wait", "60s"], subject.pid(), 0);
        let kind = name.trim_end_matches('2');
        let both =
            [heap("glibc", None, "released", true), heap(kind, Some(file), "released", true)];
        assert_eq!(heaps(&done), both, "{done:#}");
        is_sum_of_heaps(&done);
        assert_eq!(done["predicted_bytes"], predicted(&before, "release"), "{before:#} {done:#}");
        assert_eq!(subject.ask("check"), "intact", "{name}");
        assert!(!subject.proc("maps").contains("[anon:lowtide"), "a mapping of ours is left");
    }
}

/// Checks that a purge by a subject's own allocator returns the predicted memory, and that nothing
/// is left for another purge.
fn is_purged_as_predicted(subject: &Subject) {
    const PURGE: [&str; 3] = ["--method", "purge", "--unbounded"];
    let before = subject.inspect();
    let done = released(&PURGE, subject.pid(), 0);
    assert_eq!((&done["method"], &done["runs_in"]), (&"purge".into(), &"slices".into()));
    assert_eq!(done["predicted_bytes"].as_u64().unwrap(), predicted(&before, "purge"), "{done:#}");
    assert_eq!(done["returned_bytes"], done["predicted_bytes"], "{done:#}");
    assert!(done["returned_bytes"].as_u64().unwrap() > 1 << 20, "{done:#}");
    let again = released(&PURGE, subject.pid(), 0);
    assert_eq!(again["outcome"], "nothing_to_release", "{again:#}");
    assert!(!subject.proc("maps").contains("[anon:lowtide"), "a mapping of ours is left");
}

#[test]
fn a_borrowed_thread_runs_the_purge_of_jemalloc() {
    is_purged_as_predicted(&with_allocator("jemalloc"));
}

#[test]
#[ignore = "needs gperftools (Debian: libgoogle-perftools4)"]
fn the_memory_of_gperftools_is_returned_as_predicted_by_a_release_and_by_its_own_purge() {
    let start = || {
        let mut command = plain(&fixture("memory", &["-pthread"]));
        command.env("LD_PRELOAD", "libtcmalloc_minimal.so.4");
        Subject::start(command.args(["blocks:40", "keep:1000"]))
    };
    is_purged_as_predicted(&start());
    let subject = start();
    let before = subject.inspect();
    let done = released(&["--wait", "60s"], subject.pid(), 0);
    assert_eq!(
        done["predicted_bytes"].as_u64().unwrap(),
        predicted(&before, "release"),
        "{done:#}"
    );
    assert_eq!(done["returned_bytes"], done["predicted_bytes"], "{done:#}");
    assert!(done["returned_bytes"].as_u64().unwrap() > 1 << 20, "{done:#}");
    let again = released(&["--method", "purge", "--unbounded"], subject.pid(), 0);
    assert_eq!(again["outcome"], "nothing_to_release", "{again:#}");
}

#[test]
fn a_purge_that_is_not_known_to_be_safe_is_refused() {
    const PURGE: [&str; 3] = ["--method", "purge", "--unbounded"];
    let of_glibc = Subject::of(&["small:60:100", "keep:100"]);
    let (hazard, said) = refused(&PURGE, of_glibc.pid());
    assert_eq!(hazard, "no_purge", "{said}");
    let carried = lowtide_allocators::bundled().find(|found| found.name() == "jemalloc").unwrap();
    let mut command = plain(&fixture("memory", &["-pthread"]));
    command.env("LD_PRELOAD", carried.unpack().unwrap());
    let filtered = Subject::start(command.args(["blocks:20", "keep:100", "filter:1"]));
    let (hazard, said) = refused(&PURGE, filtered.pid());
    assert_eq!(hazard, "no_purge", "{said}");
    assert!(said.contains("system calls are filtered"), "{said}");
}

/// Starts a program that has freed most of its blocks, with an allocator that lowtide bundles. The
/// allocator keeps the freed memory.
fn with_allocator(name: &str) -> Subject {
    let carried = lowtide_allocators::bundled().find(|carried| carried.name() == name).unwrap();
    let mut command = plain(&fixture("memory", &["-pthread"]));
    command.env("LD_PRELOAD", carried.unpack().unwrap());
    command.env("MALLOC_CONF", "dirty_decay_ms:-1,muzzy_decay_ms:-1");
    command.env("MIMALLOC_PURGE_DELAY", "1000000");
    Subject::start(command.args(["blocks:40", "keep:1000"]))
}

#[test]
fn a_process_that_is_being_debugged_is_refused() {
    let subject = Subject::of(&["blocks:20", "keep:2"]);
    let target = nix::unistd::Pid::from_raw(i32::try_from(subject.pid()).unwrap());
    ptrace::seize(target, ptrace::Options::empty()).unwrap();
    let (hazard, said) = refused(&[], subject.pid());
    assert_eq!(hazard, "traced");
    assert!(said.contains(&std::process::id().to_string()), "{said}");
    // A running tracee cannot be detached. It is detached when its tracer or the tracee ends.
    ptrace::detach(target, None).ok();
}

#[test]
fn a_stopped_process_is_refused_and_stays_stopped() {
    let subject = Subject::of(&["blocks:20", "keep:2"]);
    kill_process(number(subject.pid()), Signal::STOP).unwrap();
    until("its stop", || subject.proc("status").contains("State:\tT").then_some(()));
    let (hazard, said) = refused(&[], subject.pid());
    assert_eq!(hazard, "stopped");
    let next = format!("next: kill -CONT {0} && lowtide release {0}", subject.pid());
    assert!(said.contains(&next), "{said}");
    assert!(subject.proc("status").contains("State:\tT"));
    kill_process(number(subject.pid()), Signal::CONT).unwrap();
    assert_eq!(released(&[], subject.pid(), 0)["outcome"], "released");
}

#[test]
fn each_of_several_processes_has_its_object_and_the_worst_exit_code_is_returned() {
    let (first, second) =
        (Subject::of(&["blocks:20", "keep:2"]), Subject::of(&["blocks:20", "keep:2"]));
    kill_process(number(first.pid()), Signal::STOP).unwrap();
    until("its stop", || first.proc("status").contains("State:\tT").then_some(()));
    let pids = [first.pid().to_string(), second.pid().to_string()];
    let output = lowtide().args(["--json", "release"]).args(&pids).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    lines.iter().for_each(hold_release);
    let outcomes: Vec<&Value> = lines.iter().map(|line| &line["outcome"]).collect();
    assert_eq!(outcomes, ["refused", "released"], "{text}");
}

#[test]
fn the_text_output_shows_the_returned_memory_and_its_cost() {
    let subject = Subject::of(&["blocks:50", "keep:10"]);
    let pid = subject.pid().to_string();
    let output = lowtide().args(["release", &pid]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let next = format!("next: lowtide attach {pid}");
    for part in ["RSS ", " → ", " pauses ", " locks ", " passes ", "released: ", &next] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "colours in a file");
}

#[test]
fn regained_memory_is_reported_after_the_duration_of_the_watch() {
    let subject = Subject::of(&["blocks:50", "keep:10"]);
    let found = released(&["--watch", "1s"], subject.pid(), 0);
    assert_eq!(found["outcome"], "released", "{found:#}");
    assert!(found["regained"]["after_s"].as_f64().unwrap() >= 1.0, "{found:#}");
    // The process is idle, so nothing comes back.
    assert!(found["regained"]["rss_bytes"].as_u64().unwrap() < MIB, "{found:#}");
}

#[test]
fn an_interrupted_release_leaves_nothing_in_the_process() {
    let subject = Subject::of(&["blocks:400", "keep:10"]);
    let release = lowtide()
        .args(["--json", "release", "--max-pause", "100us", &subject.pid().to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let has_code_of_ours = || {
        let maps = subject.proc("maps");
        maps.lines().any(|line| line.contains("r-xp 00000000 00:00 0") && !line.contains("[vdso]"))
    };
    until("its work", || has_code_of_ours().then_some(()));
    kill_process(number(release.id()), Signal::INT).unwrap();
    let output = release.wait_with_output().unwrap();
    let found = object(&output);
    hold_release(&found);
    assert_eq!((output.status.code(), &found["outcome"]), (Some(130), &"partial".into()));
    assert!(!has_code_of_ours(), "something is left");
    assert_eq!(released(&[], subject.pid(), 0)["cleaned_bytes"], 0);
}

/// Releases, and continues to watch. Returns lowtide and the lines that follow.
fn watched(pid: u32) -> (Child, impl Iterator<Item = String>) {
    let mut watch = lowtide()
        .args(["release", "--watch", "10m", &pid.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("released: ")));
    (watch, lines)
}

#[test]
fn an_interrupted_watch_reports_the_memory_regained_so_far() {
    let subject = Subject::of(&["blocks:50", "keep:10"]);
    let (mut watch, mut lines) = watched(subject.pid());
    kill_process(number(watch.id()), Signal::INT).unwrap();
    assert!(lines.any(|line| line.starts_with(" came back ")));
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
fn a_process_that_ends_during_the_watch_still_counts_as_released() {
    let mut subject = Subject::of(&["blocks:50", "keep:10"]);
    let (mut watch, mut lines) = watched(subject.pid());
    subject.end();
    assert!(
        lines.any(|line| line.starts_with("note: cannot determine how much memory has come back"))
    );
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
#[ignore = "needs root, to give up capabilities"]
fn a_missing_permission_is_reported_with_the_full_sudo_command() {
    let subject = Subject::of(&["blocks:20", "undumpable"]);
    let command = lowtide();
    let pid = subject.pid().to_string();
    let output = Command::new("setpriv")
        .args(["--bounding-set=-sys_ptrace,-perfmon,-sys_admin", "--inh-caps=-all"])
        .arg(command.get_program())
        .args(["--json", "release", "--max-pause", "2ms", &pid])
        .output()
        .expect("setpriv (util-linux)");
    let found = object(&output);
    assert_eq!(output.status.code(), Some(3), "{found}");
    assert_eq!(found["code"], "not_permitted");
    assert_eq!(found["next"], format!("sudo lowtide release --max-pause 2ms {pid}"));
}
