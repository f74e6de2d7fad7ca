//! The keeper at the edges of its life: started outside a runtime, twice, dropped, and while a
//! runtime shuts down.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::thread;
use std::time::Duration;

use lowtide_testing::until_true;
use lowtide_tokio::{Allocator, Keeper, KeeperEnded};
use tokio::runtime::Builder;

const LONG: Duration = Duration::from_secs(100);

/// Returns the number of keepers' threads in this process.
fn keepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "lowtide-keeper").count()
}

/// This is one test, because every part inspects the threads of the process.
#[test]
fn a_keeper_lives_as_long_as_its_handles_regardless_of_the_runtime() {
    // Without a runtime there is nothing to sweep.
    let keeper = Keeper::start().unwrap();
    let second = Keeper::start().unwrap();
    until_true("two threads", || keepers() == 2);
    let one = Builder::new_current_thread().build().unwrap();
    let report = one.block_on(keeper.release_now()).unwrap();
    assert!(report.sweeps.is_empty());
    assert_eq!((keeper.metrics().releases, second.metrics().releases), (1, 0));
    let watch = second.connection();
    drop(second);
    until_true("one thread", || keepers() == 1);
    // The watch of a keeper that has ended still counts.
    drop(watch);

    // A runtime of one thread is reached when it runs.
    keeper.watch_runtime(one.handle().clone());
    let flushing = Allocator::Other { release: || {}, flush: Some(|| {}) };
    let builder = Keeper::builder().allocator(flushing).runtime(one.handle().clone());
    let flusher = builder.sweep_timeout(LONG).start().unwrap();
    let report = one.block_on(flusher.release_now()).unwrap();
    assert_eq!(report.sweeps.len(), 1);
    assert_eq!((report.sweeps[0].workers, report.sweeps[0].reached), (1, 1));

    // A runtime that has ended is forgotten.
    drop(one);
    let many = Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let report = many.block_on(flusher.release_now()).unwrap();
    assert!(report.sweeps.is_empty());

    // A runtime that ends in the middle of a sweep.
    let sweeping = Keeper::builder().allocator(flushing).runtime(many.handle().clone());
    let sweeping = sweeping.start().unwrap();
    let asker = thread::spawn(move || {
        let asking = Builder::new_current_thread().build().unwrap();
        for _ in 0..20 {
            asking.block_on(sweeping.release_now()).unwrap();
        }
    });
    many.shutdown_background();
    asker.join().unwrap();

    // A panic in a function of the program ends the keeper, and is reported.
    let panicking = Allocator::Other { release: || panic!("a release that fails"), flush: None };
    let broken = Keeper::builder().allocator(panicking).start().unwrap();
    let one = Builder::new_current_thread().build().unwrap();
    assert_eq!(one.block_on(broken.release_now()).unwrap_err(), KeeperEnded);
    assert_eq!(one.block_on(broken.release_now()).unwrap_err(), KeeperEnded);

    drop((keeper, flusher));
    until_true("no thread", || keepers() == 0);
}
