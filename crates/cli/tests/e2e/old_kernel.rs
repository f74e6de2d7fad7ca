//! lowtide on Linux 4.15, the oldest supported kernel: a filter makes newer system calls fail for
//! lowtide as they fail there. The processes that it acts on have no filter, unless it starts them.

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../../release/tests/support/filter.rs"]
mod filter;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use libc::sock_filter;
use serde_json::Value;
use tempfile::TempDir;

use crate::exporter::Exporter;
use crate::inspect::{Subject, object};
use crate::load::{self, Server};
use crate::support::{fixture, lines, lowtide, processes_with, subject, unique_seconds, until};
use crate::top::Named;
use crate::watch;
use filter::Rules;

const MIB: u64 = 1 << 20;
/// `PAGEMAP_SCAN`, of 6.7.
const PAGEMAP_SCAN: u32 = 0xc060_6610;
/// The first newer request of ptrace(2): `PTRACE_SECCOMP_GET_METADATA`, of 4.16.
const FIRST_NEWER_PTRACE: u32 = 0x420d;

/// Returns the filter. System calls are numbered in the order in which they were added, and 4.15
/// ends with statx. Newer requests of prctl(2) are made by the target only, in a release.
fn of_linux_4_15() -> Vec<sock_filter> {
    let errno = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    Rules::new()
        .calls(libc::SYS_statx as u32 + 1..=u32::MAX, errno(libc::ENOSYS))
        .argument(libc::SYS_ioctl, 1, (libc::BPF_JEQ, PAGEMAP_SCAN), errno(libc::ENOTTY))
        .argument(libc::SYS_ptrace, 0, (libc::BPF_JGE, FIRST_NEWER_PTRACE), errno(libc::EIO))
        .otherwise(libc::SECCOMP_RET_ALLOW)
}

/// Makes a command run as on Linux 4.15.
#[expect(unsafe_code, reason = "pre_exec")]
fn on_linux_4_15(mut command: Command) -> Command {
    let code = of_linux_4_15();
    let install = move || {
        filter::install(&code);
        Ok(())
    };
    // SAFETY: between fork and exec, it makes two system calls. It allocates only for the message
    // of a panic, if one of them fails.
    unsafe { command.pre_exec(install) };
    command
}

fn old(words: &[&str]) -> Command {
    let mut command = on_linux_4_15(lowtide());
    command.args(words);
    command
}

/// Runs a verb with `--json` as on Linux 4.15. Returns the object that was printed.
fn json(words: &[&str]) -> Value {
    succeeded(&old(&[&["--json"], words].concat()).output().unwrap())
}

/// The same on the kernel of this machine.
fn json_here(words: &[&str]) -> Value {
    succeeded(&lowtide().arg("--json").args(words).output().unwrap())
}

fn succeeded(output: &Output) -> Value {
    let found = object(output);
    assert_eq!(output.status.code(), Some(0), "{found:#} {output:?}");
    found
}

/// Returns an object without the times that it took, and without its part of the pages of libraries
/// that other processes also map.
fn comparable(mut found: Value) -> Value {
    for key in ["elapsed_s", "cpu_s", "pss_bytes"] {
        found.as_object_mut().unwrap().remove(key);
    }
    found
}

#[test]
fn newer_system_calls_fail_under_the_filter() {
    let opened = std::thread::spawn(|| {
        filter::install(&of_linux_4_15());
        let own = rustix::process::getpid();
        rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).err()
    });
    assert_eq!(opened.join().unwrap(), Some(rustix::io::Errno::NOSYS));
}

#[test]
fn inspect_finds_the_same() {
    let subject = Subject::of(&["blocks:40", "keep:10", "threads:2:5", "partly:8"]);
    subject.rests();
    let pid = subject.pid().to_string();
    let [found, here] = [json(&["inspect", &pid]), json_here(&["inspect", &pid])];
    assert_eq!(comparable(found), comparable(here));
    let growth = json(&["inspect", "--watch", "1s", &pid]);
    assert_eq!(growth["growth"]["verdict"], Value::Null, "{growth:#}");
}

#[test]
fn watch_prints_until_the_process_ends() {
    let mut subject = watch::Subject::hoard();
    let pid = subject.pid();
    let mut child = old(&["watch", "-i", "100ms", &pid]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 100]).unwrap();
    subject.end();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("reclaimable"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn release_returns_the_memory() {
    for words in [&["blocks:60", "keep:10"][..], &["threads:3:20"]] {
        let subject = Subject::of(words);
        subject.rests();
        let pid = subject.pid().to_string();
        let [dry, dry_here] =
            [json(&["release", "--dry-run", &pid]), json_here(&["release", "--dry-run", &pid])];
        assert_eq!(dry["predicted_bytes"], dry_here["predicted_bytes"], "{dry:#} {dry_here:#}");
        let found = json(&["release", &pid]);
        assert_eq!(found["outcome"], "released", "{found:#}");
        assert_eq!(found["returned_bytes"], found["predicted_bytes"], "{found:#}");
        assert_eq!(found["predicted_bytes"], dry["predicted_bytes"], "{found:#}");
        assert!(!subject.proc("maps").contains("lowtide"), "a mapping of ours is left");
    }
}

/// Waits for releases that have returned most of 60 MiB, by their log.
fn until_returned(home: &TempDir) {
    let log = home.path().join("acts");
    until("a release", || {
        let acts = if log.exists() { lines(&log) } else { Vec::new() };
        let returned = acts.iter().filter_map(|act| act["returned_bytes"].as_u64());
        (returned.sum::<u64>() > 40 * MIB).then_some(())
    });
}

#[test]
fn attach_returns_the_memory_and_ends_with_the_process() {
    let home = tempfile::tempdir().unwrap();
    let mut subject = Subject::of(&["blocks:60", "keep:10"]);
    let log = home.path().join("acts").display().to_string();
    let mut child = old(&["attach", &subject.pid().to_string(), "--log", &log])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until_returned(&home);
    subject.end();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn run_returns_the_memory_of_its_command() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("acts").display().to_string();
    let program = fixture("memory", &["-pthread"]);
    let mut run = old(&["run", "--log", &log, "--", &program, "blocks:60", "keep:10"]);
    let mut subject = Subject::start(&mut run);
    until_returned(&home);
    subject.end();
}

#[test]
fn top_lists_a_process_with_its_memory() {
    let subject = Subject::of(&["blocks:40", "keep:10"]);
    let program = fixture("memory", &["-pthread"]);
    let words = ["top", "--once", "--exe", &program];
    let [found, here] = [json(&words), json_here(&words)].map(|top| {
        let processes = top["processes"].as_array().unwrap();
        processes.iter().find(|process| process["pid"] == subject.pid()).unwrap().clone()
    });
    for key in ["rss_bytes", "reclaimable_bytes", "verdict"] {
        assert_eq!(found[key], here[key], "{found:#} {here:#}");
    }
}

#[test]
fn leaks_compares_snapshots() {
    let subject = Subject::of(&["blocks:2", "keep:10"]);
    let words = ["leaks", "--no-stacks", "--duration", "2s", &subject.pid().to_string()];
    let [found, here] = [json(&words), json_here(&words)];
    for key in ["tier", "in_use_bytes"] {
        assert_eq!(found[key], here[key], "{found:#} {here:#}");
    }
    // How many snapshots a run has depends on what else the machine does.
    assert_eq!(found["verdict"]["kind"], here["verdict"]["kind"], "{found:#} {here:#}");
    assert!(found["looks"].as_u64().unwrap() > 1, "{found:#}");
}

#[test]
fn exporter_has_the_memory_of_each_group() {
    let named = Named::start(&format!("old{}", std::process::id()));
    let words = ["exporter", "--listen", "127.0.0.1:0", "--comm", &named.name];
    let exporter = Exporter::spawn(&mut old(&words));
    let text = exporter.complete();
    assert!(text.contains("lowtide_resident_bytes{"), "{text}");
}

#[test]
fn study_measures_trials_and_ends_its_processes() {
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("record").display().to_string();
    let (subject, time) = (subject(&[]), format!("ms:{}", unique_seconds()));
    let words = ["-a", "glibc,jemalloc", "--repeat", "1", "--settle", "500ms", "-o", &record];
    let load = ["--load", "sleep 0.3", "--", &subject, "fill:24", "pin", "free", &time];
    let found = json(&[&["study"], &words[..], &load].concat());
    for trial in found["trials"].as_array().unwrap() {
        assert_eq!(trial["allocator_active"], true, "{trial:#}");
        assert!(trial["peak_bytes"].as_f64().unwrap() > 20.0 * MIB as f64, "{trial:#}");
    }
    assert!(processes_with(&time).is_empty());
}

#[test]
fn load_gets_its_answers_from_the_demo_server() {
    let server = Server::spawn(&mut old(&["demo-server", "127.0.0.1:0"]));
    let output =
        old(&["--json", "load", &server.url("?expire=1"), "--http2", "-c", "2", "-n", "100"])
            .output();
    let round = load::report(&output.unwrap())["rounds"][0].clone();
    assert_eq!((&round["succeeded"], &round["failed"]), (&100.into(), &0.into()), "{round}");
}

#[test]
fn demo_succeeds() {
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("demo").display().to_string();
    let found = json(&["demo", "--streams", "100", "--repeat", "1", "-o", &record]);
    for trial in found["trials"].as_array().unwrap() {
        assert_eq!(trial["rounds"][0]["load"]["succeeded"], 100, "{trial:#}");
    }
}
