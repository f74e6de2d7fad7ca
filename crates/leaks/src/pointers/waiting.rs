//! The words that the threads of a process use: those in registers, and on stacks.
//!
//! A thread that waits uses little or nothing below its stack pointer, where pointers of former
//! calls remain. So its stack is copied from there on. The copy counts if the thread did not run
//! meanwhile. Otherwise all of the stack is searched.

use std::ops::Range;
use std::time::Duration;

use lowtide_heap::memory::{MIN_PAGE_BYTES, Memory, Saved};
use lowtide_probe::detect::{Claim, Stack};
use lowtide_probe::proc::task::{Doing, Thread};

use super::registers::{RegisterWatch, Registers};

/// Number of registers that can contain a pointer: all general-purpose registers of a running
/// thread. For a thread that waits in a system call, those that are neither its arguments nor
/// changed by the call.
const REGISTERS: usize = 15;
const REGISTERS_IN_CALL: usize = 6;
/// Number of bytes below a stack pointer that a function may use, but usually does not (the red
/// zone of the System V ABI for x86-64, section 3.2.2).
const RED_ZONE: u64 = 128;
/// Time between two attempts to copy a stack while its thread waits, the maximum number of attempts
/// for one thread, and of those for all threads that fail.
const PAUSE: Duration = Duration::from_millis(1);
const ATTEMPTS: usize = 50;
const MAX_FAILED: usize = 200;
/// Maximum size of the copy of one stack, and of all copies, in bytes.
const MAX_STACK: u64 = 1 << 20;
const MAX_STACKS: u64 = 64 << 20;

/// A word in a register or on a stack that a thread may not use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stale {
    /// Its address, or a number of its own if it is in a register.
    pub at: u64,
    /// Its value.
    pub value: u64,
}

/// The words of threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadWords {
    /// Those in registers and arguments of system calls.
    pub words: Vec<u64>,
    /// Those that a thread may use again, but usually does not: in registers that a call may
    /// change, and in the red zone.
    pub stale: Vec<Stale>,
    /// Number of registers that cannot be read.
    pub hidden_registers: usize,
    /// The used parts of the stacks that were copied, in order.
    pub used: Vec<Range<u64>>,
    /// The pages with these parts.
    pub copies: Saved,
    /// All of these stacks, in order.
    pub copied: Vec<Range<u64>>,
    bytes: u64,
    failed: usize,
}

impl ThreadWords {
    /// Reads those of some threads. `stacks` are the stacks of the process, in order, and
    /// `pointers` the stack pointers of its threads, in order.
    pub(crate) fn read(
        threads: &[Thread],
        memory: &impl Memory,
        registers: &mut RegisterWatch,
        stacks: &[Claim<Stack>],
        pointers: &[u64],
    ) -> Self {
        let mut read = Self::default();
        for thread in threads {
            let stack_of = |pointer| stack_of(stacks, pointers, pointer);
            read.add(thread, memory, registers, stack_of);
        }
        read.used.sort_unstable_by_key(|range| range.start);
        read.copied.sort_unstable_by_key(|range| range.start);
        read.copies.blocks.sort_unstable_by_key(|(at, _)| *at);
        read
    }

    fn add(
        &mut self,
        thread: &Thread,
        memory: &impl Memory,
        registers: &mut RegisterWatch,
        stack_of: impl Fn(u64) -> Option<Range<u64>>,
    ) {
        for _ in 0..ATTEMPTS {
            match self.copy(thread, memory, registers, &stack_of) {
                Copied::Stack => return,
                Copied::Nothing => break,
                Copied::Changed if self.failed >= MAX_FAILED || !memory.wait(PAUSE) => break,
                Copied::Changed => self.failed += 1,
            }
        }
        // It runs, or its stack is not known exactly.
        match thread.doing() {
            Ok(Doing::In(call)) => {
                let noted = registers.in_call(thread.tid, &call);
                self.add_registers(thread, Doing::In(call), noted);
            }
            _ => self.hidden_registers += REGISTERS,
        }
    }

    /// Copies the stack of a thread, if it waits, with its registers.
    fn copy(
        &mut self,
        thread: &Thread,
        memory: &impl Memory,
        registers: &mut RegisterWatch,
        stack_of: impl Fn(u64) -> Option<Range<u64>>,
    ) -> Copied {
        let (Some(turns), Ok(doing)) = (thread.turns(), thread.doing()) else {
            return Copied::Nothing;
        };
        let Some(pointer) = doing.stack_pointer() else { return Copied::Changed };
        let Some(stack) = stack_of(pointer) else { return Copied::Nothing };
        let Some(used) = self.used_part(&stack, pointer) else { return Copied::Nothing };
        // The copy has whole pages, and the red zone.
        let zone = used.start.saturating_sub(RED_ZONE).max(stack.start);
        let first = zone - zone % MIN_PAGE_BYTES;
        let mut bytes = vec![0; (used.end - first) as usize];
        if memory.read(first, &mut bytes) < bytes.len() {
            return Copied::Nothing;
        }
        let words = bytes[(zone - first) as usize..(used.start - first) as usize].chunks_exact(8);
        let zone = (zone..).step_by(8).zip(words).map(|(at, word)| {
            let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
            Stale { at, value }
        });
        let zone: Vec<Stale> = zone.collect();
        let noted = match doing {
            Doing::In(call) => registers.in_call(thread.tid, &call),
            _ => None,
        };
        if thread.doing().ok() != Some(doing) || thread.turns() != Some(turns) {
            return Copied::Changed;
        }
        self.stale.extend(zone);
        self.bytes += bytes.len() as u64;
        self.copies.blocks.push((first, bytes));
        self.used.push(used);
        self.copied.push(stack);
        self.add_registers(thread, doing, noted);
        Copied::Stack
    }

    /// Returns the part of a stack that is used and can be copied, if it is not too large.
    fn used_part(&self, stack: &Range<u64>, pointer: u64) -> Option<Range<u64>> {
        let used = pointer - pointer % 8..stack.end;
        let bytes = used.end - used.start;
        (bytes <= MAX_STACK && self.bytes + bytes <= MAX_STACKS).then_some(used)
    }

    fn add_registers(&mut self, thread: &Thread, doing: Doing, noted: Option<Registers>) {
        let Doing::In(call) = doing else {
            self.hidden_registers += REGISTERS;
            return;
        };
        self.words.extend_from_slice(call.arguments());
        let unused = &call.args[call.arguments().len()..];
        match noted {
            Some(Registers { kept, others }) => {
                self.words.extend(kept);
                self.add_stale(thread, &others);
            }
            None => {
                self.hidden_registers += REGISTERS_IN_CALL;
                self.add_stale(thread, unused);
            }
        }
    }

    fn add_stale(&mut self, thread: &Thread, values: &[u64]) {
        // No address of a process has the highest bit.
        let place = 1 << 63 | u64::from(thread.tid) << 8;
        let stale = values.iter().zip(place..).map(|(value, at)| Stale { at, value: *value });
        self.stale.extend(stale);
    }
}

/// The result of an attempt to copy a stack.
enum Copied {
    /// It is copied.
    Stack,
    /// The thread ran.
    Changed,
    /// The stack is not known exactly, or is too large.
    Nothing,
}

/// Returns the stack that contains a stack pointer, if it is known exactly, and if no other
/// thread's pointer is in it.
fn stack_of(stacks: &[Claim<Stack>], pointers: &[u64], pointer: u64) -> Option<Range<u64>> {
    let place = stacks.partition_point(|stack| stack.range.end <= pointer);
    let stack = stacks.get(place).filter(|stack| stack.range.contains(&pointer))?;
    let first = pointers.partition_point(|other| *other < stack.range.start);
    let is_shared = pointers[first..].get(1).is_some_and(|other| stack.range.contains(other));
    (!stack.estimated && !is_shared).then(|| stack.range.clone())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use lowtide_probe::memory::ProcessMemory;
    use lowtide_probe::target::Target;

    use super::*;
    use crate::pointers::scan::WordReader;

    const LIVE: u64 = 0x5eed_0000_1234_5678;
    const LEFT: u64 = 0x5eed_0000_8765_4321;

    /// Leaves a word far below the stack pointer of its caller.
    #[inline(never)]
    fn leave() {
        let mut words = [0_u64; 2048];
        words[7] = LEFT;
        black_box(&mut words);
    }

    /// Waits with a word on the stack.
    fn wait(ready: &Sender<u32>, end: &Receiver<()>) {
        let mut live = [LIVE];
        black_box(&mut live);
        leave();
        ready.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        let _ = end.recv();
        black_box(&live);
    }

    fn words(memory: &impl Memory, range: &Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        WordReader::of_parts(memory).each(range.clone(), |_, word| found.push(word));
        found
    }

    #[test]
    fn what_former_calls_have_left_below_the_stack_pointer_of_a_waiting_thread_is_not_used() {
        let ((ready, tid), (end, ended)) = (channel(), channel::<()>());
        let waiting = thread::spawn(move || wait(&ready, &ended));
        let thread = Thread { pid: std::process::id(), tid: tid.recv().unwrap() };
        let pointer = loop {
            match thread.doing().unwrap().stack_pointer() {
                Some(pointer) => break pointer,
                None => thread::yield_now(),
            }
        };
        let maps = Target::open(thread.pid).unwrap().maps().unwrap();
        let stack = maps.iter().find(|mapping| mapping.contains(pointer)).unwrap();
        let whole = stack.start..stack.end;
        let memory = ProcessMemory::open(thread.pid).unwrap();
        let claim = |estimated| [Claim { range: whole.clone(), owner: Stack, estimated }];
        let read = |claims: &[Claim<Stack>], pointers: &[u64]| {
            let registers = &mut RegisterWatch::default();
            ThreadWords::read(&[thread], &memory, registers, claims, pointers)
        };
        assert!(words(&memory, &whole).contains(&LEFT));
        let found = read(&claim(false), &[pointer]);
        assert_eq!((&found.copied[..], found.used[0].end), (&[whole.clone()][..], whole.end));
        let used = words(&found.copies, &found.used[0]);
        assert!(used.contains(&LIVE) && !used.contains(&LEFT));
        // Nothing is known of a stack whose end is a guess, or that two threads use.
        assert!(read(&claim(true), &[pointer]).copied.is_empty());
        assert!(read(&claim(false), &[pointer, pointer + 64]).copied.is_empty());
        drop(end);
        waiting.join().unwrap();
    }
}
