//! Samples of the returns of `mmap` in one thread, by a perf event for the kernel's tracepoint.

use std::io;

use super::calls::SharedPages;
use super::perf::PerfEvent;
use super::program::REGISTERS;
use super::{Hit, tracepoint};

/// Bytes of the buffer of a thread. It must be a power of two.
const BUFFER_BYTES: usize = 128 << 10;
/// Maximum number of bytes of the stack in a sample.
const STACK_BYTES: u32 = 8 << 10;
/// Offsets in the first page of a buffer: the write position of the kernel, and the read position
/// (`data_head` and `data_tail` of `struct perf_event_mmap_page`).
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Type of a record (`PERF_RECORD_SAMPLE`), and the bytes of its header.
const SAMPLE: u32 = 9;
const HEADER: usize = 8;
/// Offset of the return value in the data of the tracepoint.
const RETURN_VALUE: usize = 16;
/// The general-purpose registers and the instruction pointer, as a mask for perf, and their places
/// in a sample (`enum perf_event_x86_regs`).
const MASK: u64 = 0x00ff_01ff;
const WORDS: usize = 17;
const STACK_POINTER: usize = 7;
const INSTRUCTION: usize = 8;
/// r15, r14, r13, r12, rbp, rbx.
const KEPT: [usize; REGISTERS] = [16, 15, 14, 13, 6, 1];
/// Minimum number that is an error and not an address (`MAX_ERRNO`).
const ERRORS: u64 = u64::MAX - 4094;

/// The samples of a thread.
#[derive(Debug)]
pub(crate) struct CallRing {
    _event: PerfEvent,
    pages: SharedPages,
    page: usize,
}

impl CallRing {
    /// Starts to sample a thread.
    ///
    /// # Errors
    /// Fails if the kernel does not permit or support it, or if the thread has ended.
    pub(crate) fn open(tid: u32) -> io::Result<Self> {
        let number = tracepoint::number("syscalls/sys_exit_mmap")?;
        let event = PerfEvent::for_tracepoint(tid, number, MASK, STACK_BYTES)?;
        let page = rustix::param::page_size();
        let pages = SharedPages::new(&event, 0, page + BUFFER_BYTES, true)?;
        Ok(Self { _event: event, pages, page })
    }

    /// Removes the samples that were written so far.
    pub(crate) fn read(&mut self) -> Vec<Hit> {
        let head = self.pages.load(HEAD);
        let mut at = self.pages.load(TAIL);
        let mut hits = Vec::new();
        while at < head {
            let record = self.pages.load(self.page + (at as usize & (BUFFER_BYTES - 1)));
            let bytes = (record >> 48) as usize;
            if !(HEADER..=BUFFER_BYTES).contains(&bytes) {
                break;
            }
            if record as u32 == SAMPLE {
                hits.extend(hit(&self.bytes(at as usize + HEADER, bytes - HEADER)));
            }
            at += bytes as u64;
        }
        self.pages.store(TAIL, head);
        hits
    }

    /// Copies bytes at a position in the records, which may continue at the start of the buffer.
    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let start = at & (BUFFER_BYTES - 1);
        let first = length.min(BUFFER_BYTES - start);
        self.pages.copy(self.page + start, &mut bytes[..first]);
        self.pages.copy(self.page, &mut bytes[first..]);
        bytes
    }
}

/// Parses the body of a sample: data of the tracepoint, registers, stack.
fn hit(body: &[u8]) -> Option<Hit> {
    let word = |at: usize| body.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
    let raw = u32::from_le_bytes(*body.first_chunk()?) as usize;
    let address = word(4 + RETURN_VALUE)?;
    let at = 4_usize.checked_add(raw)?;
    // The ABI is before the registers; 0 if there are none.
    if address >= ERRORS || word(at)? == 0 {
        return None;
    }
    let registers = (0..WORDS).map(|place| word(at + 8 + 8 * place)).collect::<Option<Vec<_>>>()?;
    let stack_at = at + 8 + 8 * WORDS;
    let copied = word(stack_at)? as usize;
    let stack = body.get(stack_at + 8..)?.get(..copied)?;
    // The number of bytes that were readable is after the copy.
    let known = word(stack_at + 8 + copied).map_or(0, |known| known as usize);
    Some(Hit {
        address,
        time_ns: 0,
        instruction: registers[INSTRUCTION],
        stack_pointer: registers[STACK_POINTER],
        registers: KEPT.map(|place| registers[place]),
        stack: stack[..known.min(copied)].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the body of a sample.
    fn body(address: u64, abi: u64) -> Vec<u8> {
        let mut body = 28_u32.to_le_bytes().to_vec();
        body.extend([0; RETURN_VALUE]);
        body.extend(address.to_le_bytes());
        body.extend([0; 4]);
        body.extend(abi.to_le_bytes());
        (0..WORDS as u64).for_each(|register| body.extend((100 + register).to_le_bytes()));
        body.extend(16_u64.to_le_bytes());
        body.extend([7; 16]);
        body.extend(8_u64.to_le_bytes());
        body
    }

    #[test]
    fn a_sample_has_the_address_the_registers_and_the_readable_part_of_the_stack() {
        let found = hit(&body(0x7f00_0000_1000, 2)).unwrap();
        assert_eq!(
            (found.address, found.instruction, found.stack_pointer),
            (0x7f00_0000_1000, 108, 107)
        );
        assert_eq!(found.registers, [116, 115, 114, 113, 106, 101]);
        assert_eq!(found.stack, [7; 8]);
    }

    #[test]
    fn failed_calls_calls_without_registers_and_torn_samples_are_left_out() {
        assert!(hit(&body(-12_i64 as u64, 2)).is_none());
        assert!(hit(&body(0x1000, 0)).is_none());
        let whole = body(0x1000, 2);
        (0..whole.len() - 8).for_each(|length| assert!(hit(&whole[..length]).is_none()));
    }

    #[test]
    fn own_calls_are_sampled_with_their_stack() {
        let (send, receive) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mapping = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            wait.recv().unwrap();
            let file = map_a_page();
            send.send(0).unwrap();
            file
        });
        let tid = receive.recv().unwrap();
        let ring = CallRing::open(tid);
        go.send(()).unwrap();
        receive.recv().unwrap();
        let address = mapping.join().unwrap();
        let Ok(mut ring) = ring else {
            eprintln!("the kernel does not permit it");
            return;
        };
        let hits = ring.read();
        let found = hits.iter().find(|hit| hit.address == address);
        assert!(found.is_some_and(|hit| !hit.stack.is_empty()), "{address:x} {hits:?}");
    }

    /// Maps a page, unmaps it, and returns its address.
    #[expect(unsafe_code, reason = "a mapping for a test")]
    fn map_a_page() -> u64 {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        // SAFETY: the kernel chooses an unused address, and nothing refers to the page.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE)
        };
        let page = page.unwrap();
        // SAFETY: it was mapped above.
        unsafe { munmap(page, 4096) }.unwrap();
        page as u64
    }
}
