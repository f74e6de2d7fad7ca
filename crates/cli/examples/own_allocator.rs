//! A program whose own allocations are not served by `malloc`: for the tests of what is in force;
//! with the argument `wait`, for those of looking at it; and with `hoards` or `churns`, for those
//! of releasing the memory of both allocators.

#![expect(unsafe_code, reason = "malloc, beside the program's own allocator")]

use std::io::{BufRead, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[global_allocator]
static OWN: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A block of `malloc`.
struct Malloced {
    at: *mut u8,
    len: usize,
}

impl Malloced {
    /// Allocates a block whose bytes all have one value.
    fn filled(value: u8, len: usize) -> Self {
        // SAFETY: malloc may be called with any size.
        let at: *mut u8 = unsafe { libc::malloc(len) }.cast();
        assert!(!at.is_null(), "no memory");
        // SAFETY: the block has `len` bytes, and nothing else refers to them.
        unsafe { at.write_bytes(value, len) };
        Self { at, len }
    }
}

impl AsRef<[u8]> for Malloced {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `filled` has written all bytes of the block, which lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for Malloced {
    fn drop(&mut self) {
        // SAFETY: `at` is from malloc, and is freed once.
        unsafe { libc::free(self.at.cast()) };
    }
}

/// Allocates blocks of one allocator, frees nine tenths of them, most of these in long runs, and
/// returns the others with their value.
fn hoard<T>(allocate: impl Fn(u8, usize) -> T) -> Vec<(u8, T)> {
    const COUNT: usize = 40_000;
    let value = |n: usize| (n % 251) as u8 + 1;
    let all = (0..COUNT).map(|n| (value(n), allocate(value(n), 64 + n * 7 % 1500)));
    let all: Vec<(u8, T)> = all.collect();
    let is_kept = |n: usize| (n / 2000).is_multiple_of(10) || n + 1 == COUNT;
    all.into_iter().enumerate().filter(|(n, _)| is_kept(*n)).map(|(_, block)| block).collect()
}

fn is_intact<T: AsRef<[u8]>>(blocks: &[(u8, T)]) -> bool {
    blocks.iter().all(|(value, block)| block.as_ref().iter().all(|byte| byte == value))
}

/// Keeps free memory in both allocators. Answers each line with whether its blocks are intact.
fn keep_hoards() {
    let malloced = hoard(Malloced::filled);
    let own = hoard(|value, len| vec![value; len]);
    println!("ready");
    for _ in std::io::stdin().lock().lines() {
        let intact = [is_intact(&malloced), is_intact(&own)];
        // Both allocators work.
        let more = (Malloced::filled(1, 5000), vec![1_u8; 5000]);
        println!("{intact:?} {}", more.0.as_ref() == more.1);
    }
}

/// Fills, frees and verifies blocks of both allocators in four threads until its input ends. Prints
/// the number of rounds, and exits with 1 at the first wrong byte.
fn churn() {
    let is_over = AtomicBool::new(false);
    println!("ready");
    let work = |thread: u64| {
        let mut rounds = 0;
        while !is_over.load(Ordering::Relaxed) {
            let malloced = hoard(Malloced::filled);
            let own = hoard(|value, len| vec![value; len]);
            std::thread::sleep(Duration::from_millis(20 + thread * 7));
            if !is_intact(&malloced) || !is_intact(&own) {
                println!("broken");
                std::process::exit(1);
            }
            rounds += 1;
        }
        rounds
    };
    let rounds: usize = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || work(n))).collect();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    });
    println!("{rounds}");
}

fn main() {
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    // Where only parents may look at a process (Yama), this one lets everybody.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
    if has("hoards") {
        return keep_hoards();
    }
    if has("churns") {
        return churn();
    }
    let count = if has("wait") { 20_000 } else { 2000 };
    let blocks: Vec<Vec<u8>> = (0..count).map(|n| vec![1; 64 + n % 2000]).collect();
    if has("wait") {
        println!("ready");
        let _ = std::io::stdin().read(&mut [0]);
    } else {
        std::thread::sleep(Duration::from_millis(1500));
    }
    println!("{}", blocks.iter().map(Vec::len).sum::<usize>());
}
