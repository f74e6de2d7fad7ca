//! The layout of a signal frame: `struct rt_sigframe`, `struct ucontext` and `struct sigcontext`
//! (arch/arm64/include/uapi/asm). Of the records in it, a frame has only the vector registers of
//! 128 bits: a call preserves no more of them. Records that are missing change nothing.

use super::super::{FrameBytes, Vectors};
use super::{Gadgets, Registers};
use crate::target_code::Restorers;

/// Offset of `uc_stack.ss_flags`, after a `siginfo_t` of 128 bytes.
const STACK_FLAGS_AT: usize = 128 + 24;
/// Offset of the signal mask.
const MASK_AT: usize = 128 + 40;
/// Offset of the registers in `uc_mcontext`, after the address of a fault.
const REGISTERS_AT: usize = 128 + 176 + 8;
/// Offset of the first record, of the vector registers.
const RECORDS_AT: usize = 128 + 176 + 288;
/// `FPSIMD_MAGIC`, and the size of that record.
const VECTORS_HEAD: u64 = 0x4650_8001 | (super::state::RECORD_BYTES as u64) << 32;
/// Size of a frame up to the record that ends the list, in bytes.
pub(crate) const FRAME_BYTES: usize = RECORDS_AT + super::state::RECORD_BYTES + 16;
/// Bytes below the stack pointer that are left alone. The procedure call standard has none.
pub(crate) const RED_ZONE: u64 = 128;
/// Invalid `ss_flags` of `sigaltstack`: `rt_sigreturn` then keeps the thread's alternate stack.
const KEEP_ALTSTACK: u64 = 7;

/// Returns the address of a system call's argument in a frame.
pub(crate) fn argument_at(frame: u64, place: usize) -> u64 {
    frame + (REGISTERS_AT + place.min(5) * 8) as u64
}

/// Writes a frame from which the kernel restores registers and a signal mask.
pub(crate) fn put_frame(
    bytes: &mut FrameBytes<'_>,
    at: usize,
    registers: &Registers,
    mask: u64,
    vectors: &Vectors<'_>,
) {
    let general = &registers.general;
    bytes.put(at + STACK_FLAGS_AT, KEEP_ALTSTACK);
    bytes.put(at + MASK_AT, mask);
    let rest = [general.sp, general.pc, general.pstate];
    for (n, word) in general.x.iter().chain(&rest).enumerate() {
        bytes.put(at + REGISTERS_AT + n * 8, *word);
    }
    let records = at + RECORDS_AT;
    bytes.put(records, VECTORS_HEAD);
    bytes.0[records + 8..][..vectors.bytes.len()].copy_from_slice(vectors.bytes);
}

/// Makes a call in a frame lead to the next frame, which is at an address.
pub(crate) fn link(
    _bytes: &mut FrameBytes<'_>,
    during: &mut Registers,
    _next: usize,
    address: u64,
    gadgets: &Gadgets,
) {
    during.set_return(address, gadgets.restore);
}

/// Does nothing: a handler that runs before the chain returns into the chain.
pub(crate) fn put_handler_path(
    _bytes: &mut FrameBytes<'_>,
    _interrupted: usize,
    _address: u64,
    _gadgets: &Gadgets,
) {
}

/// Returns whether a handler's frame is among the words of a stack: the head of the vector
/// registers. Frames of a chain, which an earlier release has left, are none.
pub(crate) fn has_frame(words: &[u64], _restorers: &Restorers) -> bool {
    /// Distance from the stack's flags to the head, in words.
    const FROM_FLAGS: usize = (RECORDS_AT - STACK_FLAGS_AT) / 8;
    let is_ours = |place: usize| {
        let flags = place.checked_sub(FROM_FLAGS).and_then(|place| words.get(place));
        flags.is_some_and(|flags| *flags == KEEP_ALTSTACK)
    };
    let is_head = |(place, word): (usize, &u64)| *word == VECTORS_HEAD && !is_ours(place);
    words.iter().enumerate().any(is_head)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets are those that a compiler computes of the kernel's structures.
    #[test]
    fn a_frame_has_the_layout_of_the_kernel() {
        let mut registers = Registers::default();
        for (n, register) in registers.general.x.iter_mut().enumerate() {
            *register = 100 + n as u64;
        }
        (registers.general.sp, registers.general.pc) = (0x7000, 0x5000);
        registers.general.pstate = 0x6000_0000;
        let mut all = vec![0; 2 * FRAME_BYTES];
        let vectors = [7; super::super::state::RECORD_BYTES - 8];
        let vectors = Vectors { at: 0, bytes: &vectors };
        put_frame(&mut FrameBytes(&mut all), FRAME_BYTES, &registers, 0x42, &vectors);
        let frame = &all[FRAME_BYTES..];
        let word = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().unwrap());
        let context = 128;
        assert_eq!((word(context + 24), word(context + 40)), (7, 0x42));
        let machine = context + 176;
        assert_eq!((word(machine + 8), word(machine + 8 + 30 * 8)), (100, 130));
        assert_eq!((word(machine + 256), word(machine + 264)), (0x7000, 0x5000));
        assert_eq!(word(machine + 272), 0x6000_0000);
        let record = machine + 288;
        assert_eq!(word(record), 528 << 32 | 0x4650_8001);
        assert!(frame[record + 8..record + 528].iter().all(|byte| *byte == 7));
        // The record that ends the list.
        assert_eq!((word(record + 528), FRAME_BYTES), (0, record + 544));
        assert_eq!(argument_at(0x1000, 3), 0x1000 + machine as u64 + 8 + 24);
    }

    #[test]
    fn a_frame_of_a_handler_is_found_and_one_of_a_chain_is_not() {
        let mut words = vec![1; 200];
        let has = |words: &[u64]| has_frame(words, &Restorers::default());
        assert!(!has(&words));
        words[100] = VECTORS_HEAD;
        assert!(has(&words));
        words[100 - (RECORDS_AT - STACK_FLAGS_AT) / 8] = KEEP_ALTSTACK;
        assert!(!has(&words));
    }
}
