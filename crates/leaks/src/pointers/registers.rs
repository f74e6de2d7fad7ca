//! The registers of threads that wait.
//!
//! The kernel shows those of a thread in a system call only in part, unless the thread is stopped.
//! But it can note them each time that the thread begins to wait (a perf event for its context
//! switches, which changes nothing in the process). A thread that still waits in the same call has
//! them at its end.

use std::collections::HashMap;

use lowtide_probe::proc::task::{self, SystemCall};

use crate::stacks::bpf::{PerfEvent, SharedPages};

/// Maximum number of threads whose registers are noted. Each takes 36 KiB.
const MAX_THREADS: usize = 256;
/// Bytes of the buffer of a thread, for 230 context switches. It must be a power of two.
const BUFFER_BYTES: usize = 32 << 10;
/// Offsets in the first page of a buffer: the write position of the kernel, and the read position
/// (`data_head` and `data_tail` of `struct perf_event_mmap_page`).
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Type of a record (`PERF_RECORD_SAMPLE`).
const SAMPLE: u64 = 9;

/// All general-purpose registers and the instruction pointer, as a mask for perf, and the place of
/// the stack pointer among them (`enum perf_event_x86_regs`, `enum perf_event_arm_regs`).
#[cfg(target_arch = "x86_64")]
const REGISTERS: (u64, usize) = (0x00ff_01ff, 7);
#[cfg(target_arch = "aarch64")]
const REGISTERS: (u64, usize) = (0x1_ffff_ffff, 31);
/// The places of those whose values functions keep for their callers: rbx, rbp and r12 to r15
/// (System V ABI for x86-64, section 3.2.1); x19 to x30 (Procedure Call Standard for the Arm 64-bit
/// Architecture, section 6.1.1; x30 is the return address).
#[cfg(target_arch = "x86_64")]
const KEPT: [usize; 6] = [1, 6, 13, 14, 15, 16];
#[cfg(target_arch = "aarch64")]
const KEPT: [usize; 12] = [19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30];

/// The registers of a thread that waits in a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registers {
    /// Those that functions keep for their callers.
    pub kept: Vec<u64>,
    /// The others, by their places. The code after the call may use them, but usually does not.
    pub others: Vec<u64>,
}

/// Notes the registers of threads.
#[derive(Debug, Default)]
pub(crate) struct RegisterWatch {
    threads: HashMap<u32, Noted>,
}

/// The registers of a thread at its last context switch.
#[derive(Debug)]
struct Noted {
    _event: PerfEvent,
    pages: SharedPages,
    page: usize,
    last: Vec<u64>,
}

impl RegisterWatch {
    /// Begins to note the registers of the threads of a process, as far as the kernel permits it.
    pub(crate) fn new(pid: u32) -> Self {
        let threads = task::threads(pid).unwrap_or_default();
        // A thread that has ended meanwhile must not end the list.
        let noted = threads.iter().take(MAX_THREADS).filter_map(|thread| {
            let noted = Noted::new(thread.tid)?;
            Some((thread.tid, noted))
        });
        Self { threads: noted.collect() }
    }

    /// Returns the registers of a thread that waits in a system call; `None` if they are unknown.
    pub(crate) fn in_call(&mut self, tid: u32, call: &SystemCall) -> Option<Registers> {
        let noted = self.threads.get_mut(&tid)?;
        noted.read();
        let waits_there = noted.last.get(REGISTERS.1) == Some(&call.stack_pointer)
            && noted.last.contains(&call.instruction_pointer);
        // Kernels before 5.11 do not report all registers.
        let is_known = waits_there && !noted.last.contains(&u64::MAX);
        is_known.then(|| Registers::new(&noted.last))
    }
}

impl Registers {
    fn new(all: &[u64]) -> Self {
        let kept = KEPT.iter().filter_map(|place| all.get(*place).copied()).collect();
        let others = all.iter().enumerate().filter(|(place, _)| !KEPT.contains(place));
        Self { kept, others: others.map(|(_, word)| *word).collect() }
    }
}

impl Noted {
    fn new(tid: u32) -> Option<Self> {
        let page = rustix::param::page_size();
        let event = PerfEvent::for_switches(tid, REGISTERS.0).ok()?;
        let pages = SharedPages::new(&event, 0, page + BUFFER_BYTES, true).ok()?;
        Some(Self { _event: event, pages, page, last: Vec::new() })
    }

    /// Reads the records since the last call.
    fn read(&mut self) {
        let head = self.pages.load(HEAD);
        let mut at = self.pages.load(TAIL);
        while at < head {
            let record = self.word(at);
            let bytes = record >> 48;
            if bytes < 8 {
                break;
            }
            // The ABI is before the registers.
            if record as u32 as u64 == SAMPLE && self.word(at + 8) != 0 {
                self.last = (at + 16..at + bytes).step_by(8).map(|at| self.word(at)).collect();
            }
            at += bytes;
        }
        self.pages.store(TAIL, head);
    }

    /// Returns the word at a position in the records.
    fn word(&self, at: u64) -> u64 {
        self.pages.load(self.page + (at as usize & (BUFFER_BYTES - 1)))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use lowtide_probe::proc::task::Doing;

    use super::*;

    #[test]
    fn the_registers_of_a_thread_that_waits_are_those_at_its_last_context_switch() {
        let (send, receive) = std::sync::mpsc::channel();
        let waiting = thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            loop {
                thread::sleep(Duration::from_millis(5));
                if send.send(0).is_err() {
                    return;
                }
            }
        });
        let tid = receive.recv().unwrap();
        let Some(noted) = Noted::new(tid) else {
            eprintln!("the kernel does not permit it");
            return;
        };
        let mut watch = RegisterWatch { threads: HashMap::from([(tid, noted)]) };
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let thread = task::Thread { pid: std::process::id(), tid };
        loop {
            assert!(std::time::Instant::now() < deadline);
            let Ok(Doing::In(call)) = thread.doing() else { continue };
            if let Some(registers) = watch.in_call(tid, &call) {
                let count = registers.kept.len() + registers.others.len();
                assert_eq!(count, REGISTERS.0.count_ones() as usize);
                break;
            }
        }
        drop(receive);
        waiting.join().unwrap();
    }
}
