//! The general registers of a thread, and how a call that was interrupted restarts.
//!
//! The kernel puts a thread back before its call, with the first argument, before the tracer sees
//! the stop (`do_signal` of arch/arm64/kernel/signal.c). It does not show the result of the call,
//! and it decides about a restart only if the thread still is where it was put. So a thread that
//! gets other registers must have all signals blocked: they stay pending until its wait is
//! restarted, or is ended in the way in which they would have ended it.

#![expect(unsafe_code, reason = "ptrace(2) of general registers")]

use std::io;

use lowtide_probe::proc::task::SystemCall;

use super::super::FrameCall;
use super::{Gadgets, SYSCALL};
use crate::remote::{EINTR, Wait, checked};

/// Whether all signals are blocked before a thread continues with other registers.
pub(crate) const BLOCKS_SIGNALS: bool = true;

const NT_PRSTATUS: usize = 1;
const NT_ARM_TLS: usize = 0x401;
const NT_ARM_SYSTEM_CALL: usize = 0x404;

/// Length of the instruction over which the kernel puts a thread back.
const SYSCALL_BYTES: u64 = SYSCALL.len() as u64;
/// The place of the number of a call among the registers.
const NUMBER: usize = 8;
/// The place of the address to which a function returns.
const LINK: usize = 30;

/// The general registers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Registers {
    pub(super) general: General,
    own_data: u64,
    /// Whether the thread executes instructions of 64 bits.
    is_64_bit: bool,
}

/// The kernel's layout (`struct user_pt_regs`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct General {
    pub(super) x: [u64; 31],
    pub(super) sp: u64,
    pub(super) pc: u64,
    pub(super) pstate: u64,
}

/// Reads a set of registers of a stopped thread. Returns their size.
///
/// # Errors
/// Fails if the thread has ended, or if the processor has no such set.
pub(super) fn read_set<T: Copy>(tid: i32, set: usize, value: &mut T) -> io::Result<usize> {
    let mut vector =
        libc::iovec { iov_base: std::ptr::from_mut(value).cast(), iov_len: size_of::<T>() };
    // SAFETY: PTRACE_GETREGSET writes at most `iov_len` bytes to `iov_base`, and their number to
    // `iov_len`; both outlive the call. The callers read numbers, of which all values are valid.
    checked(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, set, &raw mut vector) })?;
    Ok(vector.iov_len)
}

fn write_set<T: Copy>(tid: i32, set: usize, value: &T) -> io::Result<()> {
    let base = std::ptr::from_ref(value).cast_mut().cast();
    let mut vector = libc::iovec { iov_base: base, iov_len: size_of::<T>() };
    // SAFETY: PTRACE_SETREGSET reads at most `iov_len` bytes from `iov_base`, and writes their
    // number to `iov_len`; both outlive the call. It changes the other process, and no other memory
    // of ours.
    checked(unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid, set, &raw mut vector) })?;
    Ok(())
}

/// Reads the general registers of a stopped thread.
///
/// # Errors
/// Fails if the thread has ended.
pub(crate) fn read_registers(tid: i32) -> io::Result<Registers> {
    let mut registers = Registers::default();
    // A thread that executes instructions of 32 bits has fewer registers.
    let bytes = read_set(tid, NT_PRSTATUS, &mut registers.general)?;
    registers.is_64_bit = bytes == size_of::<General>();
    if registers.is_64_bit {
        read_set(tid, NT_ARM_TLS, &mut registers.own_data)?;
    }
    Ok(registers)
}

/// Sets the general registers of a stopped thread.
///
/// # Errors
/// Fails if the thread has ended.
pub(crate) fn write_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    write_set(tid, NT_PRSTATUS, &registers.general)
}

/// Sets the registers of a thread that has stopped at the entry of a call, and the number of the
/// call that it makes; `None`: it makes none.
///
/// # Errors
/// Fails if the thread has ended.
pub(crate) fn replace_call(tid: i32, registers: &Registers, number: Option<u64>) -> io::Result<()> {
    write_registers(tid, registers)?;
    let number = number.and_then(|number| i32::try_from(number).ok()).unwrap_or(-1);
    write_set(tid, NT_ARM_SYSTEM_CALL, &number)
}

/// Returns the registers with which to detach an unused thread, if the kernel would otherwise end
/// its wait. The arguments of another call than the expected one are not known: such a call ends
/// with EINTR, as it may after any stop (signal(7)).
pub(crate) fn if_untouched(
    registers: &Registers,
    call: &SystemCall,
    _may_restart: impl FnOnce() -> bool,
) -> Option<Registers> {
    let gives_up = Wait::from_call(call.number.into(), &call.args).is_some_and(|it| it.gives_up);
    let has_given_up = registers.general.pc == call.instruction_pointer
        && registers.returned() == EINTR
        && registers.is_in(call);
    (gives_up && has_given_up).then(|| registers.again(call))
}

impl Registers {
    /// Returns the stack pointer.
    pub(crate) fn stack(&self) -> u64 {
        self.general.sp
    }

    /// Returns the address of the next instruction.
    pub(crate) fn instruction(&self) -> u64 {
        self.general.pc
    }

    /// Returns the address of the data that the C library keeps for the thread.
    pub(crate) fn own_data(&self) -> u64 {
        self.own_data
    }

    /// Returns the result of a call that is complete.
    pub(crate) fn returned(&self) -> i64 {
        self.general.x[0].cast_signed()
    }

    /// Returns whether the thread executes instructions of 64 bits.
    pub(crate) fn is_64_bit(&self) -> bool {
        self.is_64_bit
    }

    /// Returns whether the thread was put back before the call.
    fn is_before(&self, call: &SystemCall) -> bool {
        self.general.pc == call.instruction_pointer.wrapping_sub(SYSCALL_BYTES)
    }

    /// Returns whether the thread is still in the call in which it was inspected. The first
    /// argument is known only if the thread was put back before the call.
    pub(crate) fn is_in(&self, call: &SystemCall) -> bool {
        let general = &self.general;
        let is_there = match self.is_before(call) {
            true => general.x[0] == call.args[0],
            false => general.pc == call.instruction_pointer,
        };
        is_there
            && general.x[NUMBER] == u64::from(call.number)
            && general.x[1..6] == call.args[1..]
            && general.sp == call.stack_pointer
    }

    /// Returns the result of the interrupted call: if the kernel does not show it, the one that
    /// this call has.
    pub(crate) fn result(&self, call: &SystemCall, wait: &Wait) -> i64 {
        if self.is_before(call) { wait.interrupted_result(&call.args) } else { self.returned() }
    }

    /// Returns the registers with which the thread makes the interrupted call again.
    pub(crate) fn again(&self, call: &SystemCall) -> Self {
        let mut registers = *self;
        registers.general.x[0] = call.args[0];
        registers.general.pc = call.instruction_pointer.wrapping_sub(SYSCALL_BYTES);
        registers
    }

    /// Returns the registers after the interrupted call, with a result.
    pub(crate) fn returning(&self, call: &SystemCall, result: i64) -> Self {
        let mut registers = *self;
        registers.general.x[0] = result as u64;
        registers.general.pc = call.instruction_pointer;
        registers
    }

    /// Returns registers such that the kernel sees the call interrupted, and decides about the
    /// restart: there are none.
    pub(crate) fn interrupted_again(&self, _again: &Self, _code: i64) -> Option<Self> {
        None
    }

    /// Sets one of the six arguments of a system call.
    pub(crate) fn set_argument(&mut self, place: usize, value: u64) {
        self.general.x[place.min(5)] = value;
    }

    /// Returns the registers with which a thread makes a call by an instruction at an address.
    pub(crate) fn making(&self, call: &FrameCall, instruction: u64) -> Self {
        let mut registers = *self;
        registers.general.x[..6].copy_from_slice(&call.args);
        registers.general.x[NUMBER] = call.number;
        registers.general.pc = instruction;
        registers
    }

    /// Sets the stack pointer, and the address to which a function returns.
    pub(super) fn set_return(&mut self, stack: u64, to: u64) {
        self.general.sp = stack;
        self.general.x[LINK] = to;
    }

    /// Returns the registers with which a stopped thread enters a chain of frames.
    pub(crate) fn entering_chain(&self, gadgets: &Gadgets, _code: i64, at: u64) -> Self {
        let mut registers = *self;
        registers.general.sp = at;
        registers.general.pc = gadgets.restore;
        registers
    }

    /// Returns the registers with which a stopped thread makes a call, and then continues at an
    /// address `to`, and the bytes that must be on its stack below `at`.
    pub(crate) fn entering_code(
        &self,
        gadgets: &Gadgets,
        _code: i64,
        at: u64,
        call: &FrameCall,
        to: u64,
    ) -> (Self, [u8; 0]) {
        let mut registers = self.making(call, gadgets.syscall_ret);
        registers.set_return(at, to);
        (registers, [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: SystemCall = SystemCall {
        number: 22,
        args: [3, 0x10, 1, 250, 0, 8],
        stack_pointer: 0x7000,
        instruction_pointer: 0x5004,
    };

    fn wait() -> Wait {
        Wait {
            name: "epoll_pwait",
            timeout: crate::remote::Timeout::Kept,
            gives_up: true,
            file: None,
            mask: None,
        }
    }

    /// A thread in the call, with the first register and the place where it was stopped.
    fn stopped(first: u64, pc: u64) -> Registers {
        let mut registers = Registers { is_64_bit: true, ..Registers::default() };
        registers.general.x[..6].copy_from_slice(&CALL.args);
        (registers.general.x[0], registers.general.x[NUMBER]) = (first, 22);
        (registers.general.sp, registers.general.pc) = (0x7000, pc);
        registers
    }

    #[test]
    fn a_thread_is_in_its_call_before_the_instruction_and_after_it() {
        let interrupted = stopped(EINTR as u64, 0x5004);
        assert!(stopped(3, 0x5000).is_in(&CALL) && interrupted.is_in(&CALL));
        // Another first argument, another place, another stack.
        assert!(!stopped(4, 0x5000).is_in(&CALL) && !stopped(3, 0x5008).is_in(&CALL));
        let mut other = stopped(3, 0x5000);
        other.general.sp += 16;
        assert!(!other.is_in(&CALL));
    }

    #[test]
    fn a_call_is_made_again_with_its_first_argument_wherever_the_kernel_has_put_the_thread() {
        for registers in [stopped(3, 0x5000), stopped(EINTR as u64, 0x5004)] {
            let again = registers.again(&CALL);
            assert_eq!((again.general.pc, again.general.x[0]), (0x5000, 3));
            let ended = registers.returning(&CALL, EINTR);
            assert_eq!((ended.general.pc, ended.returned()), (0x5004, EINTR));
        }
    }

    #[test]
    fn the_result_that_the_kernel_hides_is_that_of_the_call() {
        let hidden = stopped(3, 0x5000);
        let of = |name, args: [u64; 6]| {
            let call = SystemCall { args, ..CALL };
            hidden.result(&call, &Wait { name, ..wait() })
        };
        const SYS: i64 = -512;
        const NOHAND: i64 = -514;
        assert_eq!((of("read", CALL.args), of("ppoll", CALL.args)), (SYS, NOHAND));
        // A futex with a timeout never restarts after a handler.
        assert_eq!(of("futex", [1, 128, 0, 0, 0, 0]), SYS);
        assert_eq!(of("futex", [1, 128, 0, 0x10, 0, 0]), NOHAND);
        assert_eq!(stopped(EINTR as u64, 0x5004).result(&CALL, &wait()), EINTR);
    }
}
