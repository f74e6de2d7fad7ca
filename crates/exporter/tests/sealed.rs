//! Tests which operations are possible in a sealed process, and which are not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::process::Command;
use std::thread;

use lowtide_exporter::seal::{OwnFiles, seal};
use lowtide_probe::inspect::Inspector;
use lowtide_probe::target::Target;

/// Runs a test in a thread of its own, because a seal cannot be removed.
fn sealed(test: impl FnOnce() + Send + 'static) {
    sealed_with(OwnFiles::None, test);
}

fn sealed_with(files: OwnFiles, test: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        seal(files).unwrap();
        test();
    })
    .join()
    .unwrap();
}

#[test]
fn a_sealed_process_cannot_execute_programs() {
    sealed(|| {
        let error = Command::new("true").spawn().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    });
}

#[test]
fn a_sealed_process_cannot_open_memory_or_existing_files_for_writing() {
    for files in [OwnFiles::None, OwnFiles::Some] {
        sealed_with(files, || {
            for path in ["/proc/self/mem", "/dev/null"] {
                let error = OpenOptions::new().write(true).open(path).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path}");
                let error = OpenOptions::new().append(true).create(true).open(path).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path}");
                assert!(File::open(path).is_ok());
            }
        });
    }
}

#[test]
fn only_a_sealed_process_with_files_of_its_own_can_create_files() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("lowtide.prom");
    fs::write(&path, "before").unwrap();
    let of_thread = path.clone();
    let write = move || lowtide_record::files::replace_for_all(&of_thread, b"after");
    let again = write.clone();
    sealed(move || {
        assert_eq!(write().unwrap_err().kind(), ErrorKind::PermissionDenied);
    });
    sealed_with(OwnFiles::Some, move || again().unwrap());
    assert_eq!(fs::read_to_string(path).unwrap(), "after");
}

#[test]
fn a_thread_that_starts_after_the_seal_is_also_sealed() {
    sealed(|| {
        let error = thread::spawn(|| Command::new("true").spawn().unwrap_err()).join().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    });
}

#[test]
fn a_seal_does_not_change_inspection_results() {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let target = Target::open(child.id()).unwrap();
    while target.stat().unwrap().state != 'S' {
        thread::yield_now();
    }
    let before = Inspector::default().inspect(&target).unwrap();
    sealed(move || {
        let sealed = Inspector::default().inspect(&target).unwrap();
        assert_eq!(sealed.ledger, before.ledger);
        assert_eq!((&sealed.allocator, &sealed.c_library), (&before.allocator, &before.c_library));
        assert!(sealed.c_library.is_some());
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_sealed_process_cannot_trace_write_to_or_signal_others() {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id();
    sealed(move || {
        let pid = libc::pid_t::try_from(pid).unwrap();
        for call in [attach, write_to, signal] {
            assert_eq!(call(pid).kind(), ErrorKind::PermissionDenied);
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[allow(unsafe_code)]
fn attach(pid: libc::pid_t) -> std::io::Error {
    // SAFETY: it takes numbers only.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) }, -1);
    std::io::Error::last_os_error()
}

#[allow(unsafe_code)]
fn signal(pid: libc::pid_t) -> std::io::Error {
    // SAFETY: it takes numbers only.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, -1);
    std::io::Error::last_os_error()
}

#[allow(unsafe_code)]
fn write_to(pid: libc::pid_t) -> std::io::Error {
    // SAFETY: no vectors are passed.
    let written =
        unsafe { libc::process_vm_writev(pid, std::ptr::null(), 0, std::ptr::null(), 0, 0) };
    assert_eq!(written, -1);
    std::io::Error::last_os_error()
}
