//! The allocators of running programs.

use std::process::Command;

use lowtide_allocators::bundled;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_probe::detect::AreaOwner;
use lowtide_probe::program::{Sanitizer, c_library_version};

use crate::support::{Subject, compile, compile_source};

#[test]
fn glibc_is_detected_with_its_version_and_without_estimated_areas() {
    let home = tempfile::tempdir().unwrap();
    let subject = Subject::start(&mut Command::new(compile(home.path(), &["cc"])));
    let found = subject.detect();
    let path = &found.detected.malloc.as_ref().unwrap().path;
    let version = c_library_version(path);
    assert!(version.is_some(), "{}", path.display());
    assert_eq!(found.allocator(), ("glibc", version.as_deref(), "dynamic"));
    assert!(found.detected.has_glibc_heap() && found.detected.own.is_none());
    assert!(found.areas.is_empty() && found.detected.runtimes.is_empty());
    assert_eq!(found.detected.sanitizer, None);
    // The stacks of the first and the second thread.
    assert_eq!(found.stacks, 2);
}

#[test]
fn a_preloaded_allocator_is_detected_with_its_version_and_owns_its_blocks() {
    let home = tempfile::tempdir().unwrap();
    let program = compile(home.path(), &["cc"]);
    for library in bundled() {
        let path = library.unpack().unwrap();
        let subject = Subject::start(Command::new(&program).env("LD_PRELOAD", &path));
        let found = subject.detect();
        let name = library.name().trim_end_matches('2');
        assert_eq!(found.allocator(), (name, Some(library.version()), "preloaded"));
        let area = found.area_of(subject.address()).expect("the block has an owner");
        assert_eq!(
            (&area.owner, area.estimated),
            (&AreaOwner::Allocator(AllocatorKind::parse(name)), false)
        );
        assert!(!found.detected.has_glibc_heap());
        assert_eq!(found.stacks, 2, "{name}");
    }
}

#[test]
fn a_linked_allocator_is_not_reported_as_preloaded() {
    let home = tempfile::tempdir().unwrap();
    for library in bundled() {
        let path = home.path().join(format!("lib{}.so", library.name()));
        std::fs::copy(library.unpack().unwrap(), &path).unwrap();
        let program = compile(home.path(), &["cc", "-Wl,--no-as-needed", &path.to_string_lossy()]);
        let subject = Subject::start(Command::new(program).env("LD_LIBRARY_PATH", home.path()));
        let name = library.name().trim_end_matches('2');
        let found = subject.detect();
        assert_eq!(found.allocator(), (name, Some(library.version()), "dynamic"));
    }
}

#[test]
fn an_unknown_allocator_is_named_after_its_library_file() {
    let home = tempfile::tempdir().unwrap();
    // This allocator returns mapped memory from `malloc` and frees nothing.
    let source = "#include <stddef.h>\n#include <string.h>\n#include <sys/mman.h>\n\
        static char *next, *end;\n\
        void *malloc(size_t n) { n = (n + 31) & ~(size_t)15; if (next + n > end) { size_t c = n > 1 << 24 ? n : 1 << 24;\
        next = mmap(0, c, 3, 34, -1, 0); end = next + c; } char *p = next; next += n; *(size_t *)p = n - 16; return p + 16; }\n\
        void free(void *p) { (void)p; }\n\
        void *calloc(size_t a, size_t b) { return malloc(a * b); }\n";
    let library = compile_source(home.path(), source, &["cc", "-shared", "-fPIC", "-fno-builtin"]);
    let path = home.path().join("libmine.so.1.2");
    std::fs::rename(library, &path).unwrap();
    let program = compile(home.path(), &["cc"]);
    let subject = Subject::start(Command::new(program).env("LD_PRELOAD", &path));
    let found = subject.detect();
    assert_eq!(found.allocator(), ("libmine", None, "preloaded"));
    let area = found.area_of(subject.address()).expect("the block has an owner");
    assert_eq!(area.owner, AreaOwner::Allocator(AllocatorKind::parse("libmine")));
}

#[test]
fn a_static_glibc_is_recognised_without_symbols() {
    let home = tempfile::tempdir().unwrap();
    for arguments in [&["cc", "-static", "-s"][..], &["cc", "-static-pie", "-s"]] {
        let program = compile(home.path(), arguments);
        let found = Subject::start(&mut Command::new(program)).detect();
        assert_eq!(found.allocator(), ("glibc", None, "static"), "{arguments:?}");
        assert!(found.detected.has_glibc_heap() && found.areas.is_empty());
    }
}

#[test]
fn mimalloc_inside_a_rust_program_is_detected_beside_a_small_glibc_heap() {
    let home = tempfile::tempdir().unwrap();
    // Tests are built into `deps`, beside `examples`.
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join("mimalloc_inside");
    let stripped = home.path().join("stripped");
    let status = Command::new("strip").arg("-o").args([&stripped, &program]).status();
    assert!(status.expect("strip (Debian: binutils)").success());
    for program in [program, stripped] {
        let subject = Subject::start(&mut Command::new(&program));
        let found = subject.detect();
        let (name, _, linkage) = found.allocator();
        assert_eq!((name, linkage), ("mimalloc", "static"), "{}", program.display());
        assert_eq!(found.detected.malloc.as_ref().unwrap().kind, AllocatorKind::Glibc);
        let area = found.area_of(subject.address()).expect("the block has an owner");
        assert_eq!(area.owner, AreaOwner::Allocator(AllocatorKind::Mimalloc));
        assert!(!found.areas.iter().any(|area| {
            found.maps.iter().any(|m| m.name == "[heap]" && m.contains(area.range.start))
        }));
    }
}

#[test]
#[ignore = "needs gcc's sanitizers (Debian: libgcc-*-dev, which gcc brings)"]
fn a_build_with_a_sanitizer_is_recognised() {
    let home = tempfile::tempdir().unwrap();
    let builds = [
        ("-fsanitize=address", Sanitizer::Address),
        ("-fsanitize=thread", Sanitizer::Thread),
        ("-fsanitize=leak", Sanitizer::Leak),
    ];
    for (argument, sanitizer) in builds {
        let program = compile(home.path(), &["cc", argument]);
        let subject = Subject::start(&mut Command::new(program));
        let found = subject.detect();
        assert_eq!(found.detected.sanitizer, Some(sanitizer));
        let area = found.area_of(subject.address()).expect("the block has an owner");
        assert_eq!(area.owner, AreaOwner::Sanitizer(sanitizer));
    }
}

#[test]
#[ignore = "needs musl-gcc (Debian: musl-tools)"]
fn musl_is_distinguished_from_glibc_whether_dynamic_or_static() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, version, linkage) in
        [(&["musl-gcc"][..], true, "dynamic"), (&["musl-gcc", "-static", "-s"], false, "static")]
    {
        let program = compile(home.path(), arguments);
        let subject = Subject::start(&mut Command::new(program));
        let found = subject.detect();
        let (name, found_version, found_linkage) = found.allocator();
        assert_eq!((name, found_version.is_some(), found_linkage), ("musl", version, linkage));
        let area = found.area_of(subject.address()).expect("the block has an owner");
        assert_eq!(area.owner, AreaOwner::Allocator(AllocatorKind::Musl));
    }
}

#[test]
#[ignore = "needs gperftools (Debian: libgoogle-perftools4)"]
fn gperftools_is_detected_with_its_version_and_owns_its_blocks() {
    let home = tempfile::tempdir().unwrap();
    let program = compile(home.path(), &["cc"]);
    let subject =
        Subject::start(Command::new(program).env("LD_PRELOAD", "libtcmalloc_minimal.so.4"));
    let found = subject.detect();
    let (name, version, linkage) = found.allocator();
    assert_eq!((name, linkage), ("gperftools", "preloaded"));
    assert!(version.is_some_and(|v| v.starts_with("2.")), "{version:?}");
    let area = found.area_of(subject.address()).expect("the block has an owner");
    assert_eq!(area.owner, AreaOwner::Allocator(AllocatorKind::Gperftools));
}

#[test]
#[ignore = "needs redis-server, linked with jemalloc as Debian does"]
fn the_jemalloc_that_redis_is_linked_with_is_detected_with_its_version() {
    let text = Command::new("redis-server").arg("--version").output().expect("redis-server").stdout;
    let text = String::from_utf8(text).unwrap();
    let version = text.split("malloc=jemalloc-").nth(1).unwrap().split(' ').next().unwrap();
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("socket");
    let mut command = Command::new("redis-server");
    command
        .args(["--port", "0", "--save", "", "--logfile", "/dev/null", "--unixsocket"])
        .arg(socket);
    let redis = Subject::start_silent(&mut command);
    let found = redis.recognise_when(|found| found.stacks > 1);
    assert_eq!(found.allocator(), ("jemalloc", Some(version), "dynamic"));
}

#[test]
#[ignore = "needs root, to open the files that another process has mapped"]
fn a_program_replaced_on_disk_is_recognised_by_its_running_image() {
    let home = tempfile::tempdir().unwrap();
    let program = compile(home.path(), &["cc", "-static", "-s"]);
    let subject = Subject::start(&mut Command::new(&program));
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "no program at all").unwrap();
    assert_eq!(subject.detect().allocator(), ("glibc", None, "static"));
}
