//! The C compiler: `CC`, or `cc`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// What a machine without a compiler lacks.
const NEEDED: &str = "tests need a C compiler (Debian: build-essential)";

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

/// Compiles a program. The arguments are all but the name of the program: sources and flags.
///
/// # Panics
/// Panics if it does not compile.
pub fn compile<A: AsRef<OsStr>>(program: &Path, arguments: impl IntoIterator<Item = A>) {
    compile_with(&compiler(), program, arguments);
}

/// Compiles a program in the same way, with another compiler.
///
/// # Panics
/// Panics if it does not compile.
pub fn compile_with<A: AsRef<OsStr>>(
    compiler: &str,
    program: &Path,
    arguments: impl IntoIterator<Item = A>,
) {
    let mut command = Command::new(compiler);
    command.arg("-o").arg(program).args(arguments);
    let status = command.status().unwrap_or_else(|error| panic!("{compiler}: {error}; {NEEDED}"));
    assert!(status.success(), "{command:?} failed");
}

/// Compiles a program whose file several tests share, if it is older than its source or not there.
///
/// # Panics
/// Panics if it does not compile.
pub fn compile_if_older<A: AsRef<OsStr>>(
    program: &Path,
    source: &Path,
    arguments: impl IntoIterator<Item = A>,
) {
    static COMPILER: Mutex<()> = Mutex::new(());
    let _one = COMPILER.lock().unwrap_or_else(PoisonError::into_inner);
    let age = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if age(program) <= age(source) {
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        compile(program, std::iter::once(source.into()).chain(arguments));
    }
}

/// Returns the path of a library that the compiler would link.
///
/// # Panics
/// Panics if there is no compiler.
pub fn library_of_compiler(name: &str) -> PathBuf {
    let output =
        Command::new(compiler()).arg(format!("-print-file-name={name}")).output().expect(NEEDED);
    String::from_utf8(output.stdout).expect("a path").trim().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_compiled_again_only_if_its_source_is_newer() {
        let home = tempfile::tempdir().unwrap();
        let (source, program) = (home.path().join("one.c"), home.path().join("one"));
        fs::write(&source, "int main(void) { return 7; }").unwrap();
        compile_if_older(&program, &source, ["-O1"]);
        assert_eq!(Command::new(&program).status().unwrap().code(), Some(7));
        compile_if_older(&program, &source, ["--no-such-flag"]);
    }
}
