//! Chains of signal frames: a thread makes calls on the way back to where it was, without any code
//! of ours.
//!
//! When a signal handler returns (`rt_sigreturn`), the kernel restores all registers of a thread
//! from a frame on its stack. In a chain of such frames, each frame "returns" to an instruction of
//! the C library that makes one call and returns, and the last frame puts the thread back to where
//! it was. The chain is complete before the thread's registers are set, once: after that, nothing
//! more needs to be done from outside. The layout of a frame is in `arch`.

use crate::arch::{self, FrameBytes, FrameCall, Gadgets, RED_ZONE, Registers, Vectors};

const ALL_SIGNALS: u64 = u64::MAX;

/// The state in which a thread resumes.
#[derive(Debug, Clone)]
pub(crate) struct ResumeState {
    /// Its registers after the whole chain.
    pub registers: Registers,
    /// Its registers if a handler has run before the chain.
    pub interrupted: Registers,
    /// Its signal mask.
    pub mask: u64,
    /// Its vector registers, in the layout of a frame.
    pub vectors: Vec<u8>,
    /// The remaining timeout: the argument that must point to it, and its seconds and nanoseconds.
    pub timespec: Option<(usize, [u64; 2])>,
}

/// A chain of frames, which is written below a thread's stack.
#[derive(Debug)]
pub(crate) struct FrameChain {
    /// The address of the bytes.
    pub at: u64,
    /// The frames and all data that they refer to.
    pub bytes: Vec<u8>,
    /// The registers with which the thread enters the chain.
    pub registers: Registers,
    /// The address of the frame that restarts the thread's call.
    pub back_at: u64,
    /// The address of the frame for a call that a handler has interrupted.
    pub interrupted_at: u64,
}

/// Maximum size of a chain in bytes.
pub(crate) const MAX_CHAIN_BYTES: u64 = 24 << 10;

/// Builds a chain of calls. `text` is data that calls point to; `calls` receives its address.
///
/// `code` is the result of the interrupted call that the kernel sees, so that it treats a handler
/// that runs before the chain as it would have done without the chain.
pub(crate) fn chain(
    stopped: &Registers,
    code: i64,
    gadgets: &Gadgets,
    back: &ResumeState,
    text: &[u8],
    calls: impl Fn(u64) -> Vec<FrameCall>,
) -> FrameChain {
    // The number of calls does not depend on the address of the text.
    let count = calls(0).len();
    // The frames of the calls, the one that restarts the thread's call, and the one for a handler.
    let frame = |n: usize| n * arch::FRAME_BYTES;
    let timespec_at = frame(count + 2).next_multiple_of(16);
    let text_at = timespec_at + 16;
    let vectors_at = (text_at + text.len()).next_multiple_of(64);
    let length = vectors_at + back.vectors.len();
    let at = (stopped.stack() - RED_ZONE - length as u64) & !63;
    let address = |place: usize| at + place as u64;

    let mut all = vec![0; length];
    all[text_at..text_at + text.len()].copy_from_slice(text);
    all[vectors_at..].copy_from_slice(&back.vectors);
    let mut bytes = FrameBytes(&mut all);
    let vectors = Vectors { at: address(vectors_at), bytes: &back.vectors };
    let mut registers = back.registers;
    if let Some((place, [seconds, nanoseconds])) = back.timespec {
        bytes.put(timespec_at, seconds);
        bytes.put(timespec_at + 8, nanoseconds);
        registers.set_argument(place, address(timespec_at));
    }
    for (n, call) in calls(address(text_at)).iter().enumerate() {
        let mut during = stopped.making(call, gadgets.syscall_ret);
        let next = frame(n + 1);
        arch::link(&mut bytes, &mut during, next, address(next), gadgets);
        arch::put_frame(&mut bytes, frame(n), &during, ALL_SIGNALS, &vectors);
    }
    let (back_place, interrupted) = (frame(count), frame(count + 1));
    arch::put_frame(&mut bytes, back_place, &registers, back.mask, &vectors);
    arch::put_frame(&mut bytes, interrupted, &back.interrupted, back.mask, &vectors);
    arch::put_handler_path(&mut bytes, interrupted, address(interrupted), gadgets);

    FrameChain {
        at,
        bytes: all,
        registers: stopped.entering_chain(gadgets, code, at),
        back_at: address(back_place),
        interrupted_at: address(interrupted),
    }
}
