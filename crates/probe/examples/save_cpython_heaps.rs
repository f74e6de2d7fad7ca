//! Creates the saved heaps of `crates/heap/tests/saved/cpython`:
//! `cargo run -p lowtide-probe --example save_cpython_heaps -- DIRECTORY NAME=INTERPRETER…`
//!
//! A heap is saved with the output of `sys._debugmallocstats()`.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, Result};
use std::process::{Command, Stdio};

use lowtide_heap::pymalloc;
use lowtide_heap::ranges::joined;
use lowtide_heap::saved::MemoryRecorder;
use lowtide_probe::detect::Detector;
use lowtide_probe::heap;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps;

/// A program that keeps one of every hundred blocks.
const PROGRAM: &str = "import sys\n\
    blocks = [[i] for i in range(30000)]\n\
    blocks = blocks[::100]\n\
    sys._debugmallocstats()\n\
    print(flush=True)\n\
    sys.stdin.read()";

/// Size of the pool header in bytes. Only the header of a page in an arena is saved, not the
/// contents of the program's blocks.
const HEAD: usize = 48;
const PAGE: usize = 4096;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::other("usage: save_cpython_heaps DIRECTORY NAME=INTERPRETER…");
    let directory = arguments.next().ok_or_else(usage)?;
    for argument in arguments {
        let (name, interpreter) = argument.split_once('=').ok_or_else(usage)?;
        let statistics = File::create(format!("{directory}/{name}.txt"))?;
        let mut child = Command::new(interpreter)
            .args(["-I", "-S", "-c", PROGRAM])
            // The saved data are the program's own memory, including its environment.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(statistics)
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(usage)?;
        BufReader::new(stdout).read_line(&mut String::new())?;
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id()))?;
        let maps = maps::parse(&maps).map_err(|error| Error::other(format!("{error}")))?;
        let memory = ProcessMemory::open(child.id())?;
        let recorder = MemoryRecorder::new(&memory);
        let detected = Detector::default().detect(child.id(), &maps).map_err(Error::other)?;
        let runtime = detected.runtimes.first().ok_or_else(|| Error::other("no CPython"))?;
        let data = heap::data_of(&maps, runtime.file);
        let mut mappings = heap::mappings(&maps);
        mappings.retain(|mapping| !mapping.is_brk);
        let mapped = joined(mappings.iter().map(|mapping| mapping.range.clone()).collect());
        let heaps = joined(heap::mappings(&maps).into_iter().map(|m| m.range).collect());
        let layout = pymalloc::Layout::find(&recorder, &data, &heaps, &mapped);
        let layout = layout.ok_or_else(|| Error::other("no arenas"))?;
        let found = pymalloc::walk(&recorder, &layout, &mapped, None);
        // The array of arenas may be in the heap.
        let mut saved = recorder.save(&data, &heap::mappings(&maps));
        for (at, block) in &mut saved.memory.blocks {
            if mapped.iter().any(|range| range.contains(at)) && !data.iter().any(|d| d.contains(at))
            {
                block.chunks_mut(PAGE).for_each(|page| page[HEAD..].fill(0));
            }
        }
        let saved = saved.to_bytes();
        println!("{name}: {} bytes, {} arenas", saved.len(), found.arenas);
        std::fs::write(format!("{directory}/{name}.heap"), saved)?;
        drop(child.stdin.take());
        child.wait()?;
    }
    Ok(())
}
