//! Compiles the code that runs in the target, and extracts it from its object file.

use std::path::{Path, PathBuf};
use std::{env, fs};

use object::{Object, ObjectSection, ObjectSymbol};

#[path = "build/contract.rs"]
mod contract;

/// Maximum size of the code: two smallest pages. On x86-64, one page is mapped for it, which
/// `src/stub.rs` asserts.
const MAX_BYTES: usize = 8192;

fn main() {
    println!("cargo:rerun-if-changed=stub");
    println!("cargo:rerun-if-env-changed=CARGO_CFG_LOWTIDE_CONTROL");
    println!("cargo:rerun-if-changed=build/contract.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let read = |name: PathBuf| fs::read_to_string(name).expect("it is next to this file");
    let processor = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let folder = PathBuf::from("stub").join(&processor);
    assert!(folder.exists(), "lowtide runs on x86-64 and aarch64, not on {processor}");
    let header = [folder.join("numbers.h"), "stub/shared.h".into()].map(read).concat();
    let contract = read("stub/contract.def".into());
    let contract = contract::Contract::parse(&header, &contract);
    let write = |name, text: &[u8]| fs::write(out.join(name), text).expect("OUT_DIR is writable");
    write("contract.rs", contract.rust().as_bytes());
    write("offsets.h", contract.offsets().as_bytes());
    let codes = [compile(c_code()), compile(guarded())];
    if processor == "x86_64" {
        link();
    }
    for (name, code) in ["ptmalloc.bin", "guarded.bin"].into_iter().zip(codes) {
        write(name, &code);
    }
}

/// Returns the build of the code for a thread that may use nothing of the C library while it holds
/// a lock.
fn c_code() -> cc::Build {
    let mut build = cc::Build::new();
    build
        .file("stub/stub.c")
        .opt_level_str("s")
        // Smaller yet, where the compiler knows it.
        .flag_if_supported("-Oz")
        .flag_if_supported("-fno-shrink-wrap")
        .debug(false)
        .pic(true)
        .warnings(true)
        .flag("-ffreestanding")
        .flag("-fno-stack-protector")
        .flag("-mgeneral-regs-only")
        // A function of the C library would do them otherwise (aarch64).
        .flag_if_supported("-mno-outline-atomics")
        .flag("-fno-strict-aliasing")
        .include(env::var_os("OUT_DIR").expect("cargo sets it"))
        .include("stub")
        .include(Path::new("stub").join(env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it")))
        .flag_if_supported("-fno-tree-loop-distribute-patterns");
    build
}

/// Returns the build of the code for allocators other than glibc's. With `RUSTFLAGS='--cfg
/// lowtide_control="unchecked"'`, or "unguarded", it lacks the safety checks, so that the torture
/// test can show that it detects this.
fn guarded() -> cc::Build {
    let mut build = c_code();
    build.define("LOWTIDE_GUARDED", None);
    match env::var("CARGO_CFG_LOWTIDE_CONTROL").as_deref() {
        Ok("unchecked") => build.define("LOWTIDE_CONTROL_UNCHECKED", None),
        Ok("unguarded") => build.define("LOWTIDE_CONTROL_UNGUARDED", None),
        Ok(other) => panic!("lowtide_control is {other:?}: unchecked and unguarded are known"),
        Err(_) => &mut build,
    };
    build
}

/// Compiles the code for programs that release their own memory. It must not call any function: it
/// runs with a lock of the allocator held.
fn link() {
    let mut build = c_code();
    build.define("LOWTIDE_IN_PROCESS", None);
    for path in build.compile_intermediates() {
        let bytes = fs::read(path).expect("it was just written");
        let file = object::File::parse(&*bytes).expect("the C compiler makes ELF");
        for symbol in file.symbols().filter(|symbol| symbol.is_undefined()) {
            let name = symbol.name().unwrap_or_default();
            assert!(name.is_empty(), "the code calls {name}");
        }
    }
    build.compile("lowtide_in_process");
}

/// Compiles a build of the code that is injected, and extracts it.
fn compile(mut build: cc::Build) -> Vec<u8> {
    let objects = build
        .force_frame_pointer(false)
        // Its system calls are calls of a function, which write below the stack pointer (x86-64).
        .flag_if_supported("-mno-red-zone")
        .flag_if_supported("-mbranch-protection=none")
        .flag("-fno-function-sections")
        .flag("-fno-asynchronous-unwind-tables")
        .flag("-fno-jump-tables")
        .flag_if_supported("-fno-toplevel-reorder")
        .flag_if_supported("-fno-reorder-functions")
        .flag_if_supported("-fcf-protection=none")
        .compile_intermediates();
    let path = objects.first().expect("there is one source");
    code_of(path)
}

/// Returns the code of an object file, which must be self-contained.
fn code_of(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).expect("it was just written");
    let file = object::File::parse(&*bytes).expect("the C compiler makes ELF");
    for section in file.sections() {
        let name = section.name().unwrap_or_default();
        let is_ours = name.starts_with(".text");
        assert!(!is_ours || section.relocations().next().is_none(), "{name} is not on its own");
        let is_data = [".data", ".bss", ".rodata"].iter().any(|data| name.starts_with(data));
        assert!(!is_data || section.size() == 0, "{name} would be missing in the target");
        assert!(!is_ours || name == ".text" || section.size() == 0, "{name} is apart");
    }
    let text = file.section_by_name(".text").expect("it has code");
    let code = text.data().expect("its code can be read").to_vec();
    assert!(code.len() <= MAX_BYTES, "{} bytes of code are more than a page", code.len());
    code
}
