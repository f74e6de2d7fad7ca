//! Walks the heap of a process and prints its contents as JSON: `walk [--without-scan] [--save
//! FILE] PID`.
//!
//! For measurements and for the tests' saved heaps; users run `lowtide inspect`.

use std::io::{Error, Result};
use std::time::Duration;

use lowtide_heap::ptmalloc::{Heap, Layout, walk};
use lowtide_heap::residency::Residency;
use lowtide_heap::saved::MemoryRecorder;
use lowtide_probe::heap::{data_of, mappings};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// The command line.
struct Options {
    scan: bool,
    save: Option<String>,
    pid: u32,
}

impl Options {
    fn parse() -> Result<Self> {
        let mut options = Self { scan: true, save: None, pid: 0 };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--without-scan" => options.scan = false,
                "--save" => options.save = arguments.next(),
                number => options.pid = number.parse().map_err(Error::other)?,
            }
        }
        Ok(options)
    }
}

fn main() -> Result<()> {
    let Options { scan, save, pid } = Options::parse()?;
    let begin = cpu();
    let memory = ProcessMemory::open(pid)?;
    let memory = if scan { memory } else { memory.without_scan() };
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let maps = maps::parse(&text)?;
    // The C library, or the program if it is static.
    let is_library = |m: &&maps::Mapping| {
        let name = m.name.rsplit('/').next().unwrap_or_default();
        name.starts_with("libc.so") || name.starts_with("libc-2")
    };
    let library = maps.iter().find(is_library).or_else(|| maps.iter().find(|m| m.has_file()));
    let data = data_of(&maps, library.ok_or_else(|| Error::other("no library"))?.file);
    let mappings = mappings(&maps);
    let recorder = MemoryRecorder::new(&memory);
    let (layout, heap) = if save.is_some() {
        let layout = Layout::find(&recorder, &data).ok_or_else(|| Error::other("no arena"))?;
        let heap = walk(&recorder, &layout, &mappings);
        (layout, heap)
    } else {
        let layout = Layout::find(&memory, &data).ok_or_else(|| Error::other("no arena"))?;
        let heap = walk(&memory, &layout, &mappings);
        (layout, heap)
    };
    let used = cpu() - begin;
    if let Some(file) = save {
        std::fs::write(file, recorder.save(&data, &mappings).to_bytes())?;
    }
    println!("{:#}", contents(&memory, &layout, &heap, used));
    Ok(())
}

/// Returns the contents of a heap, and the CPU time of its walk.
fn contents(memory: &ProcessMemory, layout: &Layout, heap: &Heap, used: Duration) -> Value {
    let total = heap.total();
    let owners = heap.owners();
    let arenas: Vec<_> = heap
        .arenas
        .iter()
        .map(|a| {
            json!({
                "address": a.address, "heaps": a.heaps, "whole": a.is_whole(),
                "system_bytes": a.system_bytes, "walked_bytes": a.walked_bytes,
                "free_count": a.tally.free_count, "free_bytes": a.tally.free_bytes,
                "fast_count": a.tally.fast_count, "fast_bytes": a.tally.fast_bytes,
                "used_bytes": a.tally.used_bytes, "top_bytes": a.tally.top_bytes,
                "unwalked_bytes": a.tally.unwalked_bytes, "trim_bytes": a.tally.trim_bytes,
            })
        })
        .collect();
    let mut residency = Residency::new(memory);
    let areas: u64 = heap.areas.iter().map(|a| residency.bytes(a.clone())).sum();
    json!({
        "cpu_s": used.as_secs_f64(), "chunks": total.chunks(),
        "trim_bytes": total.trim_bytes,
        "peak_rss_bytes": peak_rss(),
        "mmapped_count": heap.mmapped.count, "mmapped_bytes": heap.mmapped.bytes,
        "mmapped_whole": heap.mmapped.is_whole,
        "caches": heap.caches.caches, "cached_count": heap.caches.count, "cached_bytes": heap.caches.bytes,
        "owners": {
            "allocated": owners.allocated_bytes, "reclaimable": owners.reclaimable_bytes,
            "locked": owners.locked_bytes,
            "fragmented": owners.fragmented_bytes, "cached": owners.cached_bytes,
            "metadata": owners.metadata_bytes, "unwalked": owners.unwalked_bytes,
        },
        "owners_bytes": owners.total(), "areas_resident_bytes": areas,
        "areas": heap.areas.iter().map(|a| [a.start, a.end]).collect::<Vec<_>>(), "rereads": heap.rereads, "returns": heap.returns, "arenas": arenas,
        "head_bytes": layout.head_bytes, "settings": layout.settings,
    })
}

/// Returns the CPU time of this process.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Returns the peak RSS of this process, in bytes.
fn peak_rss() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}
