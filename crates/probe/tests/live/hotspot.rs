//! HotSpot's heap beside full heaps of glibc's arenas, which have the same size.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use lowtide_heap::hotspot::JavaHeap;
use lowtide_heap::residency::Residency;
use lowtide_model::inspection::Observation;
use lowtide_model::ledger::{Owner, WalkedRuntime};
use lowtide_probe::detect::{self, Detector};
use lowtide_probe::inspect::Inspector;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::target::Target;

use crate::support::{Subject, compile_source};

const MIB: u64 = 1 << 20;
const HEAP_BYTES: u64 = 64 * MIB;

fn inspect(pid: u32) -> Observation {
    Inspector::default().inspect(&Target::open(pid).unwrap()).unwrap()
}

/// Returns the resident bytes of the heap of Java objects.
fn java_heap(found: &Observation) -> u64 {
    let rows = found.ledger.rows().iter().filter(|row| row.manager == Some(WalkedRuntime::HotSpot));
    rows.map(|row| row.bytes).sum()
}

fn allocated(found: &Observation) -> u64 {
    found.arenas.iter().map(|arena| arena.allocated_bytes).sum()
}

#[test]
fn a_full_heap_of_an_arena_is_not_taken_for_the_java_heap() {
    let home = tempfile::tempdir().unwrap();
    for compiler in [&["cc", "-rdynamic"][..], &["cc", "-rdynamic", "-DHIDDEN"]] {
        let program = compile_source(home.path(), include_str!("hotspot.c"), compiler);
        let data = tempfile::Builder::new().prefix("hsperfdata_").tempfile_in("/tmp").unwrap();
        let subject = Subject::start(Command::new(program).arg(data.path()));
        let found = inspect(subject.pid());
        assert_eq!(found.runtimes[0].name, "HotSpot");
        assert_eq!(found.notes, Vec::<String>::new(), "{compiler:?}");
        assert!(allocated(&found) > 60 * MIB, "{compiler:?}: {:?}", found.ledger);
        assert!(
            found.ledger.bytes(Owner::Allocated) > 60 * MIB,
            "{compiler:?}: {:?}",
            found.ledger
        );
        let proven = proven_heap(subject.pid(), &ProcessMemory::open(subject.pid()).unwrap());
        let reserved = JavaHeap::Reserved(0xfc00_0000..0x1_0000_0000);
        assert_eq!(proven, (!compiler.contains(&"-DHIDDEN")).then_some(reserved));
        assert_eq!(java_heap(&found), 4 * MIB, "{compiler:?}: {:?}", found.ledger);
    }
}

/// A program that never ends its compressors, whose memory is `malloc`'s. It creates some for each
/// line that it reads, and prints their number.
const LEAK: &str = "import java.util.*; import java.util.zip.*; \
    public class Leak { static List<Deflater> kept = new ArrayList<>(); \
    public static void main(String[] a) throws Exception { \
    byte[] in = new byte[2000], out = new byte[4000]; \
    for (;;) { for (int i = 0; i < 40; i++) { Deflater d = new Deflater(); \
    d.setInput(in); d.finish(); d.deflate(out); kept.add(d); } \
    System.out.println(\"kept \" + kept.size()); if (System.in.read() < 0) return; } } }";
/// Minimum number of bytes that a compressor allocates (zlib's `deflateInit` with its defaults).
const DEFLATER_BYTES: u64 = 256 << 10;
const INSPECTIONS: usize = 24;

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn a_native_leak_and_the_java_heap_are_distinguished_under_every_collector() {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("Leak.java");
    std::fs::write(&source, LEAK).unwrap();
    for collector in ["Serial", "Parallel", "G1", "Z"] {
        let mut java = Command::new("java")
            .args(["-Xmx64m", "-Xlog:gc+heap+coops=debug", &format!("-XX:+Use{collector}GC")])
            .arg(&source)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("java (Debian: default-jre-headless)");
        let mut input = java.stdin.take().unwrap();
        let mut heap = None;
        let mut inspections = 0;
        for line in BufReader::new(java.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            heap = heap.or(heap_of_log(&line));
            let Some(kept) = line.strip_prefix("kept ") else { continue };
            let found = inspect(java.id());
            let what = format!("{collector}, {kept}: {:?}\n{:?}", found.notes, found.ledger);
            assert!(allocated(&found) >= kept.parse::<u64>().unwrap() * DEFLATER_BYTES, "{what}");
            // ZGC's heap is a file, which is no walked heap.
            let memory = ProcessMemory::open(java.id()).unwrap();
            let proven = proven_heap(java.id(), &memory);
            let expected = heap.filter(|_| collector != "Z");
            let expected = expected.map(|start| JavaHeap::Reserved(start..start + HEAP_BYTES));
            assert_eq!(proven, Some(expected.unwrap_or(JavaHeap::InFile)), "{collector}");
            let resident = |start| Residency::new(&memory).bytes(start..start + HEAP_BYTES);
            let resident = if collector == "Z" { 0 } else { heap.map(resident).unwrap() };
            assert!(java_heap(&found).abs_diff(resident) <= 64 << 10, "{resident} {what}");
            inspections += 1;
            if inspections == INSPECTIONS {
                break;
            }
            input.write_all(b"\n").unwrap();
        }
        java.kill().unwrap();
        java.wait().unwrap();
        assert_eq!(inspections, INSPECTIONS, "{collector}");
    }
}

/// Returns the heap that its variables prove.
fn proven_heap(pid: u32, memory: &ProcessMemory) -> Option<JavaHeap> {
    let maps = Target::open(pid).unwrap().maps().unwrap();
    let detected = Detector::default().detect(pid, &maps).unwrap();
    detect::java_heap(memory, &detected, &maps)
}

/// Returns the start of the heap in `Heap address: 0x00000000fc000000, size: 64 MB`.
fn heap_of_log(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("Heap address: 0x")?;
    let (address, size) = rest.split_once(", size: ")?;
    assert!(size.starts_with("64 MB"), "{line}");
    u64::from_str_radix(address, 16).ok()
}
