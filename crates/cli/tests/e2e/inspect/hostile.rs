//! Processes that try to block, crash or mislead `inspect`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{Subject, inspect, object, plain};
use crate::exporter::Exporter;
use crate::support::{fixture, lowtide, until};
use crate::top::Named;

/// Builds a library in its own directory, so that it can be removed.
fn library(home: &Path) -> PathBuf {
    let (source, library) = (home.join("library.c"), home.join("library.so"));
    fs::write(&source, "int nothing;").unwrap();
    lowtide_testing::compile(&library, [Path::new("-shared"), Path::new("-fPIC"), &source]);
    library
}

fn hostile(words: &[&str]) -> Subject {
    Subject::start(plain(&fixture("hostile", &["-ldl"])).args(words))
}

#[test]
fn a_fifo_in_place_of_a_library_does_not_block_an_inspection() {
    let home = tempfile::tempdir().unwrap();
    let subject = hostile(&["fifo", &library(home.path()).display().to_string()]);
    let found = object(&inspect(&[], subject.pid()));
    assert_eq!(found["allocator"]["name"], "glibc", "{found:#}");
    // The same without the capability to open mapped files by their addresses.
    let without = "-sys_admin,-checkpoint_restore";
    let lost = [format!("--bounding-set={without}"), format!("--inh-caps={without}")];
    let is_root = fs::metadata("/proc/self").unwrap();
    if std::os::unix::fs::MetadataExt::uid(&is_root) == 0 {
        let output = Command::new("setpriv")
            .args(lost)
            .args([env!("CARGO_BIN_EXE_lowtide"), "inspect", "--json", &subject.pid().to_string()])
            .output()
            .expect("setpriv (Debian: util-linux)");
        assert_eq!(object(&output)["allocator"]["name"], "glibc", "{output:?}");
    }
}

/// Runs a command, which must end. One that does not waits for the file system of the subject, and
/// so can only be ended with that.
fn ends(command: &mut Command) -> Output {
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(&format!("the end of {command:?}"), || running.try_wait().unwrap());
    running.wait_with_output().unwrap()
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn no_verb_waits_for_a_file_system_that_answers_nothing() {
    use std::os::unix::process::CommandExt;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("mounted");
    fs::create_dir(&directory).unwrap();
    let library = library(&directory).display().to_string();
    let program = directory.join("program");
    let directory = directory.display().to_string();
    // Its command line, and the path of its library, lead there.
    let mut command = plain(&fixture("hostile", &["-ldl"]));
    let subject = Subject::start(command.arg0(&program).args(["cover", &directory, &library]));
    let pid = subject.pid().to_string();
    let without = "-sys_admin,-checkpoint_restore";
    let lost = [format!("--bounding-set={without}"), format!("--inh-caps={without}")];
    let output = ends(lowtide().args(["inspect", &pid]));
    assert!(output.status.success(), "{output:?}");
    let lowtide_program = env!("CARGO_BIN_EXE_lowtide");
    for verb in ["inspect", "top"] {
        let words: &[&str] = if verb == "top" { &["--once"] } else { &[&pid] };
        let mut command = Command::new("setpriv");
        let output = ends(command.args(&lost).args([lowtide_program, verb]).args(words));
        assert!(output.status.success(), "{output:?}");
    }
    let waits = hostile(&["wait", &directory, &library]);
    let output = ends(lowtide().args(["release", &waits.pid().to_string()]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("it reads from a file or a device"), "{said}");
    if cfg!(target_arch = "x86_64") {
        let code = hostile(&["code", "/tmp", &library]);
        let words = ["leaks", &code.pid().to_string(), "--duration", "5s"];
        let output = ends(lowtide().args(words));
        assert!(output.status.code().is_some(), "{output:?}");
    }
}

#[test]
#[ignore = "needs root and /dev/fuse"]
fn an_unresponsive_file_system_is_reported_and_other_processes_are_inspected() {
    let home = tempfile::tempdir().unwrap();
    let library = library(home.path()).display().to_string();
    let directory = home.path().join("mounted");
    fs::create_dir(&directory).unwrap();
    let subject = hostile(&["silence", &directory.display().to_string(), &library]);
    for verb in ["inspect", "release"] {
        // The file system still answers nothing: the verb ends without it.
        let output = ends(lowtide().args([verb, &subject.pid().to_string()]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("reading it makes no progress"), "{verb}: {said}");
    }
    // Other processes are still inspected: one row of `top`, and one group of the exporter.
    let named = Named::start(&format!("hf{}", std::process::id()));
    let row = |found: &Value, pid: u32| {
        let mut rows = found["processes"].as_array().unwrap().iter();
        rows.find(|row| row["pid"] == pid).cloned().unwrap_or_default()
    };
    // On a busy machine, its time may not suffice for all processes.
    until("the row of another process", || {
        let found = object(&ends(lowtide().args(["--json", "top", "--once"])));
        assert!(row(&found, subject.pid())["verdict"].is_null(), "{found:#}");
        row(&found, named.child.id())["verdict"].is_string().then_some(())
    });
    let exporter = Exporter::on_any_port(&["--group-by", "comm"]);
    let inspected = format!("lowtide_uninspected_processes{{groupname=\"{}\"}} 0\n", named.name);
    until("the inspection of another process", || {
        exporter.get("/metrics", "").contains(&inspected).then_some(())
    });
    assert!(Path::new(&format!("/proc/{}", subject.pid())).exists());
}
