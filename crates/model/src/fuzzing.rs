//! Runs the functions of the fuzz targets in ordinary tests.

use std::path::Path;

/// Calls a function with each file of `fuzz/seeds/TARGET`, and with damaged variants of each, which
/// are the same in each run.
///
/// # Panics
/// Panics if there are no seeds, or if the function panics.
#[expect(clippy::expect_used, reason = "a test without its files has failed")]
pub fn run_seeds(target: &str, variants: u64, function: impl Fn(&[u8])) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = std::fs::read_dir(seeds).expect("the seeds of the target");
    let mut count = 0;
    for file in files.flatten() {
        let seed = std::fs::read(file.path()).expect("a seed");
        function(&seed);
        (0..variants).for_each(|number| function(&damaged(&seed, number)));
        count += 1;
    }
    assert!(count > 0, "{target} has no seeds");
}

/// Returns a variant of a seed: some bytes are changed, and some variants are cut off.
fn damaged(seed: &[u8], number: u64) -> Vec<u8> {
    let mut state = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = seed.to_vec();
    let length = bytes.len().max(1) as u64;
    if next().is_multiple_of(4) {
        bytes.truncate((next() % length) as usize);
    }
    for _ in 0..=next() % 8 {
        let place = (next() % length) as usize;
        // Digits, separators and extreme values change what a parser does more often than others.
        let values = [0, 1, b'0', b'9', b'f', b' ', b'\n', b'-', b':', 0x7f, 0x80, 0xff];
        let value = match next() % 2 {
            0 => next() as u8,
            _ => values[(next() % values.len() as u64) as usize],
        };
        if let Some(byte) = bytes.get_mut(place) {
            *byte = value;
        }
    }
    bytes
}
