//! A small assembler for BPF: a function for each instruction that is needed, and labels for jumps.
//! The encoding follows the instruction set standard (RFC 9669).

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    /// The end of the program's own stack.
    R10 = 10,
}

/// An instruction, as the kernel reads it (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct BpfInstruction {
    opcode: u8,
    /// The destination in the lower four bits, the source in the upper ones.
    registers: u8,
    offset: i16,
    immediate: i32,
}

#[cfg(test)]
impl BpfInstruction {
    /// Returns the bytes that the kernel reads, but as if the immediate of a 64-bit load were only
    /// a number.
    pub(super) fn bytes(self) -> [u8; 8] {
        let registers = if self.opcode == 0x18 { self.registers & 0xf } else { self.registers };
        let [offset, immediate] = [i32::from(self.offset), self.immediate].map(i32::to_le_bytes);
        let mut bytes = [self.opcode, registers, offset[0], offset[1], 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&immediate);
        bytes
    }
}

/// Instructions so far, with jumps that are not resolved yet.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    instructions: Vec<BpfInstruction>,
    labels: HashMap<&'static str, usize>,
    jumps: Vec<(usize, &'static str)>,
}

/// Kinds of the immediate of a 64-bit load (`BPF_PSEUDO_…`).
const MAP: u8 = 1;
const MAP_VALUE: u8 = 2;

impl Assembler {
    fn add(&mut self, opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) -> &mut Self {
        let registers = from << 4 | to;
        self.instructions.push(BpfInstruction { opcode, registers, offset, immediate });
        self
    }

    /// `to = from`.
    pub(super) fn copy(&mut self, to: Register, from: Register) -> &mut Self {
        self.add(0xbf, to as u8, from as u8, 0, 0)
    }

    /// `to = value`.
    pub(super) fn set(&mut self, to: Register, value: i32) -> &mut Self {
        self.add(0xb7, to as u8, 0, 0, value)
    }

    /// `to += value`.
    pub(super) fn add_number(&mut self, to: Register, value: i32) -> &mut Self {
        self.add(0x07, to as u8, 0, 0, value)
    }

    /// `to = *(u64 *)(from + offset)`.
    pub(super) fn load(&mut self, to: Register, from: Register, offset: i16) -> &mut Self {
        self.add(0x79, to as u8, from as u8, offset, 0)
    }

    /// `to = *(u32 *)(from + offset)`.
    pub(super) fn load_half(&mut self, to: Register, from: Register, offset: i16) -> &mut Self {
        self.add(0x61, to as u8, from as u8, offset, 0)
    }

    /// `*(u64 *)(to + offset) = from`.
    pub(super) fn store(&mut self, to: Register, offset: i16, from: Register) -> &mut Self {
        self.add(0x7b, to as u8, from as u8, offset, 0)
    }

    /// `*(u64 *)(to + offset) += from`, atomically.
    pub(super) fn atomic_add(&mut self, to: Register, offset: i16, from: Register) -> &mut Self {
        self.add(0xdb, to as u8, from as u8, offset, 0)
    }

    /// `to =` a map.
    pub(super) fn load_map(&mut self, to: Register, map: BorrowedFd<'_>) -> &mut Self {
        self.add(0x18, to as u8, MAP, 0, map.as_raw_fd()).add(0, 0, 0, 0, 0)
    }

    /// `to =` the address of the first value of a map.
    pub(super) fn load_map_value(&mut self, to: Register, map: BorrowedFd<'_>) -> &mut Self {
        self.add(0x18, to as u8, MAP_VALUE, 0, map.as_raw_fd()).add(0, 0, 0, 0, 0)
    }

    /// Calls a kernel function by its number (`BPF_FUNC_…`).
    pub(super) fn call(&mut self, function: i32) -> &mut Self {
        self.add(0x85, 0, 0, 0, function)
    }

    /// Returns from the program.
    pub(super) fn exit(&mut self) -> &mut Self {
        self.add(0x95, 0, 0, 0, 0)
    }

    /// Labels the next instruction.
    pub(super) fn label(&mut self, name: &'static str) -> &mut Self {
        self.labels.insert(name, self.instructions.len());
        self
    }

    fn jump_by(&mut self, opcode: u8, to: u8, from: u8, label: &'static str) -> &mut Self {
        self.jumps.push((self.instructions.len(), label));
        self.add(opcode, to, from, 0, 0)
    }

    /// Jumps if a register is 0.
    pub(super) fn jump_if_zero(&mut self, register: Register, label: &'static str) -> &mut Self {
        self.jump_by(0x15, register as u8, 0, label)
    }

    /// Jumps if a register is not 0.
    pub(super) fn jump_if_not_zero(
        &mut self,
        register: Register,
        label: &'static str,
    ) -> &mut Self {
        self.jump_by(0x55, register as u8, 0, label)
    }

    /// Jumps if two registers differ.
    pub(super) fn jump_if_different(
        &mut self,
        one: Register,
        other: Register,
        label: &'static str,
    ) -> &mut Self {
        self.jump_by(0x5d, one as u8, other as u8, label)
    }

    /// Jumps if `one > other`, both unsigned.
    pub(super) fn jump_if_greater(
        &mut self,
        one: Register,
        other: Register,
        label: &'static str,
    ) -> &mut Self {
        self.jump_by(0x2d, one as u8, other as u8, label)
    }

    /// Resolves the jumps, and returns the instructions; `None` if a label is missing or too far
    /// away.
    pub(super) fn finish(mut self) -> Option<Vec<BpfInstruction>> {
        for (at, label) in self.jumps {
            // A jump counts from the instruction after it.
            let distance = *self.labels.get(label)? as i64 - at as i64 - 1;
            self.instructions.get_mut(at)?.offset = i16::try_from(distance).ok()?;
        }
        Some(self.instructions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_and_backward_jumps_resolve_to_their_labels() {
        let mut program = Assembler::default();
        program.label("again").set(Register::R0, 1).jump_if_zero(Register::R0, "end");
        program.jump_if_greater(Register::R0, Register::R1, "again").label("end").exit();
        let found = program.finish().unwrap();
        let offsets: Vec<i16> = found.iter().map(|one| one.offset).collect();
        assert_eq!(offsets, [0, 1, -3, 0]);
    }

    #[test]
    fn a_program_with_a_jump_to_an_undefined_label_is_not_assembled() {
        let mut program = Assembler::default();
        program.jump_if_zero(Register::R0, "nowhere").exit();
        assert_eq!(program.finish(), None);
    }

    #[test]
    fn instructions_are_encoded_according_to_the_standard() {
        let mut program = Assembler::default();
        program.copy(Register::R6, Register::R1).store(Register::R9, 16, Register::R8);
        let found = program.finish().unwrap();
        let expected = [
            BpfInstruction { opcode: 0xbf, registers: 0x16, offset: 0, immediate: 0 },
            BpfInstruction { opcode: 0x7b, registers: 0x89, offset: 16, immediate: 0 },
        ];
        assert_eq!(found, expected);
        assert_eq!(size_of::<BpfInstruction>(), 8);
    }
}
