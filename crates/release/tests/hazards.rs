//! Processes that a release must leave alone, recognised from outside, and processes that only look
//! like them.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

use lowtide_model::release::Hazard;
use lowtide_probe::detect::Detector;
use lowtide_probe::proc::status::Status;
use lowtide_probe::program::Sanitizer;
use lowtide_probe::target::{Target, TargetError};
use lowtide_release::testing::{
    Abort, Call, FilterAction, TargetFacts, check, check_permission, decide, filters_of, permits,
    release_observed,
};
use lowtide_release::{Options, Refusal, ReleaseError, predict_refusal};
use lowtide_testing::{Running, until_true};
use tempfile::TempDir;

/// A program of these tests, which waits. Dropping this ends it.
struct Subject {
    child: Running,
    /// The number that it has printed.
    said: u32,
    _home: TempDir,
}

impl Subject {
    fn start(mode: &str) -> Self {
        Self::built("hazards.c", &[], mode)
    }

    fn built(source: &str, arguments: &[&str], mode: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let program = support::compile(home.path(), source, arguments);
        Self::start_in(home, Command::new(program).arg(mode))
    }

    fn start_in(home: TempDir, command: &mut Command) -> Self {
        let mut child = support::start(command);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let subject = Self {
            child: child.into(),
            said: line.trim().parse().unwrap_or_default(),
            _home: home,
        };
        assert!(!line.is_empty(), "{command:?} said nothing");
        subject
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn target(&self) -> Target {
        Target::open(self.pid()).unwrap()
    }

    /// Checks it, whatever its glibc version.
    fn check(&self) -> Result<TargetFacts, Abort> {
        check(&self.target(), &mut Detector::default(), &untested())
    }

    /// Returns the reason why it is left alone.
    fn refusal(&self) -> Refusal {
        match self.check() {
            Err(Abort::Refused(refusal)) => refusal,
            other => panic!("it was not refused: {other:?}"),
        }
    }

    fn wait_for_state(&self, wanted: char) {
        until_true(&format!("state {wanted}"), || self.status().state == wanted);
    }

    fn status(&self) -> Status {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        Status::parse(&text).unwrap()
    }
}

/// Returns options that permit any glibc version.
fn untested() -> Options {
    Options { untested: true, min_privileged_age: Duration::ZERO, ..Options::default() }
}

/// A thread that this one has stopped by ptrace. Dropping this detaches it.
struct TracedThread(libc::pid_t);

impl TracedThread {
    /// Traces and stops a thread. Only the calling thread may then make requests.
    #[expect(unsafe_code, reason = "system calls that std does not have")]
    fn new(tid: u32) -> Self {
        let tid = tid as libc::pid_t;
        // SAFETY: PTRACE_SEIZE with no options and PTRACE_INTERRUPT take no pointers.
        let answers = unsafe {
            [
                libc::ptrace(libc::PTRACE_SEIZE, tid, 0_usize, 0_usize),
                libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0_usize, 0_usize),
            ]
        };
        assert_eq!(answers, [0, 0], "{}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: the status is written to a local of the right type.
        let waited = unsafe { libc::waitpid(tid, &mut status, libc::__WALL) };
        assert_eq!(waited, tid, "{}", std::io::Error::last_os_error());
        Self(tid)
    }
}

impl Drop for TracedThread {
    #[expect(unsafe_code, reason = "system calls that std does not have")]
    fn drop(&mut self) {
        // SAFETY: it takes no pointers. If the thread has ended, this only returns an error.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0_usize, 0_usize) };
    }
}

#[test]
fn an_ordinary_program_is_not_refused() {
    let facts = Subject::start("plain").check().unwrap();
    assert!(facts.detected.has_glibc_heap());
    assert!(!facts.maps.is_empty());
}

#[test]
fn an_ended_process_is_reported_as_gone_and_not_refused() {
    let mut subject = Subject::start("plain");
    let target = subject.target();
    subject.child.kill().unwrap();
    subject.child.wait().unwrap();
    let checked = check(&target, &mut Detector::default(), &untested());
    let is_gone = matches!(
        checked,
        Err(Abort::Failed(ReleaseError::Target(TargetError::Gone(pid)))) if pid == subject.pid()
    );
    assert!(is_gone, "{checked:?}");
}

#[test]
fn a_stopped_process_is_refused_until_it_is_continued() {
    let subject = Subject::start("plain");
    let signal = |name| {
        let pid = rustix::process::Pid::from_raw(subject.pid() as i32).unwrap();
        rustix::process::kill_process(pid, name).unwrap();
    };
    signal(rustix::process::Signal::STOP);
    subject.wait_for_state('T');
    assert_eq!(subject.refusal(), Refusal::Stopped { pid: subject.pid() });
    signal(rustix::process::Signal::CONT);
    subject.wait_for_state('S');
    subject.check().unwrap();
}

#[test]
fn a_process_with_a_tracer_on_any_thread_is_refused() {
    let subject = Subject::start("thread");
    let traced = Refusal::Traced { tracer: std::process::id() };
    assert_ne!(subject.said, subject.pid());
    for thread in [subject.said, subject.pid()] {
        let held = TracedThread::new(thread);
        assert_eq!(subject.refusal(), traced);
        drop(held);
        subject.check().unwrap();
    }
}

#[test]
fn a_process_with_locked_memory_outside_of_its_heap_is_not_refused() {
    let subject = Subject::start("locked");
    assert_eq!(subject.status().locked_bytes, rustix::param::page_size() as u64);
    let facts = subject.check().unwrap();
    assert_eq!((facts.locked.is_uncertain, facts.locked.unplaced_bytes), (false, 0));
}

#[test]
fn memory_that_is_locked_during_a_release_is_skipped_and_counted() {
    let subject = Subject::start("hoard");
    let is_locked = || subject.status().locked_bytes > 0;
    let mut lock_once = |_| {
        if !is_locked() {
            let pid = rustix::process::Pid::from_raw(subject.pid() as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
            until_true("the lock of its heap", is_locked);
        }
    };
    let release = release_observed(&subject.target(), &untested(), &mut lock_once).unwrap();
    assert!(release.predicted_bytes > 3 << 20, "{release:?}");
    assert_eq!((release.returned_bytes, release.passes), (0, 1), "{release:?}");
    assert!(release.skipped_ranges > 0, "{release:?}");
    // From now on, it is known.
    let again = release_observed(&subject.target(), &untested(), &mut |_| ()).unwrap();
    assert_eq!(again.hazard, Some(Hazard::Locked), "{again:?}");
}

#[test]
#[ignore = "needs root, to map a large buffer of perf events"]
fn a_process_with_pinned_memory_is_refused() {
    let subject = Subject::start("pinned");
    let bytes = subject.status().pinned_bytes;
    assert!(bytes > 0);
    assert_eq!(subject.refusal(), Refusal::Pinned { bytes });
}

/// Eight huge pages in the kernel's pool, until this is dropped.
struct HugePages(String);

impl HugePages {
    const FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    fn new() -> Self {
        let before = fs::read_to_string(Self::FILE).unwrap();
        let wanted = before.trim().parse::<u32>().unwrap() + 8;
        fs::write(Self::FILE, wanted.to_string()).expect("root");
        Self(before)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, &self.0);
    }
}

#[test]
#[ignore = "needs root, to put huge pages into the kernel's pool"]
fn only_a_heap_in_hugetlb_memory_is_refused() {
    let _pool = HugePages::new();
    let beside = Subject::start("hugetlb");
    assert_eq!(beside.status().hugetlb_bytes, 2 << 20);
    beside.check().unwrap();
    let release = release_observed(&beside.target(), &untested(), &mut |_| ()).unwrap();
    assert!(release.predicted_bytes > 3 << 20, "{release:?}");
    assert_eq!(release.returned_bytes, release.predicted_bytes, "{release:?}");
    assert_eq!(beside.status().hugetlb_bytes, 2 << 20);
    drop(beside);

    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "hazards.c", &[]);
    // `start` removes the variable.
    let mut command = Command::new("env");
    command.arg("GLIBC_TUNABLES=glibc.malloc.hugetlb=2").arg(program).arg("hoard");
    let inside = Subject::start_in(home, &mut command);
    let bytes = inside.status().hugetlb_bytes;
    assert!(bytes > 0, "glibc 2.35 or newer is needed");
    let release = release_observed(&inside.target(), &untested(), &mut |_| ()).unwrap();
    assert_eq!(release.hazard, Some(Hazard::Hugetlb), "{release:?}");
    assert_eq!(release.reason, Some(Refusal::Hugetlb { bytes }.to_string()));
}

#[test]
fn a_process_that_shares_its_memory_with_another_is_refused() {
    let subject = Subject::start("clone");
    assert_eq!(subject.refusal(), Refusal::SharedMemory { other: subject.said });
}

#[test]
fn a_process_that_waits_for_its_vfork_child_is_refused() {
    let subject = Subject::start("vfork");
    assert_ne!(subject.said, subject.pid());
    assert_eq!(subject.refusal(), Refusal::SharedMemory { other: subject.said });
}

#[test]
fn a_process_and_its_fork_are_not_mistaken_for_sharing_memory() {
    let subject = Subject::start("fork");
    subject.check().unwrap();
    check(&Target::open(subject.said).unwrap(), &mut Detector::default(), &untested()).unwrap();
}

#[test]
fn a_release_is_predicted_to_be_refused_if_no_thread_can_run_it() {
    for (mode, call, reason) in [
        ("flock", libc::SYS_flock, "in the system call flock, in which a release uses no thread"),
        ("socket", libc::SYS_recvfrom, "waits for a socket that has its own timeout"),
    ] {
        let subject = Subject::start(mode);
        until_true("it waits", || {
            let call_of = fs::read_to_string(format!("/proc/{}/syscall", subject.pid())).unwrap();
            call_of.starts_with(&format!("{call} "))
        });
        let refusal = predict_refusal(&subject.target()).unwrap();
        assert_eq!(refusal.hazard(), Hazard::NoThread, "{refusal}");
        assert!(refusal.to_string().contains(reason), "{refusal}");
    }
    assert_eq!(predict_refusal(&Subject::start("plain").target()), None);
}

#[test]
fn a_process_with_an_unknown_malloc_is_refused() {
    let subject = Subject::built("hazards.c", &["-DOWN_MALLOC"], "plain");
    assert_eq!(subject.refusal(), Refusal::Allocator { name: "unknown".to_owned() });
}

#[test]
#[ignore = "needs gcc's sanitizers (Debian: libgcc-*-dev, which gcc brings)"]
fn a_program_built_with_a_sanitizer_is_refused() {
    for (argument, sanitizer) in [
        ("-fsanitize=address", Sanitizer::Address),
        ("-fsanitize=thread", Sanitizer::Thread),
        ("-fsanitize=leak", Sanitizer::Leak),
    ] {
        let subject = Subject::built("hazards.c", &[argument], "plain");
        assert_eq!(subject.refusal(), Refusal::Sanitizer { name: sanitizer.name() });
    }
}

#[test]
#[ignore = "needs a compiler and a kernel for 32 bits too (gcc -m32)"]
fn a_32_bit_program_is_refused() {
    let arguments = ["-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pic"];
    let arguments = [&arguments[..], &["-fno-stack-protector"]].concat();
    let subject = Subject::built("bits32.c", &arguments, "plain");
    assert_eq!(subject.refusal(), Refusal::Machine);
}

#[test]
#[ignore = "needs root, or a kernel that lets users have namespaces (unshare of util-linux)"]
fn memory_sharing_is_detected_in_other_namespaces() {
    let home = tempfile::tempdir().unwrap();
    let program = support::compile(home.path(), "hazards.c", &[]);
    // unshare waits, and the program is its child: there it is the first process.
    let mut command = Command::new("unshare");
    let arguments =
        ["--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let subject = Subject::start_in(home, command.args(arguments).arg(program).arg("clone"));
    let children = format!("/proc/{0}/task/{0}/children", subject.pid());
    let inner: u32 = fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let target = Target::open(inner).unwrap();
    let checked = check(&target, &mut Detector::default(), &untested());
    // Compare with the PID that we know, not with the one that it printed.
    let Err(Abort::Refused(Refusal::SharedMemory { other })) = checked else {
        panic!("{checked:?}")
    };
    let text = fs::read_to_string(format!("/proc/{other}/status")).unwrap();
    let other = Status::parse(&text).unwrap();
    assert_eq!((subject.said, other.own_pid), (2, 2));
}

#[test]
fn the_error_for_an_untraceable_process_names_the_requirement() {
    let subject = Subject::start("undumpable");
    let target = subject.target();
    // Each thread has its own capabilities.
    let without = std::thread::spawn(move || {
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        check_permission(&target)
    });
    let Err(ReleaseError::NotPermitted { pid, needs }) = without.join().unwrap() else {
        panic!("it is permitted")
    };
    assert_eq!(pid, subject.pid());
    assert!(needs.contains("CAP_SYS_PTRACE") || needs.contains("ptrace_scope"), "{needs}");
}

#[test]
#[ignore = "needs root: CAP_SYS_ADMIN in the first user namespace, to read the filters of a thread"]
fn the_filters_of_a_thread_are_read_and_evaluated_as_the_kernel_does() {
    let own = Status::parse(&fs::read_to_string("/proc/self/status").unwrap()).unwrap();
    assert_eq!(own.seccomp, 0, "the kernel gives filters to nobody who is under one himself");
    let capabilities = rustix::thread::capabilities(None).unwrap().effective;
    let needed = rustix::thread::CapabilitySet::SYS_ADMIN;
    assert!(capabilities.contains(needed), "run it as root: it takes CAP_SYS_ADMIN");

    let subject = Subject::start("seccomp");
    assert_eq!(subject.status().seccomp, 2);
    let held = TracedThread::new(subject.pid());
    let filters = filters_of(held.0).unwrap();
    assert_eq!(filters.len(), 2);
    let call = |number: libc::c_long, first: u64| Call {
        number: number as u32,
        args: [first, 0, 0, 0, 0, 0],
        ..Call::default()
    };
    assert_eq!(decide(&filters, &call(libc::SYS_mmap, 0)), FilterAction::Allow);
    assert_eq!(decide(&filters, &call(libc::SYS_mmap, 0x0123_4000)), FilterAction::KillThread);
    assert_eq!(decide(&filters, &call(libc::SYS_madvise, 0)), FilterAction::Errno);
    assert_eq!(decide(&filters, &call(libc::SYS_madvise, 0x0123_4000)), FilterAction::KillThread);
    assert_eq!(decide(&filters, &call(libc::SYS_getrandom, 0)), FilterAction::KillProcess);

    let calls = [("mmap", call(libc::SYS_mmap, 0)), ("madvise", call(libc::SYS_madvise, 0))];
    assert_eq!(permits(held.0, 2, &calls[..1]), Ok(()));
    assert_eq!(permits(held.0, 2, &calls), Err(Refusal::Seccomp { call: "madvise" }));
}

#[test]
#[ignore = "needs root: CAP_SYS_ADMIN in the first user namespace, to read the filters of a thread"]
fn reading_filters_fails_for_an_unfiltered_thread_and_its_calls_are_permitted() {
    let subject = Subject::start("plain");
    let held = TracedThread::new(subject.pid());
    assert_eq!(filters_of(held.0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert_eq!(permits(held.0, subject.status().seccomp, &[("mmap", Call::default())]), Ok(()));
}
