//! Samples allocations in short windows, and follows the blocks.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lowtide_heap::memory::Memory;
use lowtide_model::leaks::StackSampling;
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_probe::detect::{Detected, Detector};
use lowtide_probe::memory::LiveMemory;
use lowtide_probe::target::{Target, TargetError};

use super::bpf::{Hit, Sampler};
use super::budget::{Budget, MAX_HITS, MAX_WINDOW};
use super::followed::{Content, Followed, FollowedBlocks, WORDS};
use super::functions::{self, Functions};
use super::refusal::NoStacks;
use super::trial::{self, FirstInstruction};
use super::unwind::{Frames, StackUnwinder};

/// Maximum time from an allocation until the content of the block is read first: after that, it could be another block.
const MAX_LATE_NS: u64 = 10_000_000;
/// Time between two readings of the buffer in a window, and between two checks of blocks outside of one.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of different stacks.
const MAX_STACKS: usize = 1 << 15;
/// Maximum number of threads whose state is checked before the first window.
const MAX_THREADS: usize = 1 << 16;

/// Samples the allocations of a process in a thread of its own, until it is stopped.
#[derive(Debug)]
pub struct StackSampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<StackSamples>,
}

/// What was sampled.
#[derive(Debug)]
pub struct StackSamples {
    /// Windows in which the process had probes.
    pub windows: u64,
    /// Returns of allocation functions in them.
    pub hits: u64,
    /// Samples that were followed.
    pub samples: u64,
    /// Of these, samples whose stack could not be followed to its end.
    pub cut: u64,
    /// The time in which the process had probes, from when they were asked for until all were closed, in seconds.
    pub exposed_s: f64,
    /// The time from the first window on, in seconds.
    pub elapsed_s: f64,
    /// The time that a hit costs the process, in seconds: an estimate, from a function of lowtide.
    pub hit_s: f64,
    /// Blocks that are left, in order of address.
    pub(super) blocks: Vec<(u64, Followed)>,
    /// The stacks, by their numbers, with the number of samples of each.
    pub(super) stacks: Vec<(Frames, u64)>,
    /// The kernel's side, for further probes.
    pub(super) sampler: Sampler,
}

impl StackSamples {
    /// Returns how the process was sampled, and its exposure: the share of the time in which it had probes.
    pub fn summary(&self) -> (StackSampling, f64) {
        /// Allocations of a request whose delay is reported.
        const REQUEST: f64 = 1000.0;
        let sampling = StackSampling {
            windows: self.windows,
            hits: self.hits,
            samples: self.samples,
            cut_share: self.cut as f64 / self.samples.max(1) as f64,
            hit_s: self.hit_s,
            max_delay_s: self.hit_s * REQUEST,
        };
        (sampling, self.exposed_s / self.elapsed_s.max(self.exposed_s).max(f64::MIN_POSITIVE))
    }
}

impl StackSampler {
    /// Begins to sample. `share` is the maximum exposure: the share of the time in which the process has probes, from 0 to 1.
    ///
    /// # Errors
    /// Fails with the reason if stacks cannot be taken, or would be a danger for the process.
    pub fn start(target: &Target, share: f64) -> Result<Self, NoStacks> {
        if !cfg!(target_arch = "x86_64") {
            return Err(NoStacks::Processor);
        }
        let failed = |error: TargetError| NoStacks::Failed(error.to_string());
        let target = target.try_clone().map_err(|error| failed(target.failed(error)))?;
        let maps = target.maps().map_err(|error| failed(target.failed(error)))?;
        let detected = Detector::default().detect(target.pid, &maps);
        let detected = detected.map_err(|error| NoStacks::Failed(error.to_string()))?;
        check_code(&detected)?;
        let is_filtered = check_threads(target.pid)?;
        let memory = LiveMemory::open(target.pid).map_err(|error| failed(target.failed(error)))?;
        let mut sampler = Sampler::load().map_err(|error| NoStacks::from_error(&error))?;
        let functions = functions::find(target.pid, &maps, &detected);
        if functions.is_empty() {
            return Err(NoStacks::NoFunctions);
        }
        let instructions: BTreeSet<FirstInstruction> =
            functions.iter().map(|found| found.instruction).collect();
        let mut hit_s = 0.0_f64;
        for instruction in instructions {
            hit_s = hit_s.max(trial::run(&mut sampler, instruction)?);
        }
        if is_filtered && !trial::survives_filter(&mut sampler)? {
            return Err(NoStacks::Filters);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let sampling = Sampling {
            stop: Arc::clone(&stop),
            unwinder: StackUnwinder::new(target.pid),
            target,
            memory,
            functions,
            sampler,
            budget: Budget::new(share),
            followed: FollowedBlocks::default(),
            numbers: HashMap::new(),
            stacks: Vec::new(),
            resident: HashSet::new(),
            counts: Counts::default(),
        };
        let thread = thread::Builder::new().name("stacks".to_owned());
        let thread = thread.spawn(move || sampling.run(hit_s));
        let thread = thread.map_err(|error| NoStacks::Failed(error.to_string()))?;
        Ok(Self { stop, thread })
    }

    /// Stops, and returns what was sampled; `None` if the thread has failed.
    pub fn finish(self) -> Option<StackSamples> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}

/// Refuses processes with code that a return probe can crash.
fn check_code(detected: &Detected) -> Result<(), NoStacks> {
    if detected.has(RuntimeKind::Go) { Err(NoStacks::Go) } else { Ok(()) }
}

/// Refuses processes with shadow stacks. Returns whether a thread has system call filters.
fn check_threads(pid: u32) -> Result<bool, NoStacks> {
    let failed = |error: std::io::Error| NoStacks::Failed(error.to_string());
    let mut is_filtered = false;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)?.take(MAX_THREADS)
    {
        let path = thread.map_err(failed)?.path().join("status");
        // A thread that has ended is of no interest.
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        let Ok(status) = lowtide_probe::proc::status::Status::parse(&text) else { continue };
        if status.shadow_stack {
            return Err(NoStacks::ShadowStack);
        }
        is_filtered |= status.seccomp != 0;
    }
    Ok(is_filtered)
}

#[derive(Debug, Default)]
struct Counts {
    windows: u64,
    hits: u64,
    samples: u64,
    cut: u64,
}

/// The work of the thread.
struct Sampling {
    stop: Arc<AtomicBool>,
    target: Target,
    memory: LiveMemory,
    functions: Vec<Functions>,
    sampler: Sampler,
    unwinder: StackUnwinder,
    budget: Budget,
    followed: FollowedBlocks,
    /// The number of each stack.
    numbers: HashMap<Vec<u64>, u32>,
    stacks: Vec<(Frames, u64)>,
    /// Pages that were found to be resident in this window.
    resident: HashSet<u64>,
    counts: Counts,
}

impl Sampling {
    fn run(mut self, hit_s: f64) -> StackSamples {
        let begin = Instant::now();
        while !self.is_over() && self.window() {
            let pause = self.budget.pause(begin.elapsed());
            let next = Instant::now() + pause;
            while !self.is_over() && Instant::now() < next {
                self.check();
                thread::sleep(CHECK_INTERVAL.min(next.saturating_duration_since(Instant::now())));
            }
        }
        // A process that executes another program keeps what was sampled; nothing new comes.
        while !self.stop.load(Ordering::Relaxed) && self.target.is_alive() {
            thread::sleep(CHECK_INTERVAL);
        }
        let Counts { windows, hits, samples, cut } = self.counts;
        StackSamples {
            windows,
            hits,
            samples,
            cut,
            exposed_s: self.budget.exposed().as_secs_f64(),
            elapsed_s: begin.elapsed().as_secs_f64(),
            hit_s,
            blocks: self.followed.into_blocks(),
            stacks: self.stacks,
            sampler: self.sampler,
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || !self.memory.is_in_use()
    }

    /// Probes the process for a short time. Returns whether that was possible.
    fn window(&mut self) -> bool {
        let Ok(maps) = self.target.maps() else { return false };
        self.unwinder.update(&maps);
        self.resident.clear();
        self.sampler.allow(MAX_HITS);
        let asked = Instant::now();
        let pid = self.target.pid;
        let probes: Vec<_> = self
            .functions
            .iter()
            .filter_map(|found| self.sampler.at_returns(&found.file, &found.offsets, pid).ok())
            .collect();
        let opened = Instant::now();
        while opened.elapsed() < MAX_WINDOW && self.sampler.hits() < MAX_HITS && !self.is_over() {
            self.drain();
            thread::sleep(POLL_INTERVAL);
        }
        self.sampler.stop();
        self.drain();
        let is_open = !probes.is_empty();
        drop(probes);
        self.budget.spend(asked.elapsed());
        self.counts.windows += 1;
        self.counts.hits += self.sampler.hits();
        is_open
    }

    fn drain(&mut self) {
        let mut hits = Vec::new();
        self.sampler.drain(&mut |hit| hits.push(hit));
        for hit in hits {
            self.follow(&hit);
        }
    }

    /// Follows a block from its allocation on, if that was just now.
    fn follow(&mut self, hit: &Hit) {
        let is_late = now_ns().saturating_sub(hit.time_ns) > MAX_LATE_NS;
        let content = if is_late { None } else { self.read(hit.address) };
        let Some(content) = content else {
            self.followed.forget(hit.address);
            return;
        };
        let frames = self.unwinder.frames(hit);
        let is_whole = frames.is_whole;
        let Some(stack) = self.number(frames) else { return };
        if self.followed.add(hit.address, hit.time_ns, stack, content) {
            self.counts.samples += 1;
            self.counts.cut += u64::from(!is_whole);
            self.stacks[stack as usize].1 += 1;
        }
    }

    /// Returns the number of a stack; `None` if there are too many.
    fn number(&mut self, frames: Frames) -> Option<u32> {
        if let Some(number) = self.numbers.get(&frames.addresses) {
            return Some(*number);
        }
        if self.stacks.len() >= MAX_STACKS {
            return None;
        }
        let number = self.stacks.len() as u32;
        self.numbers.insert(frames.addresses.clone(), number);
        self.stacks.push((frames, 0));
        Some(number)
    }

    /// Checks the blocks that are due.
    fn check(&mut self) {
        let memory = &self.memory;
        self.followed.check(now_ns(), &mut |at| read(memory, at));
    }

    /// Reads the content of a block. Its page is looked up once in a window.
    fn read(&mut self, at: u64) -> Option<Content> {
        let page = self.memory.page_bytes();
        let (first, last) = (at / page, (at + (WORDS * 8) as u64 - 1) / page);
        if first == last && self.resident.contains(&first) {
            let mut bytes = [0; WORDS * 8];
            let length = self.memory.read_resident(at, &mut bytes);
            return Content::new(&bytes[..length.min(bytes.len())]);
        }
        let content = read(&self.memory, at)?;
        if first == last {
            self.resident.insert(first);
        }
        Some(content)
    }
}

/// Reads the content at an address, as far as its pages are resident.
pub(super) fn read(memory: &LiveMemory, at: u64) -> Option<Content> {
    let mut bytes = [0; WORDS * 8];
    let length = memory.read(at, &mut bytes);
    Content::new(&bytes[..length.min(bytes.len())])
}

/// Returns the time of `CLOCK_MONOTONIC`, which the kernel has for samples, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use lowtide_probe::detect::{DetectedRuntime, OwnMemory};
    use lowtide_probe::proc::maps::FileId;

    use super::*;

    #[test]
    fn a_process_with_go_code_is_refused() {
        let go = DetectedRuntime {
            kind: RuntimeKind::Go,
            version: None,
            file: FileId::default(),
            memory: OwnMemory::None,
        };
        let detected = Detected { runtimes: vec![go], ..Detected::default() };
        assert_eq!(check_code(&detected), Err(NoStacks::Go));
        assert_eq!(check_code(&Detected::default()), Ok(()));
    }

    #[test]
    fn a_thread_without_filters_and_shadow_stacks_is_not_refused() {
        assert!(check_threads(std::process::id()).is_ok());
        assert!(matches!(check_threads(u32::MAX), Err(NoStacks::Failed(_))));
    }

    #[test]
    #[ignore = "needs root, for probes"]
    fn the_kernel_accepts_the_program_and_a_filter_does_not_break_probes() {
        let mut sampler = Sampler::load().unwrap();
        let first = [FirstInstruction::Push, FirstInstruction::EndBranch, FirstInstruction::Other];
        for first in first {
            let hit_s = trial::run(&mut sampler, first).unwrap();
            assert!(hit_s > 0.0, "{first:?}: {hit_s}");
        }
        // Kernels that filter the system call of return probes fail this: there, filtered processes are refused.
        trial::survives_filter(&mut sampler).unwrap();
    }
}
