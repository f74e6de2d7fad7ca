//! The count is exact. Each test runs alone, in a process of its own: other tests allocate as well.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(unsafe_code, reason = "a test calls an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::process::Command;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;

use lowtide_tokio::{Tracked, allocated_bytes};

#[global_allocator]
static ALLOCATOR: Tracked<System> = Tracked::new(System);

/// Variable that is set in the environment of a test's process.
const ALONE: &str = "LOWTIDE_TEST_ALONE";

/// Runs a test in a process of its own, in which it is the only one.
fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

fn allocated() -> i64 {
    i64::try_from(allocated_bytes().unwrap()).unwrap()
}

/// Asserts that work frees all that it allocates. The standard library and the test harness may
/// allocate something once, during the first attempts.
fn leaves_nothing(work: impl Fn()) {
    let mut left = Vec::new();
    for _ in 0..5 {
        let before = allocated();
        work();
        left.push(allocated() - before);
    }
    assert!(left.contains(&0), "{left:?}");
}

#[test]
fn every_allocation_function_is_counted_to_the_byte() {
    /// Returns the count after each step, minus the count before the first.
    fn counts() -> [i64; 5] {
        let before = allocated();
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        // SAFETY: the layouts have a size, and each block is used with the layout that it was
        // allocated with.
        unsafe {
            let block = ALLOCATOR.alloc(layout(1000));
            let first = allocated();
            let block = ALLOCATOR.realloc(block, layout(1000), 5000);
            let grown = allocated();
            let block = ALLOCATOR.realloc(block, layout(5000), 70);
            let zeroed = ALLOCATOR.alloc_zeroed(layout(333));
            let both = allocated();
            ALLOCATOR.dealloc(block, layout(70));
            let one = allocated();
            ALLOCATOR.dealloc(zeroed, layout(333));
            // More memory than exists: nothing is counted.
            let vast = Layout::from_size_align(isize::MAX as usize / 2, 16).unwrap();
            assert!(ALLOCATOR.alloc(vast).is_null());
            [first, grown, both, one, allocated()].map(|count| count - before)
        }
    }
    alone("every_allocation_function_is_counted_to_the_byte", || {
        let attempts: Vec<_> = (0..5).map(|_| counts()).collect();
        assert!(attempts.contains(&[1000, 5000, 403, 333, 0]), "{attempts:?}");
    });
}

#[test]
fn cross_thread_frees_and_ended_threads_are_counted_to_the_byte() {
    alone("cross_thread_frees_and_ended_threads_are_counted_to_the_byte", || {
        let work = || {
            let (sender, receiver) = channel::<Vec<u8>>();
            let freeing =
                thread::spawn(move || receiver.iter().map(|one| one.len()).sum::<usize>());
            let allocating: Vec<_> = (0..8)
                .map(|number| {
                    let sender = sender.clone();
                    thread::spawn(move || {
                        (1..200).for_each(|size| sender.send(vec![1; size * number + 1]).unwrap());
                    })
                })
                .collect();
            drop(sender);
            allocating.into_iter().for_each(|thread| thread.join().unwrap());
            freeing.join().unwrap()
        };
        leaves_nothing(|| assert_eq!((0..50).map(|_| work()).sum::<usize>(), 27_939_600));
    });
}

thread_local! {
    static KEPT: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Allocates and frees in a destructor of a thread.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        drop(vec![7_u8; 4096]);
        let _ = KEPT.try_with(|kept| kept.borrow_mut().clear());
    }
}

thread_local! {
    static LAST: Last = const { Last };
}

#[test]
fn thread_local_destructors_are_counted_to_the_byte() {
    alone("thread_local_destructors_are_counted_to_the_byte", || {
        // In both orders, before and after the first allocation of a thread.
        let work = |is_first: bool| {
            let body = move || {
                if is_first {
                    LAST.with(|_| ());
                }
                KEPT.with_borrow_mut(|kept| kept.extend((0..50).map(|_| vec![1; 100].into())));
                LAST.with(|_| ());
            };
            thread::spawn(body).join().unwrap();
        };
        leaves_nothing(|| (0..500).for_each(|number| work(number % 2 == 0)));
    });
}

#[test]
fn the_count_can_be_read_while_other_threads_allocate() {
    alone("the_count_can_be_read_while_other_threads_allocate", || {
        let before = allocated();
        let begin = Barrier::new(5);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begin.wait();
                    (0..100_000).for_each(|_| drop(std::hint::black_box(vec![0_u8; 1000])));
                });
            }
            begin.wait();
            for _ in 0..1000 {
                // Each thread has one block at most, and what the standard library has for it.
                let now = allocated() - before;
                assert!((0..64 << 10).contains(&now), "{now}");
            }
        });
    });
}
