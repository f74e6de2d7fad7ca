//! Instructions, and facts about programs for aarch64.

#![expect(unsafe_code, reason = "get_robust_list(2), and a processor instruction")]

use super::super::Gadget;

/// The machine of an ELF file.
pub(crate) const ELF_MACHINE: u16 = 183;
/// Whether only the heap of glibc is released, by our own code, in processes without filters.
pub(crate) const RELEASES_ONLY_GLIBC: bool = true;
/// `AUDIT_ARCH_AARCH64` of include/uapi/linux/audit.h.
pub(crate) const AUDIT_ARCHITECTURE: u32 = 0xc000_00b7;
/// The instruction `svc #0`.
pub(crate) const SYSCALL: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];
/// Calls in which a thread waits, and which newer processors do not have.
pub(crate) const OLDER_WAITS: &[(libc::c_long, &str)] = &[];

const SYSCALL_RET: [u8; 8] = [0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];
/// The return of a signal handler: `mov x8, #139; svc #0` (`__kernel_rt_sigreturn`).
pub(crate) const RESTORE: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// The instructions of [`Gadgets`], in their order there.
pub(crate) const GADGETS: [Gadget; 2] = [
    Gadget { bytes: &SYSCALL_RET, what: "a system call instruction" },
    Gadget { bytes: &RESTORE, what: "the return from a signal handler" },
];
/// Whether the kernel's own code (the vDSO) has the return from a signal handler.
pub(crate) const RESTORES_IN_VDSO: bool = true;

/// The addresses of these instructions in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gadgets {
    /// `svc #0; ret`.
    pub syscall_ret: u64,
    /// [`RESTORE`].
    pub restore: u64,
}

impl From<[u64; GADGETS.len()]> for Gadgets {
    fn from([syscall_ret, restore]: [u64; GADGETS.len()]) -> Self {
        Self { syscall_ret, restore }
    }
}

/// Returns the places after the system calls of a static program whose arguments no code needs
/// afterwards. None is known.
pub(crate) fn library_calls(_code: &[u8]) -> impl Iterator<Item = u64> {
    std::iter::empty()
}

/// Offset of `header.multiple_threads` in the data of a thread of glibc up to 2.31, if it is known.
pub(crate) const MULTIPLE_THREADS_AT: Option<u64> = None;

/// The addresses where a C library keeps the TID of a thread.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TidPlaces {
    /// If it is glibc.
    pub glibc: Option<u64>,
    /// If it is musl.
    pub musl: Option<u64>,
}

/// Returns the addresses where the C library keeps the TID of a thread with this data, if they are
/// data of a thread.
///
/// The data of a thread (`struct pthread`) are before the address that the thread knows, and their
/// size depends on the version. glibc tells the kernel where the list of a thread's robust locks
/// is, right after the TID (nptl/descr.h). The kernel has no such list of a thread that shares the
/// data of another one.
pub(crate) fn tid_places(tid: u32, own_data: u64, _word: impl Fn(u64) -> Option<u64>) -> TidPlaces {
    /// Distance from the TID to the head of the list: two numbers of 32 bits, and a pointer.
    const BEFORE_LIST: u64 = 16;
    /// Maximum size of a thread's data: 2.41 has 1,952 bytes.
    const MAX_BYTES: u64 = 4096;
    let (mut head, mut bytes) = (0_u64, 0_usize);
    // SAFETY: get_robust_list(2) writes an address and a size to its last two arguments, which are
    // those of numbers as large that outlive the call.
    let done =
        unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut bytes) };
    let is_before = head < own_data && own_data - head < MAX_BYTES;
    let is_list = done == 0 && head != 0 && is_before;
    TidPlaces { glibc: is_list.then(|| head - BEFORE_LIST), musl: None }
}

/// Returns whether the calling thread may read a counter: there is none that is used.
pub(crate) fn may_read_counter() -> bool {
    false
}

/// Reads the counter.
pub(crate) fn counter() -> u64 {
    0
}

/// Ends the calling process by an instruction that is none.
#[cfg(target_arch = "aarch64")]
pub(crate) fn trap() -> ! {
    // SAFETY: the instruction raises SIGILL, and does not return.
    unsafe { std::arch::asm!("udf #0", options(noreturn)) }
}
