//! Compares the ledger with the kernel's counters, mapping by mapping.

use std::process::Command;

use lowtide_allocators::bundled;
use serde_json::{Value, json};

use super::{Subject, adds_up, bytes, plain, predicted};
use crate::support::fixture;

const MIB: u64 = 1 << 20;

/// A mapping of `/proc/PID/smaps`.
struct Mapping {
    is_shared: bool,
    has_file: bool,
    name: String,
    rss: u64,
    anonymous: u64,
}

fn smaps(subject: &Subject) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in subject.proc("smaps").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kib = || words[1].parse::<u64>().unwrap() * 1024;
        match words[0] {
            "Rss:" => found.last_mut().unwrap().rss = kib(),
            "Anonymous:" => found.last_mut().unwrap().anonymous = kib(),
            word if !word.ends_with(':') => found.push(Mapping {
                is_shared: words[1].ends_with('s'),
                has_file: words[4] != "0",
                name: words.get(5).map_or_else(String::new, |name| (*name).to_owned()),
                rss: 0,
                anonymous: 0,
            }),
            _ => {}
        }
    }
    found
}

/// Compares the rows of an idle target with `smaps`. Returns the inspection.
fn agrees_with_smaps(subject: &Subject) -> Value {
    let found = subject.inspect();
    let maps = smaps(subject);
    let sum = |of: &dyn Fn(&Mapping) -> u64| maps.iter().map(of).sum::<u64>();
    let is_memory = |m: &Mapping| {
        let names = ["/memfd:", "/dev/zero", "/SYSV", "/dev/shm/"];
        names.iter().any(|name| m.name.starts_with(name))
    };
    let of_files = |m: &Mapping| (m.has_file && !is_memory(m)) || m.name == "[vdso]";
    assert_eq!(found["rss_bytes"], sum(&|m| m.rss), "{found:#}");
    assert_eq!(found["kernel_rss_bytes"], found["rss_bytes"]);
    assert_eq!(bytes(&found, "shared"), sum(&|m| if is_memory(m) { m.rss } else { 0 }));
    assert_eq!(bytes(&found, "shared"), subject.status("RssShmem"));
    let files = sum(&|m| if of_files(m) { m.rss - m.anonymous } else { 0 });
    assert_eq!(bytes(&found, "file"), files);
    // The rest is anonymous memory, in private mappings with or without a file.
    let rows = found["ledger"].as_array().unwrap().iter();
    let left: u64 = rows
        .filter(|row| row["owner"] != "file" && row["owner"] != "shared")
        .map(|row| row["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(left, sum(&|m| if is_memory(m) { 0 } else { m.anonymous }));
    let own_data = sum(&|m| if m.has_file && !m.is_shared { m.anonymous } else { 0 });
    assert!(bytes(&found, "program_data") >= own_data, "{own_data} {found:#}");
    let stack = sum(&|m| if m.name == "[stack]" { m.rss } else { 0 });
    assert!(bytes(&found, "stacks") >= stack, "{stack} {found:#}");
    found
}

#[test]
fn every_row_agrees_with_smaps() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, vec![7; 3 << 20]).unwrap();
    let file = format!("file:{}", file.display());
    let words =
        ["blocks:40", "keep:3", "mapped:9", "shared:5", "memfd:6", &file, "partly:64", "fork:2"];
    let found = agrees_with_smaps(&Subject::of(&words));
    assert_eq!(bytes(&found, "shared"), 11 * MIB);
    assert!(bytes(&found, "file") >= 3 * MIB - 4096, "{found:#}");
    // Its own mapping, a sixteenth of 64 MiB, and the list of its blocks.
    let other = bytes(&found, "anonymous_other");
    assert!((13 * MIB..14 * MIB).contains(&other), "{other}");
}

#[test]
fn every_row_agrees_with_smaps_for_a_program_with_threads_and_arenas() {
    let subject = Subject::of(&["threads:8:10"]);
    let found = agrees_with_smaps(&subject);
    assert_eq!(found["threads"], 9);
    let stacks = bytes(&found, "stacks");
    assert!((9 * 4096..9 * MIB).contains(&stacks), "{stacks}");
}

#[test]
#[ignore = "needs root, to mount a file system"]
fn a_mapped_tmpfs_file_counts_as_shared_memory() {
    let program = fixture("memory", &["-pthread"]);
    let line = format!(
        "mount -t tmpfs none /mnt && head -c 2097152 /dev/zero > /mnt/file && exec {program} file:/mnt/file"
    );
    let mut unshare = plain("unshare");
    let subject = Subject::start(unshare.args(["--mount", "sh", "-c", &line]));
    let found = subject.inspect();
    assert_eq!(bytes(&found, "shared"), 2 * MIB - 4096, "{found:#}");
    assert_eq!(bytes(&found, "shared"), subject.status("RssShmem"));
}

#[test]
fn the_text_output_contains_every_part_of_the_inspection() {
    let subject = Subject::of(&["blocks:40", "keep:10"]);
    let output = crate::support::lowtide()
        .args(["inspect", "--arenas", &subject.pid().to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let next = format!("next: lowtide release {} ", subject.pid());
    let study = "\n      lowtide study ";
    for part in ["RSS ", " reclaimable ", "hoard: ", " release ", &next, study, " arena "] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "colours in a file");
}

#[test]
fn the_page_of_a_usual_process_fits_into_a_terminal_of_80_by_24_and_begins_with_the_answer() {
    let subject = Subject::of(&["blocks:40", "keep:10"]);
    let pid = subject.pid().to_string();
    let output = crate::support::lowtide().env("COLUMNS", "80").args(["inspect", &pid]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let next = text.find("next: ").unwrap();
    // The commands of the next step can be copied: they are not wrapped.
    let page = &text[..next];
    assert!(text.lines().count() <= 22, "{text}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{text}");
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in\n{text}"));
    assert!(place("hoard: ") < place(" release ") && place(" release ") < place("RSS "), "{text}");
}

#[test]
fn several_processes_are_lines_with_a_total_and_pages_with_each() {
    let subjects = [Subject::of(&["blocks:40", "keep:10"]), Subject::of(&["blocks:4", "keep:1"])];
    let pids = subjects.each_ref().map(|subject| subject.pid().to_string());
    let text = |flags: &[&str]| {
        let output = crate::support::lowtide()
            .env("COLUMNS", "80")
            .arg("inspect")
            .args(flags)
            .args(&pids)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = text(&[]);
    let of =
        |pid: &str| lines.lines().any(|line| line.trim_start().starts_with(&format!("{pid} ")));
    assert!(pids.iter().all(|pid| of(pid)) && lines.contains("hoard"), "{lines}");
    assert!(lines.starts_with("together: 2 processes"), "{lines}");
    assert!(lines.contains(&format!("next: lowtide inspect {} ", pids[0])), "{lines}");
    let pages = text(&["--each"]);
    assert_eq!(pages.matches("\nRSS ").count(), 2, "{pages}");
    assert!(pages.starts_with("together: 2 processes"), "{pages}");
}

#[test]
fn a_process_is_inspected_by_its_only_name_and_without_a_verb() {
    let subject = Subject::of(&["blocks:4", "keep:1"]);
    let name = format!("only-{}", subject.pid());
    let copy = std::env::temp_dir().join(&name);
    std::fs::copy("/bin/sleep", &copy).unwrap();
    let mut child = std::process::Command::new(&copy).arg("600").spawn().unwrap();
    let comm = || std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
    crate::support::until("its name", || comm().starts_with("only").then_some(()));
    let inspected = |words: &[&str]| {
        let output = crate::support::lowtide().args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(&format!("PID {}", child.id()))
    };
    let by_name = [vec!["inspect", &name], vec![name.as_str()]].map(|words| inspected(&words));
    let by_number = inspected(&[&child.id().to_string()]);
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(copy).unwrap();
    assert!(by_name[0] && by_name[1] && by_number, "{by_name:?} {by_number}");
}

#[test]
fn each_arena_is_listed_and_arena_max_limits_their_number() {
    let found = Subject::of(&["threads:4:10"]).inspect_with(&["--arenas"]);
    let arenas = found["arenas"].as_array().unwrap();
    assert_eq!(arenas.len(), 5, "{found:#}");
    assert!(arenas.iter().all(|arena| arena["whole"] == true), "{found:#}");
    for arena in &arenas[1..] {
        assert!(arena["reclaimable_bytes"].as_u64().unwrap() > 8 * MIB, "{arena}");
        let (bins, count) = (arena["bins"].as_array().unwrap(), arena["free_count"].as_u64());
        assert_eq!(bins.iter().map(|b| b["count"].as_u64().unwrap()).sum::<u64>(), count.unwrap());
    }
    assert_eq!(found["tunables_in_force"]["arena_max"], Value::Null);

    let program = fixture("memory", &["-pthread"]);
    let mut command = plain(&program);
    let subject =
        Subject::start(command.env("MALLOC_ARENA_MAX", "3").args(["threads:6:5", "blocks:1"]));
    let found = subject.inspect();
    assert_eq!(found["tunables_in_force"]["arena_max"], 3);
    // Depending on the glibc version, the tunable counts all arenas, or all except the main one.
    let arenas = found["arenas"].as_array().unwrap().len();
    assert!((3..=4).contains(&arenas), "{arenas}");
}

#[test]
fn the_tunables_in_force_are_reported() {
    let program = fixture("memory", &["-pthread"]);
    let tunables = |name: &str, value: &str, word: &str| {
        Subject::start(plain(&program).env(name, value).arg(word)).inspect()["tunables_in_force"]
            .clone()
    };
    let usual = tunables("NO_TUNABLE", "", "blocks:1");
    assert_eq!(usual["trim_threshold_bytes"], 128 << 10);
    assert_eq!(usual["mmap_threshold_bytes"], 128 << 10);
    assert_eq!(usual["mmap_threshold_dynamic"], true);
    let set = tunables(
        "GLIBC_TUNABLES",
        "glibc.malloc.trim_threshold=1234567:glibc.malloc.mmap_threshold=200000:\
         glibc.malloc.top_pad=65536:glibc.malloc.tcache_count=3",
        "blocks:1",
    );
    let reported = json!({
        "trim": set["trim_threshold_bytes"], "mmap": set["mmap_threshold_bytes"],
        "dynamic": set["mmap_threshold_dynamic"], "pad": set["top_pad_bytes"],
        "count": set["tcache_count"],
    });
    let expected = json!({
        "trim": 1_234_567, "mmap": 200_000, "dynamic": false, "pad": 65_536, "count": 3,
    });
    assert_eq!(reported, expected);
}

#[test]
fn the_heap_of_a_stripped_static_program_is_walked() {
    for flags in [&["-static", "-s"][..], &["-static-pie", "-s"]] {
        let mut subject = Subject::built(flags, &["blocks:40", "keep:10"]);
        let found = subject.inspect();
        let allocator = &found["allocator"];
        assert_eq!(
            (&allocator["name"], &allocator["linkage"]),
            (&json!("glibc"), &json!("static"))
        );
        assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
        let returned: u64 = subject.send("trim")[0].parse().unwrap();
        assert!(returned.abs_diff(predicted(&found, "malloc_trim")) <= 64 << 10);
    }
}

#[test]
fn a_preloaded_allocator_is_named_and_its_heap_is_walked() {
    let program = fixture("memory", &["-pthread"]);
    for library in bundled() {
        let path = library.unpack().unwrap();
        let words = ["blocks:60", "keep:2", "shared:3"];
        let subject = Subject::start(plain(&program).env("LD_PRELOAD", path).args(words));
        let found = agrees_with_smaps(&subject);
        adds_up(&found);
        let name = library.name().trim_end_matches('2');
        let expected = json!({"name": name, "version": library.version(), "linkage": "preloaded"});
        assert_eq!(found["allocator"], expected);
        assert_eq!((bytes(&found, "runtime"), &found["managers"]), (0, &json!([])), "{found:#}");
        assert!(bytes(&found, "allocated") > 25 * MIB, "{found:#}");
        assert!(found["arenas"][0][name].is_object(), "{found:#}");
    }
}

#[test]
fn a_statically_linked_mimalloc_is_not_mistaken_for_a_small_glibc_heap() {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_lowtide"));
    let program = binary.with_file_name("examples").join("own_allocator");
    let subject = Subject::start(Command::new(program).arg("wait"));
    let found = agrees_with_smaps(&subject);
    adds_up(&found);
    assert_eq!(found["allocator"]["name"], "mimalloc");
    assert_eq!(found["allocator"]["linkage"], "static");
    assert_eq!(found["verdict"]["kind"], "live", "{found:#}");
    assert!(bytes(&found, "allocated") > 15 * MIB, "{found:#}");
    assert_eq!(bytes(&found, "runtime"), 0);
}
