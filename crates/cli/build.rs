//! Says what is missing on this machine before a build script of somebody else fails without a word
//! of what to install.

use std::process::{Command, Stdio, exit};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let needed = [(compiler.as_str(), "a C compiler", "build-essential"), ("make", "make", "make")];
    for (program, name, package) in needed {
        let asked = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if asked.is_err() {
            eprintln!(
                "lowtide is built with {name}, and there is no `{program}`: install it (Debian and \
                 Ubuntu: {package})"
            );
            exit(1);
        }
    }
}
