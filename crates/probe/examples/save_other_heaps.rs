//! Creates the saved heaps of `crates/heap/tests/saved/jemalloc`, `mimalloc`, `gperftools` and
//! `musl`: `cargo run -p lowtide-probe --example save_other_heaps -- DIRECTORY NAME=PROGRAM…`
//!
//! A program is a library to preload (its name ends in `.so`), or one that uses the protocol of the
//! subject of `tests/walked` (with musl, it is compiled with `-D'malloc_trim(pad)=0'`). A heap is
//! saved with the program's own count and the allocator's statistics beside it, and with the memory
//! that a purge returned to the OS.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../tests/walked/subject.rs"]
mod subject;

use std::io::{Error, Result};
use std::process::Command;

use lowtide_heap::guarded::{GuardedHeap, Module};
use lowtide_heap::layout::{HeapLayout, Places};
use lowtide_heap::memory::Memory;
use lowtide_heap::saved::{AnyBlocks, MemoryRecorder};
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_probe::detect::Detector;
use lowtide_probe::heap;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps;
use serde_json::json;
use subject::{Subject, compile};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::other("usage: save_other_heaps DIRECTORY NAME=PROGRAM…");
    let directory = arguments.next().ok_or_else(usage)?;
    let home = std::env::temp_dir().join("jemalloc-subject");
    std::fs::create_dir_all(&home)?;
    for argument in arguments {
        let (name, program) = argument.split_once('=').ok_or_else(usage)?;
        let library = Some(program).filter(|program| program.ends_with(".so"));
        let mut command =
            library.map_or_else(|| Command::new(program), |_| Command::new(compile(&home)));
        // The saved data are the program's own memory, including its environment.
        command.env_clear().envs(library.map(|library| ("LD_PRELOAD", library)));
        let keep = "dirty_decay_ms:-1,muzzy_decay_ms:-1";
        command.env("MALLOC_CONF", keep).env("_RJEM_MALLOC_CONF", keep);
        command.env("MIMALLOC_PURGE_DELAY", "1000000");
        // A smaller heap of musl has groups of a few slots, and no free page.
        let is_musl = name.starts_with("1.2.");
        let (bytes, kept_percent) = if is_musl { (160_000_000, 8) } else { (4_000_000, 20) };
        let mut subject = Subject::start(&mut command, bytes, kept_percent, 2);
        subject.statistics();
        let statistics = subject.statistics();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", subject.pid()))?;
        let maps = maps::parse(&maps).map_err(|error| Error::other(format!("{error}")))?;
        let memory = ProcessMemory::open(subject.pid())?;
        let recorder = MemoryRecorder::new(&memory);
        let detected = Detector::default().detect(subject.pid(), &maps).map_err(Error::other)?;
        let allocator = detected.allocator().ok_or_else(|| Error::other("no allocator"))?;
        let data = detected.zeroed_data_of(allocator, &maps, memory.page_bytes());
        let mappings = heap::mappings(&maps);
        let places = Places { data: &[], zeroed_data: &data, mappings: &mappings };
        let layout = HeapLayout::find(&allocator.kind, &recorder, &places);
        let layout = layout.ok_or_else(|| Error::other("no heap"))?;
        // The sizes of musl's blocks are in its slots.
        let mut blocks = AnyBlocks;
        let visitor = (allocator.kind == AllocatorKind::Musl).then_some(&mut blocks as _);
        let found = layout.walk(&recorder, &mappings, visitor).map_err(Error::other)?;
        // The guards of its free pages, if any.
        let version = allocator.version.as_deref();
        let guarded = GuardedHeap::find(layout, &recorder, &mappings, &Module::unknown(version));
        let sums = guarded.and_then(|heap| heap.each_droppable(&recorder, &mappings, &mut |_| ()));
        println!("{name}: {sums:?}");
        // In mappings without a part of the heap, only the caches of threads were read.
        let heap = recorder.save(&data, &mappings).to_bytes();
        let expected = json!({
            "usable_bytes": subject.usable_bytes(),
            "allocated_bytes": statistics.allocated_bytes, "active_bytes": statistics.active_bytes,
            "dirty_bytes": statistics.dirty_bytes, "cached_bytes": statistics.cached_bytes,
            "central_bytes": statistics.central_bytes, "transfer_bytes": statistics.transfer_bytes,
            "free_bytes": statistics.free_bytes, "purged_bytes": subject.purge(),
        });
        println!("{name}: {} bytes, {} arenas", heap.len(), found.arenas.len());
        std::fs::write(format!("{directory}/{name}.heap"), heap)?;
        std::fs::write(format!("{directory}/{name}.json"), format!("{expected:#}\n"))?;
    }
    Ok(())
}
