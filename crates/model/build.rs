//! Reports missing tools on this machine before the build script of a dependency fails without
//! naming what to install. It is in this crate because every other crate of lowtide depends on this
//! one, so it runs early.

use std::process::{Command, Stdio, exit};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A C compiler exists: otherwise this program would not have been linked.
    let asked = Command::new("make").arg("--version").stdout(Stdio::null()).status();
    if asked.is_err() {
        eprintln!(
            "lowtide carries jemalloc, which is built with make, and there is no `make`: install it \
             (Debian, Ubuntu, Fedora, Alpine: make)"
        );
        exit(1);
    }
}
