//! Threads that the C library does not know: a `clone` of the program itself has started them.
//! glibc may then take no locks, and such a thread shares the data of the one that started it.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

#[path = "support/hoard.rs"]
mod hoard;
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use hoard::Hoard;
use lowtide_model::release::{Method, Release, ReleaseOutcome};
use lowtide_release::{Options, release};
use lowtide_testing::until;

fn act(hoard: &Hoard, method: Method) -> Release {
    let options = Options { untested: true, method: Some(method), ..Options::default() };
    release(&hoard.target, &options).unwrap()
}

#[test]
fn a_program_that_has_such_threads_is_released_by_the_others() {
    let home = tempfile::tempdir().unwrap();
    let cases: [(&[&str], u32, Method); 4] = [
        (&[], 0, Method::Chunks),
        (&[], 2, Method::Chunks),
        (&[], 0, Method::Trim),
        (&["-static"], 0, Method::Chunks),
    ];
    for (arguments, threads, method) in cases {
        let what = format!("{arguments:?}, {threads} more threads, {method:?}");
        let program = support::compile(home.path(), "counted.c", arguments);
        let mut hoard = Hoard::start(&program, threads, 3);
        let released = act(&hoard, method);
        assert_eq!(released.outcome, ReleaseOutcome::Released, "{what}: {released:?}");
        assert!(released.returned_bytes > 0, "{what}: {released:?}");
        hoard.check(&what);
    }
}

#[test]
fn nothing_is_released_by_such_a_thread_while_the_others_take_no_locks() {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "counted.c", &[]);
    let words = ["0", "1", "7", "alone"].map(str::to_owned);
    let mut hoard = Hoard::start_with(&program, &words);
    // The other one works, and waits now and then.
    let reason = until("a refusal", || {
        let released = act(&hoard, Method::Chunks);
        assert!(released.may_pass != Some(false), "{released:?}");
        released.reason
    });
    assert!(reason.starts_with("none of its 2 threads can run the release"), "{reason}");
    hoard.check("after a refusal");
}
