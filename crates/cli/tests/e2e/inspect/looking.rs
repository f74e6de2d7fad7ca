//! An inspection changes nothing: no process is stopped or traced, and no page becomes present.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use nix::sys::ptrace;
use nix::unistd::Pid;

use super::{Subject, bytes};
use crate::support::{fixture, lowtide};

/// Returns the pages of the subject that are present in `pagemap`, including zero pages.
fn present(subject: &Subject) -> Vec<u64> {
    let pagemap = File::open(format!("/proc/{}/pagemap", subject.pid())).unwrap();
    let mut found = Vec::new();
    for line in subject.proc("maps").lines() {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split(' ').next().unwrap();
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        if line.contains("[v") {
            continue;
        }
        let (start, end) = (address(start) / 4096, address(end) / 4096);
        let mut entries = vec![0; (end - start) as usize * 8];
        pagemap.read_exact_at(&mut entries, start * 8).unwrap();
        let is_present = |entry: &[u8]| entry[7] & 0x80 != 0;
        let pages = entries.chunks_exact(8).zip(start..).filter(|(entry, _)| is_present(entry));
        found.extend(pages.map(|(_, page)| page));
    }
    found
}

fn faults(subject: &Subject) -> (String, String) {
    let stat = subject.proc("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[7].to_owned(), fields[9].to_owned())
}

#[test]
fn an_inspection_makes_no_page_present() {
    let words = ["blocks:60", "keep:7", "untouched:1024", "partly:256", "threads:2:10", "shared:4"];
    let subject = Subject::of(&[&words[..], &["stack-hole"]].concat());
    subject.rests();
    let before = present(&subject);
    let counters = (faults(&subject), subject.status("VmRSS"));
    let first = subject.inspect();
    let second = subject.inspect_with(&["--watch", "1s"]);
    let became: Vec<u64> =
        present(&subject).into_iter().filter(|page| before.binary_search(page).is_err()).collect();
    assert!(became.is_empty(), "pages {became:x?} became present\n{}", subject.proc("maps"));
    assert_eq!((faults(&subject), subject.status("VmRSS")), counters);
    assert_eq!(first["ledger"], second["ledger"]);
    assert_eq!(first["cures"], second["cures"]);
}

/// Returns a value of `smaps_rollup`, in KiB.
fn rolled_up(subject: &Subject, key: &str) -> u64 {
    let text = subject.proc("smaps_rollup");
    let value = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    value.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn pages_shared_with_children_stay_shared_after_an_inspection() {
    let subject = Subject::of(&["blocks:60", "keep:2", "fork:1"]);
    let before = rolled_up(&subject, "Shared_Dirty");
    assert!(before > 20 << 10, "{before}");
    subject.inspect();
    subject.inspect_with(&["--watch", "1s"]);
    // Pinning a page in order to read it would make the kernel copy it. (The processes themselves
    // write to a few pages of their stacks.)
    let after = rolled_up(&subject, "Shared_Dirty");
    assert!(after + 64 > before, "{before} KiB were shared, now {after}");
}

#[test]
fn an_already_traced_process_is_inspected_without_tracing_it() {
    let subject = Subject::of(&["blocks:20", "keep:10"]);
    let target = Pid::from_raw(i32::try_from(subject.pid()).unwrap());
    // A process has at most one tracer: an attempt to trace it a second time would fail.
    ptrace::seize(target, ptrace::Options::empty()).unwrap();
    assert_ne!(subject.status("TracerPid"), 0);
    let found = subject.inspect();
    assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
    assert!(subject.proc("status").contains("State:\tS"));
    ptrace::detach(target, None).ok();
}

#[test]
fn an_inspected_process_is_neither_traced_nor_stopped() {
    let mut subject = Subject::of(&["small:100:100"]);
    let pid = subject.pid().to_string();
    for _ in 0..5 {
        let mut look = lowtide().args(["inspect", &pid]).stdout(Stdio::null()).spawn().unwrap();
        while look.try_wait().unwrap().is_none() {
            let status = subject.proc("status");
            let state = status.lines().find(|line| line.starts_with("State:")).unwrap();
            assert!(!state.contains("(stopped)") && !state.contains("(tracing stop)"), "{state}");
            assert!(status.contains("TracerPid:\t0\n"), "{status}");
        }
        assert!(look.wait().unwrap().success());
    }
    assert_eq!(subject.send("small:1:100"), Vec::<String>::new());
}

#[test]
fn a_stopped_process_is_inspected_and_stays_stopped() {
    use rustix::process::{Pid, Signal, kill_process};
    let subject = Subject::of(&["blocks:20", "keep:10"]);
    let pid = Pid::from_raw(i32::try_from(subject.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    crate::support::until("the signal", || {
        subject.proc("status").contains("(stopped)").then_some(())
    });
    let found = subject.inspect();
    assert_eq!(found["verdict"]["kind"], "hoard");
    assert!(bytes(&found, "stacks") > 0);
    assert!(subject.proc("status").contains("(stopped)"));
}

#[test]
fn the_output_of_malloc_info_is_printed_without_a_call_in_the_process() {
    let subject = Subject::of(&["blocks:40", "keep:7", "threads:2:10"]);
    let pid = subject.pid().to_string();
    let print = |words: &[&str]| lowtide().arg("inspect").args(words).output().unwrap();
    let output = print(&["--malloc-info", &pid]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("<malloc version=\"1\">\n<heap nr=\"0\">\n"), "{text}");
    assert!(text.ends_with("</malloc>\n"), "{text}");
    assert_eq!(text.matches("<heap nr=").count(), 3, "{text}");
    let other = Subject::of(&["blocks:1"]);
    for (words, said) in [
        (vec!["--malloc-info", "--json", &pid], "prints XML"),
        (vec!["--malloc-info", "--arenas", &pid], "cannot be used with"),
        (vec!["--malloc-info", &pid, &other.pid().to_string()], "name one PID"),
    ] {
        let output = print(&words);
        let all = [output.stdout, output.stderr].concat();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(String::from_utf8_lossy(&all).contains(said), "{words:?}");
    }
    let jemalloc = lowtide_allocators::bundled().find(|carried| carried.name() == "jemalloc");
    let mut command = super::plain(&fixture("memory", &["-pthread"]));
    command.env("LD_PRELOAD", jemalloc.unwrap().unpack().unwrap());
    let jemalloc = Subject::start(command.arg("blocks:1"));
    let output = print(&["--malloc-info", &jemalloc.pid().to_string()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("has no readable glibc heap"), "{said}");
}
