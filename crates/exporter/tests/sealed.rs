//! Tests which operations are possible in a sealed process, and which are not. A seal cannot be
//! removed and applies to all threads, so each test runs in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use lowtide_exporter::seal::{Role, seal};
use lowtide_probe::inspect::Inspector;
use lowtide_probe::target::Target;

/// Another process, which sleeps.
const VICTIM: &str = "LOWTIDE_TEST_VICTIM";
/// A directory.
const DIRECTORY: &str = "LOWTIDE_TEST_DIRECTORY";

/// Runs the test of this name again in a process of its own. Returns true in this process.
fn is_inside(name: &str) -> bool {
    if env::var_os(VICTIM).is_some() {
        return true;
    }
    let home = tempfile::tempdir().unwrap();
    let mut victim = Command::new("sleep").arg("1000").spawn().unwrap();
    let done = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(VICTIM, victim.id().to_string())
        .env(DIRECTORY, home.path())
        .output()
        .unwrap();
    let is_alive = victim.try_wait().unwrap().is_none();
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(done.status.success(), "{done:#?}");
    assert!(String::from_utf8_lossy(&done.stdout).contains("1 passed"), "{done:#?}");
    assert!(is_alive, "the other process has ended");
    false
}

fn victim() -> libc::pid_t {
    env::var(VICTIM).unwrap().parse().unwrap()
}

fn directory() -> PathBuf {
    env::var_os(DIRECTORY).unwrap().into()
}

#[test]
fn a_sealed_process_cannot_execute_programs() {
    if is_inside("a_sealed_process_cannot_execute_programs") {
        let run = || Command::new("true").spawn().unwrap_err().kind();
        seal(Role::Exporter).unwrap();
        assert_eq!(run(), ErrorKind::PermissionDenied);
        assert_eq!(thread::spawn(run).join().unwrap(), ErrorKind::PermissionDenied);
    }
}

#[test]
fn a_thread_that_started_before_the_seal_is_also_sealed() {
    if is_inside("a_thread_that_started_before_the_seal_is_also_sealed") {
        let (sender, receiver) = std::sync::mpsc::channel();
        let before = thread::spawn(move || {
            receiver.recv().unwrap();
            Command::new("true").spawn().unwrap_err().kind()
        });
        seal(Role::Exporter).unwrap();
        sender.send(()).unwrap();
        assert_eq!(before.join().unwrap(), ErrorKind::PermissionDenied);
    }
}

#[test]
fn a_sealed_process_opens_no_file_for_writing() {
    if is_inside("a_sealed_process_opens_no_file_for_writing") {
        let new = directory().join("new");
        seal(Role::Exporter).unwrap();
        for path in [Path::new("/proc/self/mem"), Path::new("/dev/null"), &new] {
            for options in [
                OpenOptions::new().write(true),
                OpenOptions::new().append(true).create(true),
                OpenOptions::new().write(true).create_new(true),
                OpenOptions::new().read(true).write(true).create(true).truncate(true),
            ] {
                let error = options.open(path).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{options:?}");
            }
        }
        assert!(File::open("/proc/self/mem").is_ok());
    }
}

#[test]
fn the_process_for_files_replaces_files_but_reads_none_and_opens_no_existing_one() {
    let name = "the_process_for_files_replaces_files_but_reads_none_and_opens_no_existing_one";
    if is_inside(name) {
        let path = directory().join("lowtide.prom");
        fs::write(&path, "before").unwrap();
        let mut before = File::open(&path).unwrap();
        seal(Role::Files).unwrap();
        lowtide_record::files::replace_for_all(&path, b"after").unwrap();
        assert_eq!(path.metadata().unwrap().len(), 5);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut before, &mut text).unwrap();
        assert_eq!(text, "before");
        for error in [
            File::open(&path).unwrap_err(),
            OpenOptions::new().write(true).open(&path).unwrap_err(),
            OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap_err(),
            fs::create_dir(directory().join("new")).unwrap_err(),
            thread::Builder::new().spawn(|| ()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        }
    }
}

#[test]
fn a_seal_does_not_change_inspection_results() {
    if is_inside("a_seal_does_not_change_inspection_results") {
        let target = Target::open(victim() as u32).unwrap();
        while target.stat().unwrap().state != 'S' {
            thread::yield_now();
        }
        let before = Inspector::default().inspect(&target).unwrap();
        seal(Role::Exporter).unwrap();
        let sealed = Inspector::default().inspect(&target).unwrap();
        assert_eq!(sealed.ledger, before.ledger);
        assert_eq!((&sealed.allocator, &sealed.c_library), (&before.allocator, &before.c_library));
        assert!(sealed.c_library.is_some());
    }
}

/// Makes a system call, and returns its error.
#[allow(unsafe_code)]
fn call(number: libc::c_long, arguments: [usize; 6]) -> Option<i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the calls of this test take numbers, null pointers, or pointers to data that outlives
    // them. They are refused before they read any of it.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => std::io::Error::last_os_error().raw_os_error(),
        _ => None,
    }
}

#[test]
fn calls_that_change_processes_files_or_the_system_are_refused() {
    if !is_inside("calls_that_change_processes_files_or_the_system_are_refused") {
        return;
    }
    let path = directory().join("file");
    fs::write(&path, "content").unwrap();
    let file = File::open(&path).unwrap();
    let (pid, fd) = (victim() as usize, file.as_raw_fd() as usize);
    let name = c"user.x".as_ptr() as usize;
    let kill = libc::SIGKILL as usize;
    let executable = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    const FS_IOC_SETFLAGS: usize = 0x4008_6602;
    seal(Role::Exporter).unwrap();
    for (what, number, arguments) in [
        ("kill", libc::SYS_kill, [pid, kill, 0, 0, 0, 0]),
        ("tgkill", libc::SYS_tgkill, [pid, pid, kill, 0, 0, 0]),
        ("ptrace", libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, pid, 0, 0, 0, 0]),
        ("process_vm_writev", libc::SYS_process_vm_writev, [pid, 0, 0, 0, 0, 0]),
        ("fcntl F_SETOWN", libc::SYS_fcntl, [fd, libc::F_SETOWN as usize, pid, 0, 0, 0]),
        ("fcntl F_SETSIG", libc::SYS_fcntl, [fd, 10, kill, 0, 0, 0]),
        ("fcntl F_SETFL", libc::SYS_fcntl, [fd, libc::F_SETFL as usize, 0o20000, 0, 0, 0]),
        ("fchmod", libc::SYS_fchmod, [fd, 0o4777, 0, 0, 0, 0]),
        ("fchown", libc::SYS_fchown, [fd, 65534, 65534, 0, 0, 0]),
        ("fsetxattr", libc::SYS_fsetxattr, [fd, name, name, 1, 0, 0]),
        ("ioctl FS_IOC_SETFLAGS", libc::SYS_ioctl, [fd, FS_IOC_SETFLAGS, 0, 0, 0, 0]),
        ("socket", libc::SYS_socket, [1, 1, 0, 0, 0, 0]),
        ("connect", libc::SYS_connect, [fd, 0, 0, 0, 0, 0]),
        ("sched_setaffinity", libc::SYS_sched_setaffinity, [pid, 0, 0, 0, 0, 0]),
        ("sched_setscheduler", libc::SYS_sched_setscheduler, [pid, 5, 0, 0, 0, 0]),
        ("ioprio_set", libc::SYS_ioprio_set, [1, pid, 3 << 13, 0, 0, 0]),
        ("prlimit64", libc::SYS_prlimit64, [0, 0, name, 0, 0, 0]),
        ("mmap", libc::SYS_mmap, [0, 4096, executable, private, usize::MAX, 0]),
        ("mprotect", libc::SYS_mprotect, [0, 4096, executable, 0, 0, 0]),
        ("memfd_create", libc::SYS_memfd_create, [name, 0, 0, 0, 0, 0]),
        ("msgget", libc::SYS_msgget, [0, 0, 0, 0, 0, 0]),
        ("keyctl", libc::SYS_keyctl, [0, 0, 0, 0, 0, 0]),
        ("bpf", libc::SYS_bpf, [0; 6]),
        ("io_uring_setup", libc::SYS_io_uring_setup, [0; 6]),
        ("clone of a process", libc::SYS_clone, [libc::SIGCHLD as usize, 0, 0, 0, 0, 0]),
        ("unshare", libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0]),
        ("setresuid", libc::SYS_setresuid, [0; 6]),
        // getpid with `__X32_SYSCALL_BIT`
        ("an x32 call", 0x4000_0000 + libc::SYS_getpid, [0; 6]),
    ] {
        assert_eq!(call(number, arguments), Some(libc::EPERM), "{what}");
    }
    assert_eq!(call(libc::SYS_clone3, [0; 6]), Some(libc::ENOSYS));
}
