//! What depends on the processor. Each processor has a folder with the same items; nothing else
//! names a register, an instruction or the layout of a signal frame.
//!
//! - **Registers**: [`Registers`], read and written by [`read_registers`] and [`write_registers`].
//!   A thread that was stopped in a call either has the result of the call, or has been put back
//!   before the call by the kernel, which differs ([`Registers::result`], [`Registers::again`],
//!   [`Registers::returning`]).
//! - **System calls**: the instruction ([`SYSCALL`]), its convention ([`Registers::making`]),
//!   what a filter sees ([`AUDIT_ARCHITECTURE`]), and the calls that other processors lack
//!   ([`OLDER_WAITS`]).
//! - **Restart rule**: [`BLOCKS_SIGNALS`], [`if_untouched`], [`Registers::interrupted_again`].
//! - **Signal frames**: [`FRAME_BYTES`], [`put_frame`], [`link`], [`put_handler_path`],
//!   [`argument_at`], [`has_frame`], and the vector registers in them ([`vectors`]).
//! - **Instructions of the C library** that a thread is sent through: [`Gadgets`].
//! - **Entry of the code in the target**: [`Registers::entering_chain`],
//!   [`Registers::entering_code`]; the other side is `stub/PROCESSOR/`.
//! - **Data of the C library for a thread**: [`tid_places`], [`MULTIPLE_THREADS_AT`].
//! - **A counter that a thread reads without a system call**: [`may_read_counter`], [`counter`].

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
// Its rules are tested on every processor.
#[cfg(any(target_arch = "aarch64", test))]
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, unused_imports))]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;

/// Length of the instruction of a system call, in bytes.
pub(crate) const SYSCALL_BYTES: u64 = SYSCALL.len() as u64;

/// A system call: its number and arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameCall {
    /// Its number.
    pub number: u64,
    /// Its arguments; unused ones are zero.
    pub args: [u64; 6],
}

/// An instruction sequence of the C library that a borrowed thread is sent through.
pub(crate) struct Gadget {
    /// Its bytes.
    pub bytes: &'static [u8],
    /// What it is, in a sentence.
    pub what: &'static str,
}

/// The vector registers of a chain of frames.
#[allow(dead_code, reason = "frames of a processor refer to them or contain them")]
pub(crate) struct Vectors<'a> {
    /// The address where the chain has them, if all frames refer to one copy.
    pub at: u64,
    /// The registers, in the layout of a frame.
    pub bytes: &'a [u8],
}

/// The bytes of a chain of frames.
pub(crate) struct FrameBytes<'a>(pub &'a mut [u8]);

impl FrameBytes<'_> {
    /// Writes a word.
    pub(crate) fn put(&mut self, place: usize, word: u64) {
        self.0[place..place + 8].copy_from_slice(&word.to_le_bytes());
    }
}
