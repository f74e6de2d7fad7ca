//! Processes with unusual properties.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{Subject, adds_up, bytes, inspect, object, plain};
use crate::support::fixture;

const MIB: u64 = 1 << 20;

#[test]
fn a_process_with_many_mappings_is_inspected_completely() {
    let subject = Subject::of(&["blocks:30", "keep:10", "maps:60000"]);
    let count = subject.proc("maps").lines().count();
    assert!(count > 20_000, "vm.max_map_count allows only {count} mappings");
    let found = subject.inspect();
    assert_eq!(found["rss_bytes"], found["kernel_rss_bytes"]);
    assert!(bytes(&found, "anonymous_other") >= (count as u64 / 2 - 100) * 4096);
    assert_eq!(found["verdict"]["kind"], "outside_heap");
}

#[test]
fn a_process_with_many_threads_is_inspected_completely() {
    let subject = Subject::of(&["threads:1000:0"]);
    let found = subject.inspect();
    assert_eq!(found["threads"], 1001);
    assert_eq!(found["rss_bytes"], found["kernel_rss_bytes"]);
    assert!(bytes(&found, "stacks") >= 1000 * 4096, "{found:#}");
}

#[test]
fn a_direct_brk_allocation_does_not_end_the_heap_walk() {
    let mut subject = Subject::of(&["blocks:20"]);
    subject.send("brk:40");
    subject.send("blocks:20");
    subject.send("keep:10");
    let found = subject.inspect();
    assert_eq!(found["rss_bytes"], found["kernel_rss_bytes"]);
    assert_eq!(found["unwalked_bytes"], 0, "{found:#}");
    assert!(bytes(&found, "reclaimable") > 15 * MIB, "{found:#}");
}

#[test]
fn untouched_reserved_memory_does_not_count_as_used() {
    let found = Subject::of(&["untouched:1000000", "blocks:5"]).inspect();
    assert!(found["rss_bytes"].as_u64().unwrap() < 20 * MIB, "{found:#}");
    assert_eq!(found["verdict"]["kind"], "live");
}

#[test]
fn pages_shared_after_a_fork_count_for_each_process() {
    let mut subject = Subject::of(&["blocks:30", "keep:10"]);
    subject.send("fork:2");
    let parent = subject.inspect();
    let children = subject.proc(&format!("task/{}/children", subject.pid()));
    for child in children.split_whitespace() {
        let found = object(&inspect(&[], child.parse().unwrap()));
        adds_up(&found);
        assert_eq!(found["verdict"]["kind"], "hoard");
        assert_eq!(bytes(&found, "allocated"), bytes(&parent, "allocated"));
    }
}

#[test]
fn a_program_whose_file_is_deleted_is_inspected() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("memory");
    crate::support::copy_program(fixture("memory", &["-pthread"]), &program);
    let subject =
        Subject::start(plain(&program.display().to_string()).args(["blocks:30", "keep:10"]));
    std::fs::remove_file(&program).unwrap();
    let found = subject.inspect();
    assert_eq!(found["allocator"]["name"], "glibc", "{found:#}");
    assert_eq!(found["verdict"]["kind"], "hoard", "{found:#}");
}

#[test]
fn a_process_whose_main_thread_has_exited_is_read_by_another_thread() {
    let mut subject = Subject::of(&["blocks:10"]);
    subject.say("end-thread");
    assert_eq!(subject.line(), "ready");
    let output = inspect(&[], subject.pid());
    let found = object(&output);
    adds_up(&found);
    assert_eq!(found["pid"], subject.pid());
    assert!(bytes(&found, "allocated") > 0, "{found:#}");
    let mut remedies = found["remedies"].as_array().into_iter().flatten();
    assert!(remedies.all(|remedy| remedy["kind"] != "release"), "{found:#}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the first thread of process"), "{said}");
}

#[test]
fn names_and_arguments_of_any_bytes_are_printed_without_control_characters() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let wild = OsStr::from_bytes(b"fork:0\x1b[31m\n\xff\xfe)(");
    let mut command = plain(&fixture("memory", &["-pthread"]));
    command.arg0(OsStr::from_bytes(b"a) S (\x1b]0;b\x07")).arg(wild);
    let subject = Subject::start(&mut command);
    subject.inspect();
    let output =
        crate::support::lowtide().args(["inspect", &subject.pid().to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text:?}");
}

#[test]
#[ignore = "needs a compiler and a kernel for 32 bits too (gcc -m32)"]
fn a_32_bit_program_is_inspected_as_far_as_possible() {
    let program = fixture(
        "bits32",
        &["-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pic", "-fno-stack-protector"],
    );
    let subject = Subject::start(&mut Command::new(program));
    let found = subject.inspect();
    assert_eq!(found["rss_bytes"], found["kernel_rss_bytes"], "{found:#}");
    assert!(bytes(&found, "anonymous_other") + bytes(&found, "runtime") >= MIB, "{found:#}");
}
