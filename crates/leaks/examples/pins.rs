//! Does what `lowtide inspect` does with the heap of a process, and nothing else: for measurements
//! of its CPU time and its memory (`bench/pins`).

use std::sync::atomic::AtomicBool;

use lowtide_leaks::pins::{self, BlockReport, HeldMemory, Wanted};
use lowtide_probe::inspect::Inspector;
use lowtide_probe::target::{Target, TargetError};

fn main() -> Result<(), TargetError> {
    let words: Vec<String> = std::env::args().collect();
    let [_, what, pid] = words.as_slice() else {
        eprintln!("usage: pins inspect|cause|pins|blocks PID");
        std::process::exit(2);
    };
    let target = Target::open(pid.parse().unwrap_or_default())?;
    let (mut inspector, never) = (Inspector::default(), AtomicBool::new(false));
    let wanted = Wanted { pins: what == "pins", blocks: what == "blocks", top: 10 };
    let (observed, held) = match what.as_str() {
        "pins" | "blocks" => pins::inspect(&mut inspector, &target)?,
        _ => (inspector.inspect(&target)?, None),
    };
    let report = held.map(|held| held.report(&target, None, wanted, &never)).transpose()?;
    let BlockReport { pins, blocks } = report.unwrap_or_default();
    let blocks = match what.as_str() {
        "cause" => HeldMemory::read(&target, false)?.pins(10).blocks,
        _ => pins.map_or(0, |pins| pins.blocks) + blocks.map_or(0, |blocks| blocks.blocks),
    };
    println!("{} {blocks}", observed.rss_bytes);
    Ok(())
}
