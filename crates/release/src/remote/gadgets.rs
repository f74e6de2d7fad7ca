//! The instructions that a chain of frames needs, found in the code of the target.

use std::os::unix::fs::FileExt;

use lowtide_probe::mapped::open_mapped;
use lowtide_probe::proc::maps::Mapping;
use memchr::memmem;

use crate::refusal::Refusal;

/// The addresses of these instructions in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gadgets {
    /// `syscall; ret`.
    pub syscall_ret: u64,
    /// `mov $15, %rax; syscall`: the return of a signal handler (`__restore_rt`).
    pub restore: u64,
    /// `pop %rsp; ret`: the end of `pop %r12; ret`.
    pub pop_rsp_ret: u64,
}

const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
const RESTORE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Length of the instructions up to the end of `syscall` at [`Gadgets::restore`].
pub(super) const RESTORE_BYTES: u64 = RESTORE.len() as u64;
const POP_RSP_RET: [u8; 2] = [0x5c, 0xc3];

/// Finds all addresses to which signal handlers may return: each library that calls `rt_sigaction` has its own (up to
/// glibc 2.33, libpthread too).
pub(crate) fn restorers(pid: u32, maps: &[Mapping]) -> Vec<u64> {
    let mut found = Vec::new();
    let code = maps.iter().filter(|m| m.has_file() && m.permissions.contains('x'));
    for mapping in code {
        let Some(bytes) = code_of(pid, mapping) else { continue };
        let places = memmem::find_iter(&bytes, &RESTORE);
        found.extend(places.map(|at| mapping.start + at as u64));
    }
    found
}

/// Reads the code of a mapping from its file; `None` for the largest programs, whose system calls are in a library.
fn code_of(pid: u32, mapping: &Mapping) -> Option<Vec<u8>> {
    const MAX_BYTES: u64 = 32 << 20;
    let size = Some(mapping.size()).filter(|size| *size <= MAX_BYTES)?;
    let file = open_mapped(pid, mapping).ok()?;
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    let length = file.read_at(&mut bytes, mapping.offset).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

impl Gadgets {
    /// Searches the mapped code of one file.
    ///
    /// # Errors
    /// Fails if an instruction is missing, or if the file cannot be read.
    pub(crate) fn find(pid: u32, code: &[&Mapping]) -> Result<Self, Refusal> {
        let mut found = [None; 3];
        for mapping in code {
            let Some(bytes) = code_of(pid, mapping) else { continue };
            let wanted: [&[u8]; 3] = [&SYSCALL_RET, &RESTORE, &POP_RSP_RET];
            for (place, pattern) in found.iter_mut().zip(wanted) {
                let at = memmem::find(&bytes, pattern);
                *place = place.or(at.map(|at| mapping.start + at as u64));
            }
        }
        let one = |place: usize, what| found[place].ok_or(Refusal::Gadget { what });
        Ok(Self {
            syscall_ret: one(0, "a system call instruction")?,
            restore: one(1, "the return from a signal handler")?,
            pop_rsp_ret: one(2, "an instruction that switches stacks")?,
        })
    }
}
