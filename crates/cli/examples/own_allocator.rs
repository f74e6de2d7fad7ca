//! A program whose own allocations are not served by `malloc`: for the tests of what is in force,
//! and, with the argument `wait`, for those of looking at it.

use std::io::Read;

#[global_allocator]
static OWN: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let waits = std::env::args().any(|argument| argument == "wait");
    let count = if waits { 20_000 } else { 2000 };
    let blocks: Vec<Vec<u8>> = (0..count).map(|n| vec![1; 64 + n % 2000]).collect();
    if waits {
        // Where only parents may look at a process (Yama), this one lets everybody.
        let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
        println!("ready");
        let _ = std::io::stdin().read(&mut [0]);
    } else {
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    println!("{}", blocks.iter().map(Vec::len).sum::<usize>());
}
