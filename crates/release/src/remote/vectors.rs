//! The extended state of a thread (vector registers and the like), as a signal's frame holds it.
//!
//! The layout is XSAVE's (Intel's Software Developer's Manual, volume 1, chapter 13), and what the kernel
//! adds to it (arch/x86/include/uapi/asm/sigcontext.h).

/// Before the header: what FXSAVE lays out.
const LEGACY_BYTES: usize = 512;
/// With the header.
const LEAST_BYTES: usize = 576;
/// Where in the legacy part the kernel has its own words (`sw_reserved`).
const KERNEL_WORDS: usize = 464;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// The state that is too large for an ordinary frame: AMX tiles.
const TILE_DATA: u64 = 1 << 18;

/// Why a state cannot be put into a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unframed {
    /// It is not laid out as it should be.
    Unknown,
    /// It holds AMX tiles.
    Tiles,
}

/// What a frame holds for an extended state that was read from a thread: only the parts that are in use,
/// for the kernel sets the others to what they are at first.
///
/// # Errors
/// When it is not known how to put it into a frame.
pub(crate) fn framed(state: &[u8]) -> Result<Vec<u8>, Unframed> {
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
    let parts = (2..63).filter(|part| in_use >> part & 1 == 1);
    let end = parts.map(part_end).try_fold(LEAST_BYTES, |end, part| Some(end.max(part?)));
    let end = end.filter(|end| *end <= state.len()).ok_or(Unframed::Unknown)?;
    let mut framed = state[..end].to_vec();
    let mut put = |at: usize, bytes: &[u8]| framed[at..at + bytes.len()].copy_from_slice(bytes);
    let end_bytes = u32::try_from(end).map_err(|_| Unframed::Unknown)?;
    put(KERNEL_WORDS, &[0; 48]);
    put(KERNEL_WORDS, &MAGIC1.to_le_bytes());
    put(KERNEL_WORDS + 4, &(end_bytes + 4).to_le_bytes());
    // The first two, which FXSAVE has, are always there.
    put(KERNEL_WORDS + 8, &(in_use | 3).to_le_bytes());
    put(KERNEL_WORDS + 16, &end_bytes.to_le_bytes());
    framed.extend_from_slice(&MAGIC2.to_le_bytes());
    Ok(framed)
}

/// Where a part of the state ends in the layout that is not compacted.
#[cfg(target_arch = "x86_64")]
fn part_end(part: u32) -> Option<usize> {
    // Leaf 0xd tells of each part how large it is and where it begins.
    let told = std::arch::x86_64::__cpuid_count(0xd, part);
    let (size, offset) = (usize::try_from(told.eax).ok()?, usize::try_from(told.ebx).ok()?);
    (size > 0 && offset >= LEAST_BYTES).then_some(offset + size)
}

#[cfg(not(target_arch = "x86_64"))]
fn part_end(_part: u32) -> Option<usize> {
    None
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
    fn a_frame_holds_what_is_in_use_between_its_two_marks() {
        let framed = framed(&state(3)).unwrap();
        assert_eq!(framed.len(), LEAST_BYTES + 4);
        assert_eq!(framed[KERNEL_WORDS..KERNEL_WORDS + 4], MAGIC1.to_le_bytes());
        assert_eq!(framed[LEAST_BYTES..], MAGIC2.to_le_bytes());
        assert_eq!(framed[..16], [7; 16]);
    }

    #[test]
    fn tiles_and_layouts_that_are_not_known_are_left_alone() {
        assert_eq!(framed(&state(TILE_DATA)), Err(Unframed::Tiles));
        let mut compacted = state(3);
        compacted[LEGACY_BYTES + 15] = 0x80;
        assert_eq!(framed(&compacted), Err(Unframed::Unknown));
        assert_eq!(framed(&[0; 100]), Err(Unframed::Unknown));
    }
}
