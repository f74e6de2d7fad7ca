//! Does what `lowtide inspect` does with the heap of a process, and nothing else: for measurements
//! of its CPU time and its memory (`bench/pins`).

use std::sync::atomic::AtomicBool;

use lowtide_leaks::pins::{self, HeldMemory};
use lowtide_probe::inspect::Inspector;
use lowtide_probe::target::{Target, TargetError};

fn main() -> Result<(), TargetError> {
    let words: Vec<String> = std::env::args().collect();
    let [_, what, pid] = words.as_slice() else {
        eprintln!("usage: pins inspect|cause|pins|blocks PID");
        std::process::exit(2);
    };
    let target = Target::open(pid.parse().unwrap_or_default())?;
    let observed = Inspector::default().inspect(&target)?;
    let never = AtomicBool::new(false);
    let blocks = match what.as_str() {
        "cause" => HeldMemory::read(&target, false)?.pins(10).blocks,
        "pins" => pins::pins(&target, None, 10, &never)?.blocks,
        "blocks" => pins::blocks(&target, None, 10, &never)?.blocks,
        _ => 0,
    };
    println!("{} {blocks}", observed.rss_bytes);
    Ok(())
}
