//! The stacks of `lowtide leaks`. Probes require CAP_BPF and CAP_PERFMON.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Output, Stdio};

use lowtide_probe::proc::maps::{self, Mapping};
use lowtide_probe::program::symbol;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::inspect::object;
use crate::leaks::{Program, subject};
use crate::schemas::hold_leaks;
use crate::support::{lowtide, until};

/// Instruction that a probe inserts: `int3`.
const PROBE: u8 = 0xcc;

/// Starts a program with a small heap that loses blocks in a function of its own.
fn program() -> Program {
    let flags = ["-pthread", "-O1", "-g", "-fno-inline"];
    Program::start(Command::new(subject(&flags)).args(["cycles", "400"]))
}

/// Watches a program until its lost blocks have stacks. On a busy machine, that takes longer.
fn leaks(program: &Program, words: &[&str], has_stacks: impl Fn(&Output) -> bool) -> Output {
    for duration in ["9s", "20s", "60s", "180s"] {
        let output = lowtide()
            .args(["leaks", &program.pid(), "--overhead", "30%", "--every", "500ms"])
            .args(["--duration", duration])
            .args(words)
            .output()
            .unwrap();
        if has_stacks(&output) {
            return output;
        }
    }
    panic!("no stacks");
}

#[test]
#[ignore = "needs root, for probes"]
fn the_stack_of_a_leak_is_in_the_text_and_in_the_json_object() {
    let program = program();
    let output = leaks(&program, &["--json", "--stacks"], |output| {
        let found = object(output);
        found["verdict"]["kind"] == "lost" && found["groups"][0]["stacks"][0].is_object()
    });
    let found = object(&output);
    hold_leaks(&found);
    assert_eq!(found["tier"], "bpf", "{found:#}");
    let stack = &found["groups"][0]["stacks"][0];
    assert_eq!(stack["frames"][1]["function"], "cycles", "{stack:#}");
    assert!(found["sampling"]["samples"].as_u64().unwrap() > 0, "{found:#}");
    let output = leaks(&program, &[], |output| {
        String::from_utf8_lossy(&output.stdout).contains("allocated by")
    });
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("cycles subject.c:"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
}

#[test]
#[ignore = "needs root, for probes"]
fn stacks_are_written_for_flame_graphs_and_for_pprof() {
    let program = program();
    let home = tempfile::tempdir().unwrap();
    let mut count = 0;
    let output = loop {
        count += 1;
        let profile = home.path().join(format!("leak-{count}.pb"));
        let words = ["--folded", "--pprof", profile.to_str().unwrap(), "--duration", "20s"];
        let output = lowtide()
            .args(["leaks", &program.pid(), "--overhead", "30%", "--every", "500ms"])
            .args(words)
            .output()
            .unwrap();
        if !output.stdout.is_empty() || count == 6 {
            break output;
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let of_leak = text.lines().find(|line| line.contains(";cycles;filled "));
    let bytes = of_leak.unwrap_or_else(|| panic!("{text}")).rsplit(' ').next().unwrap();
    assert!(bytes.parse::<u64>().unwrap() > 0, "{text}");
    let profile = std::fs::read(home.path().join(format!("leak-{count}.pb"))).unwrap();
    let has = |text: &[u8]| profile.windows(text.len()).any(|found| found == text);
    assert!(has(b"inuse_space") && has(b"cycles") && has(b"subject.c"), "{} bytes", profile.len());
}

/// Returns the first byte of `malloc` in a program, which a probe replaces.
fn first_byte_of_malloc(memory: &File, maps: &[Mapping]) -> u8 {
    let library = maps.iter().find(|m| m.name.ends_with("/libc.so.6") && m.offset == 0).unwrap();
    let (value, base) =
        symbol(&File::open(&library.name).unwrap().into(), "malloc").unwrap().unwrap();
    let mut byte = [0];
    memory.read_exact_at(&mut byte, library.start + value - base).unwrap();
    byte[0]
}

#[test]
#[ignore = "needs root, for probes"]
fn no_probe_remains_when_lowtide_is_killed_during_a_sampling_window() {
    let program = program();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", program.pid())).unwrap();
    let maps = maps::parse(&maps).unwrap();
    let memory = File::open(format!("/proc/{}/mem", program.pid())).unwrap();
    let own = first_byte_of_malloc(&memory, &maps);
    assert_ne!(own, PROBE);
    let mut child = lowtide()
        .args(["leaks", &program.pid(), "--stacks", "--overhead", "100%", "--duration", "600s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("a window", || (first_byte_of_malloc(&memory, &maps) == PROBE).then_some(()));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    until("the end of the probe", || (first_byte_of_malloc(&memory, &maps) == own).then_some(()));
    // The program continues.
    let mut program = program;
    assert!(program.child.try_wait().unwrap().is_none());
}

#[test]
#[ignore = "needs root, to run as another user"]
fn without_the_capabilities_there_are_no_stacks_and_the_reason_is_printed() {
    let leaks = |words: &[&str]| {
        let program = program();
        Command::new("setpriv")
            .args(["--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-all"])
            .arg(lowtide().get_program())
            .args(["leaks", "--json", &program.pid(), "--duration", "2s"])
            .args(words)
            .output()
            .expect("setpriv (util-linux)")
    };
    let found = object(&leaks(&[]));
    let notes = found["notes"].to_string();
    // Which ones depends on the kernel.
    assert!(notes.contains("no stacks: ") && notes.contains("they require CAP_"), "{found:#}");
    assert_eq!((&found["tier"], &found["sampling"]), (&"read".into(), &serde_json::Value::Null));
    let output = leaks(&["--stacks"]);
    let found = object(&output);
    assert_eq!(
        (output.status.code(), &found["code"]),
        (Some(3), &"not_permitted".into()),
        "{found}"
    );
}
