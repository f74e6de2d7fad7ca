// A program whose allocator is compiled in: most of what it allocates is freed again, and a line on
// stdin makes it call the allocator's own release, if it has one.
use std::io::BufRead;

#[global_allocator]
static ALLOCATOR: ALLOCATOR_TYPE = ALLOCATOR_TYPE;

RELEASE

fn main() {
    let block = |i: usize| vec![1_u8; 1024 + i * 7919 % 15360];
    let mut all: Vec<Vec<u8>> = (0..24_000).map(block).collect();
    all.truncate(240);
    println!("ready");
    let mut lines = std::io::stdin().lock().lines();
    if lines.next().is_some() {
        release();
        println!("done");
        lines.next();
    }
    println!("{}", all.len());
}
