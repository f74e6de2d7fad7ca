//! bpf(2), and the memory of maps that is shared with this process.

#![expect(
    unsafe_code,
    reason = "bpf(2), which no library here wraps, and memory that is shared with the kernel"
)]

use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::assembler::BpfInstruction;

/// Commands of bpf(2) (`enum bpf_cmd`).
const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
/// `BPF_PROG_TYPE_KPROBE`.
const KPROBE: u32 = 2;
/// `BPF_TRACE_UPROBE_MULTI`.
const UPROBE_MULTI: u32 = 48;
/// `BPF_F_UPROBE_MULTI_RETURN`.
const AT_RETURN: u32 = 1;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;
/// `BPF_MAP_TYPE_ARRAY` and `BPF_MAP_TYPE_RINGBUF`.
const ARRAY: u32 = 2;
const RINGBUF: u32 = 27;
/// License of the program: only programs under the GPL may call `bpf_probe_read_user`. The same
/// text is under MIT as well.
const LICENSE: &CStr = c"Dual MIT/GPL";

/// The start of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
    flags: u32,
}

/// The same for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

/// The same for `BPF_LINK_CREATE` with `uprobe_multi`.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    reference_counters: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    padding: u32,
}

/// Calls bpf(2), and returns the new file descriptor.
///
/// # Safety
/// `Attributes` must have the layout of the kernel's attributes for the command, and each address
/// in it must point to as much memory as the command reads or writes.
unsafe fn make<Attributes>(command: libc::c_long, attributes: &Attributes) -> io::Result<OwnedFd> {
    let at = ptr::from_ref(attributes);
    // SAFETY: the kernel reads only the bytes of `attributes`; the caller is responsible for the
    // addresses in it.
    let made = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<Attributes>()) };
    let made = i32::try_from(made).map_err(io::Error::other)?;
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: these commands return a new file descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Creates an array of one value, which this process can map.
pub(super) fn create_array(value_bytes: usize) -> io::Result<OwnedFd> {
    let attributes = MapCreate {
        kind: ARRAY,
        key_bytes: 4,
        value_bytes: value_bytes as u32,
        max_entries: 1,
        flags: MMAPABLE,
    };
    // SAFETY: the layout is that of the command, and there is no address.
    unsafe { make(MAP_CREATE, &attributes) }
}

/// Creates a ring buffer. Its size must be a power of two, and whole pages.
pub(super) fn create_ring(bytes: usize) -> io::Result<OwnedFd> {
    let attributes = MapCreate { kind: RINGBUF, max_entries: bytes as u32, ..MapCreate::default() };
    // SAFETY: the layout is that of the command, and there is no address.
    unsafe { make(MAP_CREATE, &attributes) }
}

/// Loads a program for user-space probes. With `is_multi`, these are the probes of [`attach`].
pub(super) fn load(instructions: &[BpfInstruction], is_multi: bool) -> io::Result<OwnedFd> {
    let attributes = ProgLoad {
        kind: KPROBE,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        name: *b"lowtide_returns\0",
        expected_attach_type: if is_multi { UPROBE_MULTI } else { 0 },
        ..ProgLoad::default()
    };
    // SAFETY: the layout is that of the command; the instructions and the text of the licence
    // outlive the call.
    unsafe { make(PROG_LOAD, &attributes) }
}

/// Where a probe fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fires {
    /// When the functions at the offsets return.
    AtReturn,
    /// When the instructions at the offsets are executed.
    AtInstruction,
}

/// Runs a program whenever a process reaches one of some offsets in a file, until the file
/// descriptor is closed.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
    pid: u32,
    fires: Fires,
) -> io::Result<OwnedFd> {
    let attributes = LinkCreate {
        program: program.as_raw_fd() as u32,
        attach_type: UPROBE_MULTI,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        count: offsets.len() as u32,
        multi_flags: if fires == Fires::AtReturn { AT_RETURN } else { 0 },
        pid,
        ..LinkCreate::default()
    };
    // SAFETY: the layout is that of the command; the path and the offsets outlive the call, and
    // `count` is the number of offsets.
    unsafe { make(LINK_CREATE, &attributes) }
}

/// Pages of a map that are shared with this process.
#[derive(Debug)]
pub(crate) struct SharedPages {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the pages are bound to no thread; they are accessed with atomic operations, or as the
// kernel's protocol requires.
unsafe impl Send for SharedPages {}

impl SharedPages {
    /// Maps pages of a map.
    pub(crate) fn new(
        map: impl AsFd,
        offset: usize,
        bytes: usize,
        is_writable: bool,
    ) -> io::Result<Self> {
        let writable = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let protection = ProtFlags::READ | writable;
        // SAFETY: the kernel chooses an unused address, and the map exists as long as it is mapped.
        let start = unsafe {
            mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, map, offset as u64)
        }?;
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, bytes })
    }

    /// Returns a word, which the kernel may change.
    ///
    /// # Panics
    /// Panics if the word is not within the pages.
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.bytes, "word {index} of {} bytes", self.bytes);
        // SAFETY: the word lies within the pages, which stay mapped as long as `self`, and it is
        // aligned, because pages are. All references to it are atomic.
        unsafe { &*self.start.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Copies bytes.
    ///
    /// # Panics
    /// Panics if they are not within the pages.
    pub(super) fn copy(&self, at: usize, to: &mut [u8]) {
        assert!(at.checked_add(to.len()).is_some_and(|end| end <= self.bytes), "{at} {}", to.len());
        // SAFETY: the bytes lie within the pages. `to` is as long and does not overlap them,
        // because there is no reference to the pages. The kernel overwrites a submitted sample only
        // after this process has marked it as consumed.
        unsafe {
            ptr::copy_nonoverlapping(
                self.start.as_ptr().cast::<u8>().add(at),
                to.as_mut_ptr(),
                to.len(),
            );
        }
    }

    /// Reads the word at an offset of the ring buffer, and acquires all that was written before it.
    pub(crate) fn load(&self, at: usize) -> u64 {
        self.word(at / 8).load(Ordering::Acquire)
    }

    /// Writes the word at an offset, after all that was read before.
    pub(crate) fn store(&self, at: usize, value: u64) {
        self.word(at / 8).store(value, Ordering::Release);
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: `new` mapped these pages, and no reference to them is left.
        let _ = unsafe { munmap(self.start.as_ptr(), self.bytes) };
    }
}
