//! The stacks by which lost blocks were allocated. These tests open probes, which requires CAP_BPF
//! and CAP_PERFMON.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use lowtide_leaks::book::MAX_BLOCKS;
use lowtide_leaks::stacks::mappings::MappingSampler;
use lowtide_leaks::stacks::refusal::NoStacks;
use lowtide_leaks::stacks::sampler::{Attachment, StackSampler};
use lowtide_model::leaks::{LeakFrame, LeakGroup, LeakKind, LeakReport, LeakStack, LeakTier};
use lowtide_probe::target::Target;

use crate::subject::{Subject, Watched, compile};
use crate::types::source;

/// Maximum number of runs of a program: on a busy machine, samples are read too late, and are
/// discarded.
const ATTEMPTS: usize = 20;
/// The maximum exposure of the programs, so that there are enough samples soon.
const EXPOSURE: f64 = 0.3;

/// Watches a program until lost or growing blocks have stacks, and returns the report with their
/// group.
fn watch(flags: &[&str], words: &[&str]) -> (Watched, LeakGroup) {
    watch_by(&Attachment::ALL, flags, words)
}

fn watch_by(attachments: &[Attachment], flags: &[&str], words: &[&str]) -> (Watched, LeakGroup) {
    let home = tempfile::tempdir().unwrap();
    let program = compile(home.path(), flags);
    let is_bad = |group: &&LeakGroup| matches!(group.verdict, LeakKind::Lost | LeakKind::Growing);
    watch_program(attachments, Command::new(&program).args(words), |report| {
        report.groups.iter().find(is_bad).filter(|group| !group.stacks.is_empty()).cloned()
    })
}

/// Watches a program until its report has the expected content.
fn watch_program<Found>(
    attachments: &[Attachment],
    command: &mut Command,
    found: impl Fn(&LeakReport) -> Option<Found>,
) -> (Watched, Found) {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let mut subject = Subject::start(command);
        subject.wait_for(1);
        let sampler = StackSampler::start(&subject.target(), EXPOSURE, attachments).unwrap();
        let watched = subject.watch_with(13, 250, MAX_BLOCKS, Some(sampler));
        if let Some(found) = found(&watched.report) {
            return (watched, found);
        }
        last = Some(watched);
    }
    panic!("not found: {:#?}", last.map(|watched| watched.report));
}

/// Returns the Python of the system or, if there is none, the first one in `PATH`. With one that
/// pyenv had built, lowtide named no function of the leaking thread in the time of a test.
fn python() -> &'static str {
    let of_system = "/usr/bin/python3";
    if std::path::Path::new(of_system).exists() { of_system } else { "python3" }
}

fn functions(stack: &LeakStack) -> Vec<&str> {
    stack.frames.iter().map(|frame| frame.function.as_str()).collect()
}

#[test]
#[ignore = "needs root, for probes"]
fn lost_blocks_have_their_allocation_stack_among_many_blocks_of_the_same_size() {
    let flags = ["-O1", "-g", "-fno-inline", "-fomit-frame-pointer"];
    let (watched, group) = watch(&flags, &["mix", "20000", "100"]);
    assert_eq!(group.verdict, LeakKind::Lost);
    for stack in &group.stacks {
        let found = functions(stack);
        assert!(found.starts_with(&["filled", "lose", "mix"]), "{:#?}", group.stacks);
        assert!(!stack.is_cut, "{stack:#?}");
        let first = &stack.frames[0];
        assert!(first.file.as_ref().is_some_and(|file| file.ends_with("subject.c")), "{first:?}");
        assert!(first.line.is_some() && first.module.as_deref() == Some("subject"), "{first:?}");
    }
    let report = &watched.report;
    assert_eq!(report.tier, LeakTier::Bpf);
    assert!(report.exposure > 0.0 && report.exposure <= 1.0, "{}", report.exposure);
    let sampling = report.sampling.unwrap();
    assert!(sampling.samples > 0 && sampling.hits >= sampling.samples, "{sampling:?}");
    assert!(sampling.hit_s > 0.0, "{sampling:?}");
}

#[test]
#[ignore = "needs root, for perf events"]
fn the_code_that_maps_memory_is_named_and_that_of_the_heap_is_not() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("mapper");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/mapper.c");
    lowtide_testing::compile(&program, [source, "-O1", "-g", "-fno-inline"]);
    let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().unwrap();
    let mut steps = BufReader::new(child.stdout.take().unwrap()).lines();
    let child = lowtide_testing::Running::from(child);
    let target = Target::open(child.id()).unwrap();
    let mut sampler = MappingSampler::start(&target).unwrap();
    for _ in 0..40 {
        steps.next().unwrap().unwrap();
        sampler.poll(&target);
    }
    let callers = sampler.callers(&target).unwrap();
    let found: Vec<Vec<&str>> = callers.iter().map(functions).collect();
    assert!(found[0].starts_with(&["map_frame", "draw", "main"]), "{callers:#?}");
    assert!(callers[0].samples >= 20 && !callers[0].is_cut, "{callers:#?}");
    assert!(found.iter().flatten().all(|function| !function.contains("alloc")), "{callers:#?}");
    let first = &callers[0].frames[0];
    assert!(first.file.as_ref().is_some_and(|file| file.ends_with("mapper.c")), "{first:?}");
}

#[test]
#[ignore = "needs root, for probes"]
fn probes_that_are_attached_one_by_one_give_the_same_stacks() {
    let flags = ["-O1", "-g", "-fno-inline"];
    let (watched, group) = watch_by(&[Attachment::Perf], &flags, &["mix", "20000", "100"]);
    assert_eq!((group.verdict, watched.report.tier), (LeakKind::Lost, LeakTier::Perf));
    for stack in &group.stacks {
        assert!(functions(stack).starts_with(&["filled", "lose", "mix"]), "{:#?}", group.stacks);
    }
}

#[test]
#[ignore = "needs root, for probes"]
fn the_leaking_call_is_made_about_as_often_as_blocks_are_lost() {
    let flags = ["-O1", "-g", "-fno-inline"];
    let (_, group) = watch(&flags, &["mix", "20000", "100"]);
    let proof = group.stacks[0].proof.expect("a call that only lost blocks have");
    assert!(proof.calls > 0, "{proof:?}");
    let ratio = proof.calls_per_hour / proof.survivors_per_hour;
    // The number of steps depends on the load of the machine, which differs from moment to moment.
    assert!((0.3..3.0).contains(&ratio), "{proof:?}");
}

#[test]
#[ignore = "needs root, for probes"]
fn stacks_of_a_stripped_program_show_its_file_name_and_offsets() {
    let (_, group) = watch(&["-O2", "-s"], &["list", "2000"]);
    let first = &group.stacks[0].frames[0];
    assert!(first.function.starts_with("subject+0x"), "{:#?}", group.stacks);
    assert!(
        functions(&group.stacks[0]).iter().any(|name| name.contains("clone")
            || name.contains("thread")
            || name.starts_with("libc")),
        "{:#?}",
        group.stacks
    );
}

#[test]
#[ignore = "needs python3 (3.11 or newer), and root, for probes"]
fn python_functions_precede_the_frames_that_execute_them() {
    let subject = source("cache.py");
    let (_, stack) =
        watch_program(&Attachment::ALL, Command::new(python()).arg(&subject), |report| {
            let mut stacks = report.groups.iter().flat_map(|group| &group.stacks);
            // The module itself also allocates, as it reads its commands.
            let is_of_the_leak = |frame: &LeakFrame| {
                frame.estimated && ["work", "Session.__init__"].contains(&frame.function.as_str())
            };
            stacks.find(|stack| stack.frames.iter().any(is_of_the_leak)).cloned()
        });
    let place = stack.frames.iter().position(|frame| frame.estimated).unwrap();
    let [python, native] = &stack.frames[place..place + 2] else { panic!("{stack:#?}") };
    assert!(["work", "Session.__init__"].contains(&python.function.as_str()), "{stack:#?}");
    assert_eq!(python.file.as_deref(), subject.to_str(), "{stack:#?}");
    assert_eq!(native.function, "_PyEval_EvalFrameDefault", "{stack:#?}");
}

#[test]
#[ignore = "needs root, for probes"]
fn a_program_with_a_stripped_static_allocator_has_no_stacks() {
    let home = tempfile::tempdir().unwrap();
    let program = compile(home.path(), &["-O2", "-s", "-static"]);
    let mut subject = Subject::start(Command::new(&program).args(["list", "500"]));
    subject.wait_for(1);
    let reason = StackSampler::start(&subject.target(), EXPOSURE, &Attachment::ALL).unwrap_err();
    assert_eq!(reason, NoStacks::NoFunctions);
}
