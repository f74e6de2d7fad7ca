//! Searches all memory of a process, and counts which of its blocks the program can reach.
//!
//! `reachable PID` reads lines `lost ADDRESS` and `kept ADDRESS` from standard input, as
//! `tests/live/corpus.c` prints them. It prints a line for each of the two words: the word, and the
//! numbers of blocks that were found to be lost, unsure and reachable.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use lowtide_leaks::evidence::{BlockState, Search, search};
use lowtide_probe::inspect::BlockReader;
use lowtide_probe::target::Target;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pid = std::env::args().nth(1).ok_or("usage: reachable PID")?.parse()?;
    let mut reader = BlockReader::open(&Target::open(pid)?)?;
    let interrupt = AtomicBool::new(false);
    let options = Search { notes_registers: true, ..Search::new(&interrupt) };
    let reached = search(&mut reader, &options)?;
    let mut counts: BTreeMap<String, [u32; 3]> = BTreeMap::new();
    for line in std::io::stdin().lines() {
        let line = line?;
        let Some((word, address)) = line.split_once(' ') else { continue };
        let state = reached.state(u64::from_str_radix(address, 16)?);
        let place = match state {
            Some(BlockState::Lost) => 0,
            Some(BlockState::Unsure) => 1,
            Some(BlockState::Reachable) => 2,
            None => return Err(format!("there is no block at {address}").into()),
        };
        counts.entry(word.to_owned()).or_default()[place] += 1;
    }
    for (word, [lost, unsure, reachable]) in counts {
        println!("{word} {lost} {unsure} {reachable}");
    }
    Ok(())
}
