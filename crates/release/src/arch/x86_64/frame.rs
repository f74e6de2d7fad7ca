//! The layout of a signal frame: `struct rt_sigframe` and `struct ucontext`
//! (arch/x86/include/uapi/asm).

use super::super::{FrameBytes, Vectors};
use super::{Gadgets, Registers};
use crate::target_code::Restorers;

/// Size of a `struct ucontext` with the kernel's short mask, in bytes.
const CONTEXT_BYTES: usize = 304;
/// Size of a frame, with the return address of the call that leads to the next frame.
pub(crate) const FRAME_BYTES: usize = CONTEXT_BYTES + 8;
/// Bytes below the stack pointer that belong to the current function (System V ABI, AMD64).
pub(crate) const RED_ZONE: u64 = 128;
/// Invalid `ss_flags` of `sigaltstack`: `rt_sigreturn` then keeps the thread's alternate stack.
const KEEP_ALTSTACK: u64 = 7;

/// Returns the address of a system call's argument in a frame.
pub(crate) fn argument_at(frame: u64, place: usize) -> u64 {
    // rdi, rsi, rdx, r10, r8, r9 among the registers in their order there.
    const WORDS: [u64; 6] = [8, 9, 12, 2, 0, 1];
    frame + 40 + WORDS.get(place).copied().unwrap_or(1) * 8
}

/// Writes a frame from which the kernel restores registers and a signal mask.
pub(crate) fn put_frame(
    bytes: &mut FrameBytes<'_>,
    at: usize,
    registers: &Registers,
    mask: u64,
    vectors: &Vectors<'_>,
) {
    let r = registers.0;
    // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
    bytes.put(at, 7);
    bytes.put(at + 24, KEEP_ALTSTACK);
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
        bytes.put(at + 40 + n * 8, word);
    }
    // After four words about faults: the address of the extended state.
    bytes.put(at + 40 + 23 * 8, vectors.at);
    bytes.put(at + 296, mask);
}

/// Makes a call in a frame lead to the next frame, which is at `next` among the bytes, and at an
/// address.
pub(crate) fn link(
    bytes: &mut FrameBytes<'_>,
    during: &mut Registers,
    next: usize,
    address: u64,
    gadgets: &Gadgets,
) {
    during.0.rsp = address - 8;
    bytes.put(next - 8, gadgets.restore);
}

/// Writes the way of a handler that the kernel runs before the chain, which returns to its first
/// word: to an instruction that loads the stack pointer from a field that the kernel does not use,
/// and continues with the frame `interrupted`.
pub(crate) fn put_handler_path(
    bytes: &mut FrameBytes<'_>,
    interrupted: usize,
    address: u64,
    gadgets: &Gadgets,
) {
    bytes.put(interrupted - 8, gadgets.restore);
    bytes.put(0, gadgets.pop_rsp_ret);
    bytes.put(8, address - 8);
}

/// Returns whether a handler's frame is among the words of a stack. The return address alone is no
/// proof: it is also in the argument of `sigaction`, and an earlier call may have left that on the
/// stack.
pub(crate) fn has_frame(words: &[u64], restorers: &Restorers) -> bool {
    /// Distance from that word to `cs`, `gs`, `fs` and `ss` in a `struct ucontext` (uc_mcontext's
    /// 19th word).
    const SEGMENTS: usize = 1 + 5 + 18;
    const USER_CODE_64: u64 = 0x33;
    const USER_64: u64 = 0x2b << 48 | USER_CODE_64;
    words.iter().enumerate().any(|(place, word)| {
        let segments = words.get(place + SEGMENTS);
        if restorers.known.contains(word) {
            // A frame that is cut off counts.
            return segments.is_none_or(|segments| segments & 0xffff == USER_CODE_64);
        }
        // Most addresses in code that could not be read are those of calls.
        segments == Some(&USER_64) && restorers.unread.iter().any(|range| range.contains(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::FrameCall;
    use crate::remote::{FrameChain, MAX_CHAIN_BYTES, ResumeState, chain};

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
        let mut registers = Registers::zeroed();
        (registers.0.rsp, registers.0.rip) = (0x7f00_0010_0018, 0x5000);
        registers
    }

    #[test]
    fn each_signal_frame_leads_to_the_next_and_the_last_one_resumes_the_thread() {
        let gadgets = Gadgets { syscall_ret: 0x100, restore: 0x200, pop_rsp_ret: 0x300 };
        let (mut registers, mut interrupted) = (stopped(), stopped());
        (registers.0.rax, interrupted.0.rax) = (35, 4);
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
        assert!(chain.at + chain.bytes.len() as u64 <= stopped().stack() - RED_ZONE);
        assert!(chain.bytes.len() as u64 <= MAX_CHAIN_BYTES);
        let begin = chain.registers.0;
        assert_eq!(
            (begin.rip, begin.orig_rax, begin.rsp),
            (0x102, libc::SYS_rt_sigreturn as u64, chain.at)
        );

        // Without a handler: `rt_sigreturn` with the context at the stack pointer, and so on.
        let mut at = chain.at;
        for number in [9, 11] {
            let [rax, rsp, rip, mask] = context(&chain, at);
            assert_eq!((rax, rip, mask), (number, gadgets.syscall_ret, u64::MAX));
            let text = word(&chain, at + 40 + 8 * 8);
            assert_eq!(&chain.bytes[(text - chain.at) as usize..][..4], b"text");
            assert_eq!(word(&chain, rsp), gadgets.restore);
            at = rsp + 8;
        }
        assert_eq!(context(&chain, at), [35, stopped().stack(), stopped().instruction(), 0x42]);
        let timespec = word(&chain, at + 40 + 8 * 8);
        assert_eq!((word(&chain, timespec), word(&chain, timespec + 8)), (3, 4));

        assert_eq!(word(&chain, argument_at(at, 0)), timespec);
        assert_eq!((at, word(&chain, chain.at + 8) + 8), (chain.back_at, chain.interrupted_at));

        // With a handler: a `ret` to an instruction that loads the stack pointer from the next
        // word.
        assert_eq!(word(&chain, chain.at), gadgets.pop_rsp_ret);
        let other = word(&chain, chain.at + 8);
        assert_eq!(word(&chain, other), gadgets.restore);
        assert_eq!(
            context(&chain, other + 8),
            [4, stopped().stack(), stopped().instruction(), 0x42]
        );
    }

    #[test]
    fn a_restorer_address_alone_is_not_a_signal_frame() {
        const RESTORE: u64 = 0x7f12_3456_7890;
        let known = Restorers { known: vec![RESTORE], unread: Vec::new() };
        let has = |words: &[u64]| has_frame(words, &known);
        let mut words = [1; 60];
        assert!(!has(&words));
        words[10] = RESTORE;
        assert!(!has(&words));
        words[10 + 24] = 0x002b_0000_0000_0033;
        assert!(has(&words));
        // A frame that is cut off counts, and a whole one that returns into code that could not be
        // read.
        assert!(has(&words[..20]));
        let mut unread = Restorers::default();
        unread.unread.push(RESTORE - 4096..RESTORE + 4096);
        assert!(!has_frame(&words[..20], &unread));
        assert!(has_frame(&words, &unread));
    }
}
