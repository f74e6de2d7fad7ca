//! Programs that preload the library free known amounts of memory; their counters are read from
//! outside.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod subject;

use std::path::{Path, PathBuf};
use std::process::Command;

use lowtide_preload::{Inactive, STEP_BYTES, TrimError};
use subject::{Home, Subject, compile, freed_of};

/// Asserts that a count is right, with some live threads. Frees by the C library itself are added.
#[track_caller]
fn assert_counted((freed, counted): (u64, u64), threads: u64) {
    let slack = (threads + 1) * STEP_BYTES;
    assert!(freed > 4 * slack, "{freed} is too little for a test of {threads} threads");
    assert!(freed.abs_diff(counted) <= slack, "{freed} bytes freed, {counted} counted");
}

/// Asserts the properties that hold with every C library.
#[track_caller]
fn assert_counts(subject: &mut Subject) {
    assert_eq!(subject.freed().inactive, None);
    assert_counted(subject.free("blocks"), 1);
    assert_counted(subject.free("threads"), 4);
    assert_counted(subject.free("realloc"), 1);
}

#[test]
fn bytes_freed_by_free_and_realloc_are_counted() {
    let mut subject = Home::new().start_plain();
    assert_counts(&mut subject);
    let freed = subject.freed();
    assert!(!freed.is_preceded && !freed.misses_delete);
    assert_eq!((freed.trim_at_bytes, freed.trims, freed.trim_error), (None, 0, None));
}

#[test]
fn frees_below_one_step_per_thread_are_counted_on_average() {
    let mut subject = Home::new().start_plain();
    // 2000 threads, of which each frees a few per cent of a step.
    assert_counted(subject.free("short threads"), 4);
}

#[test]
fn a_forked_child_continues_from_its_parents_count() {
    let mut subject = Home::new().start_plain();
    subject.free("blocks");
    let before = subject.freed().freed_bytes;
    let answer = subject.ask("fork");
    let words: Vec<u64> = answer.split(' ').map(|word| word.parse().unwrap()).collect();
    let child = u32::try_from(words[0]).unwrap();
    let counted = freed_of(child).unwrap().freed_bytes - before;
    let child = rustix::process::Pid::from_raw(child as i32).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    assert_counted((words[1], counted), 4);
    assert_eq!(subject.freed().freed_bytes, before);
}

#[test]
fn operator_delete_in_a_plugin_is_counted_once() {
    let home = Home::new();
    let plugin = home.compile_library("plugin.cc", &[]);
    let mut subject = home.start_plain();
    assert_counted(subject.free(&plugin.to_string_lossy()), 1);
}

#[test]
fn operator_delete_in_a_cxx_program_is_counted_once() {
    let home = Home::new();
    let plugin = home.compile_library("plugin.cc", &[]);
    let directory = home.path().to_string_lossy().into_owned();
    let program = home.compile(&[
        "-pthread",
        "-Wl,--no-as-needed",
        &plugin.to_string_lossy(),
        &format!("-Wl,-rpath,{directory}"),
    ]);
    let mut subject = home.start(Command::new(program), &[]);
    assert!(!subject.freed().misses_delete);
    assert_counted(subject.free(&plugin.to_string_lossy()), 1);
}

#[test]
fn frees_of_the_bundled_allocators_are_counted() {
    let home = Home::new();
    let program = home.compile(&["-pthread"]);
    let directory = lowtide_allocators::library_directory().unwrap();
    for allocator in lowtide_allocators::bundled() {
        let other = allocator.unpack().unwrap();
        assert!(other.starts_with(&directory));
        let mut subject = home.start(Command::new(&program), &[&other]);
        assert_counts(&mut subject);
        let is_mimalloc = allocator.name().starts_with("mimalloc");
        assert_eq!(subject.freed().misses_delete, is_mimalloc, "{allocator:?}");
    }
}

#[test]
fn an_allocator_without_malloc_usable_size_is_not_counted() {
    let home = Home::new();
    let other = home.compile_library("allocator.c", &[]);
    let mut subject = home.start(Command::new(home.compile(&["-pthread"])), &[&other]);
    assert_eq!(subject.free("blocks").1, 0);
    assert_eq!(subject.freed().inactive, Some(Inactive::Allocator));
}

#[test]
fn a_realloc_that_calls_free_is_counted_once() {
    let home = Home::new();
    let other = home.compile_library("allocator.c", &["-DSIZES", "-Wl,--hash-style=sysv"]);
    let mut subject = home.start(Command::new(home.compile(&["-pthread"])), &[&other]);
    assert_counts(&mut subject);
}

#[test]
fn an_allocator_in_the_program_takes_precedence_over_the_library() {
    let home = Home::new();
    let program = home.path().join("frees");
    compile("CC", "cc", &["frees.c", "allocator.c"], &program, &["-pthread", "-rdynamic"]);
    let mut subject = home.start(Command::new(program), &[]);
    assert_eq!(subject.free("blocks").1, 0);
    assert!(subject.freed().is_preceded);
}

#[test]
fn a_program_with_a_sanitizer_is_not_counted() {
    let home = Home::new();
    let program = home.compile(&["-pthread", "-fsanitize=address"]);
    let mut command = Command::new(program);
    // The library is loaded before the sanitizer's library, which would refuse to start.
    command.env("ASAN_OPTIONS", "verify_asan_link_order=0");
    let mut subject = home.start(command, &[]);
    assert_eq!(subject.free("blocks").1, 0);
    assert_eq!(subject.freed().inactive, Some(Inactive::Sanitizer));
}

#[test]
fn the_heap_is_trimmed_at_the_threshold() {
    let home = Home::new();
    let mut counting = home.start_plain();
    counting.ask("hoard");
    let untrimmed = counting.resident();
    let mut trimming = home.start_trimming("16000000");
    trimming.ask("hoard");
    let freed = trimming.freed();
    assert_eq!(freed.trim_at_bytes, Some(16_000_000));
    // 64 MB are freed in one thread: the trims are over when it answers.
    assert_eq!(freed.trims, freed.freed_bytes / 16_000_000);
    assert!(trimming.resident() < untrimmed / 2, "{} of {untrimmed}", trimming.resident());
    trimming.ask("threads");
    assert!(trimming.freed().trims > freed.trims);
}

#[test]
fn a_child_that_is_forked_during_a_trim_can_trim() {
    let mut subject = Home::new().start_trimming("70000");
    assert_ne!(subject.ask("fork amid trim"), "0", "the child has not trimmed");
}

#[test]
fn with_a_malformed_threshold_frees_are_only_counted() {
    let home = Home::new();
    for value in ["", "0", "1G", "-5", "99999999999999999999", " 70000"] {
        let mut subject = home.start_trimming(value);
        assert_counted(subject.free("blocks"), 1);
        let freed = subject.freed();
        assert_eq!((freed.trims, freed.trim_at_bytes), (0, None), "{value:?}");
        assert_eq!(freed.trim_error, Some(TrimError::Malformed), "{value:?}");
    }
}

#[test]
fn frees_of_an_allocator_without_a_trim_are_only_counted() {
    let home = Home::new();
    let jemalloc = lowtide_allocators::bundled().next().unwrap().unpack().unwrap();
    let mut command = Command::new(home.compile(&["-pthread"]));
    command.env(lowtide_preload::TRIM_AT, "70000");
    let mut subject = home.start(command, &[&jemalloc]);
    assert_counted(subject.free("blocks"), 1);
    assert_eq!(subject.freed().trim_error, Some(TrimError::Unsupported));
}

#[test]
fn the_library_depends_only_on_symbols_of_both_c_libraries() {
    use object::{Object, ObjectSection, ObjectSymbol};
    let bytes = std::fs::read(Home::new().library).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbols: Vec<_> = file.dynamic_symbols().collect();
    let named = |wanted: fn(&object::Symbol<'_, '_>) -> bool| -> Vec<_> {
        let mut names: Vec<_> =
            symbols.iter().filter(|s| wanted(s)).filter_map(|s| s.name().ok()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(named(|s| s.is_definition()), ["free", "lowtide_freed", "realloc"]);
    assert_eq!(
        named(|s| s.is_undefined() && !s.is_weak() && s.name() != Ok("")),
        ["dl_iterate_phdr"]
    );
    let dynamic = file.section_by_name(".dynamic").unwrap().data().unwrap();
    let tags: Vec<u64> = dynamic
        .chunks(16)
        .map(|entry| u64::from_ne_bytes(entry[..8].try_into().unwrap()))
        .collect();
    assert!(!tags.contains(&(object::elf::DT_NEEDED.0 as u64)), "{tags:?}");
}

#[test]
#[ignore = "needs musl-gcc (Debian: musl-tools)"]
fn frees_of_a_musl_program_are_counted() {
    let home = Home::new();
    let program = home.path().join("frees");
    compile("MUSL_CC", "musl-gcc", &["frees.c"], &program, &["-pthread"]);
    let mut command = Command::new(program);
    command.env(lowtide_preload::TRIM_AT, "70000");
    let mut subject = home.start(command, &[]);
    assert_counts(&mut subject);
    assert_eq!(subject.freed().trim_error, Some(TrimError::Unsupported));
}

/// Compiles `programs/frees.c` for every glibc from 2.27 on.
fn compile_for_oldest(home: &Home) -> PathBuf {
    let support = Path::new(env!("CARGO_MANIFEST_DIR")).join("../release/tests/programs");
    let (header, start) = (support.join("oldest.h"), support.join("oldest.c"));
    let threads = lowtide_testing::library_of_compiler("libpthread.so.0");
    home.compile(&[
        "-DNO_PLUGIN",
        "-include",
        &header.to_string_lossy(),
        "-fno-pie",
        "-no-pie",
        "-nostartfiles",
        &start.to_string_lossy(),
        "-Wl,--no-as-needed",
        &threads.to_string_lossy(),
    ])
}

#[test]
#[ignore = "needs other glibcs in the directories that LOWTIDE_TEST_GLIBCS lists, with colons between (.ci/fetch-glibc)"]
fn frees_are_counted_under_every_glibc_version() {
    let home = Home::new();
    let program = compile_for_oldest(&home);
    let directories = std::env::var("LOWTIDE_TEST_GLIBCS").expect("LOWTIDE_TEST_GLIBCS is not set");
    for directory in directories.split(':').map(Path::new) {
        let mut command = Command::new(directory.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(directory).arg(&program);
        command.env(lowtide_preload::TRIM_AT, "16000000");
        let mut subject = home.start(command, &[]);
        assert_counts(&mut subject);
        subject.ask("hoard");
        assert!(subject.freed().trims > 0, "{}", directory.display());
        // The blocks of a program that has replaced `free` may not be glibc's.
        let minor: u32 = subject.ask("set free hook").parse().unwrap();
        if minor < 34 {
            assert_eq!(subject.free("blocks").1, 0, "{}", directory.display());
        }
    }
}
