//! Predicts what a thread's seccomp filters do to a call before it is made.
//!
//! A filter is a classic BPF program. The kernel shows it to a tracer with CAP_SYS_ADMIN that is
//! under no filter itself. It is interpreted here as in the kernel (kernel/seccomp.c).

use std::io;

use crate::Refusal;
use crate::arch::AUDIT_ARCHITECTURE;

/// A system call as a filter sees it (`struct seccomp_data` of include/uapi/linux/seccomp.h), of a
/// program for this processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// The address of the instruction after that of the call.
    pub instruction_pointer: u64,
    /// Its arguments.
    pub args: [u64; 6],
}

/// One instruction (`struct sock_filter` of include/uapi/linux/filter.h).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// Number of instructions to skip if a condition holds.
    pub if_true: u8,
    /// Number of instructions to skip if it does not.
    pub if_false: u8,
    /// The operand.
    pub operand: u32,
}

/// A seccomp filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    instructions: Vec<Instruction>,
}

/// The action of a filter on a call. If filters differ, the smallest action wins, as in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilterAction {
    /// The process is killed, also for an unknown action.
    KillProcess,
    /// The thread is killed.
    KillThread,
    /// The thread gets a SIGSYS.
    Trap,
    /// The call fails with an errno.
    Errno,
    /// A supervisor decides about the call.
    Notify,
    /// A tracer decides about the call.
    Trace,
    /// The call is made and logged.
    Log,
    /// The call is made.
    Allow,
}

impl FilterAction {
    /// Returns whether the call is made.
    pub fn is_allowed(self) -> bool {
        matches!(self, Self::Log | Self::Allow)
    }

    /// Parses a program's return value: the action is in the upper half
    /// (`SECCOMP_RET_ACTION_FULL`).
    fn from_returned(returned: u32) -> Self {
        match returned & libc::SECCOMP_RET_ACTION_FULL {
            libc::SECCOMP_RET_KILL_THREAD => Self::KillThread,
            libc::SECCOMP_RET_TRAP => Self::Trap,
            libc::SECCOMP_RET_ERRNO => Self::Errno,
            libc::SECCOMP_RET_USER_NOTIF => Self::Notify,
            libc::SECCOMP_RET_TRACE => Self::Trace,
            libc::SECCOMP_RET_LOG => Self::Log,
            libc::SECCOMP_RET_ALLOW => Self::Allow,
            _ => Self::KillProcess,
        }
    }
}

/// Maximum length of a program in the kernel (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;
/// `sizeof(struct seccomp_data)`.
const SIZE_OF_CALL: u32 = 64;

impl Filter {
    /// Creates a filter from a program that the kernel has shown. A program that the kernel would
    /// not accept kills the process here.
    pub fn new(instructions: Vec<Instruction>) -> Self {
        Self { instructions }
    }

    /// Returns its action on a call.
    pub fn decide(&self, call: &Call) -> FilterAction {
        self.run(call).map_or(FilterAction::KillProcess, FilterAction::from_returned)
    }

    /// Runs it; `None` if it contains an operation that the kernel does not permit
    /// (`seccomp_check_filter`, `bpf_check_classic`). It only jumps forward, so it terminates.
    fn run(&self, call: &Call) -> Option<u32> {
        use libc::{
            BPF_ABS, BPF_ALU, BPF_IMM, BPF_JMP, BPF_LD, BPF_LDX, BPF_LEN, BPF_MEM, BPF_MISC,
            BPF_RET, BPF_ST, BPF_STX, BPF_TAX, BPF_TXA, BPF_W,
        };
        const K: u32 = libc::BPF_K;
        const X: u32 = libc::BPF_X;
        const A: u32 = libc::BPF_A;
        let program = self.instructions.get(..self.instructions.len().min(MAX_INSTRUCTIONS))?;
        let mut memory = [0_u32; libc::BPF_MEMWORDS as usize];
        let (mut a, mut x) = (0_u32, 0_u32);
        let mut next = 0;
        loop {
            let instruction = program.get(next)?;
            let (code, k) = (u32::from(instruction.code), instruction.operand);
            let mut skip = 0;
            match code & 7 {
                BPF_LD if code == BPF_LD | BPF_W | BPF_ABS => a = call.word(k)?,
                BPF_LD if code == BPF_LD | BPF_W | BPF_LEN => a = SIZE_OF_CALL,
                BPF_LD if code == BPF_LD | BPF_IMM => a = k,
                BPF_LD if code == BPF_LD | BPF_MEM => a = *memory.get(k as usize)?,
                BPF_LDX if code == BPF_LDX | BPF_W | BPF_LEN => x = SIZE_OF_CALL,
                BPF_LDX if code == BPF_LDX | BPF_IMM => x = k,
                BPF_LDX if code == BPF_LDX | BPF_MEM => x = *memory.get(k as usize)?,
                BPF_ST if code == BPF_ST => *memory.get_mut(k as usize)? = a,
                BPF_STX if code == BPF_STX => *memory.get_mut(k as usize)? = x,
                BPF_MISC if code == BPF_MISC | BPF_TAX => x = a,
                BPF_MISC if code == BPF_MISC | BPF_TXA => a = x,
                BPF_RET if code == BPF_RET | K => return Some(k),
                BPF_RET if code == BPF_RET | A => return Some(a),
                BPF_ALU if code & !0xf8 == BPF_ALU && code != BPF_ALU | libc::BPF_NEG | X => {
                    match arithmetic(code & 0xf0, a, if code & X == X { x } else { k })? {
                        Some(result) => a = result,
                        // A division by zero ends a program, and zero kills the thread.
                        None => return Some(0),
                    }
                }
                BPF_JMP if code == BPF_JMP | libc::BPF_JA => skip = k as usize,
                BPF_JMP if code & !0xf8 == BPF_JMP => {
                    let holds = holds(code & 0xf0, a, if code & X == X { x } else { k })?;
                    skip =
                        usize::from(if holds { instruction.if_true } else { instruction.if_false });
                }
                _ => return None,
            }
            next = next.checked_add(skip)?.checked_add(1)?;
        }
    }
}

/// Computes an arithmetic instruction. The outer `None` stands for an unknown one, the inner for
/// one that ends the program. Shift counts are modulo 32, as in the kernel's interpreter.
fn arithmetic(operation: u32, a: u32, b: u32) -> Option<Option<u32>> {
    Some(Some(match operation {
        libc::BPF_ADD => a.wrapping_add(b),
        libc::BPF_SUB => a.wrapping_sub(b),
        libc::BPF_MUL => a.wrapping_mul(b),
        libc::BPF_DIV => return Some(a.checked_div(b)),
        libc::BPF_AND => a & b,
        libc::BPF_OR => a | b,
        libc::BPF_XOR => a ^ b,
        libc::BPF_LSH => a.wrapping_shl(b),
        libc::BPF_RSH => a.wrapping_shr(b),
        libc::BPF_NEG => a.wrapping_neg(),
        _ => return None,
    }))
}

/// Returns whether a condition holds; `None` for an unknown one.
fn holds(condition: u32, a: u32, b: u32) -> Option<bool> {
    Some(match condition {
        libc::BPF_JEQ => a == b,
        libc::BPF_JGT => a > b,
        libc::BPF_JGE => a >= b,
        libc::BPF_JSET => a & b != 0,
        _ => return None,
    })
}

impl Call {
    /// Returns the word at an offset into `struct seccomp_data`.
    fn word(&self, offset: u32) -> Option<u32> {
        let half = |value: u64| (value >> (8 * (offset & 4))) as u32;
        match offset {
            0 => Some(self.number),
            4 => Some(AUDIT_ARCHITECTURE),
            8 | 12 => Some(half(self.instruction_pointer)),
            16..SIZE_OF_CALL if offset.is_multiple_of(4) => {
                self.args.get((offset as usize - 16) / 8).map(|arg| half(*arg))
            }
            _ => None,
        }
    }
}

/// Returns the action of all filters of a thread on a call: it is made only if each filter allows
/// it.
pub fn decide(filters: &[Filter], call: &Call) -> FilterAction {
    filters.iter().map(|filter| filter.decide(call)).min().unwrap_or(FilterAction::Allow)
}

/// Checks whether a thread may make some calls. `mode` is the `Seccomp` of its `status`. The
/// calling thread must trace it, and it must be in a ptrace stop.
///
/// # Errors
/// Returns the first call that it may not make. Fails if its filters cannot be read.
pub fn permits(tid: i32, mode: u32, calls: &[(&'static str, Call)]) -> Result<(), Refusal> {
    let refused = |call: &(&'static str, Call)| Err(Refusal::Seccomp { call: call.0 });
    match mode {
        0 => Ok(()),
        // Only read, write, _exit and sigreturn (`mode1_syscalls`).
        libc::SECCOMP_MODE_STRICT => {
            let strict = [libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_rt_sigreturn];
            let is_strict = |call: &Call| strict.contains(&i64::from(call.number));
            calls.iter().find(|(_, call)| !is_strict(call)).map_or(Ok(()), refused)
        }
        _ => {
            let filters = filters_of(tid)
                .map_err(|error| Refusal::SeccompUnread { why: error.to_string() })?;
            let is_allowed = |call: &Call| decide(&filters, call).is_allowed();
            calls.iter().find(|(_, call)| !is_allowed(call)).map_or(Ok(()), refused)
        }
    }
}

/// Reads the filters of a thread. The calling thread must trace it, and it must be in a ptrace
/// stop.
///
/// # Errors
/// `EACCES` without CAP_SYS_ADMIN in the initial user namespace, or if lowtide is under a filter
/// itself; `EIO` from kernels without `CONFIG_CHECKPOINT_RESTORE`; `EINVAL` for a thread that is
/// not in filter mode.
pub fn filters_of(tid: i32) -> io::Result<Vec<Filter>> {
    let mut filters = Vec::new();
    loop {
        match filter_of(tid, filters.len()) {
            Ok(filter) => filters.push(filter),
            // After the last filter. A filtered thread has at least one.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) && !filters.is_empty() => {
                return Ok(filters);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads one of a thread's filters. The kernel counts from the one that was installed first
/// (`get_nth_filter`; ptrace(2) documents the opposite).
fn filter_of(tid: i32, place: usize) -> io::Result<Filter> {
    let length = get_filter(tid, place, None)?;
    // The kernel has no longer filter, so a longer answer is wrong.
    if length > MAX_INSTRUCTIONS {
        return Err(io::Error::other("the kernel reports a filter above the maximum length"));
    }
    let mut instructions = Box::new([Instruction::default(); MAX_INSTRUCTIONS]);
    // A filter that is installed never changes, and others are added after it.
    match get_filter(tid, place, Some(&mut instructions))? {
        again if again == length => Ok(Filter::new(instructions[..length].to_vec())),
        _ => Err(io::Error::other("a filter changed while it was read")),
    }
}

/// `PTRACE_SECCOMP_GET_FILTER` of include/uapi/linux/ptrace.h, which libc does not name.
const GET_FILTER: libc::c_long = 0x420c;

/// Returns the length of a filter in instructions, and copies the filter to `room`, if given. The
/// room has the size of the longest filter that the kernel accepts, whichever filter is asked for.
#[expect(unsafe_code, reason = "a ptrace request that libc has no wrapper for")]
fn get_filter(
    tid: i32,
    place: usize,
    room: Option<&mut [Instruction; MAX_INSTRUCTIONS]>,
) -> io::Result<usize> {
    let data = room.map_or(std::ptr::null_mut(), |room| room.as_mut_ptr());
    // SAFETY: with a null pointer the kernel writes nothing. Otherwise it writes the filter, which
    // has at most BPF_MAXINSNS = `MAX_INSTRUCTIONS` instructions (`seccomp_prepare_filter` in
    // kernel/seccomp.c), to an array of `MAX_INSTRUCTIONS` elements that is borrowed mutably for
    // the call. `Instruction` is `repr(C)` with the fields of `struct sock_filter`, all integers,
    // for which every bit pattern is valid.
    let length = unsafe {
        libc::syscall(libc::SYS_ptrace, GET_FILTER, libc::c_long::from(tid), place, data)
    };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MMAP: Call = Call { number: 9, instruction_pointer: 0x7f12_3456_789a, args: [0; 6] };
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

    fn instruction(code: u32, operand: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction { code: code as u16, if_true, if_false, operand }
    }

    fn filter(code: &[(u32, u32, u8, u8)]) -> Filter {
        Filter::new(code.iter().map(|(c, k, t, f)| instruction(*c, *k, *t, *f)).collect())
    }

    fn load(offset: u32) -> (u32, u32, u8, u8) {
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
    }

    fn constant(value: u32) -> (u32, u32, u8, u8) {
        (libc::BPF_LD | libc::BPF_IMM, value, 0, 0)
    }

    fn jump(condition: u32, value: u32, if_true: u8, if_false: u8) -> (u32, u32, u8, u8) {
        (libc::BPF_JMP | condition | libc::BPF_K, value, if_true, if_false)
    }

    fn ret(value: u32) -> (u32, u32, u8, u8) {
        (libc::BPF_RET | libc::BPF_K, value, 0, 0)
    }

    const RETURN_A: (u32, u32, u8, u8) = (libc::BPF_RET | libc::BPF_A, 0, 0, 0);

    #[test]
    fn an_allowlist_filter_allows_only_the_listed_calls() {
        let list = filter(&[
            load(4),
            jump(libc::BPF_JEQ, AUDIT_ARCHITECTURE, 1, 0),
            ret(KILL),
            load(0),
            jump(libc::BPF_JEQ, 9, 1, 0),
            jump(libc::BPF_JEQ, 28, 0, 1),
            ret(ALLOW),
            ret(libc::SECCOMP_RET_ERRNO | 1),
        ]);
        assert_eq!(list.decide(&MMAP), FilterAction::Allow);
        assert_eq!(list.decide(&Call { number: 28, ..MMAP }), FilterAction::Allow);
        assert_eq!(list.decide(&Call { number: 59, ..MMAP }), FilterAction::Errno);
    }

    #[test]
    fn every_word_of_a_call_is_at_the_offset_that_the_kernel_uses() {
        let call = Call {
            number: 1,
            instruction_pointer: 0x0000_0003_0000_0002,
            args: std::array::from_fn(|at| ((2 * at as u64 + 5) << 32) | (2 * at as u64 + 4)),
        };
        let words: Vec<_> = (0..16).map(|at| call.word(4 * at).unwrap()).collect();
        assert_eq!((words[0], words[1]), (1, AUDIT_ARCHITECTURE));
        assert_eq!(words[2..], (2..16).collect::<Vec<u32>>());
        for offset in [1, 2, 3, 5, 14, 18, 62, 64, 68, u32::MAX] {
            assert_eq!(call.word(offset), None, "{offset}");
        }
    }

    #[test]
    fn filter_arithmetic_matches_the_kernel() {
        let (alu, k, x) = (libc::BPF_ALU, libc::BPF_K, libc::BPF_X);
        let cases = [
            (libc::BPF_ADD, u32::MAX, 2, 1),
            (libc::BPF_SUB, 1, 2, u32::MAX),
            (libc::BPF_MUL, 0x8000_0001, 2, 2),
            (libc::BPF_DIV, 7, 2, 3),
            (libc::BPF_AND, 6, 3, 2),
            (libc::BPF_OR, 6, 3, 7),
            (libc::BPF_XOR, 6, 3, 5),
            (libc::BPF_LSH, 1, 31, 1 << 31),
            (libc::BPF_RSH, 1 << 31, 31, 1),
        ];
        for (operation, a, b, expected) in cases {
            let run = |code: &[_]| filter(code).run(&MMAP);
            let by_constant = run(&[constant(a), (alu | operation | k, b, 0, 0), RETURN_A]);
            assert_eq!(by_constant, Some(expected), "{operation:#x}");
            let by_index = run(&[
                (libc::BPF_LDX | libc::BPF_IMM, b, 0, 0),
                constant(a),
                (alu | operation | x, 0, 0, 0),
                RETURN_A,
            ]);
            assert_eq!(by_index, Some(expected), "{operation:#x}");
        }
        let negated = filter(&[constant(1), (alu | libc::BPF_NEG, 0, 0, 0), RETURN_A]);
        assert_eq!(negated.run(&MMAP), Some(u32::MAX));
    }

    #[test]
    fn a_division_by_zero_kills_the_thread_as_the_kernel_does() {
        let code = [(libc::BPF_ALU | libc::BPF_DIV | libc::BPF_X, 0, 0, 0), ret(ALLOW)];
        assert_eq!(filter(&code).decide(&MMAP), FilterAction::KillThread);
    }

    #[test]
    fn stored_words_are_loaded_back_and_registers_are_copied_both_ways() {
        let code = [
            constant(5),
            (libc::BPF_ST, 15, 0, 0),
            (libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0),
            (libc::BPF_STX, 3, 0, 0),
            constant(0),
            (libc::BPF_LD | libc::BPF_MEM, 15, 0, 0),
            (libc::BPF_LDX | libc::BPF_MEM, 3, 0, 0),
            (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0, 0, 0),
            (libc::BPF_LDX | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
            (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0, 0, 0),
            (libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0),
            (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0, 0, 0),
            (libc::BPF_MISC | libc::BPF_TXA, 0, 0, 0),
            RETURN_A,
        ];
        assert_eq!(filter(&code).run(&MMAP), Some(5 + 5 + 64));
    }

    #[test]
    fn each_conditional_jump_takes_the_right_branch() {
        let cases = [
            (libc::BPF_JEQ, 9, true),
            (libc::BPF_JEQ, 8, false),
            (libc::BPF_JGT, 8, true),
            (libc::BPF_JGT, 9, false),
            (libc::BPF_JGE, 9, true),
            (libc::BPF_JGE, 10, false),
            (libc::BPF_JSET, 0b1001, true),
            (libc::BPF_JSET, 0b0110, false),
        ];
        for (condition, value, holds) in cases {
            let code = [load(0), jump(condition, value, 0, 1), ret(1), ret(0)];
            assert_eq!(filter(&code).run(&MMAP), Some(u32::from(holds)), "{condition:#x} {value}");
        }
        let over = [(libc::BPF_JMP | libc::BPF_JA, 1, 0, 0), ret(KILL), ret(ALLOW)];
        assert_eq!(filter(&over).decide(&MMAP), FilterAction::Allow);
    }

    #[test]
    fn a_filter_that_the_kernel_would_reject_allows_no_call() {
        let odd = [
            vec![],
            vec![load(0)],
            vec![load(3), ret(ALLOW)],
            vec![load(64), ret(ALLOW)],
            // By a byte, indirect, a remainder, an index that is too large.
            vec![(0x30, 0, 0, 0), ret(ALLOW)],
            vec![(0x40, 0, 0, 0), ret(ALLOW)],
            vec![(0x94, 1, 0, 0), ret(ALLOW)],
            vec![(libc::BPF_ST, 16, 0, 0), ret(ALLOW)],
            vec![(0x1ff, 0, 0, 0), ret(ALLOW)],
            vec![(libc::BPF_JMP | libc::BPF_JA, u32::MAX, 0, 0), ret(ALLOW)],
        ];
        for code in odd {
            assert_eq!(filter(&code).decide(&MMAP), FilterAction::KillProcess, "{code:x?}");
        }
    }

    #[test]
    fn the_strictest_of_several_filters_wins() {
        // In the kernel's order (Documentation/userspace-api/seccomp_filter.rst).
        let order = [
            (libc::SECCOMP_RET_KILL_PROCESS, FilterAction::KillProcess),
            (libc::SECCOMP_RET_KILL_THREAD, FilterAction::KillThread),
            (libc::SECCOMP_RET_TRAP, FilterAction::Trap),
            (libc::SECCOMP_RET_ERRNO | 13, FilterAction::Errno),
            (libc::SECCOMP_RET_USER_NOTIF, FilterAction::Notify),
            (libc::SECCOMP_RET_TRACE, FilterAction::Trace),
            (libc::SECCOMP_RET_LOG, FilterAction::Log),
            (libc::SECCOMP_RET_ALLOW, FilterAction::Allow),
        ];
        for (at, (first, action)) in order.iter().enumerate() {
            for (second, _) in &order[at..] {
                let both = [filter(&[ret(*second)]), filter(&[ret(*first)])];
                assert_eq!(decide(&both, &MMAP), *action);
            }
            assert_eq!(action.is_allowed(), at >= 6, "{action:?}");
        }
        assert_eq!(decide(&[], &MMAP), FilterAction::Allow);
        assert_eq!(filter(&[ret(0x0001_0000)]).decide(&MMAP), FilterAction::KillProcess);
    }

    #[test]
    fn all_calls_are_permitted_without_filters_and_few_in_strict_mode() {
        let write = Call { number: libc::SYS_write as u32, ..MMAP };
        assert_eq!(permits(0, 0, &[("mmap", MMAP)]), Ok(()));
        assert_eq!(permits(0, 1, &[("write", write)]), Ok(()));
        let refused = Err(Refusal::Seccomp { call: "mmap" });
        assert_eq!(permits(0, 1, &[("write", write), ("mmap", MMAP)]), refused);
    }

    #[test]
    fn the_unreadable_filters_of_an_untraced_thread_cause_a_refusal() {
        let own = std::process::id() as i32;
        let refused = permits(own, 2, &[("mmap", MMAP)]);
        assert!(matches!(refused, Err(Refusal::SeccompUnread { .. })), "{refused:?}");
    }

    proptest! {
        #[test]
        fn any_filter_program_terminates_without_a_panic(
            code in prop::collection::vec(any::<(u8, u32, u8, u8)>(), 0..200),
            small in prop::collection::vec((0_u8..=0xb7, 0_u32..64, 0_u8..4, 0_u8..4), 0..200),
        ) {
            for code in [code, small] {
                let code: Vec<_> =
                    code.iter().map(|(c, k, t, f)| instruction(u32::from(*c), *k, *t, *f)).collect();
                let _ = Filter::new(code).decide(&MMAP);
            }
        }
    }
}
