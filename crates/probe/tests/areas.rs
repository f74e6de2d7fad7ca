//! The owners of mappings, on synthetic mappings that follow real ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ops::Range;

use lowtide_heap::hotspot::Variables;
use lowtide_heap::memory::Saved;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::inspection::Linkage;
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_probe::detect::{
    Area, AreaOwner, Claim, Detected, DetectedAllocator, DetectedRuntime, OwnMemory, Stack,
    WalkedHeaps, areas, stacks,
};
use lowtide_probe::proc::maps::FileId;
use lowtide_probe::proc::maps::{Mapping, parse};
use lowtide_probe::program::Sanitizer;

fn maps(lines: &[&str]) -> Vec<Mapping> {
    let line = |line: &&str| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (permissions, name) = rest.split_once(' ').unwrap_or((rest, ""));
        let file = if name.starts_with('/') { "fe:01 77" } else { "00:00 0" };
        format!("{range} {permissions} 00000000 {file}          {name}\n")
    };
    parse(&lines.iter().map(line).collect::<String>()).unwrap()
}

fn glibc_heap(areas: &[Range<u64>]) -> WalkedHeaps {
    WalkedHeaps {
        allocators: vec![AllocatorKind::Glibc],
        areas: areas.to_vec(),
        ..WalkedHeaps::default()
    }
}

fn allocator(name: &str) -> Option<DetectedAllocator> {
    let (kind, path) = (AllocatorKind::parse(name), "/lib/library.so".into());
    Some(DetectedAllocator { kind, version: None, linkage: Linkage::Dynamic, path })
}

fn runtime(kind: RuntimeKind, memory: OwnMemory) -> Vec<DetectedRuntime> {
    vec![DetectedRuntime { kind, version: None, file: FileId::default(), memory, is_started: true }]
}

/// Returns the start and owner of each area, by name.
fn owners(detected: &Detected, maps: &[Mapping], taken: &[Range<u64>]) -> Vec<(u64, String)> {
    owners_in(&Saved::default(), detected, maps, taken)
}

fn owners_in(
    memory: &Saved,
    detected: &Detected,
    maps: &[Mapping],
    taken: &[Range<u64>],
) -> Vec<(u64, String)> {
    let stacks = stacks(memory, detected, maps, &[]);
    let name = |area: &Area| area.owner.name().to_owned();
    let found = areas(memory, detected, maps, &stacks, &glibc_heap(taken));
    found.iter().map(|a| (a.range.start, name(a))).collect()
}

const LIBRARY: &str = "7f9000000000-7f9000100000 r-xp /usr/lib/libc.so.6";

#[test]
fn without_a_runtime_memory_that_glibc_does_not_claim_has_no_owner() {
    let detected = Detected { malloc: allocator("glibc"), ..Detected::default() };
    let maps =
        maps(&["550000000000-550000100000 rw-p [heap]", "7f8000000000-7f8000100000 rw-p", LIBRARY]);
    assert!(owners(&detected, &maps, &[]).is_empty());
}

#[test]
fn another_allocator_owns_all_but_stacks_files_and_the_zeroed_data_of_files() {
    let detected = Detected {
        malloc: allocator("gperftools"),
        zeroed_data: Vec::from([Range { start: 0x7f90_0020_0000, end: 0x7f90_0020_4000 }]),
        ..Detected::default()
    };
    let maps = maps(&[
        "550000000000-550000100000 rw-p [heap]",
        "7f7000000000-7f7000001000 ---p",
        "7f7000001000-7f7000801000 rw-p",
        "7f8000000000-7f8000100000 rw-p",
        "7f8000100000-7f8000200000 ---p",
        "7f8000300000-7f8000400000 rw-s /dev/zero",
        LIBRARY,
        "7f9000100000-7f9000200000 rw-p /usr/lib/libc.so.6",
        "7f9000200000-7f9000208000 rw-p",
        "7ffc00000000-7ffc00004000 r--p [vvar]",
        "7ffd00000000-7ffd00021000 rw-p [stack]",
    ]);
    // The kernel has merged the zeroed data of the library with the mapping right after it. A guard
    // alone makes no stack.
    let starts: Vec<u64> = owners(&detected, &maps, &[]).iter().map(|(at, _)| *at).collect();
    let expected = [0x5500_0000_0000, 0x7f70_0000_1000, 0x7f80_0000_0000, 0x7f90_0020_4000];
    assert_eq!(starts, expected);
    let areas = areas(&Saved::default(), &detected, &maps, &[], &WalkedHeaps::default());
    assert!(
        areas
            .iter()
            .all(|a| a.estimated && a.owner == AreaOwner::Allocator(AllocatorKind::Gperftools))
    );
}

#[test]
fn a_built_in_allocator_does_not_own_the_brk_heap_of_glibc() {
    let detected =
        Detected { malloc: allocator("glibc"), own: allocator("mimalloc"), ..Detected::default() };
    let maps =
        maps(&["3eaf4000000-3eb34000000 rw-p", "550000000000-550000100000 rw-p [heap]", LIBRARY]);
    assert!(detected.has_glibc_heap());
    let expected = [(0x3ea_f400_0000, "mimalloc".to_owned())];
    assert_eq!(owners(&detected, &maps, &[]), expected);
}

/// Returns a pool of CPython: blocks of 32 bytes, three of them in use.
fn pool() -> Vec<u8> {
    let mut bytes = vec![0; 16 << 10];
    let words: [(usize, u64); 5] = [
        (0, 3),
        (16, 0x7f90_0000_1000),
        (24, 0x7f90_0000_1000),
        (32, 1 << 32),
        (40, (16352 << 32) | 144),
    ];
    for (place, word) in words {
        bytes[place..place + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn python_owns_its_pools_and_nothing_else() {
    let detected = Detected {
        malloc: allocator("glibc"),
        runtimes: runtime(RuntimeKind::Python, OwnMemory::Pools),
        ..Detected::default()
    };
    // Two pools after a chunk of glibc's own, the program's mapping after them, and a mapping as
    // large as many arenas.
    let maps = maps(&["7f8000000000-7f800080c000 rw-p", "7f8800000000-7f8806400000 rw-p", LIBRARY]);
    let blocks = vec![
        (0x7f80_0000_c000, [pool(), pool(), vec![b'y'; 1 << 20]].concat()),
        (0x7f88_0000_0000, vec![b'y'; 2 << 20]),
    ];
    let memory = Saved::new(blocks);
    let chunk = 0x7f80_0000_0000..0x7f80_0000_c000;
    let found = areas(&memory, &detected, &maps, &[], &glibc_heap(std::slice::from_ref(&chunk)));
    let expected = Area {
        range: 0x7f80_0000_c000..0x7f80_0001_4000,
        owner: AreaOwner::Runtime(RuntimeKind::Python),
        estimated: false,
    };
    assert_eq!(found, [expected]);
    let runtimes = runtime(RuntimeKind::Python, OwnMemory::None);
    let without = Detected { runtimes, ..detected };
    assert!(owners_in(&memory, &without, &maps, &[]).is_empty());
}

#[test]
fn v8_owns_its_code_and_mappings_with_the_alignment_of_its_pages() {
    let detected = Detected {
        malloc: allocator("glibc"),
        runtimes: runtime(RuntimeKind::Node, OwnMemory::Aligned(256 << 10)),
        ..Detected::default()
    };
    let maps = maps(&[
        "16dda00000-16dda40000 rw-p",
        "3a3c804c0000-3a3c804cd000 r--p",
        "7f1330000000-7f1330483000 rw-p",
        "7f1330483000-7f1334000000 ---p",
        "7f1340003000-7f134003f000 rwxp",
        "7f1365958000-7f1365979000 rw-p",
        LIBRARY,
    ]);
    // An arena of glibc begins at a multiple of 64 MiB, and so of 256 KiB: it must be claimed
    // first.
    let arena = 0x7f13_3000_0000..0x7f13_3048_3000;
    let found = owners(&detected, &maps, &[arena]);
    let starts: Vec<u64> = found.iter().map(|(at, _)| *at).collect();
    assert_eq!(starts, [0x16_dda0_0000, 0x3a3c_804c_0000, 0x7f13_4000_3000]);
}

#[test]
fn go_without_cgo_owns_all_memory_including_thread_stacks() {
    let detected = Detected {
        runtimes: runtime(RuntimeKind::Go, OwnMemory::Any),
        zeroed_data: Vec::from([Range { start: 0x55_8000, end: 0x58_e000 }]),
        ..Detected::default()
    };
    let maps = maps(&[
        "00400000-0048b000 r-xp /srv/program",
        "0054f000-00558000 rw-p /srv/program",
        "00558000-0058e000 rw-p",
        "c000000000-c005400000 rw-p",
        "c005400000-c008000000 ---p",
        "7f22e44f8000-7f22e44f9000 ---p",
        "7f22e44f9000-7f22e4559000 rw-p",
        "7fff2d357000-7fff2d378000 rw-p [stack]",
    ]);
    let starts: Vec<u64> = owners(&detected, &maps, &[]).iter().map(|(at, _)| *at).collect();
    assert_eq!(starts, [0xc0_0000_0000, 0x7f22_e44f_9000]);
}

#[test]
fn the_owner_of_a_named_mapping_is_not_an_estimate() {
    let detected = Detected {
        malloc: allocator("glibc"),
        runtimes: runtime(RuntimeKind::Go, OwnMemory::Any),
        ..Detected::default()
    };
    let maps = maps(&[
        "c000000000-c004000000 rw-p [anon: Go: heap]",
        "7f8000000000-7f8000021000 rw-p [anon: glibc: malloc arena]",
        "7f8100000000-7f8100021000 rw-p [anon: glibc: pthread stack: 7]",
        "7f8200000000-7f8200021000 rw-p [anon:cpython:pymalloc]",
        "7f8300000000-7f8300021000 rw-p [anon:v8]",
        "7f8400000000-7f8400021000 rw-p [anon:jemalloc_pg]",
        "7f8500000000-7f8500021000 rw-p [anon:of somebody else]",
        LIBRARY,
    ]);
    let names: Vec<String> = owners(&detected, &maps, &[]).into_iter().map(|(_, n)| n).collect();
    assert_eq!(names, ["Go", "glibc", "CPython", "V8", "jemalloc"]);
    assert!(
        areas(&Saved::default(), &detected, &maps, &[], &WalkedHeaps::default())
            .iter()
            .all(|a| !a.estimated)
    );
}

#[test]
fn a_runtime_owns_distant_mappings_if_the_allocator_was_not_located() {
    let mut detected = Detected {
        malloc: allocator("mimalloc"),
        runtimes: runtime(RuntimeKind::Node, OwnMemory::Aligned(256 << 10)),
        ..Detected::default()
    };
    let node = maps(&[
        "2d0df200000-2d0df240000 rw-p",
        "7f8440b03000-7f8440b3f000 rwxp",
        "7f8450b00000-7f8450b40000 rw-p",
        LIBRARY,
    ]);
    let names = |detected: &Detected, maps: &[Mapping]| -> Vec<String> {
        owners(detected, maps, &[]).into_iter().map(|(_, name)| name).collect()
    };
    assert_eq!(names(&detected, &node), ["Node.js", "Node.js", "mimalloc"]);

    // Near the libraries, HotSpot's memory looks like jemalloc's.
    detected.malloc = allocator("jemalloc");
    detected.runtimes = runtime(RuntimeKind::HotSpot, OwnMemory::Any);
    let java = maps(&["687400000-6cf800000 rw-p", "7f8450b00000-7f8450b40000 rw-p", LIBRARY]);
    assert_eq!(names(&detected, &java), ["HotSpot"]);
}

#[test]
fn partition_alloc_owns_super_pages_and_v8_a_large_reservation_near_them() {
    let detected = Detected { malloc: allocator("PartitionAlloc"), ..Detected::default() };
    let maps = maps(&[
        "273500000000-273501000000 ---p",
        "273501000000-273501980000 rw-p",
        "273501980000-273700000000 ---p",
        "33fc00000000-33fc00002000 ---p",
        "33fc00002000-33fc00003000 rw-p",
        "33fc00003000-33fc00004000 ---p",
        "33fc00004000-33fc001fc000 rw-p",
        "33fc001fc000-33fc00202000 ---p",
        "7f8000000000-7f8000100000 rw-p",
        LIBRARY,
    ]);
    let names: Vec<(u64, String)> = owners(&detected, &maps, &[]);
    let named = |at, name: &str| (at, name.to_owned());
    let expected = [
        named(0x2735_0100_0000, "V8"),
        named(0x33fc_0000_2000, "PartitionAlloc"),
        named(0x33fc_0000_4000, "PartitionAlloc"),
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_sanitizer_owns_all_memory_of_its_program() {
    let detected = Detected {
        malloc: allocator("libasan"),
        sanitizer: Some(Sanitizer::Address),
        ..Detected::default()
    };
    let maps = maps(&[
        "7fff7000-8fff7000 rw-p",
        "603000000000-603000010000 rw-p",
        "7f8000000000-7f8000100000 rw-p",
        LIBRARY,
    ]);
    let found = owners(&detected, &maps, &[]);
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|(_, name)| name == "AddressSanitizer"));
}

/// Returns a page of words.
fn page(at: u64, words: &[(u64, u64)]) -> (u64, Vec<u8>) {
    let mut bytes = vec![0; 4096];
    for (place, word) in words {
        bytes[*place as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    (at, bytes)
}

const LIBJVM: u64 = 0x7f90_0100_0000;

/// Returns a process with HotSpot, whose variables contain this heap and this code cache.
fn hotspot(heap: Range<u64>, code: Range<u64>) -> (Detected, Saved) {
    // Entries of 48 bytes, with the offset of a field or the address of a variable.
    let entry = |place: u64| LIBJVM + 48 * place;
    let variables = Variables {
        collected_heap: entry(0),
        reserved: entry(1),
        start: entry(2),
        words: entry(3),
        code: Some([entry(4), entry(5)]),
        archive: None,
    };
    let detected = Detected {
        malloc: allocator("glibc"),
        runtimes: runtime(RuntimeKind::HotSpot, OwnMemory::Any),
        hotspot: Some(variables),
        ..Detected::default()
    };
    let (offset, address) = (|place: u64| 48 * place + 32, |place: u64| 48 * place + 40);
    let words = [
        (offset(1), 0x20),
        (offset(3), 8),
        (address(0), LIBJVM + 0x800),
        (address(4), LIBJVM + 0x808),
        (address(5), LIBJVM + 0x810),
        (0x800, LIBJVM + 0x900),
        (0x808, code.start),
        (0x810, code.end),
        (0x920, heap.start),
        (0x928, (heap.end - heap.start) / 8),
    ];
    (detected, Saved::new(vec![page(LIBJVM, &words)]))
}

#[test]
fn hotspot_proves_its_heap_and_code_and_the_rest_is_an_estimate() {
    let (detected, memory) =
        hotspot(0xfc00_0000..0x1_0000_0000, 0x7f50_0000_0000..0x7f50_0100_0000);
    let maps = maps(&[
        "fc000000-ff000000 rw-p",
        "ff000000-ff100000 rw-p /usr/lib/jvm/classes.jsa",
        "ff100000-100000000 ---p",
        "7f5000000000-7f5000800000 rwxp",
        "7f5000800000-7f5001000000 ---p",
        "7f6000000000-7f6000100000 rw-p",
        "7f7000000000-7f7000100000 rw-p",
        LIBRARY,
    ]);
    let walked =
        glibc_heap(&[0x7f60_0000_0000..0x7f60_0008_0000, 0x7f60_0008_0000..0x7f60_0010_0000]);
    let found = areas(&memory, &detected, &maps, &[], &walked);
    let found: Vec<(u64, bool)> = found.iter().map(|a| (a.range.start, a.estimated)).collect();
    assert_eq!(found, [(0xfc00_0000, false), (0x7f50_0000_0000, false), (0x7f70_0000_0000, true)]);
}

#[test]
fn a_java_heap_that_is_not_mapped_completely_is_no_proof() {
    for heap in [0xfc00_0000..0x1_0000_1000, 0x5500_0000_0000..0x5500_0000_2000] {
        let (detected, memory) = hotspot(heap, 0..0);
        let maps = maps(&[
            "fc000000-100000000 rw-p",
            "550000000000-550000100000 rw-p [heap]",
            "7f5000000000-7f5000100000 rw-p",
            LIBRARY,
        ]);
        let found = areas(&memory, &detected, &maps, &[], &WalkedHeaps::default());
        assert!(found.iter().all(|area| area.estimated), "{found:?}");
    }
}

#[test]
fn structures_beat_a_stack_whose_end_is_an_estimate_but_not_a_proven_one() {
    // A stack pointer in a mapping of 48 MiB, which begins above a guard and contains HotSpot's
    // heap.
    let maps = maps(&["7f5000000000-7f5000001000 ---p", "7f5000001000-7f5003001000 rw-p", LIBRARY]);
    let heap = 0x7f50_0040_0000..0x7f50_0300_0000;
    let (detected, memory) = hotspot(heap.clone(), 0..0);
    for estimated in [true, false] {
        let stack = Claim { range: 0x7f50_0000_1000..0x7f50_0080_1000, owner: Stack, estimated };
        let found =
            areas(&memory, &detected, &maps, std::slice::from_ref(&stack), &WalkedHeaps::default());
        let start = if estimated { heap.start } else { stack.range.end };
        let proven = found.iter().find(|area| !area.estimated).unwrap();
        assert_eq!(proven.range, start..heap.end);
        let overlap = found.iter().find(|area| area.range.start < start && area.estimated);
        assert_eq!(overlap, None, "the stack is no one else's");
    }
}

#[test]
fn a_walked_heap_beats_the_estimates_of_all_runtimes() {
    let heap = 0x7f80_0000_0000..0x7f80_0400_0000;
    let maps = maps(&["7f7ffc000000-7f8008000000 rw-p", LIBRARY]);
    let kinds = [
        (RuntimeKind::Go, OwnMemory::Any),
        (RuntimeKind::HotSpot, OwnMemory::Any),
        (RuntimeKind::Erlang, OwnMemory::Any),
        (RuntimeKind::Node, OwnMemory::Aligned(256 << 10)),
        (RuntimeKind::Python, OwnMemory::Aligned(32 << 20)),
        (RuntimeKind::InnoDb, OwnMemory::Large(1 << 20)),
    ];
    for (kind, memory) in kinds {
        let detected = Detected {
            malloc: allocator("glibc"),
            runtimes: runtime(kind, memory),
            ..Detected::default()
        };
        let found = areas(
            &Saved::default(),
            &detected,
            &maps,
            &[],
            &glibc_heap(std::slice::from_ref(&heap)),
        );
        let ranges: Vec<Range<u64>> = found.iter().map(|area| area.range.clone()).collect();
        assert_eq!(ranges, [0x7f7f_fc00_0000..heap.start, heap.end..0x7f80_0800_0000], "{kind:?}");
    }
}
