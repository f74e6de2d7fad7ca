//! The blocks that pin memory: the predicted gain is what a release returns after they are freed.

use std::path::Path;

use lowtide_allocators::bundled;
use lowtide_leaks::pins::HeldMemory;
use lowtide_probe::target::Target;
use serde_json::Value;

use super::{Subject, object, plain};
use crate::support::{fixture, lowtide, until};

/// Maximum difference between a prediction and the returned memory, in bytes.
const TOLERANCE: u64 = 4 * 4096;

/// Returns the anonymous memory of a process, in bytes.
fn anonymous(subject: &Subject) -> u64 {
    let rollup = subject.proc("smaps_rollup");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Releases memory until there is nothing left to release.
fn release_all(subject: &Subject) {
    until("a release that finds nothing to do", || {
        let pid = subject.pid().to_string();
        let output = lowtide().args(["--json", "release", &pid]).output().unwrap();
        let found = object(&output);
        assert_ne!(found["outcome"], "refused", "{found:#}");
        (found["outcome"] == "nothing_to_release").then_some(())
    });
}

fn held(subject: &Subject) -> HeldMemory {
    HeldMemory::read(&Target::open(subject.pid()).unwrap(), true).unwrap()
}

/// Starts `fixtures/pins.c` with an allocator.
fn pinned(allocator: &str) -> Subject {
    pinned_by(allocator, 0)
}

/// Starts `fixtures/pins.c` with an allocator, and sizes that follow from a seed.
fn pinned_by(allocator: &str, seed: u32) -> Subject {
    let mut command = plain(&fixture("pins", &["-pthread"]));
    command.arg(seed.to_string());
    if allocator != "glibc" {
        let carried = bundled().find(|carried| carried.name() == allocator).unwrap();
        command.env("LD_PRELOAD", carried.unpack().unwrap());
    }
    Subject::start(&mut command)
}

/// Starts `fixtures/pins.c` with the library of an allocator.
fn pinned_with(library: &Path) -> Subject {
    Subject::start(plain(&fixture("pins", &["-pthread"])).env("LD_PRELOAD", library))
}

/// Frees blocks by each of some commands. What becomes free by the blocks that have vanished must
/// be what the process returns, with a release before and after it.
fn proves(subject: &mut Subject, steps: &[&[&str]]) {
    // What threads have kept of the burst is not of these blocks.
    subject.send("collect");
    release_all(subject);
    for commands in steps {
        let (before, blocks) = (anonymous(subject), held(subject));
        for command in *commands {
            subject.send(command);
        }
        let freed = blocks.freed_since(&held(subject));
        release_all(subject);
        let returned = before - anonymous(subject);
        assert!(freed.units > 0, "{commands:?}");
        // A thread that ends also returns its stack. Then, and when it collects, it may return a
        // page of 64 KiB that its heap kept empty.
        let of_threads = match () {
            () if commands.contains(&"end") => 2 * (TOLERANCE + (64 << 10)),
            () if commands.contains(&"collect") => 64 << 10,
            () => 0,
        };
        let (least, most) = (freed.resident_bytes - TOLERANCE, freed.resident_bytes + TOLERANCE);
        assert!(
            (least..=most + of_threads).contains(&returned),
            "{commands:?}: predicted {}, returned {returned}",
            freed.resident_bytes
        );
    }
}

#[test]
fn what_blocks_of_glibc_pin_returns_after_they_are_freed_by_their_owner_or_another_thread() {
    proves(&mut pinned("glibc"), &[&["main 0"], &["owner 1"], &["main 2"]]);
    proves(&mut pinned("glibc"), &[&["owner 2"], &["main 1"], &["owner 0"]]);
}

#[test]
fn what_blocks_of_jemalloc_pin_returns_after_they_are_freed_by_their_owner_or_another_thread() {
    proves(&mut pinned("jemalloc"), &[&["main 0"], &["owner 1"], &["main 2"]]);
}

#[test]
fn what_blocks_of_mimalloc_pin_returns_after_their_owner_has_collected() {
    for version in ["mimalloc", "mimalloc2"] {
        // If all blocks of a segment are freed, its own structures go, too.
        let steps: [&[&str]; 2] = [&["owner 0", "collect"], &["main 2", "collect"]];
        proves(&mut pinned(version), &steps);
    }
}

#[test]
fn what_blocks_pin_returns_after_another_thread_has_freed_them_and_their_owner_has_ended() {
    for allocator in ["glibc", "jemalloc", "mimalloc"] {
        println!("{allocator}");
        proves(&mut pinned(allocator), &[&["main 0", "main 1", "end"]]);
    }
    // The pages of an ended thread are left alone until another one takes them over.
    proves(&mut pinned("mimalloc2"), &[&["main 0", "main 1", "end", "collect"]]);
}

/// The allocator frees blocks of sizes, in an order, and by threads that follow from a seed.
#[test]
fn whatever_the_sizes_what_blocks_pin_is_what_returns_after_they_are_freed() {
    let seeds = if std::env::var_os("LOWTIDE_TEST_EXHAUSTIVE").is_some() { 24 } else { 1 };
    for seed in 1..=seeds {
        let steps: [&[&str]; 4] = [&["part 2"], &["owner 0"], &["part 1"], &["main 2", "main 1"]];
        for allocator in ["glibc", "jemalloc"] {
            println!("{allocator} with seed {seed}");
            proves(&mut pinned_by(allocator, seed), &steps);
        }
    }
}

#[test]
fn blocks_of_many_sizes_with_one_holder_are_one_group_with_their_joint_gain() {
    let mut subject = pinned_by("glibc", 1);
    release_all(&subject);
    let found = subject.inspect_with(&["--pins"]);
    let pins = &found["pins"];
    let number = |value: &Value| value.as_u64().unwrap();
    let group = &pins["groups"][0];
    assert!(number(&group["size_bytes"][0]) < number(&group["size_bytes"][1]), "{pins:#}");
    assert!(group["holder"].as_str().unwrap().starts_with("variable workers of pins"), "{group:#}");
    let before = anonymous(&subject);
    for class in 0..3 {
        subject.send(&format!("main {class}"));
    }
    release_all(&subject);
    let returned = before - anonymous(&subject);
    let last = pins["sets"].as_array().unwrap().last().unwrap();
    let (least, most) = (number(&last["gain_at_least_bytes"]), number(&last["gain_at_most_bytes"]));
    assert!((least..=most + TOLERANCE).contains(&returned), "{returned} {last:#}");
}

#[test]
#[ignore = "needs libtcmalloc-minimal4"]
fn what_blocks_of_gperftools_pin_returns_after_they_have_left_the_caches() {
    let mut subject = pinned_with(Path::new("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"));
    subject.send("collect");
    let mut units = 0;
    for command in ["owner 0", "main 1", "owner 2"] {
        let (before, blocks) = (anonymous(&subject), held(&subject));
        subject.send(command);
        // Until then, the thread that freed them may cache them.
        subject.send("collect");
        let freed = blocks.freed_since(&held(&subject));
        let returned = before - anonymous(&subject);
        units += freed.units;
        let difference = returned.abs_diff(freed.resident_bytes);
        assert!(difference <= TOLERANCE, "{command}: {freed:?}, returned {returned}");
    }
    // The caches of the threads may hold all blocks of one command.
    assert!(units > 0);
}

/// Creates objects of a type between others, which it deletes. Deletes those that are left at the
/// command `drop`.
const PYTHON: &str = "
import sys
class Node:
    __slots__ = ('value', 'next')
class Step(Node):
    __slots__ = ()
kept, burst = [], []
for i in range(400_000):
    burst.append((Step(), bytes(60 + i % 300)))
    if i % 2000 == 0:
        node = Node()
        node.value = node.next = None
        kept.append(node)
del burst
print('ready', flush=True)
for line in sys.stdin:
    kept.clear()
    print('done', flush=True)
";

#[test]
#[ignore = "needs python3"]
fn what_objects_of_python_pin_returns_after_they_are_deleted_except_for_one_arena() {
    const ARENA: u64 = 1 << 20;
    let mut subject = Subject::start(plain("python3").args(["-c", PYTHON]));
    release_all(&subject);
    let found = subject.inspect_with(&["--pins"]);
    let groups = found["pins"]["groups"].as_array().unwrap();
    let node = groups.iter().find(|group| group["type"] == "Python Node").unwrap();
    assert_eq!((&node["allocator"], &node["blocks"]), (&"cpython".into(), &200.into()), "{node:#}");
    let (before, blocks) = (anonymous(&subject), held(&subject));
    subject.send("drop");
    let freed = blocks.freed_since(&held(&subject));
    release_all(&subject);
    let returned = before - anonymous(&subject);
    assert!(freed.resident_bytes > 10 * ARENA, "{freed:?}");
    let expected = freed.resident_bytes - ARENA - TOLERANCE..=freed.resident_bytes + TOLERANCE;
    assert!(expected.contains(&returned), "{freed:?}, returned {returned}");
}

#[test]
fn the_groups_share_all_pinned_memory_and_the_set_of_all_gains_what_was_freed() {
    let mut subject = pinned("glibc");
    release_all(&subject);
    let found = subject.inspect_with(&["--pins"]);
    crate::schemas::hold_inspection(&found);
    let pins = &found["pins"];
    let number = |value: &Value| value.as_u64().unwrap();
    let groups = pins["groups"].as_array().unwrap();
    let shares: u64 = groups.iter().map(|group| number(&group["pinned_bytes"])).sum();
    assert_eq!(shares, number(&pins["pinned_bytes"]), "{pins:#}");
    let sizes: Vec<u64> =
        groups.iter().take(3).map(|group| number(&group["size_bytes"][0])).collect();
    assert!([64, 112, 320].iter().all(|size| sizes.contains(size)), "{pins:#}");
    for group in &groups[..3] {
        let holder = group["holder"].as_str().unwrap();
        assert!(holder.starts_with("variable workers of pins"), "{group:#}");
    }
    let last = pins["sets"].as_array().unwrap().last().unwrap();
    let members: Vec<usize> =
        last["groups"].as_array().unwrap().iter().map(|place| number(place) as usize).collect();
    assert_eq!(members, [0, 1, 2], "{pins:#}");
    let before = anonymous(&subject);
    for class in 0..3 {
        subject.send(&format!("main {class}"));
    }
    release_all(&subject);
    let returned = before - anonymous(&subject);
    let (least, most) = (number(&last["gain_at_least_bytes"]), number(&last["gain_at_most_bytes"]));
    assert!((least..=most + TOLERANCE).contains(&returned), "{returned} {last:#}");
}

#[test]
fn a_verdict_of_fragmentation_names_the_sizes_of_the_blocks_that_pin_the_memory() {
    let subject = pinned("glibc");
    release_all(&subject);
    let found = subject.inspect();
    assert_eq!(found["verdict"]["kind"], "fragmentation", "{found:#}");
    let because = found["verdict"]["because"].as_array().unwrap();
    let cause = because[1].as_str().unwrap();
    assert!(cause.contains(" is pinned by ") && cause.contains(" B and "), "{because:#?}");
    assert!(found["pins"].is_null() && found["blocks"].is_null());
}

#[test]
fn the_blocks_in_use_are_counted_by_size_with_what_holds_them() {
    let subject = pinned("jemalloc");
    let found = subject.inspect_with(&["--blocks", "--top", "4"]);
    crate::schemas::hold_inspection(&found);
    let census = &found["blocks"];
    let groups = census["groups"].as_array().unwrap();
    let sum = |key: &str| groups.iter().map(|group| group[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (sum("bytes"), sum("blocks")),
        (census["bytes"].as_u64().unwrap(), census["blocks"].as_u64().unwrap())
    );
    let of_320 = groups.iter().find(|group| group["size_bytes"][0] == 320).unwrap();
    assert_eq!(of_320["allocator"], "jemalloc", "{of_320:#}");
    assert!(
        of_320["holder"].as_str().unwrap().starts_with("variable workers of pins"),
        "{of_320:#}"
    );
    assert!((2000..3500).contains(&of_320["blocks"].as_u64().unwrap()), "{of_320:#}");
}

#[test]
fn a_process_without_a_heap_of_blocks_gets_one_sentence_and_no_error() {
    let mut sleeping = plain("sleep");
    let subject = Subject::silent(sleeping.arg("600"));
    let output =
        lowtide().args(["inspect", "--pins", &subject.pid().to_string()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("\npins: "), "{text}");
}
