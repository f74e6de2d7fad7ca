//! Measures the cost of `Tracked`: time of an allocation and its release, with and without it, in
//! pairs.
//!
//!     cargo bench -p lowtide-tokio --bench tracked
//!
//! Prints one JSON line per pair: the number of threads, the CPU time without and with `Tracked` in
//! ns, and the noise: a second time without.

#![allow(clippy::unwrap_used, reason = "a bench that cannot continue has failed")]
#![expect(unsafe_code, reason = "it calls allocators")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::thread;

use lowtide_tokio::Tracked;

/// Number of allocations and releases in one measurement of one thread.
const COUNT: u32 = 4_000_000;
const PAIRS: usize = 40;

fn main() {
    let tracked = Tracked::new(System);
    // Counters exist, caches are warm.
    measure(&tracked, 2, 64);
    for threads in [1, 2] {
        for size in [64, 1000] {
            for pair in 0..PAIRS {
                // Each comes first in half of the pairs.
                let [without, with, again] = if pair % 2 == 0 {
                    let without = measure(&System, threads, size);
                    [without, measure(&tracked, threads, size), measure(&System, threads, size)]
                } else {
                    let with = measure(&tracked, threads, size);
                    [measure(&System, threads, size), with, measure(&System, threads, size)]
                };
                println!(
                    "{{\"threads\":{threads},\"size\":{size},\"without_ns\":{without:.3},\"with_ns\":{with:.3},\
                     \"again_ns\":{again:.3}}}"
                );
            }
        }
    }
}

/// Returns the CPU time of an allocation and its release in ns, the mean of some threads.
fn measure(allocator: &(impl GlobalAlloc + Sync), threads: u32, size: usize) -> f64 {
    let layout = Layout::from_size_align(size, 8).unwrap();
    let work = || {
        let begin = cpu_ns();
        for _ in 0..COUNT {
            // SAFETY: the layout has a size, and each block is released once, with the same layout.
            unsafe {
                let block = black_box(allocator.alloc(black_box(layout)));
                assert!(!block.is_null());
                allocator.dealloc(block, layout);
            }
        }
        cpu_ns() - begin
    };
    let total: f64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    total / f64::from(threads * COUNT)
}

/// Returns the CPU time of the calling thread in ns.
fn cpu_ns() -> f64 {
    // SAFETY: the kernel writes to a value of this function.
    let time = unsafe {
        let mut time = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
