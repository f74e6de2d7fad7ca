//! What is checked before anything is stopped: whether a process may be traced at all, and what can be
//! told from outside of the reasons to leave it alone.
//!
//! All of it may change the moment after. That a second tracer is there or that the process is stopped is
//! then seen by ptrace itself.

use std::fs::{self, File};
use std::io::{self, Read};

use lowtide_probe::detect::{Detected, Detector};
use lowtide_probe::inspect::{Target, TargetError};
use lowtide_probe::proc::cgroup::Groups;
use lowtide_probe::proc::is_gone;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::stat::Stat;
use lowtide_probe::proc::status::Status;
use lowtide_probe::proc::task;
use lowtide_probe::program::ProgramError;
use thiserror::Error;

use crate::{Refusal, ReleaseError};

/// The versions of glibc that releases were tortured on.
pub const TESTED: [&str; 9] =
    ["2.27", "2.31", "2.35", "2.36", "2.39", "2.41", "2.42", "2.43", "2.44"];

/// Why a release goes no further.
#[derive(Debug, Error)]
pub enum Halt {
    /// The process is left alone.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be told whether it should be.
    #[error(transparent)]
    Failed(#[from] ReleaseError),
}

impl From<TargetError> for Halt {
    fn from(error: TargetError) -> Self {
        Self::Failed(error.into())
    }
}

/// What was read for the checks.
#[derive(Debug)]
pub struct Outside {
    /// The mappings of the process.
    pub maps: Vec<Mapping>,
    /// Who manages its memory.
    pub detected: Detected,
}

/// All that can be told from outside: the process is neither stopped nor written to. What will not
/// change comes first, then what somebody could end, and last what an option permits. `untested`
/// permits versions of glibc that are not among [`TESTED`].
///
/// # Errors
/// With the first reason to leave it alone; or when it has ended, or may not be traced.
pub fn outside(target: &Target, detector: &mut Detector, untested: bool) -> Result<Outside, Halt> {
    permission(target)?;
    machine(target)?;
    let maps = target.maps().map_err(|error| failed(target, error))?;
    let detected =
        detector.detect(target.pid, &maps).map_err(|error| unrecognised(target, error))?;
    sanitizer(&detected)?;
    allocator(&detected)?;
    let status = target.status()?;
    let threads = statuses_of_threads(target)?;
    shadow_stack(&threads)?;
    hugetlb(&status)?;
    locked(&status)?;
    traced(&threads)?;
    stopped(target, &status)?;
    frozen(target)?;
    filters(&threads)?;
    shared_memory(target)?;
    if !untested {
        tested(&detected)?;
    }
    Ok(Outside { maps, detected })
}

/// Why a release would leave a process alone, as far as that can be told from outside; `None` also where it cannot
/// be looked at.
pub fn foreseen(target: &Target) -> Option<Refusal> {
    match outside(target, &mut Detector::default(), false) {
        Err(Halt::Refused(refusal)) => Some(refusal),
        Ok(_) | Err(Halt::Failed(_)) => None,
    }
}

/// Whether the filters of its system calls rule a release out, before one of its threads stands still: where each
/// thread is filtered strictly, or by filters that may not be read.
fn filters(threads: &[Status]) -> Result<(), Refusal> {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    if threads.is_empty() || threads.iter().any(|status| status.seccomp == 0) {
        return Ok(());
    }
    if threads.iter().all(|status| status.seccomp == libc::SECCOMP_MODE_STRICT) {
        return Err(Refusal::Seccomp { call: "mmap" });
    }
    let why = match Status::own() {
        Ok(own) if own.seccomp != 0 => "lowtide is filtered itself",
        Ok(own) if own.capabilities & CAP_SYS_ADMIN == 0 => "lowtide lacks CAP_SYS_ADMIN",
        _ => return Ok(()),
    };
    Err(Refusal::SeccompUnread { why: why.to_owned() })
}

/// Whether a process may be traced.
///
/// # Errors
/// When it may not, with what that takes; or it has ended.
pub fn permission(target: &Target) -> Result<(), ReleaseError> {
    // To read this takes what PTRACE_SEIZE takes, Yama's consent with it (PTRACE_MODE_ATTACH).
    match fs::read(target.path("syscall")) {
        Ok(_) => Ok(()),
        Err(error) => Err(failed(target, error)),
    }
}

/// An error in reading one of its files.
fn failed(target: &Target, error: io::Error) -> ReleaseError {
    // Both EACCES and EPERM.
    if error.kind() == io::ErrorKind::PermissionDenied && target.is_alive() {
        ReleaseError::NotPermitted { pid: target.pid, needs: needed_to_trace(target) }
    } else {
        target.failed(error).into()
    }
}

/// What it takes to trace a process, as the end of a sentence.
fn needed_to_trace(target: &Target) -> String {
    let own = rustix::process::geteuid().as_raw();
    let is_own = target.status().is_ok_and(|status| status.uid == own);
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    needs(is_own, scope.trim())
}

/// The same, of a process that is the user's own or not, under a setting of Yama
/// (Documentation/admin-guide/LSM/Yama.rst); an empty one where there is no Yama.
fn needs(is_own: bool, scope: &str) -> String {
    match scope {
        "3" => "a reboot: kernel.yama.ptrace_scope is 3, which lets nobody trace, and which stays"
            .to_owned(),
        // 1: its parents alone, unless with the capability.
        "1" | "2" => {
            format!("CAP_SYS_PTRACE, for which kernel.yama.ptrace_scope asks: it is {scope}")
        }
        // What `PR_SET_DUMPABLE` does, and a setuid program; and namespaces of users.
        _ if is_own => "CAP_SYS_PTRACE: it lets not even its own user do so".to_owned(),
        _ => "CAP_SYS_PTRACE, or to be its user".to_owned(),
    }
}

/// Whether its program is one for 64-bit x86, as lowtide itself has to be.
fn machine(target: &Target) -> Result<(), Halt> {
    const SIZE: usize = 20;
    let mut header = [0; SIZE];
    let file = File::open(target.path("exe")).and_then(|mut file| file.read_exact(&mut header));
    file.map_err(|error| failed(target, error))?;
    if cfg!(target_arch = "x86_64") && is_x86_64(&header) {
        Ok(())
    } else {
        Err(Refusal::Machine.into())
    }
}

/// Whether an ELF file is for 64-bit x86, by its first bytes. (x32 is of 32 bits.)
fn is_x86_64(header: &[u8; 20]) -> bool {
    const CLASS_64: u8 = 2;
    const EM_X86_64: u16 = 62;
    header.starts_with(b"\x7fELF")
        && header[4] == CLASS_64
        && u16::from_le_bytes([header[18], header[19]]) == EM_X86_64
}

fn unrecognised(target: &Target, error: ProgramError) -> ReleaseError {
    match error {
        ProgramError::Gone => TargetError::Gone(target.pid).into(),
        ProgramError::NotPermitted => failed(target, io::ErrorKind::PermissionDenied.into()),
        ProgramError::NotYet => {
            ReleaseError::Failed(format!("process {} is still being loaded: try again", target.pid))
        }
        ProgramError::Unknown(why) => ReleaseError::Failed(format!(
            "it cannot be told which allocator process {} has: {why}",
            target.pid
        )),
    }
}

fn sanitizer(detected: &Detected) -> Result<(), Refusal> {
    match detected.sanitizer {
        Some(sanitizer) => Err(Refusal::Sanitizer { name: sanitizer.name() }),
        None => Ok(()),
    }
}

/// Whether what the program allocates is glibc's. One that brings an allocator of its own is refused even
/// if its `malloc` is glibc's: next to nothing lies there, and nobody should believe that it was tried.
fn allocator(detected: &Detected) -> Result<(), Refusal> {
    let name = match detected.allocator() {
        Some(_) if detected.own.is_none() && detected.has_glibc_heap() => return Ok(()),
        Some(other) => other.kind.to_string(),
        None => match detected.runtimes.first() {
            Some(runtime) => format!("{}'s own", runtime.kind.name()),
            None => "unknown".to_owned(),
        },
    };
    Err(Refusal::Allocator { name })
}

/// Whether its glibc is of a version that was tortured.
fn tested(detected: &Detected) -> Result<(), Refusal> {
    let version = detected.malloc.as_ref().and_then(|malloc| malloc.version.as_deref());
    if version.is_some_and(is_tested) {
        return Ok(());
    }
    let version = version.unwrap_or("of a version that could not be told").to_owned();
    Err(Refusal::Untested { version, tested: TESTED.join(", ") })
}

/// By major and minor number: what distributions put behind does not matter.
fn is_tested(version: &str) -> bool {
    let numbers = |text: &str| {
        let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    let wanted = numbers(version);
    wanted.is_some() && TESTED.iter().any(|tested| numbers(tested) == wanted)
}

/// Of each of its threads; of those that end meanwhile none.
fn statuses_of_threads(target: &Target) -> Result<Vec<Status>, ReleaseError> {
    let threads = task::threads(target.pid).map_err(|error| target.failed(error))?;
    let mut statuses = Vec::with_capacity(threads.len());
    for thread in threads {
        match thread.status() {
            Ok(status) => statuses.push(status),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(target.failed(error).into()),
        }
    }
    Ok(statuses)
}

/// A thread gets a shadow stack or not when it starts, and not all of a process need have one.
fn shadow_stack(threads: &[Status]) -> Result<(), Refusal> {
    match threads.iter().any(|status| status.shadow_stack) {
        true => Err(Refusal::ShadowStack),
        false => Ok(()),
    }
}

fn hugetlb(status: &Status) -> Result<(), Refusal> {
    match status.hugetlb_bytes {
        0 => Ok(()),
        bytes => Err(Refusal::Hugetlb { bytes }),
    }
}

fn locked(status: &Status) -> Result<(), Refusal> {
    // A device goes on with the pages that were pinned, whatever the process has there by then.
    match status.locked_bytes.max(status.pinned_bytes) {
        0 => Ok(()),
        bytes => Err(Refusal::Locked { bytes }),
    }
}

/// Threads are traced one by one: a debugger may have only some. One that is outside of lowtide's PID
/// namespace is not seen here; then PTRACE_SEIZE is not permitted.
fn traced(threads: &[Status]) -> Result<(), Refusal> {
    match threads.iter().find(|status| status.tracer != 0) {
        Some(status) => Err(Refusal::Traced { tracer: process_of(status.tracer) }),
        None => Ok(()),
    }
}

/// The process that a thread is of; its own number where that cannot be told any more.
fn process_of(thread: u32) -> u32 {
    let text = fs::read(format!("/proc/{thread}/status")).unwrap_or_default();
    match Status::parse(&String::from_utf8_lossy(&text)) {
        Ok(status) if status.process != 0 => status.process,
        _ => thread,
    }
}

fn stopped(target: &Target, status: &Status) -> Result<(), Refusal> {
    match status.is_stopped() {
        true => Err(Refusal::Stopped { pid: target.pid }),
        false => Ok(()),
    }
}

/// Whether the freezer of control groups holds it. Where the groups' own files are not to be seen, as in a container,
/// the function of the kernel in which its first thread waits tells that for most (`do_freezer_trap` of
/// kernel/signal.c, `__refrigerator` of kernel/freezer.c).
///
/// # Errors
/// When it does.
pub fn frozen(target: &Target) -> Result<(), Refusal> {
    let is_frozen = Groups::read(target.pid).ok().and_then(|groups| groups.is_frozen());
    let waits_there = || {
        let place = fs::read_to_string(target.path("wchan"));
        place.is_ok_and(|name| matches!(name.as_str(), "__refrigerator" | "do_freezer_trap"))
    };
    if is_frozen.unwrap_or_else(waits_there) { Err(Refusal::Frozen) } else { Ok(()) }
}

/// Whether another process has the same memory: made by `clone(CLONE_VM)`, or by `vfork` as long as it
/// has not started another program.
///
/// # Errors
/// With one that has; or when the process itself has ended.
pub fn shared_memory(target: &Target) -> Result<(), Halt> {
    let image = target.stat()?.image;
    let others = fs::read_dir("/proc").map_err(|error| target.failed(error))?;
    for other in others.flatten() {
        let Some(pid) = other.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The same program at the same random address: its own memory, or that of a fork. One whose
        // image may not be seen has another one: whoever shares memory and has other rights takes the
        // sight of it from the target too (`commit_creds`, `set_dumpable`).
        let stat = if pid == target.pid { None } else { stat_of(pid) };
        if stat.is_some_and(|stat| stat.image == image && !stat.has_ended())
            && has_same_memory(target, pid)?
        {
            return Err(Refusal::SharedMemory { other: pid }.into());
        }
    }
    Ok(())
}

fn stat_of(pid: u32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    Stat::parse(&String::from_utf8_lossy(&text)).ok()
}

/// Whether two processes with the same image have the same memory.
fn has_same_memory(target: &Target, other: u32) -> Result<bool, Halt> {
    match compare_memory(target.pid, other) {
        Ok(is_same) => Ok(is_same),
        Err(error) if is_gone(&error) => Ok(false),
        // The kernel has no kcmp, or a filter of containers keeps it from lowtide. Of forks, at least
        // one of these counts is soon another.
        Err(_) => {
            let counts = |stat: Stat| (stat.vsz_bytes, stat.rss_pages);
            let own = counts(target.stat()?);
            Ok(stat_of(other).is_some_and(|stat| counts(stat) == own))
        }
    }
}

/// Asks the kernel whether two processes have the same memory (kcmp(2)).
#[expect(unsafe_code, reason = "kcmp(2), which neither libc nor rustix wraps")]
fn compare_memory(one: u32, other: u32) -> io::Result<bool> {
    /// `KCMP_VM` of include/uapi/linux/kcmp.h.
    const KCMP_VM: libc::c_long = 1;
    let (one, other) = (libc::c_long::from(one), libc::c_long::from(other));
    // SAFETY: with KCMP_VM, kcmp takes only numbers, each as large as the `long` as which the variadic
    // `syscall` reads it, and changes nothing.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_u64, 0_u64) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer == 0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use lowtide_model::allocator_kind::AllocatorKind;
    use lowtide_model::inspection::Linkage;
    use lowtide_model::runtime_kind::RuntimeKind;
    use lowtide_probe::detect::{DetectedAllocator, DetectedRuntime, OwnMemory};

    fn named(name: &str, version: Option<&str>) -> Option<DetectedAllocator> {
        Some(DetectedAllocator {
            kind: AllocatorKind::parse(name),
            version: version.map(str::to_owned),
            linkage: Linkage::Dynamic,
            path: PathBuf::new(),
        })
    }

    fn with_malloc(name: &str, version: Option<&str>) -> Detected {
        Detected { malloc: named(name, version), ..Detected::default() }
    }

    #[test]
    fn versions_are_compared_by_their_first_two_numbers() {
        for version in ["2.36", "2.36-9+deb12u14", "2.31.9000", "2.44"] {
            assert!(is_tested(version), "{version}");
        }
        for version in ["2.3", "2.360", "2.30", "3.36", "2", "", "2.", "x", "99999999999.1"] {
            assert!(!is_tested(version), "{version:?}");
        }
    }

    #[test]
    fn a_glibc_that_was_never_tortured_is_refused_with_those_that_were() {
        assert_eq!(tested(&with_malloc("glibc", Some("2.41"))), Ok(()));
        let refused = tested(&with_malloc("glibc", Some("2.30"))).unwrap_err().to_string();
        assert!(
            refused.contains("its glibc is 2.30") && refused.contains("2.27, 2.31"),
            "{refused}"
        );
        let refused = tested(&with_malloc("glibc", None)).unwrap_err();
        assert!(matches!(refused, Refusal::Untested { .. }), "{refused}");
    }

    #[test]
    fn who_serves_the_program_itself_is_named_where_that_is_not_glibc() {
        let name = |detected: &Detected| match allocator(detected) {
            Err(Refusal::Allocator { name }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(allocator(&with_malloc("glibc", None)), Ok(()));
        assert_eq!(name(&with_malloc("musl", None)), "musl");
        assert_eq!(name(&Detected::default()), "unknown");
        let of_go =
            DetectedRuntime { kind: RuntimeKind::Go, version: None, memory: OwnMemory::None };
        let go = Detected { runtimes: vec![of_go], ..Detected::default() };
        assert_eq!(name(&go), "Go's own");
        let redis = Detected { own: named("jemalloc", None), ..with_malloc("glibc", None) };
        assert_eq!(name(&redis), "jemalloc");
    }

    #[test]
    fn a_sanitizer_is_named() {
        use lowtide_probe::program::Sanitizer;
        let detected =
            Detected { sanitizer: Some(Sanitizer::Memory), ..with_malloc("glibc", None) };
        let refused = Err(Refusal::Sanitizer { name: "MemorySanitizer" });
        assert_eq!(sanitizer(&detected), refused);
    }

    #[test]
    fn one_thread_with_a_shadow_stack_or_a_tracer_is_enough() {
        let plain = Status::default();
        assert_eq!((shadow_stack(&[plain]), traced(&[plain])), (Ok(()), Ok(())));
        let shadowed = Status { shadow_stack: true, ..plain };
        assert_eq!(shadow_stack(&[plain, shadowed]), Err(Refusal::ShadowStack));
        let second = Status { tracer: u32::MAX, ..plain };
        assert_eq!(traced(&[plain, second]), Err(Refusal::Traced { tracer: u32::MAX }));
    }

    #[test]
    fn only_programs_for_64_bit_x86_pass() {
        let mut header = [0; 20];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[18] = 62;
        assert!(is_x86_64(&header));
        let other = |at: usize, byte| {
            let mut header = header;
            header[at] = byte;
            is_x86_64(&header)
        };
        // x32, aarch64, s390x's high byte, no ELF.
        assert!(!other(4, 1) && !other(18, 183) && !other(19, 1) && !other(0, b'#'));
    }

    #[test]
    fn what_tracing_takes_names_the_capability_and_the_setting() {
        assert_eq!(needs(false, ""), "CAP_SYS_PTRACE, or to be its user");
        assert!(needs(true, "0").contains("not even its own user"));
        for scope in ["1", "2"] {
            let needs = needs(true, scope);
            assert!(needs.contains("CAP_SYS_PTRACE") && needs.ends_with(scope), "{needs}");
        }
        assert!(needs(true, "3").contains("reboot"));
    }

    #[test]
    fn a_process_has_its_own_memory_and_not_its_childs() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let own = std::process::id();
        assert!(compare_memory(own, own).unwrap());
        assert!(!compare_memory(own, child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(&compare_memory(own, child.id()).unwrap_err()));
    }
}
