//! Whose a mapping is, on mappings that were made up after real ones.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ops::Range;

use lowtide_model::inspection::Linkage;
use lowtide_probe::allocator::Sanitizer;
use lowtide_probe::proc::maps::{Mapping, parse};
use lowtide_probe::recognise::{
    Allocator, Area, OwnMemory, Owner, Recognition, Runtime, RuntimeKind, areas, stacks,
};

fn maps(lines: &[&str]) -> Vec<Mapping> {
    let line = |line: &&str| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (permissions, name) = rest.split_once(' ').unwrap_or((rest, ""));
        let file = if name.starts_with('/') { "fe:01 77" } else { "00:00 0" };
        format!("{range} {permissions} 00000000 {file}          {name}\n")
    };
    parse(&lines.iter().map(line).collect::<String>()).unwrap()
}

fn allocator(name: &str) -> Option<Allocator> {
    let (name, path) = (name.to_owned(), "/lib/library.so".into());
    Some(Allocator { name, version: None, linkage: Linkage::Dynamic, path })
}

fn runtime(kind: RuntimeKind, memory: OwnMemory) -> Vec<Runtime> {
    vec![Runtime { kind, version: None, memory }]
}

/// The owners of what begins where, by name.
fn owners(recognition: &Recognition, maps: &[Mapping], taken: &[Range<u64>]) -> Vec<(u64, String)> {
    let stacks = stacks(recognition, maps, &[]);
    let name = |area: &Area| match &area.owner {
        Owner::Allocator(name) => name.clone(),
        Owner::Runtime(kind) => kind.name().to_owned(),
        Owner::Sanitizer(sanitizer) => sanitizer.name().to_owned(),
    };
    areas(recognition, maps, &stacks, taken).iter().map(|a| (a.range.start, name(a))).collect()
}

const LIBRARY: &str = "7f9000000000-7f9000100000 r-xp /usr/lib/libc.so.6";

#[test]
fn without_a_runtime_what_glibc_did_not_claim_is_nobodys() {
    let recognition = Recognition { malloc: allocator("glibc"), ..Recognition::default() };
    let maps =
        maps(&["550000000000-550000100000 rw-p [heap]", "7f8000000000-7f8000100000 rw-p", LIBRARY]);
    assert!(owners(&recognition, &maps, &[]).is_empty());
}

#[test]
fn another_allocator_owns_everything_but_stacks_files_and_their_zeroed_data() {
    let recognition = Recognition {
        malloc: allocator("gperftools"),
        zeroed_data: Vec::from([Range { start: 0x7f90_0020_0000, end: 0x7f90_0020_4000 }]),
        ..Recognition::default()
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
    // The kernel has merged the zeroed data of the library with what was mapped right behind.
    let starts: Vec<u64> = owners(&recognition, &maps, &[]).iter().map(|(at, _)| *at).collect();
    assert_eq!(starts, [0x5500_0000_0000, 0x7f80_0000_0000, 0x7f90_0020_4000]);
    let areas = areas(&recognition, &maps, &[], &[]);
    assert!(areas.iter().all(|a| a.estimated && a.owner == Owner::Allocator("gperftools".into())));
}

#[test]
fn beside_an_allocator_of_the_programs_own_the_brk_heap_is_still_glibcs() {
    let recognition = Recognition {
        malloc: allocator("glibc"),
        own: allocator("mimalloc"),
        ..Recognition::default()
    };
    let maps =
        maps(&["3eaf4000000-3eb34000000 rw-p", "550000000000-550000100000 rw-p [heap]", LIBRARY]);
    assert!(recognition.has_glibc_heap());
    let expected = [(0x3ea_f400_0000, "mimalloc".to_owned())];
    assert_eq!(owners(&recognition, &maps, &[]), expected);
}

#[test]
fn pythons_arenas_are_what_the_walker_of_glibc_left() {
    let arenas = OwnMemory::Blocks(1 << 20);
    let recognition = Recognition {
        malloc: allocator("glibc"),
        runtimes: runtime(RuntimeKind::Python, arenas),
        ..Recognition::default()
    };
    // 8 arenas that the kernel has merged with a chunk of glibc's own; buffers of something else.
    let maps = maps(&["7f8000000000-7f800080f000 rw-p", "7f8800000000-7f8800033000 rw-p", LIBRARY]);
    let chunk = 0x7f80_0000_0000..0x7f80_0000_f000;
    let found = owners(&recognition, &maps, std::slice::from_ref(&chunk));
    assert_eq!(found, [(chunk.end, "CPython".to_owned())]);
    let memory = OwnMemory::None;
    let runtimes = runtime(RuntimeKind::Python, memory);
    assert!(owners(&Recognition { runtimes, ..recognition }, &maps, &[]).is_empty());
}

#[test]
fn v8_owns_its_code_and_what_begins_like_one_of_its_pages() {
    let recognition = Recognition {
        malloc: allocator("glibc"),
        runtimes: runtime(RuntimeKind::Node, OwnMemory::Aligned(256 << 10)),
        ..Recognition::default()
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
    // An arena of glibc begins at a multiple of 64 MiB, and so of 256 KiB: it must be taken before.
    let arena = 0x7f13_3000_0000..0x7f13_3048_3000;
    let found = owners(&recognition, &maps, &[arena]);
    let starts: Vec<u64> = found.iter().map(|(at, _)| *at).collect();
    assert_eq!(starts, [0x16_dda0_0000, 0x3a3c_804c_0000, 0x7f13_4000_3000]);
}

#[test]
fn go_without_c_owns_everything_and_its_threads_have_no_stacks_of_their_own() {
    let recognition = Recognition {
        runtimes: runtime(RuntimeKind::Go, OwnMemory::Any),
        zeroed_data: Vec::from([Range { start: 0x55_8000, end: 0x58_e000 }]),
        ..Recognition::default()
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
    let starts: Vec<u64> = owners(&recognition, &maps, &[]).iter().map(|(at, _)| *at).collect();
    assert_eq!(starts, [0xc0_0000_0000, 0x7f22_e44f_9000]);
}

#[test]
fn a_name_given_to_a_mapping_is_no_estimate() {
    let recognition = Recognition {
        malloc: allocator("glibc"),
        runtimes: runtime(RuntimeKind::Go, OwnMemory::Any),
        ..Recognition::default()
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
    let names: Vec<String> = owners(&recognition, &maps, &[]).into_iter().map(|(_, n)| n).collect();
    assert_eq!(names, ["Go", "glibc", "CPython", "V8", "jemalloc"]);
    assert!(areas(&recognition, &maps, &[], &[]).iter().all(|a| !a.estimated));
}

#[test]
fn a_runtime_on_another_allocator_gets_what_differs_from_that_allocators() {
    let mut recognition = Recognition {
        malloc: allocator("jemalloc"),
        runtimes: runtime(RuntimeKind::Python, OwnMemory::Blocks(1 << 20)),
        ..Recognition::default()
    };
    let python = maps(&[
        "7f8891857000-7f8892357000 rw-p",
        "7f8894000000-7f8894200000 rw-p",
        "7f8895378000-7f88953ba000 rw-p",
        LIBRARY,
    ]);
    let names = |recognition: &Recognition, maps: &[Mapping]| -> Vec<String> {
        owners(recognition, maps, &[]).into_iter().map(|(_, name)| name).collect()
    };
    assert_eq!(names(&recognition, &python), ["CPython", "jemalloc", "jemalloc"]);

    recognition.malloc = allocator("mimalloc");
    recognition.runtimes = runtime(RuntimeKind::Node, OwnMemory::Aligned(256 << 10));
    let node = maps(&[
        "2d0df200000-2d0df240000 rw-p",
        "338a6000000-338e6000000 rw-p",
        "7f8440b03000-7f8440b3f000 rwxp",
        "7f8450b00000-7f8450b40000 rw-p",
        LIBRARY,
    ]);
    assert_eq!(names(&recognition, &node), ["Node.js", "mimalloc", "Node.js", "mimalloc"]);

    // Near the libraries, HotSpot's memory looks like jemalloc's.
    recognition.malloc = allocator("jemalloc");
    recognition.runtimes = runtime(RuntimeKind::HotSpot, OwnMemory::Any);
    let java = maps(&["687400000-6cf800000 rw-p", "7f8450b00000-7f8450b40000 rw-p", LIBRARY]);
    assert_eq!(names(&recognition, &java), ["HotSpot"]);
}

#[test]
fn under_a_sanitizer_everything_is_the_sanitizers() {
    let recognition = Recognition {
        malloc: allocator("libasan"),
        sanitizer: Some(Sanitizer::Address),
        ..Recognition::default()
    };
    let maps = maps(&[
        "7fff7000-8fff7000 rw-p",
        "603000000000-603000010000 rw-p",
        "7f8000000000-7f8000100000 rw-p",
        LIBRARY,
    ]);
    let found = owners(&recognition, &maps, &[]);
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|(_, name)| name == "AddressSanitizer"));
}
