//! Return probes by BPF: a program in the kernel that writes a sample whenever an allocation
//! function of one process returns. A probe exists as long as its file descriptor is open. So it
//! ends with lowtide, however that ends.

mod assembler;
mod call_ring;
mod calls;
mod perf;
mod program;
mod tracepoint;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

pub(crate) use call_ring::CallRing;
use calls::Fires;
pub(crate) use calls::SharedPages;
use lowtide_probe::proc::stat::Stat;
use lowtide_probe::proc::status::Status;
pub(crate) use perf::PerfEvent;
pub(super) use program::REGISTERS;
use program::{counter, sample};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::refusal::{NoStacks, locked_memory_limit};

/// Size of the buffer for samples, in bytes. The samples of a whole window stay in it until its
/// probes are closed.
const RING_BYTES: usize = 32 << 20;
/// Size of the header of a sample in the buffer, in bytes, and flags in its first word.
const HEAD_BYTES: usize = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// How probes are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// All probes of a file at once (`uprobe_multi`, Linux 6.6; for all threads of a process,
    /// 6.10).
    Multi,
    /// Each by a perf event (Linux 5.8, which has all that the program needs).
    Perf,
}

impl Attachment {
    /// All of them, the fastest first.
    pub const ALL: [Self; 2] = [Self::Multi, Self::Perf];
}

/// A program in the kernel, and the samples that it writes.
#[derive(Debug)]
pub(super) struct KernelSampler {
    attachment: Attachment,
    program: OwnedFd,
    counters: SharedPages,
    ring: Ring,
}

/// Open probes. Dropping them closes them, which can take 0.1 s.
#[derive(Debug)]
pub(super) struct Probes {
    _open: Vec<OwnedFd>,
}

/// A return from an allocation function.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    /// The address that it returned.
    pub(super) address: u64,
    /// The time of the return, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) time_ns: u64,
    /// The address where the program continues.
    pub(super) instruction: u64,
    pub(super) stack_pointer: u64,
    /// The registers that functions preserve for their callers: r15, r14, r13, r12, rbp, rbx.
    pub(super) registers: [u64; REGISTERS],
    /// The stack from the stack pointer on, as far as it was copied.
    pub(super) stack: Vec<u8>,
}

impl Hit {
    /// Returns the frame pointer, if the program uses one.
    pub(super) fn frame_pointer(&self) -> u64 {
        self.registers[4]
    }

    /// Returns the word of the stack at an address, if it was copied.
    pub(super) fn word(&self, at: u64) -> Option<u64> {
        let place = usize::try_from(at.checked_sub(self.stack_pointer)?).ok()?;
        self.stack.get(place..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }
}

impl KernelSampler {
    /// Loads the program, for one way of attaching probes.
    ///
    /// # Errors
    /// Fails if the kernel does not permit or support it.
    pub(super) fn load(attachment: Attachment) -> Result<Self, NoStacks> {
        raise_locked_memory_limit();
        let map_error = |error| NoStacks::from_map_error(&error);
        let counters = calls::create_array(counter::COUNT * 8).map_err(map_error)?;
        let samples = calls::create_ring(RING_BYTES).map_err(map_error)?;
        Self::with_maps(attachment, &counters, &samples)
            .map_err(|error| NoStacks::from_error(&error))
    }

    fn with_maps(
        attachment: Attachment,
        counters: &OwnedFd,
        samples: &OwnedFd,
    ) -> io::Result<Self> {
        let instructions = program::assemble(counters.as_fd(), samples.as_fd())
            .ok_or_else(|| io::Error::other("the program has a jump to nowhere"))?;
        let program = calls::load(&instructions, attachment == Attachment::Multi)?;
        let page = rustix::param::page_size();
        let counters = SharedPages::new(counters, 0, page, true)?;
        Ok(Self { attachment, program, counters, ring: Ring::map(samples, page)? })
    }

    /// Makes the program write samples of this many further hits, and only count those after them.
    pub(super) fn allow(&self, hits: u64) {
        let counter = |index| self.counters.word(index);
        counter(counter::HITS).store(0, Ordering::Relaxed);
        counter(counter::MISSED).store(0, Ordering::Relaxed);
        counter(counter::LIMIT).store(hits, Ordering::Release);
    }

    /// Makes the program only count from now on.
    pub(super) fn stop(&self) {
        self.counters.word(counter::LIMIT).store(0, Ordering::Release);
    }

    /// Returns the number of hits since [`KernelSampler::allow`] that have no sample.
    pub(super) fn missed(&self) -> u64 {
        self.counters.word(counter::MISSED).load(Ordering::Acquire)
    }

    /// Returns the number of hits since [`KernelSampler::allow`].
    pub(super) fn hits(&self) -> u64 {
        self.counters.word(counter::HITS).load(Ordering::Relaxed)
    }

    /// Opens probes at the return of functions, by their offsets in a file.
    ///
    /// # Errors
    /// Fails if the kernel does not permit or support it, or if the process has ended.
    pub(super) fn at_returns(&self, file: &File, offsets: &[u64], pid: u32) -> io::Result<Probes> {
        self.attach(file, offsets, pid, Fires::AtReturn)
    }

    /// Opens a probe at an instruction, by its offset in a file.
    ///
    /// # Errors
    /// Fails if the kernel does not permit or support it, or if the process has ended.
    pub(super) fn at_instruction(&self, file: &File, offset: u64, pid: u32) -> io::Result<Probes> {
        self.attach(file, &[offset], pid, Fires::AtInstruction)
    }

    fn attach(&self, file: &File, offsets: &[u64], pid: u32, fires: Fires) -> io::Result<Probes> {
        // Some kernels run the program for every process that reaches the probe.
        let identity = identity(pid)?;
        for (index, value) in [counter::NAMESPACE_DEVICE, counter::NAMESPACE_INODE, counter::PID]
            .into_iter()
            .zip(identity)
        {
            self.counters.word(index).store(value, Ordering::Release);
        }
        // The kernel accepts only a path. This one leads to the open file, even if its name now
        // belongs to another.
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let program = self.program.as_fd();
        let open = match self.attachment {
            Attachment::Multi => vec![calls::attach(program, &path, offsets, pid, fires)?],
            Attachment::Perf => {
                let open = offsets.iter().map(|at| perf::attach(program, &path, *at, pid, fires));
                open.collect::<io::Result<_>>()?
            }
        };
        Ok(Probes { _open: open })
    }

    /// Returns how probes are attached.
    pub(super) fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// Passes the addresses and times of the samples since the last call to `each`, without
    /// removing the samples.
    pub(super) fn look(&mut self, each: &mut dyn FnMut(u64, u64)) {
        self.ring.look(each);
    }

    /// Removes the samples that were written so far, and passes them to `each` in the same order.
    pub(super) fn drain(&mut self, each: &mut dyn FnMut(Hit)) {
        self.ring.drain(each);
    }
}

/// Removes the limit of locked memory, if that is permitted (CAP_SYS_RESOURCE), or else raises it
/// as far as it is. Kernels before 5.11 count the memory of maps against it.
fn raise_locked_memory_limit() {
    let none = Rlimit { current: None, maximum: None };
    if locked_memory_limit().is_some() && setrlimit(Resource::Memlock, none).is_err() {
        let maximum = getrlimit(Resource::Memlock).maximum;
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
}

/// Returns device and inode of the PID namespace of a process, and its PID there.
fn identity(pid: u32) -> io::Result<[u64; 3]> {
    let namespace = std::fs::metadata(format!("/proc/{pid}/ns/pid")).or_else(|error| {
        // A process that is not dumpable hides its namespace, even from its parent.
        if parent(pid)? == std::process::id() {
            std::fs::metadata("/proc/self/ns/pid_for_children")
        } else {
            Err(error)
        }
    })?;
    let own = match Status::read(pid)?.own_pid {
        0 => return Err(io::Error::other("its PID in its namespace is unknown")),
        own => u64::from(own),
    };
    Ok([namespace.dev(), namespace.ino(), own])
}

fn parent(pid: u32) -> io::Result<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(Stat::parse(&text)?.parent)
}

/// The buffer that the kernel writes samples to.
#[derive(Debug)]
struct Ring {
    /// The read position of this process.
    consumer: SharedPages,
    /// The write position of the kernel, and one page later the samples. They are mapped twice in a
    /// row, so that each sample is contiguous.
    producer: SharedPages,
    page: usize,
    /// The position up to which [`Ring::look`] has read.
    looked: u64,
}

impl Ring {
    fn map(samples: &OwnedFd, page: usize) -> io::Result<Self> {
        Ok(Self {
            consumer: SharedPages::new(samples, 0, page, true)?,
            producer: SharedPages::new(samples, page, page + 2 * RING_BYTES, false)?,
            page,
            looked: 0,
        })
    }

    fn look(&mut self, each: &mut dyn FnMut(u64, u64)) {
        let mut at = self.looked.max(self.consumer.word(0).load(Ordering::Relaxed));
        while let Some((place, next)) = self.at(at) {
            if let Some(place) = place {
                let field = |offset: usize| self.field(place, offset);
                each(field(sample::ADDRESS), field(sample::TIME));
            }
            at = next;
        }
        self.looked = at;
    }

    fn drain(&mut self, each: &mut dyn FnMut(Hit)) {
        let mut at = self.consumer.word(0).load(Ordering::Relaxed);
        while let Some((place, next)) = self.at(at) {
            if let Some(place) = place {
                each(self.hit(place));
            }
            at = next;
            self.consumer.word(0).store(at, Ordering::Release);
        }
    }

    /// Returns the place of the sample at a position, if it is one, and the next position. Returns
    /// `None` if nothing is complete there.
    fn at(&self, at: u64) -> Option<(Option<usize>, u64)> {
        if at >= self.producer.load(0) {
            return None;
        }
        let place = self.page + (at as usize & (RING_BYTES - 1));
        let head = self.producer.load(place) as u32;
        if head & BUSY != 0 {
            return None;
        }
        let length = (head & !DISCARDED) as usize;
        let is_sample = head & DISCARDED == 0 && length == sample::BYTES;
        let next = at + (HEAD_BYTES + length).next_multiple_of(8) as u64;
        Some((is_sample.then_some(place + HEAD_BYTES), next))
    }

    fn field(&self, place: usize, offset: usize) -> u64 {
        self.producer.word((place + offset) / 8).load(Ordering::Relaxed)
    }

    fn hit(&self, at: usize) -> Hit {
        let field = |offset: usize| self.field(at, offset);
        let length = (field(sample::STACK_LENGTH) as usize).min(program::STACK_BYTES);
        let mut stack = vec![0; length];
        self.producer.copy(at + sample::STACK, &mut stack);
        Hit {
            address: field(sample::ADDRESS),
            time_ns: field(sample::TIME),
            instruction: field(sample::INSTRUCTION),
            stack_pointer: field(sample::STACK_POINTER),
            registers: std::array::from_fn(|number| field(sample::REGISTERS + 8 * number)),
            stack,
        }
    }
}
