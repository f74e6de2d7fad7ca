//! State of a thread beside its general registers.

use std::io;

use super::registers::read_set;

const NT_PRFPREG: usize = 2;
const NT_ARM_TAGGED_ADDR_CTRL: usize = 0x409;
const NT_ARM_ZA: usize = 0x40c;
const NT_ARM_GCS: usize = 0x410;
/// Size of the record of the vector registers in a frame, in bytes.
pub(super) const RECORD_BYTES: usize = 8 + 8 + VECTOR_BYTES;
/// Size of the 32 registers of 128 bits.
const VECTOR_BYTES: usize = 512;

/// Reads the vector registers of a stopped thread, in the layout of a frame, without the head of
/// the record. A thread in a system call has no more than these: the kernel preserves nothing of
/// SVE beyond them, and ends the streaming mode of SME.
///
/// # Errors
/// Fails if the thread has ended.
pub(crate) fn vectors(tid: i32) -> io::Result<Option<Vec<u8>>> {
    // `struct user_fpsimd_state`: the registers, fpsr and fpcr, and two unused words.
    let mut state = [0_u8; VECTOR_BYTES + 16];
    let bytes = read_set(tid, NT_PRFPREG, &mut state)?;
    let (registers, control) = state.split_at(VECTOR_BYTES);
    // `struct fpsimd_context` has fpsr and fpcr first.
    Ok((bytes == state.len()).then(|| [&control[..8], registers].concat()))
}

/// Returns what a stopped thread uses that a release was not tested with: memory tags, a guarded
/// control stack, or the matrix of SME.
///
/// # Errors
/// Fails if the thread has ended, or if that cannot be read.
pub(crate) fn hazard(tid: i32) -> io::Result<Option<&'static str>> {
    /// `PR_MTE_TCF_SYNC` and `PR_MTE_TCF_ASYNC`: tags are checked.
    const CHECKS_TAGS: u64 = 6;
    /// Size of a `struct user_za_header` without the matrix.
    const ZA_HEADER_BYTES: u32 = 16;
    let tags: u64 = read_first(tid, NT_ARM_TAGGED_ADDR_CTRL)?;
    if tags & CHECKS_TAGS != 0 {
        return Ok(Some("memory tags (MTE)"));
    }
    if read_first::<u64>(tid, NT_ARM_GCS)? != 0 {
        return Ok(Some("a guarded control stack (GCS)"));
    }
    if read_first::<u32>(tid, NT_ARM_ZA)? > ZA_HEADER_BYTES {
        return Ok(Some("the matrix of SME (ZA)"));
    }
    Ok(None)
}

/// Reads the first number of a set of registers; 0 if the processor or the kernel has no such set.
fn read_first<T: Copy + Default>(tid: i32, set: usize) -> io::Result<T> {
    let mut value = T::default();
    match read_set(tid, set, &mut value) {
        Ok(_) => Ok(value),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENODEV | libc::ENODATA | libc::EIO) => Ok(T::default()),
            _ => Err(error),
        },
    }
}
