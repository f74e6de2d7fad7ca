//! Helpers for tests on other processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Starts a program with pipes, under the system's malloc without settings.
pub(crate) fn start(command: &mut Command) -> Child {
    command
        .env_remove("LD_PRELOAD")
        .env_remove("GLIBC_TUNABLES")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Compiles a program of these tests into a directory. Each test compiles its own, because tests
/// run in parallel.
pub(crate) fn compile(home: &Path, source: &str, arguments: &[&str]) -> PathBuf {
    let program = home.join(Path::new(source).with_extension(""));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let source = source.display().to_string();
    let flags = ["-O1", "-pthread", &source];
    lowtide_testing::compile(&program, flags.iter().chain(arguments));
    program
}
