//! The general registers of a thread, and how a call that was interrupted restarts.
//!
//! The kernel shows the tracer the result of an interrupted call (`-ERESTART…`). It restarts the
//! call after the stop, by the registers that the thread then has: also another call.

#![expect(unsafe_code, reason = "ptrace(2) of general registers")]

use std::io;

use lowtide_probe::proc::task::SystemCall;

use super::super::{FrameCall, SYSCALL_BYTES};
use super::Gadgets;
use crate::remote::{Wait, checked};

/// Whether all signals are blocked before a thread continues with other registers. Otherwise the
/// kernel treats a handler that runs first like one that interrupts the call.
pub(crate) const BLOCKS_SIGNALS: bool = false;

/// The general registers, in the kernel's layout (`struct user_regs_struct`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registers(pub(super) libc::user_regs_struct);

/// Reads the general registers of a stopped thread.
///
/// # Errors
/// Fails if the thread has ended.
pub(crate) fn read_registers(tid: i32) -> io::Result<Registers> {
    let mut registers = Registers::zeroed();
    // SAFETY: PTRACE_GETREGS writes a `struct user_regs_struct` to its last argument, which
    // points to one that outlives the call.
    checked(unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, 0_usize, &raw mut registers.0) })?;
    Ok(registers)
}

/// Sets the general registers of a stopped thread.
///
/// # Errors
/// Fails if the thread has ended.
pub(crate) fn write_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    // SAFETY: PTRACE_SETREGS reads a `struct user_regs_struct` from its last argument, which
    // points to one that outlives the call. It changes the other process and no memory of ours.
    checked(unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0_usize, &raw const registers.0) })?;
    Ok(())
}

/// Sets the registers of a thread that has stopped at the entry of a call, and the number of the
/// call that it makes; `None`: it makes none.
///
/// # Errors
/// Fails if the thread has ended.
pub(crate) fn replace_call(tid: i32, registers: &Registers, number: Option<u64>) -> io::Result<()> {
    let mut registers = *registers;
    registers.0.orig_rax = number.unwrap_or(u64::MAX);
    write_registers(tid, &registers)
}

/// Returns the registers with which to detach an unused thread, if the kernel would otherwise end
/// its wait, or make a call that its filters may not permit.
pub(crate) fn if_untouched(
    registers: &Registers,
    _call: &SystemCall,
    may_restart: impl FnOnce() -> bool,
) -> Option<Registers> {
    let r = registers.0;
    let args = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
    let code = crate::remote::result_if_untouched(r.orig_rax, &args, r.rax as i64, may_restart)?;
    Some(Registers(libc::user_regs_struct { rax: code as u64, ..r }))
}

impl Registers {
    /// Registers that are all zero.
    pub(crate) fn zeroed() -> Self {
        // SAFETY: `user_regs_struct` consists of integers, for which all zeros are valid.
        Self(unsafe { std::mem::zeroed() })
    }

    /// Returns the stack pointer.
    pub(crate) fn stack(&self) -> u64 {
        self.0.rsp
    }

    /// Returns the address of the next instruction.
    pub(crate) fn instruction(&self) -> u64 {
        self.0.rip
    }

    /// Returns the address of the data that the C library keeps for the thread.
    pub(crate) fn own_data(&self) -> u64 {
        self.0.fs_base
    }

    /// Returns the result of a call that is complete.
    pub(crate) fn returned(&self) -> i64 {
        self.0.rax.cast_signed()
    }

    /// Returns whether the thread executes instructions of 64 bits.
    pub(crate) fn is_64_bit(&self) -> bool {
        const USER_CODE_64: u64 = 0x33;
        self.0.cs == USER_CODE_64
    }

    /// Returns whether the thread is still in the call in which it was inspected.
    pub(crate) fn is_in(&self, call: &SystemCall) -> bool {
        let r = &self.0;
        r.orig_rax == u64::from(call.number)
            && [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] == call.args
            && r.rsp == call.stack_pointer
            && r.rip == call.instruction_pointer
    }

    /// Returns the result of the interrupted call, as the kernel sees it.
    pub(crate) fn result(&self, _call: &SystemCall, _wait: &Wait) -> i64 {
        self.returned()
    }

    /// Returns the registers with which the thread makes the interrupted call again.
    pub(crate) fn again(&self, _call: &SystemCall) -> Self {
        let r = self.0;
        Self(libc::user_regs_struct {
            rip: r.rip - SYSCALL_BYTES,
            rax: r.orig_rax,
            orig_rax: u64::MAX,
            ..r
        })
    }

    /// Returns the registers after the interrupted call, with a result.
    pub(crate) fn returning(&self, _call: &SystemCall, result: i64) -> Self {
        Self(libc::user_regs_struct { rax: result as u64, orig_rax: u64::MAX, ..self.0 })
    }

    /// Returns the registers of a thread that is about to make its call `again`, such that the
    /// kernel sees the call interrupted with a result, and decides about the restart; `None` where
    /// there are none.
    pub(crate) fn interrupted_again(&self, again: &Self, code: i64) -> Option<Self> {
        let r = self.0;
        Some(Self(libc::user_regs_struct {
            rip: r.rip + SYSCALL_BYTES,
            orig_rax: again.0.rax,
            rax: code as u64,
            ..r
        }))
    }

    /// Sets one of the six arguments of a system call.
    pub(crate) fn set_argument(&mut self, place: usize, value: u64) {
        let r = &mut self.0;
        match place {
            0 => r.rdi = value,
            1 => r.rsi = value,
            2 => r.rdx = value,
            3 => r.r10 = value,
            4 => r.r8 = value,
            _ => r.r9 = value,
        }
    }

    /// Returns the registers with which a thread makes a call by an instruction at an address.
    pub(crate) fn making(&self, call: &FrameCall, instruction: u64) -> Self {
        let mut registers = *self;
        registers.0.rax = call.number;
        registers.0.orig_rax = u64::MAX;
        registers.0.rip = instruction;
        for (place, arg) in call.args.into_iter().enumerate() {
            registers.set_argument(place, arg);
        }
        registers
    }

    /// Returns the registers with which a stopped thread enters a chain of frames. `code` is the
    /// result of its call that the kernel sees.
    pub(crate) fn entering_chain(&self, gadgets: &Gadgets, code: i64, at: u64) -> Self {
        // The kernel "restarts the call" by stepping back over a `syscall`, with this number.
        Self(libc::user_regs_struct {
            orig_rax: libc::SYS_rt_sigreturn as u64,
            rax: code as u64,
            rip: gadgets.syscall_ret + SYSCALL_BYTES,
            rsp: at,
            ..self.0
        })
    }

    /// Returns the registers with which a stopped thread makes a call, and then continues at an
    /// address `to`, and the bytes that must be on its stack below `at`.
    pub(crate) fn entering_code(
        &self,
        gadgets: &Gadgets,
        code: i64,
        at: u64,
        call: &FrameCall,
        to: u64,
    ) -> (Self, [u8; RETURN_BYTES]) {
        let mut registers = self.entering_chain(gadgets, code, at - RETURN_BYTES as u64);
        registers.0.orig_rax = call.number;
        for (place, arg) in call.args.into_iter().take(4).enumerate() {
            registers.set_argument(place, arg);
        }
        // The thread enters by the return from a call of the C library.
        (registers, to.to_le_bytes())
    }
}

/// Size of the return address on the stack, in bytes.
pub(crate) const RETURN_BYTES: usize = 8;
