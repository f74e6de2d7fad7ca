//! A subject of the tests whose own allocations are not served by `malloc`. It prints the address
//! of one of its blocks, and runs until its input ends.

#[global_allocator]
static OWN: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let blocks: Vec<Vec<u8>> = (0..20_000).map(|n| vec![1; 64 + n % 1000]).collect();
    println!("{:p}", blocks[10_000].as_ptr());
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
    println!("{}", blocks.iter().map(Vec::len).sum::<usize>());
}
