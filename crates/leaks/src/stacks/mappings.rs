//! The code that maps memory: samples of the returns of `mmap`, with their stacks, by the kernel's
//! tracepoint. It sees the calls of libc itself, and of programs without libc, and changes nothing
//! in the process.

use std::cmp::Reverse;
use std::collections::HashMap;

use lowtide_model::leaks::LeakStack;
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::proc::task;
use lowtide_probe::target::{Target, TargetError};

use super::bpf::{CallRing, Hit};
use super::names::FrameNamer;
use super::numbered::NumberedStacks;
use super::survivors::named_stacks;
use super::unwind::StackUnwinder;
use crate::files::Image;

/// Maximum number of threads whose calls are sampled. Each takes 132 KiB.
const MAX_THREADS: usize = 64;
/// Maximum number of calls and of stacks that are kept.
const MAX_CALLS: usize = 1 << 16;
const MAX_STACKS: usize = 1 << 12;
/// Maximum number of stacks that are returned.
const MAX_RETURNED: usize = 5;

/// The functions of libc that call the kernel.
const CALLS: [&str; 5] = ["mmap", "mmap64", "__mmap", "__mmap64", "syscall"];
/// Functions that map memory of the heap, and the stacks of threads: these have owners.
const OWNED: [&str; 18] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "__posix_memalign",
    "sysmalloc",
    "operator new(unsigned long)",
    "operator new[](unsigned long)",
    "pthread_create",
    "__pthread_create_2_1",
];

/// Samples the calls of `mmap` in a process.
pub struct MappingSampler {
    pid: u32,
    threads: HashMap<u32, CallRing>,
    unwinder: StackUnwinder,
    /// The stack of the last call that returned each address.
    calls: HashMap<u64, u32>,
    stacks: NumberedStacks,
}

impl MappingSampler {
    /// Starts to sample. Returns `None` if the kernel does not permit or support it.
    pub fn start(target: &Target) -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let mut sampler = Self {
            pid: target.pid,
            threads: HashMap::new(),
            unwinder: StackUnwinder::new(target.pid),
            calls: HashMap::new(),
            stacks: NumberedStacks::new(MAX_STACKS),
        };
        sampler.open_threads();
        (!sampler.threads.is_empty()).then_some(sampler)
    }

    /// Takes the samples since the last call, and begins to sample new threads. Between two calls,
    /// the kernel keeps some 15 samples of each thread.
    pub fn poll(&mut self, target: &Target) {
        if let Ok(maps) = target.maps() {
            self.take(&maps);
            self.open_threads();
        }
    }

    fn open_threads(&mut self) {
        let threads = task::threads(self.pid).unwrap_or_default();
        self.threads.retain(|tid, _| threads.iter().any(|thread| thread.tid == *tid));
        for thread in threads {
            if self.threads.len() >= MAX_THREADS {
                return;
            }
            if !self.threads.contains_key(&thread.tid)
                && let Ok(ring) = CallRing::open(thread.tid)
            {
                self.threads.insert(thread.tid, ring);
            }
        }
    }

    fn take(&mut self, maps: &[Mapping]) {
        if self.unwinder.update(maps) {
            self.stacks.renew();
        }
        let hits: Vec<Hit> = self.threads.values_mut().flat_map(CallRing::read).collect();
        for hit in hits {
            let walk = self.unwinder.walk(&hit);
            let number = self.stacks.number(&mut self.unwinder, walk, Vec::new());
            let Some(number) = number else { continue };
            if self.calls.len() < MAX_CALLS || self.calls.contains_key(&hit.address) {
                self.calls.insert(hit.address, number);
            }
        }
    }

    /// Returns the stacks of the calls whose mappings are still there, the most frequent first.
    /// Memory of heaps and stacks of threads do not count.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn callers(mut self, target: &Target) -> Result<Vec<LeakStack>, TargetError> {
        let maps = target.maps().map_err(|error| target.failed(error))?;
        self.take(&maps);
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for (at, stack) in &self.calls {
            if maps.iter().any(|mapping| mapping.contains(*at) && is_anonymous(mapping)) {
                *counts.entry(*stack).or_default() += 1;
            }
        }
        let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
        counts.sort_unstable_by_key(|(stack, count)| (Reverse(*count), *stack));
        let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
        let image = Image::new(target.pid, &memory, &maps);
        let namer = FrameNamer::new(&image, target);
        let frames = |stack: u32| self.stacks.get(stack);
        let stacks = named_stacks(counts, frames, usize::MAX, &namer);
        Ok(of_program(stacks))
    }
}

/// Returns whether a mapping is memory that belongs to no file and has no other purpose.
fn is_anonymous(mapping: &Mapping) -> bool {
    !mapping.has_file() && (mapping.name.is_empty() || mapping.name.starts_with("[anon:"))
}

/// Leaves out stacks of memory that has another owner, and the functions of libc that call the
/// kernel.
fn of_program(stacks: Vec<LeakStack>) -> Vec<LeakStack> {
    let is_owned = |stack: &LeakStack| {
        stack.frames.iter().any(|frame| OWNED.contains(&frame.function.as_str()))
    };
    let mut stacks: Vec<LeakStack> = stacks.into_iter().filter(|stack| !is_owned(stack)).collect();
    let all: u64 = stacks.iter().map(|stack| stack.samples).sum();
    stacks.truncate(MAX_RETURNED);
    for stack in &mut stacks {
        stack.share = stack.samples as f64 / all as f64;
        let calls = stack.frames.iter().take_while(|f| CALLS.contains(&f.function.as_str()));
        let calls = calls.count();
        stack.frames.drain(..calls.min(stack.frames.len().saturating_sub(1)));
    }
    stacks
}

#[cfg(test)]
mod tests {
    use lowtide_model::leaks::LeakFrame;

    use super::*;

    fn stack(samples: u64, functions: &[&str]) -> LeakStack {
        let frame = |function: &&str| LeakFrame {
            function: (*function).to_owned(),
            file: None,
            line: None,
            module: None,
            estimated: false,
        };
        let frames = functions.iter().map(frame).collect();
        LeakStack { share: 0.0, samples, is_cut: false, frames, proof: None }
    }

    #[test]
    fn memory_with_another_owner_and_the_functions_of_libc_are_left_out() {
        let found = of_program(vec![
            stack(6, &["mmap", "sysmalloc", "malloc", "main"]),
            stack(3, &["__mmap", "mmap64", "grow_cache", "main"]),
            stack(2, &["mmap64", "pthread_create", "main"]),
            stack(1, &["mmap"]),
        ]);
        let functions: Vec<Vec<&str>> = found
            .iter()
            .map(|stack| stack.frames.iter().map(|frame| frame.function.as_str()).collect())
            .collect();
        assert_eq!(functions, [vec!["grow_cache", "main"], vec!["mmap"]]);
        assert_eq!([found[0].share, found[1].share], [0.75, 0.25]);
    }
}
