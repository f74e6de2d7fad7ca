//! Instructions, and facts about programs for x86-64.

use memchr::memmem;

use super::super::Gadget;

/// The machine of an ELF file.
pub(crate) const ELF_MACHINE: u16 = 62;
/// Whether only the heap of glibc is released, by our own code, in processes without filters.
pub(crate) const RELEASES_ONLY_GLIBC: bool = false;
/// `AUDIT_ARCH_X86_64` of include/uapi/linux/audit.h.
pub(crate) const AUDIT_ARCHITECTURE: u32 = 0xc000_003e;
/// The instruction `syscall`.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Calls in which a thread waits, and which newer processors do not have.
pub(crate) const OLDER_WAITS: &[(libc::c_long, &str)] = &[
    (libc::SYS_poll, "poll"),
    (libc::SYS_select, "select"),
    (libc::SYS_pause, "pause"),
    (libc::SYS_epoll_wait, "epoll_wait"),
];

const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
const POP_RSP_RET: [u8; 2] = [0x5c, 0xc3];
/// The return of a signal handler: `mov $15, %rax; syscall` (`__restore_rt`).
pub(crate) const RESTORE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// The instructions of [`Gadgets`], in their order there.
pub(crate) const GADGETS: [Gadget; 3] = [
    Gadget { bytes: &SYSCALL_RET, what: "a system call instruction" },
    Gadget { bytes: &RESTORE, what: "the return from a signal handler" },
    Gadget { bytes: &POP_RSP_RET, what: "an instruction that switches stacks" },
];
/// Whether the kernel's own code (the vDSO) has the return from a signal handler.
pub(crate) const RESTORES_IN_VDSO: bool = false;

/// The addresses of these instructions in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gadgets {
    /// `syscall; ret`.
    pub syscall_ret: u64,
    /// [`RESTORE`].
    pub restore: u64,
    /// `pop %rsp; ret`: the end of `pop %r12; ret`.
    pub pop_rsp_ret: u64,
}

impl From<[u64; GADGETS.len()]> for Gadgets {
    fn from([syscall_ret, restore, pop_rsp_ret]: [u64; GADGETS.len()]) -> Self {
        Self { syscall_ret, restore, pop_rsp_ret }
    }
}

/// Returns the places after the system calls of a static program whose arguments no code needs
/// afterwards. Each is followed by the return of a function with six arguments and the number of
/// the call.
pub(crate) fn library_calls(code: &[u8]) -> impl Iterator<Item = u64> {
    /// The load of the last argument from the stack: `mov n(%rsp), %r9`.
    const LAST_ARGUMENT: [u8; 4] = [0x4c, 0x8b, 0x4c, 0x24];
    /// Maximum distance from there to the call, in bytes.
    const WITHIN: usize = 24;
    let calls = memmem::find_iter(code, &SYSCALL_RET).filter(|call| {
        let before = &code[call.saturating_sub(WITHIN)..*call];
        memmem::find(before, &LAST_ARGUMENT).is_some()
    });
    calls.map(|call| (call + SYSCALL.len()) as u64)
}

/// Offset of `header.multiple_threads` in the data of a thread of glibc up to 2.31, if it is known.
pub(crate) const MULTIPLE_THREADS_AT: Option<u64> = Some(0x18);

/// Returns the addresses where the C library keeps the TID of a thread with this data, if they are
/// data of a thread. `word` reads a word of the process.
pub(crate) fn tid_places(_tid: u32, own_data: u64, word: impl Fn(u64) -> Option<u64>) -> TidPlaces {
    /// Place of the TID in the data of a thread (`struct pthread`) of glibc, in bytes.
    const AT_OF_GLIBC: u64 = 0x2d0;
    /// The same of musl.
    const AT_OF_MUSL: u64 = 0x30;
    // The first word of the data is their own address.
    if own_data == 0 || word(own_data) != Some(own_data) {
        return TidPlaces::default();
    }
    TidPlaces { glibc: own_data.checked_add(AT_OF_GLIBC), musl: own_data.checked_add(AT_OF_MUSL) }
}

/// The addresses where a C library keeps the TID of a thread.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TidPlaces {
    /// If it is glibc.
    pub glibc: Option<u64>,
    /// If it is musl.
    pub musl: Option<u64>,
}

/// Ends the calling process by an instruction that is none.
#[expect(unsafe_code, reason = "a processor instruction")]
pub(crate) fn trap() -> ! {
    // SAFETY: the instruction raises SIGILL, and does not return.
    unsafe { std::arch::asm!("ud2", options(noreturn)) }
}

/// Returns what a stopped thread uses that a release was not tested with. Such state is found from
/// outside, or does not fit into a frame.
pub(crate) fn hazard(_tid: i32) -> std::io::Result<Option<&'static str>> {
    Ok(None)
}
