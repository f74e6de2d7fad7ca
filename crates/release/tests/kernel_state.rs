//! The state that the kernel keeps for a thread or a process, as far as a release touches it or
//! rests on it.
//!
//! A thread or process can change most of it at any moment. So each line says where lowtide reads
//! it, how it treats it, and which test shows that. A new kind of state, or a new thing that a
//! release does, needs a line here.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::fs;
use std::path::Path;

/// What a release does about a kind of state.
enum Treatment {
    /// It leaves the process alone, or a thread of it.
    Refuses,
    /// It notices a change in time, and ends.
    Notices,
    /// It puts it back as it was.
    Restores,
    /// It works whatever the state is, for this reason.
    Harmless(&'static str),
}

use Treatment::{Harmless, Notices, Refuses, Restores};

/// A kind of state.
struct KernelState {
    name: &'static str,
    /// The file below `src` that reads or restores it, and a word in it. Nothing reads what is
    /// harmless.
    read: Option<(&'static str, &'static str)>,
    treatment: Treatment,
    /// The name of a test, of this crate or of the command.
    test: &'static str,
}

const fn state(
    name: &'static str,
    read: (&'static str, &'static str),
    treatment: Treatment,
    test: &'static str,
) -> KernelState {
    KernelState { name, read: Some(read), treatment, test }
}

const fn harmless(name: &'static str, why: &'static str, test: &'static str) -> KernelState {
    KernelState { name, read: None, treatment: Harmless(why), test }
}

const CHANGES: &str = "what_a_process_changes_about_itself_during_a_release_is_harmless_or_noticed";
const CHANGES_OF_ROOT: &str =
    "what_root_changes_about_itself_during_a_release_is_harmless_or_noticed";
const KILLED: &str = "a_single_threaded_target_in_read_survives_when_lowtide_is_killed";

/// Of a thread.
const OF_A_THREAD: [KernelState; 26] = [
    state("general registers", ("arch/x86_64/frame.rs", "put_frame"), Restores, KILLED),
    state("vector registers", ("arch/x86_64/vectors.rs", "to_frame"), Restores, KILLED),
    state(
        "AMX tiles",
        ("arch/x86_64/vectors.rs", "TILE_DATA"),
        Refuses,
        "amx_tiles_and_unknown_layouts_are_rejected",
    ),
    state("signal mask", ("remote/stopping.rs", "signal_mask"), Restores, KILLED),
    state("alternate signal stack", ("arch/x86_64/frame.rs", "KEEP_ALTSTACK"), Restores, KILLED),
    state(
        "pending signals",
        ("remote/stopped_thread.rs", "may_end"),
        Restores,
        "a_handler_runs_once_while_a_read_is_interrupted",
    ),
    state(
        "system call to restart, and its timeout",
        ("remote/wait.rs", "Timeout"),
        Restores,
        "a_handler_runs_once_while_a_sleep_is_interrupted",
    ),
    state(
        "signal handler that it is in",
        ("remote/candidates.rs", "is_in_handler"),
        Refuses,
        "a_restorer_address_alone_is_not_a_signal_frame",
    ),
    state("stack", ("remote/candidates.rs", "fn room"), Refuses, KILLED),
    state(
        "seccomp filters",
        ("remote/seccomp.rs", "permits"),
        Refuses,
        "a_filter_that_kills_or_denies_causes_a_refusal_and_nothing_is_left_behind",
    ),
    state(
        "seccomp filters of lowtide itself",
        ("remote/shared_filters.rs", "check_thread"),
        Refuses,
        "a_program_with_an_additional_filter_is_refused",
    ),
    state(
        "seccomp filters that are installed during a stop",
        ("remote/stopped_thread.rs", "Filters::of"),
        Notices,
        CHANGES,
    ),
    state(
        "seccomp filters that are installed while the worker thread runs",
        ("privileges.rs", "Seccomp_filters"),
        Notices,
        CHANGES,
    ),
    state("no_new_privs", ("privileges.rs", "NoNewPrivs"), Notices, CHANGES),
    state(
        "users, groups, capabilities",
        ("privileges.rs", "CapEff"),
        Notices,
        "a_process_that_drops_root_during_a_release_keeps_no_thread_of_root",
    ),
    state(
        "Syscall User Dispatch",
        ("remote/tracee.rs", "has_user_dispatch"),
        Refuses,
        "a_process_whose_system_calls_are_dispatched_lives_on",
    ),
    state(
        "right to read the time stamp counter",
        ("worker.rs", "ERROR_TSC"),
        Harmless("the worker thread then asks the kernel for the time"),
        "a_release_succeeds_where_threads_must_not_read_the_time_stamp_counter",
    ),
    state("personality", ("remote/candidates.rs", "READ_IMPLIES_EXEC"), Refuses, CHANGES),
    state(
        "shadow stack",
        ("checks.rs", "check_shadow_stack"),
        Refuses,
        "one_thread_with_a_shadow_stack_or_a_tracer_causes_a_refusal",
    ),
    state(
        "rights of its protection keys",
        ("arch/x86_64/vectors.rs", "denies_only_writes"),
        Refuses,
        "an_arena_that_protection_keys_deny_is_left_alone",
    ),
    state(
        "tracer",
        ("checks.rs", "check_traced"),
        Refuses,
        "a_process_with_a_tracer_on_any_thread_is_refused",
    ),
    harmless(
        "restartable sequence (rseq)",
        "a thread is in none while it waits in a system call, and a new thread has none",
        KILLED,
    ),
    harmless(
        "robust futexes",
        "a new thread has none, and a borrowed thread keeps its own",
        KILLED,
    ),
    state(
        "address that is cleared at its end",
        ("remote/enter.rs", "field::TID"),
        Harmless("the worker thread has its own, in the block"),
        "a_target_that_runs_our_thread_survives_when_lowtide_is_killed",
    ),
    harmless(
        "scheduling policy and nice value",
        "the worker thread gets its own, and ends; slices are bounded by the work, not by the time",
        CHANGES,
    ),
    harmless(
        "processors that it may use",
        "the worker thread inherits them, and needs none in particular",
        CHANGES,
    ),
];

/// Of a process.
const OF_A_PROCESS: [KernelState; 22] = [
    state(
        "address space of another process",
        ("checks.rs", "check_shared_memory"),
        Refuses,
        "a_process_that_shares_its_memory_with_another_is_refused",
    ),
    state(
        "mappings",
        ("remote/leftovers.rs", "are_both_at"),
        Notices,
        "memory_that_the_target_maps_at_the_address_of_our_code_is_preserved",
    ),
    state(
        "locked mappings",
        ("checks.rs", "LockedMemory"),
        Harmless(
            "the release leaves them alone, and the kernel refuses to drop what is locked meanwhile",
        ),
        "memory_that_is_locked_during_a_release_is_skipped_and_counted",
    ),
    state(
        "memory pinned for a device",
        ("checks.rs", "check_pinned"),
        Refuses,
        "a_process_with_pinned_memory_is_refused",
    ),
    harmless(
        "sealed mappings",
        "the kernel refuses to drop pages of those that are not writable; a heap is writable",
        CHANGES,
    ),
    state(
        "huge pages of the pool",
        ("refusal.rs", "Hugetlb"),
        Refuses,
        "only_a_heap_in_hugetlb_memory_is_refused",
    ),
    state(
        "limit of its address space",
        ("remote/mapping.rs", "ENOMEM"),
        Notices,
        "a_full_address_space_is_reported_and_nothing_is_left_behind",
    ),
    state("limit of locked memory", ("remote/mapping.rs", "EAGAIN"), Notices, CHANGES),
    state(
        "limit of threads",
        ("worker.rs", "check_cloned"),
        Notices,
        "an_exhausted_thread_limit_is_reported_and_nothing_is_left_behind",
    ),
    harmless("limit of open files", "a release opens no file in it", CHANGES),
    state(
        "memory that must not be writable and executable (MDWE)",
        ("worker.rs", "field::MDWE"),
        Refuses,
        "a_program_that_denies_writable_and_executable_memory_is_refused",
    ),
    state(
        "right to write to pages of code from outside",
        ("remote/code_writer.rs", "EIO"),
        Harmless("words are written by ptrace instead"),
        "a_release_succeeds_where_the_kernel_permits_its_code_to_be_written_by_words_only",
    ),
    state(
        "whether it may be traced (dumpable)",
        ("checks.rs", "check_permission"),
        Refuses,
        CHANGES,
    ),
    state(
        "job control",
        ("checks.rs", "check_stopped"),
        Refuses,
        "a_multithreaded_target_continues_after_sigstop_and_sigcont",
    ),
    state(
        "frozen cgroup",
        ("checks.rs", "check_frozen"),
        Refuses,
        "a_frozen_process_is_refused_even_by_a_dry_run_and_released_once_it_thaws",
    ),
    state(
        "memory cgroup",
        ("headroom.rs", "MIN_HEADROOM"),
        Refuses,
        "a_release_needs_memory_of_the_cgroup",
    ),
    state(
        "program (execve)",
        ("remote/target_io.rs", "Replaced"),
        Notices,
        "a_program_executed_by_a_multithreaded_target_is_left_alone",
    ),
    state(
        "end",
        ("remote/target_io.rs", "Gone"),
        Notices,
        "a_multithreaded_target_killed_at_any_step_is_reported_as_gone",
    ),
    harmless("timers", "their signals run handlers, for which each step is prepared", CHANGES),
    harmless(
        "namespaces",
        "lowtide holds the process itself, and its files below /proc",
        CHANGES_OF_ROOT,
    ),
    state(
        "working directory that one thread has for itself",
        ("checks.rs", "has_own_directories"),
        Harmless("then the release runs in slices, and starts no thread"),
        "a_thread_with_a_working_directory_of_its_own_keeps_it",
    ),
    state(
        "children",
        ("checks.rs", "SharedMemory"),
        Notices,
        "a_child_that_is_forked_during_a_release_can_allocate",
    ),
];

/// Returns the text of all Rust files below a directory.
fn sources(directory: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    all
}

#[test]
fn each_kind_of_kernel_state_is_read_or_harmless_and_has_a_test() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = ["src", "tests", "../cli/tests"].map(|path| sources(&own.join(path))).concat();
    for KernelState { name, read, treatment, test } in OF_A_THREAD.iter().chain(&OF_A_PROCESS) {
        if let Some((file, word)) = read {
            let text = fs::read_to_string(own.join("src").join(file)).unwrap_or_default();
            assert!(text.contains(word), "{name}: {file} does not have {word}");
        }
        let is_explained = match treatment {
            Harmless(why) => !why.is_empty(),
            Refuses | Notices | Restores => read.is_some(),
        };
        assert!(is_explained, "{name}: it is not known where it is read, or why it is harmless");
        assert!(all.contains(&format!("fn {test}(")), "{name}: there is no test {test}");
    }
}
