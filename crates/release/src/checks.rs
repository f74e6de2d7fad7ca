//! Checks from outside, before any thread is stopped: whether the process may be traced at all, and
//! whether there is a reason to leave it alone.
//!
//! The results can become stale at any moment. ptrace itself then detects a second tracer or a
//! stopped process.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::release::Method;
use lowtide_probe::detect::{Detected, DetectedAllocator, Detector};
use lowtide_probe::heap;
use lowtide_probe::libraries::{Libraries, LibraryHeap};
use lowtide_probe::locked::LockedMemory;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::permission::{Access, required};
use lowtide_probe::proc::cgroup::Groups;
use lowtide_probe::proc::freezer::is_frozen;
use lowtide_probe::proc::kcmp::{Resource, compare};
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::stat::Stat;
use lowtide_probe::proc::status::Status;
use lowtide_probe::proc::task::{self, Thread};
use lowtide_probe::proc::{is_gone, pids};
use lowtide_probe::program::ProgramError;
use lowtide_probe::source::ProcessSource;
use lowtide_probe::target::{Target, TargetError};

use crate::arch::{ELF_MACHINE, RELEASES_ONLY_GLIBC};
use crate::error::{Abort, ReleaseError};
use crate::filters::check_filters;
use crate::options::Options;
use crate::refusal::Refusal;

/// Maximum number of heaps of libraries that one release acts on.
const MAX_LIBRARY_HEAPS: usize = 4;

/// Facts about the target that the checks have read.
#[derive(Debug, Clone)]
pub struct TargetFacts {
    /// The mappings of the process.
    pub maps: Arc<Vec<Mapping>>,
    /// The allocator and runtimes that manage its memory.
    pub detected: Detected,
    /// The allocators that libraries contain for their own use, with the names of these libraries,
    /// once they were asked for.
    pub(crate) libraries: OnceCell<Vec<(String, DetectedAllocator)>>,
    /// Its locked memory, which a release leaves alone.
    pub locked: LockedMemory,
}

/// Checks a process from outside: it is neither stopped nor written to. Permanent reasons to leave
/// it alone are checked first, then temporary ones, and last those that an option overrides.
///
/// # Errors
/// Returns the first reason to leave the process alone. Fails if it has ended or may not be traced.
pub fn check(
    target: &Target,
    detector: &mut Detector,
    options: &Options,
) -> Result<TargetFacts, Abort> {
    check_permission(target)?;
    let maps = target.maps().map_err(|error| failed(target, error))?;
    check_machine(target, &maps)?;
    let detected =
        detector.detect(target.pid, &maps).map_err(|error| unrecognised(target, error))?;
    check_sanitizer(&detected)?;
    let libraries = OnceCell::new();
    let mut has_library_heap = || {
        let find = || library_allocators(target, &maps, &detected, detector, options);
        let mut found = libraries.get_or_init(find).iter();
        found.any(|(_, found)| check_library_heap(found, &detected, options).is_ok())
    };
    check_any(
        &detected,
        |allocator| check_allocator(allocator, &detected, options),
        &mut has_library_heap,
    )?;
    let status = target.status()?;
    let threads = statuses_of_threads(target)?;
    check_shadow_stack(&threads)?;
    options.hold.check()?;
    let locked = LockedMemory::find(target, &status, &maps);
    check_pinned(&status, &locked)?;
    check_traced(&threads)?;
    check_stopped(target, &status)?;
    check_frozen(target)?;
    check_filters(&threads, options)?;
    check_call(&threads, options)?;
    check_shared_memory(target)?;
    check_any(
        &detected,
        |allocator| check_heap(allocator, &detected, options),
        &mut has_library_heap,
    )?;
    Ok(TargetFacts { maps: Arc::new(maps), detected, libraries, locked })
}

/// Returns the file with the C library that a release of an allocator's heap uses.
pub(crate) fn c_library_of<'d>(
    detected: &'d Detected,
    allocator: &'d DetectedAllocator,
) -> Option<&'d Path> {
    match allocator.kind {
        AllocatorKind::Glibc => Some(&allocator.path),
        _ => detected.c_library_path.as_deref(),
    }
}

/// Checks whether a process may be traced.
///
/// # Errors
/// Fails with the missing right if it may not, or if the process has ended.
pub fn check_permission(target: &Target) -> Result<(), ReleaseError> {
    // Reading this file requires the same as PTRACE_SEIZE, including Yama's consent
    // (PTRACE_MODE_ATTACH).
    match fs::read(target.path("syscall")) {
        Ok(_) => Ok(()),
        Err(error) => Err(failed(target, error)),
    }
}

/// Translates an error from reading one of the target's files.
fn failed(target: &Target, error: io::Error) -> ReleaseError {
    // Both EACCES and EPERM.
    if error.kind() == io::ErrorKind::PermissionDenied && target.is_alive() {
        ReleaseError::NotPermitted { pid: target.pid, needs: required(target.pid, Access::Trace) }
    } else {
        target.failed(error).into()
    }
}

/// Checks that the program is for the processor that lowtide itself is for. Its file is opened like
/// all that are mapped: a file system that does not answer would not let lowtide end.
fn check_machine(target: &Target, maps: &[Mapping]) -> Result<(), Abort> {
    const SIZE: usize = 20;
    let mut header = [0; SIZE];
    let source = ProcessSource::from(target.pid);
    let read = source.program(maps).map_err(ProgramError::from).and_then(|program| {
        let file = source.open(program.ok_or(ProgramError::NotYet)?)?;
        Ok(file.read_exact_at(&mut header, 0)?)
    });
    read.map_err(|error| unrecognised(target, error))?;
    if is_for(&header, ELF_MACHINE) { Ok(()) } else { Err(Refusal::Machine.into()) }
}

/// Returns whether an ELF file is a 64-bit one for a machine, by its first bytes. (x32 has 32-bit
/// ELF files.)
fn is_for(header: &[u8; 20], machine: u16) -> bool {
    const CLASS_64: u8 = 2;
    header.starts_with(b"\x7fELF")
        && header[4] == CLASS_64
        && u16::from_le_bytes([header[18], header[19]]) == machine
}

pub(crate) fn unrecognised(target: &Target, error: ProgramError) -> ReleaseError {
    match error {
        ProgramError::Gone => TargetError::Gone(target.pid).into(),
        ProgramError::NotPermitted => failed(target, io::ErrorKind::PermissionDenied.into()),
        ProgramError::NotYet => {
            ReleaseError::Failed(format!("process {} is still being loaded: try again", target.pid))
        }
        ProgramError::Unknown(why) => ReleaseError::Failed(format!(
            "the allocator of process {} could not be determined: {why}",
            target.pid
        )),
    }
}

fn check_sanitizer(detected: &Detected) -> Result<(), Refusal> {
    match detected.sanitizer {
        Some(sanitizer) => Err(Refusal::Sanitizer { name: sanitizer.name() }),
        None => Ok(()),
    }
}

/// Returns the allocators of a process whose heaps a release acts on, the one that serves the
/// program itself first.
pub(crate) fn allocators(detected: &Detected) -> impl Iterator<Item = &DetectedAllocator> {
    [&detected.own, &detected.malloc].into_iter().flatten()
}

/// Checks that a release may act on the heap of at least one allocator.
///
/// # Errors
/// Returns the reason against the heap of the program itself.
fn check_any(
    detected: &Detected,
    check: impl FnMut(&DetectedAllocator) -> Result<(), Refusal>,
    has_library_heap: impl FnOnce() -> bool,
) -> Result<(), Refusal> {
    let mut checked = allocators(detected).map(check);
    let Some(first) = checked.next() else {
        let name = match detected.runtimes.first() {
            Some(runtime) => format!("{}'s own", runtime.kind.name()),
            None => "unknown".to_owned(),
        };
        return Err(Refusal::Allocator { name });
    };
    match first {
        Err(_) if checked.any(|other| other.is_ok()) || has_library_heap() => Ok(()),
        first => first,
    }
}

/// Checks that a release may act on the heap of an allocator.
///
/// # Errors
/// Returns the reason against it.
pub(crate) fn check_heap(
    allocator: &DetectedAllocator,
    detected: &Detected,
    options: &Options,
) -> Result<(), Refusal> {
    // A purge does not depend on the structures of the allocator.
    match options.untested || options.method == Some(Method::Purge) {
        true => check_allocator(allocator, detected, options),
        false => check_library_heap(allocator, detected, options),
    }
}

/// Checks that a release may act on the heap of an allocator that a library contains. It must be of
/// a tested version: `--untested` is about the allocators of the program.
///
/// # Errors
/// Returns the reason against it.
pub(crate) fn check_library_heap(
    allocator: &DetectedAllocator,
    detected: &Detected,
    options: &Options,
) -> Result<(), Refusal> {
    check_allocator(allocator, detected, options)?;
    check_version(allocator)
}

/// Returns the allocators that libraries contain for their own use, with the names of these
/// libraries: at most [`MAX_LIBRARY_HEAPS`]. Those that the caller did not select are left out.
pub(crate) fn library_allocators(
    target: &Target,
    maps: &[Mapping],
    detected: &Detected,
    detector: &mut Detector,
    options: &Options,
) -> Vec<(String, DetectedAllocator)> {
    let is_wanted =
        |kind: &AllocatorKind| options.allocators.as_ref().is_none_or(|all| all.contains(kind));
    let pid = target.pid;
    let Ok(memory) = ProcessMemory::open(pid) else { return Vec::new() };
    let memory = memory.until(&options.interrupt);
    let mappings = heap::mappings(maps);
    let libraries = Libraries::find(maps, detected);
    let mut found = Vec::new();
    if is_wanted(&AllocatorKind::Jemalloc) {
        found.extend(libraries.jemallocs(&memory, &mappings));
    }
    if is_wanted(&AllocatorKind::Mimalloc) {
        found.extend(libraries.mimalloc(&memory, detected, &mappings));
    }
    found.truncate(MAX_LIBRARY_HEAPS);
    let named = |heap: &LibraryHeap| {
        Some((heap.library().to_owned(), heap.allocator(pid, maps, detector)?))
    };
    found.iter().filter_map(named).collect()
}

/// Checks that a release supports an allocator.
fn check_allocator(
    allocator: &DetectedAllocator,
    detected: &Detected,
    options: &Options,
) -> Result<(), Refusal> {
    let name = allocator.kind.to_string();
    if allocator.kind.facts().released.is_empty() {
        return Err(Refusal::Allocator { name });
    }
    if allocator.kind != AllocatorKind::Glibc {
        if RELEASES_ONLY_GLIBC {
            return Err(Refusal::Processor { what: "another allocator" });
        }
        let c_library = detected.c_library.as_ref().map_or("unknown", |library| library.name);
        if !allocator.kind.has_known_locks(c_library) {
            return Err(Refusal::Locks { name, c_library: c_library.to_owned() });
        }
    }
    match &options.allocators {
        Some(chosen) if !chosen.contains(&allocator.kind) => Err(Refusal::NotChosen { name }),
        _ => Ok(()),
    }
}

/// Returns whether a release calls a function of the allocator: its locks and its system calls are
/// not under our control.
pub(crate) fn calls_allocator(options: &Options) -> bool {
    matches!(options.method, Some(Method::Purge | Method::Trim))
}

/// Checks that the calls of a release, or of a function of the allocator, may be made.
fn check_call(threads: &[Status], options: &Options) -> Result<(), Refusal> {
    let is_filtered = threads.iter().any(|status| status.seccomp != 0);
    if RELEASES_ONLY_GLIBC && is_filtered {
        return Err(Refusal::Processor { what: "a seccomp filter" });
    }
    if RELEASES_ONLY_GLIBC && calls_allocator(options) {
        return Err(Refusal::NoPurge { why: UNTESTED_CALL });
    }
    if calls_allocator(options) && is_filtered {
        return Err(Refusal::NoPurge { why: CALL_UNDER_FILTER });
    }
    Ok(())
}

/// The reason why no function of the allocator is called in a process under filters.
pub(crate) const CALL_UNDER_FILTER: &str =
    "its system calls are filtered, and those of the allocator's own function are unknown";

/// The reason why no function of the allocator is called on a processor.
const UNTESTED_CALL: &str =
    "calls of the allocator's own functions were not tested on this processor";

/// Checks that the version of the allocator is among those that were tested.
fn check_version(allocator: &DetectedAllocator) -> Result<(), Refusal> {
    let version = allocator.version.as_deref();
    if allocator.kind.is_tested(version) {
        return Ok(());
    }
    let tested = allocator.kind.facts().released.join(", ");
    let version = version.unwrap_or("of an unknown version").to_owned();
    Err(Refusal::Untested { name: allocator.kind.to_string(), version, tested })
}

/// Checks that its threads can run: that no debugger traces one, and that it is neither stopped nor
/// frozen.
///
/// # Errors
/// Returns the reason why they cannot. Fails if it has ended.
pub(crate) fn check_running(target: &Target) -> Result<(), Abort> {
    check_traced(&statuses_of_threads(target)?)?;
    check_stopped(target, &target.status()?)?;
    Ok(check_frozen(target)?)
}

/// Returns the status of each thread, except those that end meanwhile.
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

/// Checks that no thread has a shadow stack. Whether a thread has one is decided when it starts.
fn check_shadow_stack(threads: &[Status]) -> Result<(), Refusal> {
    match threads.iter().any(|status| status.shadow_stack) {
        true => Err(Refusal::ShadowStack),
        false => Ok(()),
    }
}

/// Checks that no device uses its memory. A device keeps using the pages that were pinned, whatever
/// the process has mapped there by then, and libraries keep freed memory registered.
fn check_pinned(status: &Status, locked: &LockedMemory) -> Result<(), Refusal> {
    match status.pinned_bytes.max(locked.unplaced_bytes) {
        0 => Ok(()),
        bytes => Err(Refusal::Pinned { bytes }),
    }
}

/// Checks that no thread is traced. Threads are traced one by one: a debugger may have only some. A
/// tracer outside of lowtide's PID namespace is invisible here; PTRACE_SEIZE then fails.
fn check_traced(threads: &[Status]) -> Result<(), Refusal> {
    match threads.iter().find(|status| status.tracer != 0) {
        Some(status) => Err(Refusal::Traced { tracer: process_of(status.tracer) }),
        None => Ok(()),
    }
}

/// Returns the PID of a thread's process, or the thread's own TID if it has ended.
fn process_of(thread: u32) -> u32 {
    match (Thread { pid: thread, tid: thread }).status() {
        Ok(status) if status.process != 0 => status.process,
        _ => thread,
    }
}

fn check_stopped(target: &Target, status: &Status) -> Result<(), Refusal> {
    match status.is_stopped() {
        true => Err(Refusal::Stopped { pid: target.pid }),
        false => Ok(()),
    }
}

/// Checks that the cgroup freezer does not hold the process. If the cgroup's files are invisible,
/// as in a container, the kernel function in which its first thread waits reveals most cases
/// (`do_freezer_trap` of kernel/signal.c, `__refrigerator` of kernel/freezer.c).
///
/// # Errors
/// Fails if it is frozen.
pub(crate) fn check_frozen(target: &Target) -> Result<(), Refusal> {
    let is_frozen = Groups::read(target.pid).ok().and_then(|groups| is_frozen(&groups));
    let waits_there = || {
        let place = fs::read_to_string(target.path("wchan"));
        place.is_ok_and(|name| matches!(name.as_str(), "__refrigerator" | "do_freezer_trap"))
    };
    if is_frozen.unwrap_or_else(waits_there) { Err(Refusal::Frozen) } else { Ok(()) }
}

/// Checks that no other process shares the memory: one made by `clone(CLONE_VM)`, or by `vfork`
/// until it starts another program.
///
/// # Errors
/// Fails if another process shares it, or if the process itself has ended.
fn check_shared_memory(target: &Target) -> Result<(), Abort> {
    let image = target.stat()?.image;
    for pid in pids().map_err(|error| target.failed(error))? {
        let pid = pid.map_err(|error| target.failed(error))?;
        // The same program at the same random address: shared memory, or that of a fork. A process
        // whose image may not be seen has a different one: a process that shares memory and changes
        // its credentials hides the target's image as well (`commit_creds`, `set_dumpable`).
        let stat = if pid == target.pid { None } else { stat_of(target, pid)? };
        if stat.is_some_and(|stat| stat.image == image && !stat.has_ended())
            && has_same_memory(target, pid)?
        {
            return Err(Refusal::SharedMemory { other: pid }.into());
        }
    }
    Ok(())
}

/// Reads the `stat` of another process; `None` if it has ended, or is kept from this user.
fn stat_of(target: &Target, pid: u32) -> Result<Option<Stat>, ReleaseError> {
    let stat = fs::read(format!("/proc/{pid}/stat"))
        .and_then(|text| Ok(Stat::parse(&String::from_utf8_lossy(&text))?));
    match stat {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(None)
        }
        Err(error) => Err(target.failed(error).into()),
    }
}

/// Returns whether two processes with the same image share their memory.
fn has_same_memory(target: &Target, other: u32) -> Result<bool, Abort> {
    match compare(target.pid, other, Resource::Memory) {
        Ok(order) => Ok(order.is_eq()),
        Err(error) if is_gone(&error) => Ok(false),
        // The kernel has no kcmp, or a container's filter denies it. After a fork, at least one of
        // these counts soon differs. Shared ones may differ too: they are read one after the other.
        Err(_) => {
            const MAX_READINGS: usize = 8;
            let counts = |stat: Stat| (stat.vsz_bytes, stat.rss_pages);
            for _ in 0..MAX_READINGS {
                let own = counts(target.stat()?);
                let Some(stat) = stat_of(target, other)? else { return Ok(false) };
                if counts(stat) == own {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Returns whether a thread has its working directory, or its root, for itself: a copy of it in a
/// new thread, or a second user of it, could make a later `setns` or `umount` fail. Unknown is no.
pub(crate) fn has_own_directories(thread: Thread) -> bool {
    thread.tid != thread.pid
        && compare(thread.pid, thread.tid, Resource::Directories).is_ok_and(Ordering::is_ne)
}

#[cfg(test)]
mod tests;
