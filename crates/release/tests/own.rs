//! A program that releases its own memory: the test checks the returned memory, and that nothing
//! else changes.

#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lowtide_release::{OwnOptions, OwnRefusal, release_own};

/// The tests share one heap, and only one of them releases at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const BLOCKS: usize = 100_000;
const MIB: u64 = 1 << 20;

fn rss_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Returns a block. Blocks differ in size and contents.
fn block(number: usize) -> Vec<u8> {
    vec![number as u8; 300 + number * 7 % 2000]
}

/// Allocates blocks, and frees all but every 64th.
fn hoard() -> Vec<(usize, Vec<u8>)> {
    let mut blocks: Vec<_> = (0..BLOCKS).map(|number| (number, block(number))).collect();
    blocks.retain(|(number, _)| number % 64 == 0);
    blocks
}

fn assert_intact(blocks: &[(usize, Vec<u8>)]) {
    assert!(blocks.iter().all(|(number, bytes)| *bytes == block(*number)));
}

#[test]
fn free_memory_of_all_arenas_is_returned_and_blocks_in_use_are_unchanged() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let others: Vec<_> = (0..3).map(|_| thread::spawn(hoard)).collect();
    let mut kept = vec![hoard()];
    kept.extend(others.into_iter().map(|thread| thread.join().unwrap()));
    let before = rss_bytes();
    let release = release_own(&OwnOptions::default()).unwrap();
    let fell = before.saturating_sub(rss_bytes());
    // Each of the four has freed 130 MB, of which glibc may have returned a part itself.
    assert!(release.returned_bytes > 64 * MIB, "{release:?}");
    assert!(fell.abs_diff(release.returned_bytes) < 16 * MIB, "{fell} {release:?}");
    assert!(release.lock_holds > 0 && release.passes > 0, "{release:?}");
    kept.iter().for_each(|blocks| assert_intact(blocks));
    // The heap still works as before.
    let again = hoard();
    assert_intact(&again);
}

#[test]
#[expect(unsafe_code, reason = "mlock has no safe form")]
fn locked_memory_is_left_alone() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let kept = hoard();
    // The memory around the block is free.
    let middle = kept[kept.len() / 2].1.as_ptr().cast_mut().cast();
    // SAFETY: this changes no memory. 32 KiB are less than what anyone may lock.
    unsafe { rustix::mm::mlock(middle, 32 << 10).unwrap() };
    let release = release_own(&OwnOptions::default()).unwrap();
    assert!(release.returned_bytes > 64 * MIB, "{release:?}");
    assert_intact(&kept);
    // SAFETY: as above.
    unsafe { rustix::mm::munlock(middle, 32 << 10).unwrap() };
}

#[test]
fn threads_may_allocate_and_free_during_releases() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let churn = |seed: usize| {
            let mut slots: Vec<Option<(usize, Vec<u8>)>> = vec![None; 4096];
            let mut number = seed;
            while !is_over.load(Ordering::Relaxed) {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let place = number >> 33 & 4095;
                match slots[place].take() {
                    Some((number, bytes)) => assert!(bytes == block(number % BLOCKS)),
                    None => slots[place] = Some((number, block(number % BLOCKS))),
                }
            }
            for (number, bytes) in slots.into_iter().flatten() {
                assert!(bytes == block(number % BLOCKS));
            }
        };
        let threads: Vec<_> = (1..4).map(|seed| scope.spawn(move || churn(seed))).collect();
        for _ in 0..10 {
            let kept = hoard();
            release_own(&OwnOptions::default()).unwrap();
            assert_intact(&kept);
        }
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_child_that_is_forked_during_a_release_can_allocate() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(hoard());
                match release_own(&OwnOptions::default()) {
                    Ok(_) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for _ in 0..20 {
            // It forks, and the child allocates before it starts the program.
            let mut command = std::process::Command::new("/bin/true");
            #[expect(
                unsafe_code,
                reason = "the child of a program with threads may allocate with glibc"
            )]
            // SAFETY: the child only allocates and frees, which glibc permits after a fork.
            unsafe {
                std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                    assert_intact(&[(7, block(7))]);
                    Ok(())
                })
            };
            assert!(command.status().unwrap().success());
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_interrupt_ends_a_release_before_it_locks_anything() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let mut options = OwnOptions::default();
    options.interrupt = std::sync::Arc::new(true.into());
    assert!(matches!(release_own(&options), Err(OwnRefusal::Interrupted)));
}

/// Makes the kernel end the process at a raw `clock_gettime`, in this thread.
#[expect(unsafe_code, reason = "system calls")]
fn deny_clock_gettime() {
    const LOAD_NUMBER: libc::sock_filter = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let is_clock = libc::sock_filter {
        code: 0x15,
        jt: 0,
        jf: 1,
        k: u32::try_from(libc::SYS_clock_gettime).unwrap(),
    };
    let give = |k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k };
    let mut filter = [
        LOAD_NUMBER,
        is_clock,
        give(libc::SECCOMP_RET_KILL_PROCESS),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid during the call, and only this thread gets the filter.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Variable in the environment of the process that has a filter. The result of the filter check is
/// kept for the whole process.
const IS_FILTERED: &str = "LOWTIDE_TEST_IS_FILTERED";

#[test]
fn a_process_whose_filter_would_kill_it_is_left_alone() {
    if std::env::var_os(IS_FILTERED).is_some() {
        deny_clock_gettime();
        let refusal = release_own(&OwnOptions::default()).unwrap_err();
        assert!(matches!(refusal, OwnRefusal::Filtered), "{refusal}");
        return;
    }
    let test = "a_process_whose_filter_would_kill_it_is_left_alone";
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(IS_FILTERED, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
