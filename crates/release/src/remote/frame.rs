//! Chains of signal frames: a thread makes calls on the way back to where it was, without any code
//! of ours.
//!
//! When a signal handler returns (`rt_sigreturn`), the kernel restores all registers of a thread
//! from a frame on its stack. In a chain of such frames, each frame "returns" to a `syscall; ret`
//! of the C library and so makes one call, and the last frame puts the thread back to where it was.
//! The chain is complete before the thread's registers are set, once: after that, nothing more
//! needs to be done from outside.
//!
//! The layout is that of `struct rt_sigframe` and `struct ucontext` (arch/x86/include/uapi/asm).

use super::tracee::Registers;
use crate::stub::contract::NR_RT_SIGRETURN;
use crate::target_code::Gadgets;

const ALL_SIGNALS: u64 = u64::MAX;
/// Size of a `struct ucontext` with the kernel's short mask, in bytes.
const CONTEXT_BYTES: usize = 304;
/// Bytes below the stack pointer that belong to the current function (System V ABI, AMD64).
pub(crate) const RED_ZONE: u64 = 128;
/// Invalid `ss_flags` of `sigaltstack`: `rt_sigreturn` then keeps the thread's alternate stack.
const KEEP_ALTSTACK: u64 = 7;

/// A system call: its number and arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameCall {
    /// Its number on x86-64.
    pub number: u64,
    /// Its arguments; unused ones are zero.
    pub args: [u64; 6],
}

/// The state in which a thread resumes.
#[derive(Debug, Clone)]
pub(crate) struct ResumeState {
    /// Its registers after the whole chain.
    pub registers: Registers,
    /// Its registers if a handler has run before the chain.
    pub interrupted: Registers,
    /// Its signal mask.
    pub mask: u64,
    /// Its extended state, in the layout of a frame.
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
    /// The address of the context that restarts the thread's call.
    pub back_at: u64,
    /// The address of the context for a call that a handler has interrupted.
    pub interrupted_at: u64,
}

/// Returns the address of a system call's argument in a context.
pub(crate) fn argument_at(context: u64, place: usize) -> u64 {
    // rdi, rsi, rdx, r10, r8, r9 among the registers in their order there.
    const WORDS: [u64; 6] = [8, 9, 12, 2, 0, 1];
    context + 40 + WORDS.get(place).copied().unwrap_or(1) * 8
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
    let slot = 8 + CONTEXT_BYTES;
    let frames_bytes = CONTEXT_BYTES + (count + 1) * slot;
    let timespec_at = frames_bytes.next_multiple_of(16);
    let text_at = timespec_at + 16;
    let vectors_at = (text_at + text.len()).next_multiple_of(64);
    let length = vectors_at + back.vectors.len();
    let at = (stopped.rsp - RED_ZONE - length as u64) & !63;

    let mut bytes = vec![0; length];
    let mut put = |place: usize, word: u64| {
        bytes[place..place + 8].copy_from_slice(&word.to_le_bytes());
    };
    // The contexts of the calls, the one that restarts the thread's call, and the one for a
    // handler.
    let context = |n: usize| if n == 0 { 0 } else { CONTEXT_BYTES + (n - 1) * slot + 8 };
    let vectors = at + vectors_at as u64;
    let mut registers = back.registers;
    if let Some((place, [seconds, nanoseconds])) = back.timespec {
        put(timespec_at, seconds);
        put(timespec_at + 8, nanoseconds);
        set_argument(&mut registers, place, at + timespec_at as u64);
    }
    for (n, call) in calls(at + text_at as u64).iter().enumerate() {
        let mut during = *stopped;
        during.rax = call.number;
        for (place, arg) in call.args.iter().enumerate() {
            set_argument(&mut during, place, *arg);
        }
        during.rip = gadgets.syscall_ret;
        during.rsp = at + (context(n + 1) - 8) as u64;
        put_context(&mut put, context(n), &during, ALL_SIGNALS, vectors);
        put(context(n + 1) - 8, gadgets.restore);
    }
    put_context(&mut put, context(count), &registers, back.mask, vectors);
    let interrupted_at = context(count + 1);
    put(interrupted_at - 8, gadgets.restore);
    put_context(&mut put, interrupted_at, &back.interrupted, back.mask, vectors);
    // A handler that the kernel runs before the chain returns to here: to an instruction that loads
    // the stack pointer from a field that the kernel does not use, and continues there.
    put(0, gadgets.pop_rsp_ret);
    put(8, at + (interrupted_at - 8) as u64);
    bytes[text_at..text_at + text.len()].copy_from_slice(text);
    bytes[vectors_at..].copy_from_slice(&back.vectors);

    let mut begin = *stopped;
    // The kernel "restarts the call" by stepping back over a `syscall`, with this number.
    begin.orig_rax = NR_RT_SIGRETURN;
    begin.rax = code as u64;
    begin.rip = gadgets.syscall_ret + 2;
    begin.rsp = at;
    let back_at = at + context(count) as u64;
    FrameChain { at, bytes, registers: begin, back_at, interrupted_at: at + interrupted_at as u64 }
}

/// Sets one of the six arguments of a system call.
pub(crate) fn set_argument(registers: &mut Registers, place: usize, value: u64) {
    match place {
        0 => registers.rdi = value,
        1 => registers.rsi = value,
        2 => registers.rdx = value,
        3 => registers.r10 = value,
        4 => registers.r8 = value,
        _ => registers.r9 = value,
    }
}

/// Writes a `struct ucontext`.
fn put_context(
    put: &mut impl FnMut(usize, u64),
    at: usize,
    registers: &Registers,
    mask: u64,
    vectors: u64,
) {
    let r = registers;
    // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
    put(at, 7);
    put(at + 24, KEEP_ALTSTACK);
    let words = [
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.rdi,
        r.rsi,
        r.rbp,
        r.rbx,
        r.rdx,
        r.rax,
        r.rcx,
        r.rsp,
        r.rip,
        r.eflags,
        r.cs & 0xffff | (r.ss & 0xffff) << 48,
    ];
    for (n, word) in words.into_iter().enumerate() {
        put(at + 40 + n * 8, word);
    }
    // After four words about faults: the address of the extended state.
    put(at + 40 + 23 * 8, vectors);
    put(at + 296, mask);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(chain: &FrameChain, at: u64) -> u64 {
        let place = (at - chain.at) as usize;
        u64::from_le_bytes(chain.bytes[place..place + 8].try_into().unwrap())
    }

    /// Returns what the kernel restores from the context at an address: call number, stack and
    /// instruction pointer, and mask.
    fn context(chain: &FrameChain, at: u64) -> [u64; 4] {
        assert_eq!(word(chain, at + 40 + 23 * 8) % 64, 0);
        assert_eq!(word(chain, at + 24), KEEP_ALTSTACK);
        let register = |n: u64| word(chain, at + 40 + n * 8);
        [register(13), register(15), register(16), word(chain, at + 296)]
    }

    fn stopped() -> Registers {
        // SAFETY: `user_regs_struct` consists of integers, for which all zeros are valid.
        #[expect(unsafe_code, reason = "registers for a test")]
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        (registers.rsp, registers.rip) = (0x7f00_0010_0018, 0x5000);
        registers
    }

    #[test]
    fn each_signal_frame_leads_to_the_next_and_the_last_one_resumes_the_thread() {
        let gadgets = Gadgets { syscall_ret: 0x100, restore: 0x200, pop_rsp_ret: 0x300 };
        let (mut registers, mut interrupted) = (stopped(), stopped());
        (registers.rax, interrupted.rax) = (35, 4);
        let back = ResumeState {
            registers,
            interrupted,
            mask: 0x42,
            vectors: vec![9; 580],
            timespec: Some((0, [3, 4])),
        };
        let call = |number, text| FrameCall { number, args: [text, 0, 0, 0, 0, 0] };
        let chain = chain(&stopped(), -514, &gadgets, &back, b"text", |text| {
            vec![call(9, text), call(11, text)]
        });
        assert!(chain.at + chain.bytes.len() as u64 <= stopped().rsp - RED_ZONE);
        assert!(chain.bytes.len() as u64 <= MAX_CHAIN_BYTES);
        let begin = chain.registers;
        assert_eq!((begin.rip, begin.orig_rax, begin.rsp), (0x102, NR_RT_SIGRETURN, chain.at));

        // Without a handler: `rt_sigreturn` with the context at the stack pointer, and so on.
        let mut at = chain.at;
        for number in [9, 11] {
            let [rax, rsp, rip, mask] = context(&chain, at);
            assert_eq!((rax, rip, mask), (number, gadgets.syscall_ret, ALL_SIGNALS));
            let text = word(&chain, at + 40 + 8 * 8);
            assert_eq!(&chain.bytes[(text - chain.at) as usize..][..4], b"text");
            assert_eq!(word(&chain, rsp), gadgets.restore);
            at = rsp + 8;
        }
        assert_eq!(context(&chain, at), [35, stopped().rsp, stopped().rip, 0x42]);
        let timespec = word(&chain, at + 40 + 8 * 8);
        assert_eq!((word(&chain, timespec), word(&chain, timespec + 8)), (3, 4));

        assert_eq!(word(&chain, argument_at(at, 0)), timespec);
        assert_eq!((at, word(&chain, chain.at + 8) + 8), (chain.back_at, chain.interrupted_at));

        // With a handler: a `ret` to an instruction that loads the stack pointer from the next
        // word.
        assert_eq!(word(&chain, chain.at), gadgets.pop_rsp_ret);
        let other = word(&chain, chain.at + 8);
        assert_eq!(word(&chain, other), gadgets.restore);
        assert_eq!(context(&chain, other + 8), [4, stopped().rsp, stopped().rip, 0x42]);
    }
}
