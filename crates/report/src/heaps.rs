//! The arenas of a process's heaps, in the terms of each allocator.

use std::cmp::Reverse;
use std::fmt::Write as _;

use lowtide_model::bytes::Human;
use lowtide_model::engine::{EngineHeap, EngineSpace, POOL};
use lowtide_model::inspection::{
    Arena, Bin, CPythonHeap, CPythonSizeClass, GperftoolsHeap, JemallocArena, MimallocThread,
    Observation, Tunables,
};
use lowtide_model::number::counted;

use crate::columns::columns;
use crate::screen::Screen;
use crate::text::{printable, thousands, wrapped};

/// Maximum number of arenas that are shown one by one.
const MAX_ARENAS: usize = 512;

/// Minimum part of RSS that is free in a heap, for its line in a report,
const MIN_FREE: f64 = 0.05;
/// and what is free in a heap that has one in any case, in bytes.
const MUCH_FREE: u64 = 64 << 20;

/// Formats the heaps: each arena and their sum, or only a line for a heap with free memory.
pub(crate) fn render(observation: &Observation, each: bool, screen: Screen) -> String {
    let of = |is: &dyn Fn(&Arena) -> bool| -> Vec<&Arena> {
        observation.arenas.iter().filter(|arena| is(arena)).collect()
    };
    let (jemalloc, mimalloc) = (of(&|a| a.jemalloc().is_some()), of(&|a| a.mimalloc().is_some()));
    let gperftools = of(&|a| a.gperftools().is_some());
    let glibc = of(&Arena::is_of_glibc);
    let heaps = |kind: &str| -> Vec<String> {
        let of_kind = observation.heaps.iter().filter(|heap| heap.allocator.name() == kind);
        of_kind.map(|heap| printable(&heap.name())).collect()
    };
    let name = |kind: &str| match heaps(kind) {
        names if names.is_empty() => kind.to_owned(),
        names => names.join(", "),
    };
    let mut out = String::new();
    let mut add = |line: (u64, String), tables: &dyn Fn() -> String, sum: &dyn Fn() -> String| {
        let (free_bytes, line) = line;
        if each {
            out += &format!("\n{}{}\n", tables(), wrapped(&sum(), screen.width));
        } else if free_bytes >= MUCH_FREE
            || free_bytes as f64 >= observation.rss_bytes as f64 * MIN_FREE
        {
            out += &(wrapped(&format!("{line} (--arenas)"), screen.width) + "\n");
        }
    };
    if !glibc.is_empty() {
        let tunables = observation.tunables_in_force.as_ref();
        let tables = || glibc_arenas(&glibc, tunables, screen);
        add(glibc_line(&glibc), &tables, &|| glibc_sum(observation, &glibc));
    }
    if !jemalloc.is_empty() {
        let name = name("jemalloc");
        let tables = || jemalloc_arenas(&jemalloc, screen);
        add(jemalloc_line(&name, &jemalloc), &tables, &|| jemalloc_sum(&name, &jemalloc));
    }
    if !mimalloc.is_empty() {
        let name = name("mimalloc");
        let tables = || mimalloc_threads(&mimalloc, screen);
        add(mimalloc_line(&name, &mimalloc), &tables, &|| mimalloc_sum(&name, &mimalloc));
    }
    if !gperftools.is_empty() {
        let name = name("gperftools");
        let tables = || gperftools_sizes(&gperftools, screen);
        add(gperftools_line(&name, &gperftools), &tables, &|| gperftools_sum(&name, &gperftools));
    }
    if let Some(heap) = &observation.cpython {
        add(cpython_line(heap), &|| cpython_sizes(heap, screen), &|| cpython_sum(heap));
    }
    for heap in &observation.engines {
        add(engine_line(heap), &|| engine_spaces(heap, screen), &|| engine_sum(heap));
    }
    out
}

fn engine_spaces(heap: &EngineHeap, screen: Screen) -> String {
    let instance = |space: &EngineSpace| match heap.instances > 1 {
        true => format!("{}, instance {}", printable(&space.name), space.instance),
        false => printable(&space.name),
    };
    let row = |space: &EngineSpace| {
        vec![
            instance(space),
            thousands(space.parts),
            human(space.committed_bytes),
            human(space.used_bytes),
            human(space.resident_bytes),
            human(space.free_bytes),
        ]
    };
    let rows: Vec<_> = heap.spaces.iter().take(MAX_ARENAS).map(row).collect();
    columns(&["space", "parts", "committed", "in use", "resident", "free"], &rows, screen)
}

fn engine_line(heap: &EngineHeap) -> (u64, String) {
    let sum = |of: fn(&EngineSpace) -> u64| heap.spaces.iter().map(of).sum::<u64>();
    let free_bytes = sum(|space| space.free_bytes);
    let mut largest: Vec<(u64, &str)> = Vec::new();
    for space in &heap.spaces {
        match largest.iter_mut().find(|(_, name)| *name == space.name) {
            Some((bytes, _)) => *bytes += space.free_bytes,
            None => largest.push((space.free_bytes, &space.name)),
        }
    }
    largest.sort_by_key(|(bytes, _)| Reverse(*bytes));
    let part = |(bytes, name): &(u64, &str)| format!("{} in {}", Human(*bytes), printable(name));
    let is_notable = |(bytes, _): &&(u64, &str)| *bytes > free_bytes / 10;
    let parts: Vec<String> = largest.iter().take(3).filter(is_notable).map(part).collect();
    let line = format!(
        "{}: {} free in {}: {}",
        heap.engine.kind().name(),
        Human(free_bytes),
        counted(sum(|space| space.parts), "chunk"),
        parts.join(", "),
    );
    (free_bytes, line)
}

fn engine_sum(heap: &EngineHeap) -> String {
    let sum = |of: fn(&EngineSpace) -> u64| heap.spaces.iter().map(of).sum::<u64>();
    format!(
        "{}, with the structures of version {}: {} in {}; {} in use, of which {} are resident; {} free and resident, \
         {} of them in its pool",
        heap.engine.kind().name(),
        printable(&heap.version),
        counted(sum(|space| space.parts), "chunk"),
        counted(heap.instances, "instance"),
        Human(sum(|space| space.used_bytes)),
        Human(sum(|space| space.allocated_bytes)),
        Human(sum(|space| space.free_bytes)),
        Human(heap.sum_of(POOL, |space| space.free_bytes)),
    )
}

fn gperftools_sizes(arenas: &[&Arena], screen: Screen) -> String {
    let heads = ["large", "bytes", "spans", "free in them", "in transfer", "threads", "cached"];
    let row = |arena: &Arena| {
        let own = arena.gperftools().copied().unwrap_or_default();
        vec![
            thousands(own.large_count),
            human(own.large_bytes),
            thousands(own.small_spans),
            human(own.central_free_bytes),
            human(own.transfer_cache_bytes),
            thousands(own.thread_caches),
            human(own.thread_cache_bytes),
        ]
    };
    let blocks = ("free in spans", |bin: &Bin| format!("of {}", Human(bin.from)));
    table(&heads, arenas, row, blocks, screen)
}

fn gperftools_line(name: &str, arenas: &[&Arena]) -> (u64, String) {
    let sum = |of: &dyn Fn(&GperftoolsHeap) -> u64| -> u64 {
        arenas.iter().filter_map(|arena| arena.gperftools()).map(of).sum()
    };
    let whole = sum(&|own| own.page_heap_free_bytes);
    let small = sum(&|own| own.central_free_bytes);
    let spans = counted(sum(&|own| own.small_spans), "small-object span");
    let line = format!("{name}: {} in free spans; {} free in {spans}", Human(whole), Human(small));
    (whole + small, line)
}

fn gperftools_sum(name: &str, arenas: &[&Arena]) -> String {
    let sum = |of: &dyn Fn(&GperftoolsHeap) -> u64| -> u64 {
        arenas.iter().filter_map(|arena| arena.gperftools()).map(of).sum()
    };
    let out: u64 = arenas.iter().map(|arena| arena.allocated_bytes).sum();
    let cached = sum(&|own| own.transfer_cache_bytes + own.thread_cache_bytes);
    format!(
        "{name}: {} in use; {} cached by {} and in transfer caches; {} free in {}; {} in free spans, which \
         ReleaseFreeMemory() returns; {} already returned to the kernel",
        Human(out.saturating_sub(cached)),
        Human(cached),
        counted(sum(&|own| own.thread_caches), "thread"),
        Human(sum(&|own| own.central_free_bytes)),
        counted(sum(&|own| own.small_spans), "small-object span"),
        Human(sum(&|own| own.page_heap_free_bytes)),
        Human(sum(&|own| own.page_heap_returned_bytes)),
    )
}

fn cpython_sizes(heap: &CPythonHeap, screen: Screen) -> String {
    let heads = [
        "blocks of",
        "pools",
        "in use",
        "free",
        "bytes in use",
        "bytes free",
        "arenas",
        "mostly free",
    ];
    let row = |size: &CPythonSizeClass| {
        vec![
            human(size.block_bytes),
            thousands(size.pools),
            thousands(size.used_blocks),
            thousands(size.free_blocks),
            human(size.used_blocks * size.block_bytes),
            human(size.free_blocks * size.block_bytes),
            thousands(size.arenas),
            thousands(size.mostly_free_arenas),
        ]
    };
    columns(&heads, &heap.sizes.iter().map(row).collect::<Vec<_>>(), screen)
}

fn cpython_line(heap: &CPythonHeap) -> (u64, String) {
    let free_bytes = heap.free_block_bytes + heap.free_pool_bytes();
    let pools = counted(heap.used_pools + heap.free_pools, "pool");
    let line = format!(
        "CPython: {} free in {pools}; {} of {} mostly free",
        Human(free_bytes),
        heap.mostly_free_arenas,
        counted(heap.arenas, "arena"),
    );
    (free_bytes, line)
}

fn cpython_sum(heap: &CPythonHeap) -> String {
    format!(
        "CPython: {} of {}; {} in use; {} free in {} with blocks in use; {} in {}; {} of the arenas {} less than \
         a quarter full",
        counted(heap.arenas, "arena"),
        Human(heap.arena_bytes),
        Human(heap.allocated_bytes),
        Human(heap.free_block_bytes),
        counted(heap.used_pools, "pool"),
        Human(heap.free_pool_bytes()),
        counted(heap.free_pools, "free pool"),
        heap.mostly_free_arenas,
        if heap.mostly_free_arenas == 1 { "is" } else { "are" },
    )
}

/// Formats a line for each arena, and the free blocks by size.
fn table(
    heads: &[&str],
    arenas: &[&Arena],
    row: impl Fn(&Arena) -> Vec<String>,
    blocks: (&str, impl Fn(&Bin) -> String),
    screen: Screen,
) -> String {
    const INCOMPLETE: &str = "*";
    let marked = |arena: &&Arena| {
        let mut row = row(arena);
        if !arena.whole {
            row[0] += INCOMPLETE;
        }
        row
    };
    let shown = &arenas[..arenas.len().min(MAX_ARENAS)];
    let mut out = columns(heads, &shown.iter().map(marked).collect::<Vec<_>>(), screen);
    if shown.iter().any(|arena| !arena.whole) {
        let _ = writeln!(out, " {INCOMPLETE} read incompletely");
    }
    let rest = arenas.len().saturating_sub(MAX_ARENAS);
    if rest > 0 {
        let _ = writeln!(out, " … and {} more; --json has them all", thousands(rest as u64));
    }
    let bins = arenas.iter().fold(Vec::new(), |all, arena| Bin::join(all, &arena.bins));
    if !bins.is_empty() {
        let row = |bin: &Bin| vec![blocks.1(bin), thousands(bin.count), human(bin.bytes)];
        let rows: Vec<_> = bins.iter().map(row).collect();
        out += &format!("\n{}", columns(&[blocks.0, "count", "bytes"], &rows, screen));
    }
    out
}

fn human(bytes: u64) -> String {
    Human(bytes).to_string()
}

fn glibc_arenas(arenas: &[&Arena], tunables: Option<&Tunables>, screen: Screen) -> String {
    let heads =
        ["arena", "heaps", "system", "allocated", "free", "chunks", "largest", "top", "resident"];
    let row = |arena: &Arena| {
        vec![
            arena.id.to_string(),
            thousands(arena.heaps),
            human(arena.system_bytes),
            human(arena.allocated_bytes),
            human(arena.all_free_bytes()),
            thousands(arena.all_free_count()),
            human(arena.largest_free_bytes),
            human(arena.top_bytes()),
            human(arena.free_resident_bytes),
        ]
    };
    let blocks = ("free blocks of", |bin: &Bin| format!("from {}", Human(bin.from)));
    let mut out = table(&heads, arenas, row, blocks, screen);
    if let Some(tunables) = tunables {
        let arena_max = tunables.arena_max.map_or("not set".to_owned(), |n| n.to_string());
        let dynamic = if tunables.mmap_threshold_dynamic { ", dynamic" } else { "" };
        let settings = format!(
            "settings in force: arena_max {arena_max} · trim_threshold {} · mmap_threshold {}{dynamic} · \
             tcache_count {} up to {}",
            Human(tunables.trim_threshold_bytes),
            Human(tunables.mmap_threshold_bytes),
            tunables.tcache_count,
            Human(tunables.tcache_max_bytes)
        );
        let _ = writeln!(out, "\n{}", wrapped(&settings, screen.width));
    }
    out
}

fn glibc_line(arenas: &[&Arena]) -> (u64, String) {
    let sum = |of: &dyn Fn(&Arena) -> u64| arenas.iter().map(|arena| of(arena)).sum::<u64>();
    let free_bytes = sum(&|arena| arena.free_resident_bytes);
    let all_bytes = sum(&|arena| arena.all_free_bytes());
    // After a release, most of the free memory is not resident.
    let resident = match free_bytes < all_bytes / 2 {
        true => format!(" ({} resident)", Human(free_bytes)),
        false => String::new(),
    };
    let line = format!(
        "glibc: {} free{resident} in {} of {}, largest {}",
        Human(all_bytes),
        counted(sum(&|arena| arena.all_free_count()), "chunk"),
        counted(arenas.len() as u64, "arena"),
        Human(arenas.iter().map(|arena| arena.largest_free_bytes).max().unwrap_or(0)),
    );
    (free_bytes, line)
}

fn glibc_sum(observation: &Observation, arenas: &[&Arena]) -> String {
    let sum = |of: &dyn Fn(&Arena) -> u64| arenas.iter().map(|arena| of(arena)).sum::<u64>();
    let largest = arenas.iter().map(|a| a.largest_free_bytes).max().unwrap_or(0);
    let mut line = format!(
        "{} with {} of address space: {} in use, {} free in {} (the largest {}), {} in top chunks; {} of \
         the free memory is resident",
        counted(arenas.len() as u64, "arena"),
        Human(sum(&|a| a.system_bytes)),
        Human(sum(&|a| a.allocated_bytes)),
        Human(sum(&|a| a.all_free_bytes())),
        counted(sum(&|a| a.all_free_count()), "chunk"),
        Human(largest),
        Human(sum(&|a| a.top_bytes())),
        Human(sum(&|a| a.free_resident_bytes)),
    );
    if observation.mmapped_count > 0 {
        let _ = write!(
            line,
            "; {}, {}",
            counted(observation.mmapped_count, "mmapped chunk"),
            Human(observation.mmapped_bytes)
        );
    }
    line
}

fn jemalloc_arenas(arenas: &[&Arena], screen: Screen) -> String {
    let heads = [
        "arena",
        "active",
        "allocated",
        "dirty",
        "muzzy",
        "retained",
        "slabs",
        "slab free",
        "page free",
    ];
    let row = |arena: &Arena| {
        let own = arena.jemalloc().copied().unwrap_or_default();
        vec![
            arena.id.to_string(),
            human(own.active_bytes),
            human(arena.allocated_bytes),
            human(own.dirty_bytes),
            human(own.muzzy_bytes),
            human(own.retained_bytes),
            thousands(own.slabs),
            human(own.slab_free_bytes),
            human(own.slab_free_pages_bytes),
        ]
    };
    // All regions of a class have its size.
    let blocks = ("free in slabs", |bin: &Bin| format!("of {}", Human(bin.to - 1)));
    table(&heads, arenas, row, blocks, screen)
}

fn jemalloc_line(name: &str, arenas: &[&Arena]) -> (u64, String) {
    let sum = |of: &dyn Fn(&JemallocArena) -> u64| -> u64 {
        arenas.iter().filter_map(|arena| arena.jemalloc()).map(of).sum()
    };
    let unused_bytes = sum(&|own| own.dirty_bytes + own.muzzy_bytes);
    let slab_bytes = sum(&|own| own.slab_free_bytes);
    let line = format!(
        "{name}: {} dirty or muzzy; {} free in {} of {}",
        Human(unused_bytes),
        Human(slab_bytes),
        counted(sum(&|own| own.slabs), "slab"),
        counted(arenas.len() as u64, "arena"),
    );
    (unused_bytes + slab_bytes, line)
}

fn jemalloc_sum(name: &str, arenas: &[&Arena]) -> String {
    let sum = |of: &dyn Fn(&JemallocArena) -> u64| -> u64 {
        arenas.iter().filter_map(|arena| arena.jemalloc()).map(of).sum()
    };
    let allocated_bytes: u64 = arenas.iter().map(|arena| arena.allocated_bytes).sum();
    format!(
        "{name}: {}, {} active, of which {} are allocated; {} dirty and {} muzzy, which a purge returns; {} retained; \
         {} free in {}, of which {} are whole resident pages, which no purge returns",
        counted(arenas.len() as u64, "arena"),
        Human(sum(&|own| own.active_bytes)),
        Human(allocated_bytes),
        Human(sum(&|own| own.dirty_bytes)),
        Human(sum(&|own| own.muzzy_bytes)),
        Human(sum(&|own| own.retained_bytes)),
        Human(sum(&|own| own.slab_free_bytes)),
        counted(sum(&|own| own.slabs), "slab"),
        Human(sum(&|own| own.slab_free_pages_bytes)),
    )
}

fn mimalloc_threads(arenas: &[&Arena], screen: Screen) -> String {
    let heads = ["thread", "pages", "empty", "allocated", "free in them", "free spans", "resident"];
    let row = |arena: &Arena| {
        let own = arena.mimalloc().copied().unwrap_or_default();
        vec![
            match own.thread {
                0 => "none".to_owned(),
                address => format!("{address:#x}"),
            },
            thousands(own.pages),
            thousands(own.empty_pages),
            human(arena.allocated_bytes),
            human(arena.free_bytes - own.free_spans_bytes),
            human(own.free_spans_bytes),
            human(own.free_spans_resident_bytes),
        ]
    };
    table(&heads, arenas, row, ("", |_: &Bin| String::new()), screen)
}

fn mimalloc_line(name: &str, arenas: &[&Arena]) -> (u64, String) {
    let own = |of: &dyn Fn(&MimallocThread) -> u64| -> u64 {
        arenas.iter().filter_map(|arena| arena.mimalloc()).map(of).sum()
    };
    let free_bytes: u64 = arenas.iter().map(|arena| arena.free_bytes).sum();
    let line = format!(
        "{name}: {} free in {}, of which {} are empty",
        Human(free_bytes),
        counted(own(&|thread| thread.pages), "page"),
        own(&|thread| thread.empty_pages),
    );
    (free_bytes, line)
}

fn mimalloc_sum(name: &str, arenas: &[&Arena]) -> String {
    let own = |of: &dyn Fn(&MimallocThread) -> u64| -> u64 {
        arenas.iter().filter_map(|arena| arena.mimalloc()).map(of).sum()
    };
    let sum = |of: &dyn Fn(&Arena) -> u64| arenas.iter().map(|arena| of(arena)).sum::<u64>();
    let spans_bytes = own(&|thread| thread.free_spans_bytes);
    let threads = arenas.iter().filter_map(|a| a.mimalloc()).filter(|own| own.thread != 0);
    format!(
        "{name}: {} in {}, with {} allocated and {} free; {} of them empty; {} in free spans, which only their thread can \
         return",
        counted(own(&|thread| thread.pages), "page"),
        counted(threads.count() as u64, "thread"),
        Human(sum(&|arena| arena.allocated_bytes)),
        Human(sum(&|arena| arena.free_bytes) - spans_bytes),
        own(&|thread| thread.empty_pages),
        Human(spans_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpython_heap_is_reported_in_arenas_pools_and_blocks() {
        let size = CPythonSizeClass {
            block_bytes: 64,
            pools: 3,
            used_blocks: 5,
            free_blocks: 760,
            arenas: 2,
            mostly_free_arenas: 1,
        };
        let cpython = CPythonHeap {
            arenas: 2,
            arena_bytes: 1 << 20,
            mostly_free_arenas: 1,
            pool_bytes: 16 << 10,
            used_pools: 3,
            free_pools: 1,
            allocated_bytes: 320,
            free_block_bytes: 48640,
            sizes: vec![size],
        };
        let observation = Observation { cpython: Some(cpython), ..Observation::default() };
        let screen = Screen { width: 110, colour: false };
        assert_eq!(
            render(&observation, true, screen),
            "\n blocks of  pools  in use  free  bytes in use  bytes free  arenas  mostly free\n \
             64 B           3       5   760         320 B    47.5 KiB       2            1\n\
             CPython: 2 arenas of 1.00 MiB; 320 B in use; 47.5 KiB free in 3 pools with blocks in use; 16.0 KiB in 1 free\n\
             pool; 1 of the arenas is less than a quarter full\n"
        );
        assert_eq!(
            render(&observation, false, screen),
            "CPython: 63.5 KiB free in 4 pools; 1 of 2 arenas mostly free (--arenas)\n"
        );
        let large = Observation { rss_bytes: 1 << 30, ..observation };
        assert_eq!(render(&large, false, screen), "");
    }
}
