//! Says what is missing on this machine before a build script of somebody else fails without a word
//! of what to install. It stands here because every other crate of ours waits for this one, so that
//! it runs early.

use std::process::{Command, Stdio, exit};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A C compiler is there, or this program would not have been linked.
    let asked = Command::new("make").arg("--version").stdout(Stdio::null()).status();
    if asked.is_err() {
        eprintln!(
            "lowtide carries jemalloc, which is built with make, and there is no `make`: install it \
             (Debian, Ubuntu, Fedora, Alpine: make)"
        );
        exit(1);
    }
}
