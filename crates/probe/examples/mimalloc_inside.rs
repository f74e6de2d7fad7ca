//! A program whose own allocations are not served by `malloc`: a subject of the tests. It tells where
//! one of its blocks is, and lives until its input ends.

#[global_allocator]
static OWN: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let blocks: Vec<Vec<u8>> = (0..20_000).map(|n| vec![1; 64 + n % 1000]).collect();
    println!("{:p}", blocks[10_000].as_ptr());
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
    println!("{}", blocks.iter().map(Vec::len).sum::<usize>());
}
