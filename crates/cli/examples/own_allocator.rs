//! A program whose own allocations are not served by `malloc`: for the tests of what is in force.

#[global_allocator]
static OWN: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let blocks: Vec<Vec<u8>> = (0..2000).map(|n| vec![1; 64 + n]).collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    println!("{}", blocks.iter().map(Vec::len).sum::<usize>());
}
