//! `lowtide leaks`, on programs that leak and programs that do not.

use std::io::{Read, Write};
use std::process::{ChildStdin, Command, Output, Stdio};

use lowtide_testing::Running;
use serde_json::Value;

use crate::inspect::{Subject, failure_of, nobody, object};
use crate::schemas::hold_leaks;
use crate::support::{compiled, lines, lowtide, number, until};
use crate::terminal::Terminal;

/// A program that runs until it is dropped.
pub(crate) struct Program {
    pub(crate) child: Running,
    pub(crate) stdin: ChildStdin,
}

impl Program {
    /// Starts `subject.c` of the tests of `lowtide-leaks`, and waits until it is at work.
    fn of(words: &[&str]) -> Self {
        Self::start(Command::new(subject(&["-pthread"])).args(words))
    }

    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut program = Self { child: child.into(), stdin };
        program.stdin.write_all(b"\n").unwrap();
        program.child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        program
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

/// Compiles `subject.c` of the tests of `lowtide-leaks`.
pub(crate) fn subject(flags: &[&str]) -> String {
    compiled("of-leaks-subject", "../leaks/tests/live/subject.c", flags)
}

fn leaks(words: &[&str]) -> Output {
    lowtide().arg("leaks").args(words).output().unwrap()
}

#[test]
fn a_leak_is_printed_recorded_and_drawn() {
    let home = tempfile::tempdir().unwrap();
    let [record, page] = ["leaks.jsonl", "leaks.html"].map(|name| home.path().join(name));
    let (record_path, page_path) = (record.to_str().unwrap(), page.to_str().unwrap());
    // On a busy or slow machine, it takes longer until there are enough snapshots.
    let mut durations = ["9s", "60s", "180s"].into_iter();
    let (program, output, found) = loop {
        let duration = durations.next().expect("a verdict");
        let program = Program::of(&["mix", "5000", "100"]);
        let pid = program.pid();
        let _ = std::fs::remove_file(&record);
        let words = ["--json", &pid, "--every", "300ms", "--duration", duration, "-o", record_path];
        let output = leaks(&words);
        let found = object(&output);
        if found["verdict"]["kind"] == "lost" || durations.len() == 0 {
            break (program, output, found);
        }
    };
    let pid = program.pid();
    assert_eq!(output.status.code(), Some(0), "{found:#}");
    hold_leaks(&found);
    assert_eq!(found["verdict"]["kind"], "lost", "{found:#}");
    assert_eq!(found["groups"][0]["size_bytes"], serde_json::json!([80, 80]), "{found:#}");
    let recorded = lines(&record);
    recorded.iter().for_each(hold_leaks);
    assert_eq!(recorded.last(), Some(&found));
    assert!(recorded.len() as u64 > found["looks"].as_u64().unwrap(), "{}", recorded.len());

    let shown = lowtide().args(["report", record_path]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("\nlost: ") && shown.contains(&format!("PID {pid}")), "{shown}");
    let drawn = lowtide().args(["report", record_path, "--html", page_path]).output().unwrap();
    assert_eq!(drawn.status.code(), Some(0));
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("<svg") && page.contains("Survivors by size"), "{page}");
    let refused = lowtide().args(["report", record_path, record_path]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    // The record is not overwritten.
    let again = leaks(&["--json", &pid, "-o", record_path]);
    assert_eq!((again.status.code(), &object(&again)["code"]), (Some(2), &"usage".into()));
    assert_eq!(lines(&record), recorded);
}

/// Watches a program for increasing durations until the verdict is known: on a busy or slow
/// machine, it takes longer until there are enough snapshots.
fn watched(start: impl Fn() -> Program, words: &[&str], is_there: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    for duration in ["9s", "60s", "180s"] {
        let program = start();
        let pid = program.pid();
        let output = leaks(&[&[&pid, "--every", "300ms", "--duration", duration], words].concat());
        text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        if is_there(&text) {
            return text;
        }
    }
    panic!("{text}")
}

#[test]
fn an_unbounded_cache_is_reported_with_the_variable_that_holds_it() {
    let list = || Program::of(&["list", "500"]);
    let text = watched(list, &[], |text| text.contains("\ngrowing: "));
    assert!(
        text.contains("reached from: 100 % variable head of of-leaks-subject-pthread"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
}

#[test]
fn a_process_that_ends_early_is_reported_from_the_snapshots_so_far() {
    let mut program = Program::of(&["list", "500"]);
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("leaks.jsonl");
    let mut child = lowtide()
        .args(["leaks", "--json", &program.pid(), "--every", "200ms", "--duration", "600s", "-o"])
        .arg(&record)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the third snapshot", || {
        std::fs::read_to_string(&record).is_ok_and(|text| text.lines().count() >= 3).then_some(())
    });
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    let mut text = String::new();
    child.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4), "{text}");
    let found: Value = serde_json::from_str(&text).unwrap();
    hold_leaks(&found);
    assert!(found["looks"].as_u64().unwrap() >= 3, "{found:#}");
}

#[test]
fn invalid_input_is_reported_in_one_sentence() {
    let failure = |words: &[&str], exit, code| failure_of("leaks", words, exit, code);
    assert!(failure(&[&nobody()], 4, "gone").starts_with("there is no process"));
    let own = std::process::id().to_string();
    let said = failure(&[&own, "--older", "10m", "--duration", "2m"], 2, "usage");
    assert!(said.contains("--older 10m is not shorter than --duration 2m"), "{said}");
    for flags in [
        ["--every", "1ms"],
        ["--duration", "10ms"],
        ["--older", "soon"],
        ["--top", "-1"],
        ["--overhead", "0%"],
        ["--overhead", "101%"],
        ["--overhead", "some"],
        ["--stacks", "--no-stacks"],
        ["--folded", "--no-stacks"],
    ] {
        failure(&[&own, flags[0], flags[1]], 2, "usage");
    }
    for word in ["", "abc", "-1"] {
        failure(&[word], 2, "usage");
    }
    failure(&[], 2, "usage");
    let said = failure(&[&own, "--output", "/no/such/directory/record"], 1, "failed");
    assert!(said.contains("/no/such/directory/record"), "{said}");
    let there = tempfile::NamedTempFile::new().unwrap();
    let said = failure(&[&own, "--pprof", there.path().to_str().unwrap()], 2, "usage");
    assert!(said.contains("already exists"), "{said}");
}

#[test]
#[ignore = "needs root, to run as another user"]
fn another_users_process_requires_a_permission() {
    let program = Program::of(&["list", "500"]);
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
        .arg(lowtide().get_program())
        .args(["leaks", "--json", &program.pid(), "--duration", "5s"])
        .output()
        .expect("setpriv (util-linux)");
    let found = object(&output);
    assert_eq!(
        (output.status.code(), &found["code"]),
        (Some(3), &"not_permitted".into()),
        "{found}"
    );
    assert!(
        found["next"].as_str().unwrap().starts_with("sudo lowtide leaks --duration 5s"),
        "{found}"
    );
}

#[test]
fn a_key_in_the_live_view_starts_the_search_for_leaks() {
    let program = Program::of(&["list", "500"]);
    let mut terminal = Terminal::watch(&[&program.pid(), "--interval", "200ms"]);
    terminal.shows("RSS");
    terminal.press("l");
    terminal.shows("too early");
    terminal.press("s");
    terminal.press("q");
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
#[ignore = "needs a C compiler for musl (Debian: musl-tools)"]
fn the_blocks_of_a_musl_heap_are_watched() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("subject");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../leaks/tests/live/subject.c");
    lowtide_testing::compile_with("musl-gcc", &program, ["-O1", source]);
    let list = || Program::start(Command::new(&program).args(["list", "500"]));
    let text = watched(list, &[], |text| text.contains("\ngrowing: "));
    assert!(text.contains("reached from: 100 % variable head of subject"), "{text}");
}

#[test]
fn leaks_are_found_in_a_static_program() {
    let program = subject(&["-pthread", "-static"]);
    let start = || Program::start(Command::new(&program).args(["cycles", "400"]));
    watched(start, &["--json"], |text| {
        let found: Value = serde_json::from_str(text).unwrap();
        found["verdict"]["kind"] == "lost"
    });
}

#[test]
fn inspect_with_watch_finds_lost_blocks() {
    let program = Program::of(&["mix", "5000", "100"]);
    let watched = |duration| {
        let words = ["--json", "inspect", &program.pid(), "--watch", duration];
        object(&lowtide().args(words).output().unwrap())["verdict"].clone()
    };
    // On a busy machine, there may be too few snapshots to know that it is lost.
    let mut verdicts = ["9s", "60s", "180s"].into_iter().map(watched);
    let is_leak = |verdict: &Value| verdict["kind"] == "leak";
    assert!(verdicts.any(|verdict| is_leak(&verdict)));
}

#[test]
fn after_an_exec_the_search_for_leaks_starts_over() {
    let subject = subject(&["-pthread"]);
    let mut child = Command::new("sh")
        .args(["-c", "read line; exec \"$0\" cycles 400", &subject])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("leaks.jsonl");
    let pid = child.id().to_string();
    let watching = lowtide()
        .args(["leaks", "--json", &pid, "--every", "300ms", "--duration", "15s", "-o"])
        .arg(&record)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the second snapshot", || {
        std::fs::read_to_string(&record).is_ok_and(|text| text.lines().count() >= 2).then_some(())
    });
    stdin.write_all(b"\n").unwrap();
    let output = watching.wait_with_output().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("executed another program"), "{errors}");
    assert!(errors.contains("; starting over"), "{errors}");
    let found = object(&output);
    hold_leaks(&found);
    assert!(found["command"].to_string().contains("cycles"), "{found:#}");
}

/// A program without a heap, which maps and writes to half a mebibyte each 50 ms, unless its first
/// word is `idle`.
const WITHOUT_HEAP: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words) {
    for (;;) {
        usleep(50000);
        if (count > 1 && !strcmp(words[1], "idle")) continue;
        memset(mmap(0, 512 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 512 << 10);
    }
}
"#;

/// Watches a program for increasing durations until there is a verdict: on a busy machine, the
/// readings of a short time are too few.
fn decided(watch: impl Fn(&'static str) -> Output) -> Output {
    let mut output = watch("6s");
    for time in ["30s", "2m"] {
        if object(&output)["verdict"]["kind"] == "too_early" {
            output = watch(time);
        }
    }
    output
}

#[test]
fn a_process_without_a_heap_is_watched_as_a_whole() {
    let home = tempfile::tempdir().unwrap();
    let (source, program) = (home.path().join("mapping.c"), home.path().join("mapping"));
    std::fs::write(&source, WITHOUT_HEAP).unwrap();
    lowtide_testing::compile(&program, [&source]);
    for (words, kind) in [(&[][..], "elsewhere"), (&["idle"], "level")] {
        let mut child = Command::new(&program).args(words).spawn().unwrap();
        let pid = child.id().to_string();
        let watched =
            |time| leaks(&["--json", &pid, "--no-stacks", "--every", "300ms", "--duration", time]);
        let output = decided(watched);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let found = object(&output);
        hold_leaks(&found);
        assert_eq!(found["verdict"]["kind"], kind, "{found:#}");
        assert!(found["notes"].to_string().contains("cannot read the blocks"), "{found:#}");
    }
}

#[test]
fn a_program_that_ends_during_the_run_still_has_a_division_of_its_growth() {
    let mut subject = Subject::of(&["blocks:10"]);
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("leaks.jsonl");
    let mut leaks = lowtide();
    leaks.args(["leaks", "--json", "--no-stacks", "--every", "1s", "--duration", "10m", "-o"]);
    leaks.arg(&record).arg(subject.pid().to_string());
    let watching = leaks.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It is divided after ten seconds.
    let is_divided = || {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        let is_known = |line: &str| {
            serde_json::from_str::<Value>(line).is_ok_and(|found| found["growth"].is_object())
        };
        text.lines().any(is_known)
    };
    until("a division", || {
        subject.send("memfd:2");
        std::thread::sleep(std::time::Duration::from_millis(100));
        is_divided().then_some(())
    });
    drop(subject);
    let output = watching.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let found = object(&output);
    hold_leaks(&found);
    // On a busy machine, an inspection may take so long that the growth seems to be one step.
    let kind = found["verdict"]["kind"].as_str().unwrap();
    assert!(["elsewhere", "too_early"].contains(&kind), "{found:#}");
    assert!(found["verdict"]["because"].to_string().contains("in shared memory"), "{found:#}");
    assert_eq!(found["growth"]["by"][0]["owner"], "shared", "{found:#}");
}

#[test]
fn growth_outside_of_the_heap_is_elsewhere_with_its_owner_and_never_level() {
    for (command, owner, words) in [
        ("memfd:2", "shared", "in shared memory (/memfd:subject"),
        ("mapped:2", "anonymous_other", "in memory that the program mapped itself"),
    ] {
        let watched = |time| {
            let mut subject = Subject::of(&["blocks:10"]);
            let mut leaks = lowtide();
            leaks.args(["leaks", "--json", "--no-stacks", "--every", "300ms", "--duration", time]);
            leaks.arg(subject.pid().to_string());
            let mut leaks = leaks.stdout(Stdio::piped()).spawn().unwrap();
            while leaks.try_wait().unwrap().is_none() {
                subject.send(command);
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            let output = leaks.wait_with_output().unwrap();
            hold_leaks(&object(&output));
            output
        };
        let found = object(&decided(watched));
        assert_eq!(found["verdict"]["kind"], "elsewhere", "{found:#}");
        let growth = &found["growth"];
        assert_eq!(growth["by"][0]["owner"], owner, "{found:#}");
        let said = found["verdict"]["because"][0].as_str().unwrap();
        assert!(said.starts_with("RSS grew by ") && said.contains(words), "{said}");
        let parts = growth["by"].as_array().unwrap().iter();
        let sum: i64 = parts.map(|part| part["bytes"].as_i64().unwrap()).sum();
        let rss = |place: usize| growth["rss_bytes"][place].as_i64().unwrap();
        assert_eq!(sum, rss(1) - rss(0), "{growth:#}");
        // The first one is without pages of files.
        let [rate, of_rss] =
            [number(&found, "bytes_per_hour"), number(growth, "rss_bytes_per_hour")];
        assert!((rate / of_rss - 1.0).abs() < 0.05, "{found:#}");
    }
}
