//! The callee-saved registers in the frames of a stack. The exception tables describe where called
//! functions have saved them.

use std::ops::Range;

use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindSection, X86_64,
};

use super::bpf::REGISTERS;

/// The callee-saved registers, in the order of `struct pt_regs`, as in a sample.
const PRESERVED: [Register; REGISTERS] =
    [X86_64::R15, X86_64::R14, X86_64::R13, X86_64::R12, X86_64::RBP, X86_64::RBX];

/// The place where a function has saved a register when it calls another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SavedPlace {
    /// Not saved: the value is still in the register.
    InRegister,
    /// In the stack, at a distance from the end of the frame, in bytes.
    InFrame(i64),
    /// The tables do not describe it in a simple form.
    Unknown,
}

/// Returns where the function at an address has saved the callee-saved registers. `table` and
/// `index` are `.eh_frame` and `.eh_frame_hdr` of its file, with their addresses.
pub(super) fn saved(
    table: (&Range<u64>, &[u8]),
    index: (&Range<u64>, &[u8]),
    address: u64,
) -> Option<[SavedPlace; REGISTERS]> {
    let bases =
        BaseAddresses::default().set_eh_frame(table.0.start).set_eh_frame_hdr(index.0.start);
    let frames = EhFrame::new(table.1, LittleEndian);
    let index = EhFrameHdr::new(index.1, LittleEndian).parse(&bases, 8).ok()?;
    let mut context = UnwindContext::new();
    let row = index
        .table()?
        .unwind_info_for_address(
            &frames,
            &bases,
            &mut context,
            address,
            EhFrame::<EndianSlice<'_, LittleEndian>>::cie_from_offset,
        )
        .ok()?;
    Some(PRESERVED.map(|register| match row.register(register) {
        None | Some(RegisterRule::SameValue) => SavedPlace::InRegister,
        Some(RegisterRule::Offset(distance)) => SavedPlace::InFrame(distance),
        _ => SavedPlace::Unknown,
    }))
}
