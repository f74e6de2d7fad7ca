//! The program that runs in the kernel when an allocation function returns, and the layout of its
//! samples.

use std::os::fd::BorrowedFd;

use super::assembler::{Assembler, BpfInstruction, Register::*};

/// Maximum size of the stack in a sample, in bytes: enough for most call paths to an allocation.
pub(super) const STACK_BYTES: usize = 2048;
/// Size of the stack that is copied if less than [`STACK_BYTES`] are left, in bytes.
const SHORT_STACK_BYTES: i32 = 512;

/// Number of the registers that functions preserve for their callers, apart from the stack pointer.
pub(in crate::stacks) const REGISTERS: usize = 6;

/// Offsets of the fields of a sample, in bytes. Each field is a 64-bit word.
pub(super) mod sample {
    pub(crate) const ADDRESS: usize = 0;
    pub(crate) const TIME: usize = 8;
    pub(crate) const INSTRUCTION: usize = 16;
    pub(crate) const STACK_POINTER: usize = 24;
    pub(crate) const REGISTERS: usize = 32;
    pub(crate) const STACK_LENGTH: usize = REGISTERS + 8 * super::REGISTERS;
    pub(crate) const STACK: usize = STACK_LENGTH + 8;
    pub(crate) const BYTES: usize = STACK + super::STACK_BYTES;
}

/// Indexes of the counters that the program shares with lowtide.
pub(super) mod counter {
    /// The number of hits after which the program only counts.
    pub(crate) const LIMIT: usize = 0;
    /// Hits.
    pub(crate) const HITS: usize = 1;
    /// Hits without a sample.
    pub(crate) const MISSED: usize = 2;
    /// Device and inode of the PID namespace of the process, and its PID there.
    pub(crate) const NAMESPACE_DEVICE: usize = 3;
    pub(crate) const NAMESPACE_INODE: usize = 4;
    pub(crate) const PID: usize = 5;
    pub(crate) const COUNT: usize = 6;
}

/// Numbers of kernel functions (`BPF_FUNC_…` of linux/bpf.h).
mod function {
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const PROBE_READ_USER: i32 = 112;
    pub(super) const GET_NS_CURRENT_PID_TGID: i32 = 120;
    pub(super) const RINGBUF_RESERVE: i32 = 131;
    pub(super) const RINGBUF_SUBMIT: i32 = 132;
}

/// Offsets of the program's registers in `struct pt_regs` (x86_64), in bytes.
mod register {
    /// The first of the callee-saved registers: r15, r14, r13, r12, rbp, rbx.
    pub(super) const PRESERVED: i16 = 0;
    pub(super) const AX: i16 = 80;
    pub(super) const IP: i16 = 128;
    pub(super) const SP: i16 = 152;
}

/// `BPF_RB_NO_WAKEUP`: lowtide polls.
const NO_WAKE_UP: i32 = 1;

/// Assembles the program. All instructions and functions in it are in Linux 5.8. In C:
///
/// ```c
/// int at_return(struct pt_regs *regs) {
///     struct bpf_pidns_info own;              // { u32 pid, tgid; }
///     if (bpf_get_ns_current_pid_tgid(counters->namespace_device, counters->namespace_inode, &own, 8) != 0)
///         return 0;                           // a process of another PID namespace
///     if (own.tgid != counters->pid)          // kernels before 6.12 run return probes of perf for all processes
///         return 0;
///     atomic_add(&counters->hits, 1);
///     if (counters->hits > counters->limit)   // other processors may have added theirs: a few samples less
///         goto missed;
///     u64 address = regs->ax;
///     if (address == 0)                       // the allocation failed
///         return 0;
///     struct sample *sample = bpf_ringbuf_reserve(&samples, sizeof *sample, 0);
///     if (!sample)                            // the buffer is full
///         goto missed;
///     sample->address = address;
///     sample->time = bpf_ktime_get_ns();
///     sample->instruction = regs->ip;         // in the caller
///     sample->stack_pointer = regs->sp;
///     for (int i = 0; i < 6; i++)             // r15, r14, r13, r12, rbp, rbx
///         sample->registers[i] = ((u64 *) regs)[i];
///     sample->stack_length = 2048;
///     if (bpf_probe_read_user(sample->stack, 2048, regs->sp) != 0) {
///         sample->stack_length = 512;         // the stack ends before that
///         if (bpf_probe_read_user(sample->stack, 512, regs->sp) != 0)
///             sample->stack_length = 0;
///     }
///     bpf_ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
///     return 0;
/// missed:
///     atomic_add(&counters->missed, 1);
///     return 0;
/// }
/// ```
pub(super) fn assemble(
    counters: BorrowedFd<'_>,
    samples: BorrowedFd<'_>,
) -> Option<Vec<BpfInstruction>> {
    let mut program = Assembler::default();
    reserve(&mut program, counters, samples);
    fill(&mut program);
    submit(&mut program);
    program.finish()
}

/// Returns the offset of a number of words.
fn word(index: usize) -> i16 {
    (index * 8) as i16
}

/// Returns the offset of a field.
fn field(at: usize) -> i16 {
    at as i16
}

/// Reserves a sample with its address, if the process and the counters permit it.
fn reserve(program: &mut Assembler, counters: BorrowedFd<'_>, samples: BorrowedFd<'_>) {
    program
        .copy(R6, R1)
        .load_map_value(R7, counters)
        .load(R1, R7, word(counter::NAMESPACE_DEVICE))
        .load(R2, R7, word(counter::NAMESPACE_INODE))
        .copy(R3, R10)
        .add_number(R3, -8)
        .set(R4, 8)
        .call(function::GET_NS_CURRENT_PID_TGID)
        .jump_if_not_zero(R0, "out")
        .load_half(R1, R10, -4)
        .load(R2, R7, word(counter::PID))
        .jump_if_different(R1, R2, "out")
        .set(R8, 1)
        .atomic_add(R7, word(counter::HITS), R8)
        .load(R8, R7, word(counter::HITS))
        .load(R9, R7, word(counter::LIMIT))
        .jump_if_greater(R8, R9, "missed")
        .load(R8, R6, register::AX)
        .jump_if_zero(R8, "out")
        .load_map(R1, samples)
        .set(R2, sample::BYTES as i32)
        .set(R3, 0)
        .call(function::RINGBUF_RESERVE)
        .jump_if_zero(R0, "missed")
        .copy(R9, R0)
        .store(R9, field(sample::ADDRESS), R8);
}

/// Writes the time, the registers and the stack to the sample.
fn fill(program: &mut Assembler) {
    program.call(function::KTIME_GET_NS).store(R9, field(sample::TIME), R0);
    let preserved = (0..REGISTERS)
        .map(|number| (sample::REGISTERS + 8 * number, register::PRESERVED + word(number)));
    let copied = [(sample::INSTRUCTION, register::IP), (sample::STACK_POINTER, register::SP)];
    for (at, register) in copied.into_iter().chain(preserved) {
        program.load(R1, R6, register).store(R9, field(at), R1);
    }
    for bytes in [STACK_BYTES as i32, SHORT_STACK_BYTES] {
        program
            .set(R2, bytes)
            .store(R9, field(sample::STACK_LENGTH), R2)
            .copy(R1, R9)
            .add_number(R1, sample::STACK as i32)
            .load(R3, R6, register::SP)
            .call(function::PROBE_READ_USER)
            .jump_if_zero(R0, "submit");
    }
}

/// Submits the sample, and ends the program.
fn submit(program: &mut Assembler) {
    program
        .set(R2, 0)
        .store(R9, field(sample::STACK_LENGTH), R2)
        .label("submit")
        .copy(R1, R9)
        .set(R2, NO_WAKE_UP)
        .call(function::RINGBUF_SUBMIT)
        .set(R0, 0)
        .exit()
        .label("missed")
        .set(R8, 1)
        .atomic_add(R7, word(counter::MISSED), R8)
        .label("out")
        .set(R0, 0)
        .exit();
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use object::{Object, ObjectSection};

    use super::*;

    #[test]
    #[ignore = "needs llvm-mc (Debian: llvm)"]
    fn llvm_mc_assembles_the_listing_to_the_same_program() {
        let home = tempfile::tempdir().unwrap();
        let (text, made) = (home.path().join("program.s"), home.path().join("program.o"));
        // The assembled program contains the file descriptors of maps, which differ from run to
        // run.
        let null = std::fs::File::open("/dev/null").unwrap();
        let map = std::os::fd::AsRawFd::as_raw_fd(&null).to_string();
        std::fs::write(&text, include_str!("program.s").replace("MAP", &map)).unwrap();
        let mut assembler = Command::new("llvm-mc");
        assembler.args(["-triple=bpfel", "-filetype=obj", "-o"]).args([&made, &text]);
        assert!(assembler.status().expect("llvm-mc (Debian: llvm)").success());
        let made = std::fs::read(made).unwrap();
        let object = object::File::parse(&*made).unwrap();
        let expected = object.section_by_name(".text").unwrap();
        let found = assemble(null.as_fd(), null.as_fd()).unwrap();
        let found: Vec<[u8; 8]> = found.into_iter().map(BpfInstruction::bytes).collect();
        let (expected, _) = expected.data().unwrap().as_chunks();
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(found, expected, "instruction {at}");
        }
        assert_eq!(found.len(), expected.len());
    }
}
