//! The extended state of a thread (vector registers and the like), in the layout of a signal frame.
//!
//! The layout is that of XSAVE (Intel's Software Developer's Manual, volume 1, chapter 13), with
//! the kernel's additions (arch/x86/include/uapi/asm/sigcontext.h).

#![expect(unsafe_code, reason = "ptrace(2) of the extended state, and a processor instruction")]

use std::io;
use std::ops::Range;

use crate::remote::checked;

/// `NT_X86_XSTATE` of linux/elf.h.
const NT_X86_XSTATE: usize = 0x202;
/// Maximum size of the extended state in bytes: AVX-512 and AMX need 11 KiB.
const MAX_STATE_BYTES: usize = 16 << 10;
/// Size of the legacy part (FXSAVE), before the header.
const LEGACY_BYTES: usize = 512;
/// Minimum size: the legacy part and the header.
const MIN_BYTES: usize = 576;
/// Offset of the kernel's own words in the legacy part (`sw_reserved`).
const KERNEL_WORDS: usize = 464;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// The part with the rights of the protection keys (PKRU).
const PROTECTION_KEYS: u32 = 9;
/// Flag of the state that is too large for an ordinary frame: AMX tiles.
const TILE_DATA: u64 = 1 << 18;

/// The reason why a state cannot be put into a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unframed {
    /// Its layout is unknown.
    Unknown,
    /// It contains AMX tiles.
    Tiles,
    /// Its protection keys permit to read memory that they do not permit to write.
    WriteDenied,
}

/// Reads the vector registers of a stopped thread, in the layout of a frame; `None` if its extended
/// state cannot be put into one.
///
/// # Errors
/// Fails if the thread has ended, or if the processor has no such state.
pub(crate) fn vectors(tid: i32) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0_u8; MAX_STATE_BYTES];
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: PTRACE_GETREGSET writes at most `iov_len` bytes to `iov_base`, which points to as
    // many, and their number to `iov_len`; both outlive the call.
    checked(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut vector) })?;
    bytes.truncate(vector.iov_len);
    Ok(to_frame(&bytes).ok())
}

/// Converts an extended state that was read from a thread to the layout of a frame. It contains
/// only the parts that are in use; the kernel resets the others.
///
/// # Errors
/// Fails if the state cannot be put into a frame.
fn to_frame(state: &[u8]) -> Result<Vec<u8>, Unframed> {
    let header = state.get(LEGACY_BYTES..LEGACY_BYTES + 16).ok_or(Unframed::Unknown)?;
    let word = |at: usize| {
        header.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    let (in_use, compacted) = (word(0), word(8));
    if compacted != 0 {
        return Err(Unframed::Unknown);
    }
    if in_use & TILE_DATA != 0 {
        return Err(Unframed::Tiles);
    }
    // Our code tests whether memory can be read, and not whether it can be written.
    let rights = part_range(PROTECTION_KEYS).filter(|_| in_use >> PROTECTION_KEYS & 1 == 1);
    let rights = rights
        .and_then(|part| state.get(part)?.first_chunk())
        .map_or(0, |word| u32::from_le_bytes(*word));
    if denies_only_writes(rights) {
        return Err(Unframed::WriteDenied);
    }
    let parts = (2..63).filter(|part| in_use >> part & 1 == 1);
    let end = parts.map(part_range).try_fold(MIN_BYTES, |end, part| Some(end.max(part?.end)));
    let end = end.filter(|end| *end <= state.len()).ok_or(Unframed::Unknown)?;
    let mut frame = state[..end].to_vec();
    let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
    let end_bytes = u32::try_from(end).map_err(|_| Unframed::Unknown)?;
    put(KERNEL_WORDS, &[0; 48]);
    put(KERNEL_WORDS, &MAGIC1.to_le_bytes());
    put(KERNEL_WORDS + 4, &(end_bytes + 4).to_le_bytes());
    // The first two parts, those of FXSAVE, are always present.
    put(KERNEL_WORDS + 8, &(in_use | 3).to_le_bytes());
    put(KERNEL_WORDS + 16, &end_bytes.to_le_bytes());
    frame.extend_from_slice(&MAGIC2.to_le_bytes());
    Ok(frame)
}

/// Returns whether one of the 16 protection keys denies writes, but no reads. Each has two bits:
/// the lower one denies both.
fn denies_only_writes(rights: u32) -> bool {
    const LOWER_BITS: u32 = 0x5555_5555;
    rights >> 1 & !rights & LOWER_BITS != 0
}

/// Returns the place of a part of the state in the standard (not compacted) layout.
fn part_range(part: u32) -> Option<Range<usize>> {
    // Leaf 0xd has the size and the offset of each part.
    let leaf = cpuid(0xd, part);
    let (size, offset) = (usize::try_from(leaf.eax).ok()?, usize::try_from(leaf.ebx).ok()?);
    (size > 0 && offset >= MIN_BYTES).then_some(offset..offset + size)
}

#[allow(unused_unsafe, reason = "the function is unsafe in the oldest supported Rust only")]
fn cpuid(leaf: u32, part: u32) -> std::arch::x86_64::CpuidResult {
    // SAFETY: each processor with 64 bits has the instruction.
    unsafe { std::arch::x86_64::__cpuid_count(leaf, part) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(in_use: u64) -> Vec<u8> {
        let mut state = vec![7; 2816];
        state[LEGACY_BYTES..LEGACY_BYTES + 64].fill(0);
        state[LEGACY_BYTES..LEGACY_BYTES + 8].copy_from_slice(&in_use.to_le_bytes());
        state
    }

    #[test]
    fn a_frame_contains_the_state_in_use_and_both_magic_numbers() {
        let frame = to_frame(&state(3)).unwrap();
        assert_eq!(frame.len(), MIN_BYTES + 4);
        assert_eq!(frame[KERNEL_WORDS..KERNEL_WORDS + 4], MAGIC1.to_le_bytes());
        assert_eq!(frame[MIN_BYTES..], MAGIC2.to_le_bytes());
        assert_eq!(frame[..16], [7; 16]);
    }

    #[test]
    fn a_key_that_denies_only_writes_is_distinguished_from_one_that_denies_all() {
        // All keys but the first deny all, as in a new thread.
        assert!(
            !denies_only_writes(0x5555_5554) && !denies_only_writes(0) && !denies_only_writes(0xc)
        );
        assert!(
            denies_only_writes(0x5555_5558) && denies_only_writes(2) && denies_only_writes(1 << 31)
        );
    }

    #[test]
    fn amx_tiles_and_unknown_layouts_are_rejected() {
        assert_eq!(to_frame(&state(TILE_DATA)), Err(Unframed::Tiles));
        let mut compacted = state(3);
        compacted[LEGACY_BYTES + 15] = 0x80;
        assert_eq!(to_frame(&compacted), Err(Unframed::Unknown));
        assert_eq!(to_frame(&[0; 100]), Err(Unframed::Unknown));
    }
}
