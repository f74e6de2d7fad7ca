//! Passes on the paths of the host's build of jemalloc and of the sources of mimalloc.

fn main() {
    for name in ["JEMALLOC_ROOT", "MIMALLOC_INCLUDE_DIR"] {
        if let Ok(path) = std::env::var(format!("DEP_{name}")) {
            println!("cargo::metadata={name}={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
}
