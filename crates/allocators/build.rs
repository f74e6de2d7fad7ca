//! Builds each allocator as a shared library that can be preloaded, and packs it for inclusion in
//! the binary.
//!
//! A `cdylib` would not work: rustc's version script makes every C symbol of a static archive
//! local, so a preloaded `cdylib` would load, but replace no function.
//!
//! The libraries are built for the target. If the target is musl, they are built for the host: a
//! static lowtide preloads them into the programs of its host, which use the host's C library. If
//! the target has another processor than the host, LOWTIDE_ALLOCATORS names the directory of a
//! build for its -gnu target, whose libraries are taken (`packaging/build` does so).

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// One allocator to build.
struct Source {
    name: &'static str,
    version: String,
    /// The arguments of the compiler, in addition to the common flags.
    arguments: Vec<String>,
}

fn main() {
    println!("cargo:rerun-if-env-changed=LOWTIDE_ALLOCATORS");
    let built = env::var_os("LOWTIDE_ALLOCATORS").map(PathBuf::from);
    if built.is_none() && is_for_host() && variable("CARGO_CFG_TARGET_ARCH") != env::consts::ARCH {
        fail(
            "with musl, the allocators are built for the host, whose processor differs from the target's: build on a \
             machine like the target, for its -gnu target, or with packaging/build",
        );
    }
    let sources = [jemalloc(), mimalloc("mimalloc", "v3"), mimalloc("mimalloc2", "v2")];
    let out = PathBuf::from(variable("OUT_DIR"));
    let mut table = String::from("pub(crate) static TABLE: &[Packed] = &[\n");
    for source in &sources {
        let name = format!("{}.so", source.name);
        let library = built.as_ref().unwrap_or(&out).join(name);
        if built.is_none() {
            link(source, &library);
        }
        let bytes =
            fs::read(&library).unwrap_or_else(|e| fail(&format!("{}: {e}", library.display())));
        let packed = out.join(format!("{}.so.z", source.name));
        let level = 9;
        if let Err(e) = fs::write(&packed, miniz_oxide::deflate::compress_to_vec(&bytes, level)) {
            fail(&format!("{}: {e}", packed.display()));
        }
        let _ = writeln!(
            table,
            "    Packed {{ name: {:?}, version: {:?}, size: {}, hash: {:?}, bytes: include_bytes!({:?}) }},",
            source.name,
            source.version,
            bytes.len(),
            format!("{:016x}", fnv(&bytes)),
            packed
        );
    }
    table.push_str("];\n");
    if let Err(e) = fs::write(out.join("table.rs"), table) {
        fail(&format!("table.rs: {e}"));
    }
    println!("cargo:rerun-if-changed=build.rs");
}

/// Returns the whole archive that tikv-jemalloc-sys built, with its symbols unprefixed.
fn jemalloc() -> Source {
    let root = dependency("JEMALLOC_ROOT");
    let archive = root.join("lib/libjemalloc_pic.a");
    let header = read(&root.join("include/jemalloc/jemalloc.h"));
    let version = defined(&header, "JEMALLOC_VERSION").trim_matches('"').to_owned();
    Source {
        name: "jemalloc",
        // 5.3.1-0-g<commit>: the part before the first dash is the public version.
        version: version.split('-').next().unwrap_or_default().to_owned(),
        arguments: [
            "-Wl,--whole-archive",
            &archive.display().to_string(),
            "-Wl,--no-whole-archive",
            "-Wl,--strip-debug",
            "-lpthread",
            "-ldl",
            "-lm",
        ]
        .map(str::to_owned)
        .to_vec(),
    }
}

/// Returns the one-file source of libmimalloc-sys, which contains two generations, with the flags
/// of mimalloc's own CMakeLists.txt for a shared library.
fn mimalloc(name: &'static str, generation: &str) -> Source {
    let include = dependency("MIMALLOC_INCLUDE_DIR");
    let Some(all) = include.parent().and_then(Path::parent) else {
        fail("libmimalloc-sys: DEP_MIMALLOC_INCLUDE_DIR does not lie two folders deep");
    };
    let root = all.join(generation);
    let number = defined(&read(&root.join("include/mimalloc.h")), "MI_MALLOC_VERSION");
    let number: u32 = number.parse().unwrap_or_else(|_| fail("mimalloc.h: no MI_MALLOC_VERSION"));
    let directory = |name: &str| format!("-I{}", root.join(name).display());
    let mut arguments: Vec<String> = vec![
        directory("include"),
        directory("src"),
        root.join("src/static.c").display().to_string(),
    ];
    arguments.extend(
        [
            "-std=gnu11",
            "-DMI_MALLOC_OVERRIDE",
            "-DMI_SHARED_LIB",
            "-DMI_SHARED_LIB_EXPORT",
            "-DMI_BUILD_RELEASE",
            "-DNDEBUG",
            "-fvisibility=hidden",
            "-ftls-model=initial-exec",
            "-fno-builtin-malloc",
            "-Wno-error=date-time",
            "-lpthread",
        ]
        .map(str::to_owned),
    );
    Source {
        name,
        version: format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
        arguments,
    }
}

/// Returns whether the libraries are built for the host and not for the target.
fn is_for_host() -> bool {
    variable("CARGO_CFG_TARGET_ENV") == "musl"
}

/// Returns the output of the build script of an allocator's crate: through
/// `lowtide-allocators-host`, if that crate was compiled for the host.
fn dependency(name: &str) -> PathBuf {
    let through = if is_for_host() { "DEP_LOWTIDE_ALLOCATORS_HOST" } else { "DEP" };
    PathBuf::from(variable(&format!("{through}_{name}")))
}

fn link(source: &Source, library: &Path) {
    let mut build = cc::Build::new();
    build.opt_level(3).debug(false).warnings(false);
    if is_for_host() {
        build.target(&variable("HOST"));
    }
    let compiler = build.get_compiler();
    let mut command: Command = compiler.to_command();
    command
        .args(["-shared", "-fPIC", "-O3", "-o"])
        .arg(library)
        .args(&source.arguments)
        // All addresses are resolved when the library is loaded, and their table is read-only from
        // then on.
        .args(["-Wl,-z,relro", "-Wl,-z,now"])
        .arg(format!("-Wl,-soname,lib{}.so", source.name));
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => fail(&format!(
            "{} could not be built:\n{command:?}\n{}",
            source.name,
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => fail(&format!(
            "the C compiler could not be started ({error}): install one (Debian: build-essential)"
        )),
    }
}

/// Returns the value of a `#define`.
fn defined(header: &str, name: &str) -> String {
    header
        .lines()
        .filter_map(|line| line.trim().strip_prefix("#define")?.trim().strip_prefix(name))
        .find_map(|rest| rest.split_whitespace().next().map(str::to_owned))
        .unwrap_or_else(|| fail(&format!("{name} is not defined where it was looked for")))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| fail(&format!("{}: {e}", path.display())))
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("{name} is not set: is this run by cargo?")))
}

/// Computes the FNV-1a hash, which distinguishes builds of a library in the cache. Its strength
/// does not matter.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn fail(message: &str) -> ! {
    eprintln!("lowtide-allocators: {message}");
    exit(1)
}
