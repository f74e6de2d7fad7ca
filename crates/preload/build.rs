//! Compiles the library for preloading, and extracts the constants that the Rust code needs from
//! it.
//!
//! It depends on no C library, so that one file serves programs of glibc and of musl. If lowtide
//! itself is built for musl, the C compiler of the host compiles it, as it does the allocators; for
//! another processor, that of the -gnu target.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol};

/// Warnings, which are errors: the code runs in other people's programs.
const STRICT: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];

/// No library, no start files, no calls that the compiler invents.
const FREE_STANDING: [&str; 9] = [
    "-std=gnu11",
    "-O2",
    "-shared",
    "-fPIC",
    "-nostdlib",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fvisibility=hidden",
    "-Wl,-z,relro,-z,now,-z,noexecstack,-z,nodelete,--hash-style=both,--strip-all,--build-id=none",
];

/// Flags that only some architectures support: no calls of libgcc for atomics, and the marks of
/// protected control flow, without which the loader would turn that off for the whole program.
const WHERE_SUPPORTED: [&str; 3] =
    ["-mno-outline-atomics", "-fcf-protection=full", "-mbranch-protection=standard"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for file in ["freed.c", "freed.h", "next.h"] {
        println!("cargo:rerun-if-changed=src/{file}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let library = out.join("freed.so");
    compile(&library);
    let bytes = fs::read(&library).expect("it was just written");
    let header = fs::read_to_string("src/freed.h").expect("it is next to this file");
    let mut text = numbers(&header);
    let _ = writeln!(text, "pub(crate) const HASH: &str = \"{:016x}\";", fnv(&bytes));
    let _ = writeln!(text, "pub(crate) const SYMBOL: u64 = {};", address_of_symbol(&bytes));
    fs::write(out.join("numbers.rs"), text).expect("OUT_DIR can be written");
}

fn compile(library: &Path) {
    let mut build = cc::Build::new();
    build.opt_level(2).debug(false).warnings(false);
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("musl") {
        build.target(&programs_target());
    }
    for flag in WHERE_SUPPORTED {
        build.flag_if_supported(flag);
    }
    let mut command = build.get_compiler().to_command();
    command.args(STRICT).args(FREE_STANDING).arg("-Wl,-soname,liblowtide-freed.so");
    command.arg("-o").arg(library).arg("src/freed.c");
    let output = command.output().expect("a C compiler (Debian: build-essential)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the library for preloading does not compile:\n{command:?}\n{errors}"
    );
}

/// Returns the target of the programs beside a lowtide that is built for musl.
fn programs_target() -> String {
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    if architecture == env::consts::ARCH {
        return env::var("HOST").expect("cargo sets it");
    }
    format!("{architecture}-unknown-linux-gnu")
}

/// Translates the numbers of the header to Rust: `#define NAME 12 /* why */` becomes a constant of
/// this name.
fn numbers(header: &str) -> String {
    let mut text = String::new();
    for line in header.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some("#define"), Some(name), Some(value)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let _ = writeln!(
            text,
            "pub(crate) const {name}: u64 = {};",
            value.trim_end_matches(['u', 'U', 'L'])
        );
    }
    text
}

/// Returns the address of the counter in the library.
fn address_of_symbol(bytes: &[u8]) -> u64 {
    let file = object::File::parse(bytes).expect("the C compiler makes ELF");
    let symbol = file.dynamic_symbols().find(|s| s.name() == Ok("lowtide_freed"));
    symbol.expect("the library exports it").address()
}

/// Returns the FNV-1a hash, which distinguishes builds of the library in the cache. Nothing depends
/// on its strength.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
