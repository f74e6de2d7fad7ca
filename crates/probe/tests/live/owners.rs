//! The memory of runtimes, compared with their own statistics, under each allocator.

use std::path::PathBuf;
use std::process::Command;

use lowtide_allocators::bundled;
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_probe::detect::AreaOwner;

use crate::support::Subject;

const MIB: u64 = 1 << 20;

/// Returns no library, and each of the bundled ones.
fn allocators() -> Vec<Option<PathBuf>> {
    let bundled = bundled().map(|library| Some(library.unpack().unwrap()));
    std::iter::once(None).chain(bundled).collect()
}

fn start(command: &mut Command, library: Option<&PathBuf>) -> Subject {
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    Subject::start(command)
}

/// Returns the numbers that a program printed first.
fn numbers(subject: &Subject) -> Vec<u64> {
    subject.said.split_whitespace().map(|word| word.parse().expect(word)).collect()
}

#[test]
#[ignore = "needs python3"]
fn cpython_owns_the_arenas_in_its_statistics_and_no_other_mapping() {
    // The statistics have a line such as `# arenas allocated current = 31`.
    let program = "import mmap, sys, os, tempfile\n\
        other = mmap.mmap(-1, 100 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
        other.write(b'y' * (100 << 20))\n\
        blocks = [[i] for i in range(300000)]\n\
        file = tempfile.TemporaryFile()\n\
        saved = os.dup(2)\n\
        os.dup2(file.fileno(), 2)\n\
        sys._debugmallocstats()\n\
        os.dup2(saved, 2)\n\
        file.seek(0)\n\
        lines = file.read().decode().splitlines()\n\
        print(next(l.split()[-1].replace(',', '') for l in lines if 'arenas allocated current' in l), flush=True)\n\
        sys.stdin.read()";
    for library in allocators() {
        let mut command = Command::new("python3");
        let python = start(command.args(["-c", program]), library.as_ref());
        let [arenas] = numbers(&python)[..] else { panic!("{}", python.said) };
        let found = python.detect();
        // The last arena is not full.
        let owned = found.resident(&AreaOwner::Runtime(RuntimeKind::Python));
        let arenas = arenas * MIB;
        assert!(owned <= arenas && owned + 2 * MIB >= arenas, "{library:?}: {owned} of {arenas}");
        assert!(found.areas.iter().all(|area| !area.estimated), "{library:?}: {:?}", found.areas);
    }
}

#[test]
#[ignore = "needs java (Debian: default-jre-headless)"]
fn the_memory_of_hotspot_is_the_same_under_every_allocator() {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("Hold.java");
    let program = "public class Hold { static byte[][] kept = new byte[60][]; \
        public static void main(String[] a) throws Exception { \
        for (int i = 0; i < kept.length; i++) kept[i] = new byte[1 << 20]; \
        System.out.println(1); System.in.read(); } }";
    std::fs::write(&source, program).unwrap();
    let mut owned = Vec::new();
    for library in allocators() {
        let mut command = Command::new("java");
        // A fixed heap size, with all pages touched, so that runs are alike.
        let arguments = ["-Xms128m", "-Xmx128m", "-XX:+AlwaysPreTouch", "-XX:+UseSerialGC"];
        let java = start(command.args(arguments).arg(&source), library.as_ref());
        owned.push(java.detect().resident(&AreaOwner::Runtime(RuntimeKind::HotSpot)));
    }
    let (least, most) = (owned.iter().min().unwrap(), owned.iter().max().unwrap());
    assert!(*least >= 128 * MIB && most - least <= least / 10, "{owned:?}");
}

#[test]
#[ignore = "needs ruby"]
fn ruby_owns_the_heap_pages_in_its_statistics() {
    let program = "a = Array.new(400_000) { |i| \"x#{i}\".dup }\n\
        size = GC::INTERNAL_CONSTANTS[:HEAP_PAGE_SIZE] || 16384\n\
        puts GC.stat[:heap_allocated_pages] * size\n\
        $stdout.flush\n\
        $stdin.read\n\
        a.size";
    for library in allocators() {
        let mut command = Command::new("ruby");
        let ruby = start(command.args(["-e", program]), library.as_ref());
        let [pages] = numbers(&ruby)[..] else { panic!("{}", ruby.said) };
        let owned = ruby.detect().resident(&AreaOwner::Runtime(RuntimeKind::Ruby));
        // It has allocated a few more since it counted. Up to 3.2, it also has a transient heap, of
        // whose 1,024 blocks each has one page that was written.
        let most = pages + pages / 50 + 5 * MIB;
        assert!(owned >= pages - pages / 50 && owned <= most, "{library:?}: {owned} of {pages}");
    }
}

#[test]
#[ignore = "needs php (Debian: php-cli)"]
fn php_owns_the_chunks_in_its_statistics() {
    let program = "$a = []; for ($i = 0; $i < 300000; $i++) $a[] = \"x$i\" . str_repeat('x', 40);\n\
        $b = str_repeat('y', 30 << 20);\n\
        echo memory_get_usage(true), \"\\n\"; fgets(STDIN);";
    let mut command = Command::new("php");
    let php = start(command.args(["-d", "memory_limit=-1", "-r", program]), None);
    let [used] = numbers(&php)[..] else { panic!("{}", php.said) };
    let owned = php.detect().resident(&AreaOwner::Runtime(RuntimeKind::Php));
    // The memory that an array leaves as it grows is not resident.
    assert!(owned <= used && owned >= used / 10 * 8, "{owned} of {used}");
}

#[test]
#[ignore = "needs erl (Debian: erlang-base)"]
fn erlang_owns_its_carriers() {
    let program = "B = [binary:copy(<<\"x\">>, 1000) || _ <- lists:seq(1, 30000)], \
        io:format(\"~p~n\", [erlang:memory(total)]), io:get_line(\"\"), B.";
    let mut command = Command::new("erl");
    let erlang = start(command.args(["-noshell", "-eval", program]), None);
    let [total] = numbers(&erlang)[..] else { panic!("{}", erlang.said) };
    let owned = erlang.detect().resident(&AreaOwner::Runtime(RuntimeKind::Erlang));
    assert!(owned >= total / 10 * 8, "{owned} of {total}");
}

#[test]
#[ignore = "needs gperftools (Debian: libgoogle-perftools4)"]
fn gperftools_blocks_are_located_by_its_spans_rather_than_estimated() {
    let home = tempfile::tempdir().unwrap();
    let program = crate::support::compile(home.path(), &["cc"]);
    let library = PathBuf::from("libtcmalloc_minimal.so.4");
    let subject = start(&mut Command::new(program), Some(&library));
    let found = subject.detect();
    let area = found.area_of(subject.address()).expect("the block has an owner");
    assert_eq!((area.owner.name(), area.estimated), ("gperftools", false));
}
