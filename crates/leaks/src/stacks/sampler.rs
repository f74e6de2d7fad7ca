//! Samples allocations in short windows, and follows the blocks.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use lowtide_heap::memory::Memory;
use lowtide_model::leaks::{LeakTier, StackSampling};
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_probe::detect::{Detected, Detector};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::patience::OwnTime;
use lowtide_probe::proc::status::Status;
use lowtide_probe::proc::task::{self, Thread};
use lowtide_probe::target::{Target, TargetError};

pub use super::bpf::Attachment;
use super::bpf::{Hit, KernelSampler, Probes};
use super::budget::{Budget, MAX_HITS, MAX_WINDOW};
use super::followed::{FirstWords, Followed, FollowedBlocks, WORDS};
use super::functions::{self, Functions};
use super::numbered::NumberedStacks;
use super::python::PythonFunctions;
use super::refusal::NoStacks;
use super::trial::{self, FirstInstruction};
use super::unwind::{Frames, StackUnwinder, Walk};

/// Maximum time from an allocation until the content of the block is first read, in nanoseconds:
/// later, the address could belong to another block.
const MAX_LATE_NS: u64 = 10_000_000;
/// Time after which the content of a block is read again in the same window, in nanoseconds.
const SETTLED_NS: u64 = 8_000_000;
/// Time between two reads of the buffer in a window, and between two checks of blocks outside of
/// one.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The highest priority of an ordinary thread.
const HIGHEST_PRIORITY: i32 = -20;
/// Maximum time for which the thread may run or idle after it was stopped. On a busy machine, it
/// waits for a processor, which does not count.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of successive windows in which no probe could be opened.
const MAX_FAILURES: u32 = 5;
/// Maximum time between the returns of two nested functions for the same block, in nanoseconds.
const MAX_NESTED_NS: u64 = 100_000;
/// Maximum number of different stacks.
const MAX_STACKS: usize = 1 << 15;
/// Maximum number of threads whose state is checked before the first window.
const MAX_THREADS: usize = 1 << 16;

/// Samples the allocations of a process in a separate thread, until it is stopped.
#[derive(Debug)]
pub struct StackSampler {
    stop: Arc<AtomicBool>,
    thread: Thread,
    samples: Receiver<StackSamples>,
}

/// The result of sampling.
#[derive(Debug)]
pub struct StackSamples {
    /// Windows in which the process had probes.
    pub windows: u64,
    /// Number of returns of allocation functions in these windows.
    pub hits: u64,
    /// Samples that were followed.
    pub samples: u64,
    /// Followed samples with an incomplete stack.
    pub cut: u64,
    /// Time in which the process had probes, in seconds: from the request for them until all were
    /// closed.
    pub exposed_s: f64,
    /// Time since the start of the first window, in seconds.
    pub elapsed_s: f64,
    /// Time that a hit costs the process, in seconds: an estimate, measured on a function of
    /// lowtide.
    pub hit_s: f64,
    /// Blocks that are left, in order of address.
    pub(super) blocks: Vec<(u64, Followed)>,
    /// Why no further stacks were taken, if sampling ended early.
    pub ended: Option<NoStacks>,
    /// Stacks, indexed by their numbers, with the number of samples of each.
    pub(super) stacks: Vec<(Frames, u64)>,
    /// The program in the kernel, for further probes.
    pub(super) sampler: KernelSampler,
}

impl StackSamples {
    /// Returns the addresses of the blocks that are left, in order.
    pub(crate) fn addresses(&self) -> Vec<u64> {
        self.blocks.iter().map(|(at, _)| *at).collect()
    }

    /// Returns the sentences on samples that may be incomplete.
    pub(crate) fn notes(&self) -> Vec<String> {
        let ended = self.ended.as_ref();
        let ended = ended.map(|reason| format!("the sampling of stacks stopped early: {reason}"));
        let few = (self.sampler.attachment() == Attachment::Perf).then(|| {
            "on this kernel only the most common allocation functions have probes: blocks of others have no \
             stack"
                .to_owned()
        });
        let silent = (self.windows > 0 && self.hits == 0).then(|| {
            "no function with a probe was called while the probes were open, so no stack is known"
                .to_owned()
        });
        ended.into_iter().chain(few).chain(silent).collect()
    }

    /// Returns how the process was sampled.
    pub(crate) fn summary(&self) -> Summary {
        /// Number of allocations of the request whose delay is reported.
        const REQUEST: f64 = 1000.0;
        let sampling = StackSampling {
            windows: self.windows,
            hits: self.hits,
            samples: self.samples,
            cut_share: self.cut as f64 / self.samples.max(1) as f64,
            hit_s: self.hit_s,
            max_delay_s: self.hit_s * REQUEST,
        };
        let tier = match self.sampler.attachment() {
            Attachment::Multi => LeakTier::Bpf,
            Attachment::Perf => LeakTier::Perf,
        };
        let elapsed_s = self.elapsed_s.max(self.exposed_s).max(f64::MIN_POSITIVE);
        Summary { sampling, tier, exposure: self.exposed_s / elapsed_s }
    }
}

/// How a process was sampled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) sampling: StackSampling,
    pub(crate) tier: LeakTier,
    /// Share of the time in which the process had probes, from 0 to 1.
    pub(crate) exposure: f64,
}

impl StackSampler {
    /// Starts to sample. `share` is the maximum exposure: the share of the time in which the
    /// process has probes, from 0 to 1. Probes are attached in the first of these ways that the
    /// kernel supports.
    ///
    /// # Errors
    /// Returns the reason if stacks cannot be taken, or if probes would endanger the process.
    pub fn start(
        target: &Target,
        share: f64,
        attachments: &[Attachment],
    ) -> Result<Self, NoStacks> {
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
        let memory =
            ProcessMemory::open(target.pid).map_err(|error| failed(target.failed(error)))?;
        let functions = functions::find(target.pid, &memory, &maps, &detected);
        if functions.is_empty() {
            return Err(NoStacks::NoFunctions);
        }
        let Tried { sampler, survives_filters, hit_s } =
            tried(&functions, is_filtered, attachments)?;
        let stop = Arc::new(AtomicBool::new(false));
        let sampling = Sampling {
            stop: Arc::clone(&stop),
            unwinder: StackUnwinder::new(target.pid),
            python: functions::python(target.pid, &maps, &detected).map(PythonFunctions::new),
            target,
            memory,
            functions,
            sampler,
            budget: Budget::new(share),
            followed: FollowedBlocks::default(),
            survives_filters,
            stacks: NumberedStacks::new(MAX_STACKS),
            resident: HashSet::new(),
            counts: Counts::default(),
            ended: None,
        };
        let (sender, samples) = channel();
        let (thread_sender, thread) = channel();
        let builder = thread::Builder::new().name("stacks".to_owned());
        let spawned = builder.spawn(move || {
            // The receivers may be gone, and no longer need these.
            let _ = thread_sender.send(Thread::current());
            let _ = sender.send(sampling.run(hit_s));
        });
        spawned.map_err(|error| NoStacks::Failed(error.to_string()))?;
        let thread = thread.recv().map_err(|error| NoStacks::Failed(error.to_string()))?;
        Ok(Self { stop, thread, samples })
    }

    /// Stops sampling, and returns the result.
    ///
    /// # Errors
    /// Fails if the thread does not end in time: a process can arrange its tables and its memory so
    /// that reading them takes for ever. It has no probes by then.
    pub fn finish(self) -> Result<StackSamples, NoStacks> {
        self.stop.store(true, Ordering::Relaxed);
        let samples = OwnTime::new(self.thread).receive(&self.samples, FINISH_TIMEOUT);
        let late = || NoStacks::Failed("its stacks could not be followed in time".to_owned());
        samples.ok_or_else(late)
    }
}

impl Drop for StackSampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A sampler that has passed the trials.
struct Tried {
    sampler: KernelSampler,
    /// Whether probes work under system call filters.
    survives_filters: bool,
    /// Time that a hit costs, in seconds.
    hit_s: f64,
}

/// Tries probes on functions of lowtide itself, in each of these ways until the kernel supports
/// one.
fn tried(
    functions: &[Functions],
    is_filtered: bool,
    attachments: &[Attachment],
) -> Result<Tried, NoStacks> {
    let mut last = Err(NoStacks::Kernel);
    for attachment in attachments {
        last = try_probes(functions, is_filtered, *attachment);
        if !matches!(last, Err(NoStacks::Kernel)) {
            break;
        }
    }
    last
}

fn try_probes(
    functions: &[Functions],
    is_filtered: bool,
    attachment: Attachment,
) -> Result<Tried, NoStacks> {
    let mut sampler = KernelSampler::load(attachment)?;
    // First in a child process: lowtide may have filters, too.
    let survives_filters = trial::survives_filter(&mut sampler)?;
    let is_own_filtered = Status::own().is_ok_and(|status| status.seccomp != 0);
    if (is_filtered || is_own_filtered) && !survives_filters {
        return Err(NoStacks::Filters);
    }
    let instructions: BTreeSet<FirstInstruction> =
        functions.iter().map(|found| found.instruction).collect();
    let mut hit_s = 0.0_f64;
    for instruction in instructions {
        hit_s = hit_s.max(trial::run(&mut sampler, instruction)?);
    }
    Ok(Tried { sampler, survives_filters, hit_s })
}

/// Rejects processes with code that a return probe can crash.
fn check_code(detected: &Detected) -> Result<(), NoStacks> {
    if detected.has(RuntimeKind::Go) { Err(NoStacks::Go) } else { Ok(()) }
}

/// Rejects processes with shadow stacks. Returns whether a thread has system call filters.
fn check_threads(pid: u32) -> Result<bool, NoStacks> {
    let failed = |error: std::io::Error| NoStacks::Failed(error.to_string());
    let mut is_filtered = false;
    for thread in task::threads(pid).map_err(failed)?.into_iter().take(MAX_THREADS) {
        // A thread that has ended is irrelevant.
        let Ok(status) = thread.status() else { continue };
        if status.shadow_stack {
            return Err(NoStacks::ShadowStack);
        }
        is_filtered |= status.seccomp != 0;
    }
    Ok(is_filtered)
}

/// The contents of the blocks of a window, in the order of their samples.
#[derive(Debug, Default)]
struct Looks {
    all: Vec<Look>,
    /// The number of them that were read twice.
    settled: usize,
}

#[derive(Debug)]
struct Look {
    at: u64,
    time_ns: u64,
    content: Option<FirstWords>,
}

#[derive(Debug, Default)]
struct Counts {
    windows: u64,
    hits: u64,
    samples: u64,
    cut: u64,
    /// Successive windows in which no probe could be opened.
    failures: u32,
}

/// The state of the sampling thread.
struct Sampling {
    stop: Arc<AtomicBool>,
    target: Target,
    memory: ProcessMemory,
    functions: Vec<Functions>,
    /// Absent if the process does not contain CPython.
    python: Option<PythonFunctions>,
    sampler: KernelSampler,
    unwinder: StackUnwinder,
    budget: Budget,
    followed: FollowedBlocks,
    /// Whether probes work under system call filters.
    survives_filters: bool,
    stacks: NumberedStacks,
    /// Pages that were found to be resident in this window.
    resident: HashSet<u64>,
    counts: Counts,
    /// Why no further windows are opened.
    ended: Option<NoStacks>,
}

impl Sampling {
    fn run(mut self, hit_s: f64) -> StackSamples {
        // In a window, blocks must be read at once, even while the process keeps all processors
        // busy. This requires CAP_SYS_NICE.
        let _ = rustix::process::setpriority_process(None, HIGHEST_PRIORITY);
        let begin = Instant::now();
        while !self.is_over() {
            if let Err(reason) = self.window() {
                self.ended = Some(reason);
                break;
            }
            // A pause that overflows the clock lasts until the end.
            let next = Instant::now().checked_add(self.budget.pause(begin.elapsed()));
            while !self.is_over() && next.is_none_or(|next| Instant::now() < next) {
                self.check();
                thread::sleep(CHECK_INTERVAL);
            }
        }
        // If the process executes another program, the samples are kept, and no new ones follow.
        while !self.stop.load(Ordering::Relaxed) && self.target.is_alive() {
            self.check();
            thread::sleep(CHECK_INTERVAL);
        }
        let Counts { windows, hits, samples, cut, .. } = self.counts;
        StackSamples {
            windows,
            hits,
            samples,
            cut,
            exposed_s: self.budget.exposed().as_secs_f64(),
            elapsed_s: begin.elapsed().as_secs_f64(),
            hit_s,
            blocks: self.followed.into_blocks(),
            ended: self.ended,
            stacks: self.stacks.all,
            sampler: self.sampler,
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || !self.memory.is_in_use()
    }

    /// Probes the process for a short time.
    ///
    /// # Errors
    /// Returns the reason if the process must not be probed any more.
    fn window(&mut self) -> Result<(), NoStacks> {
        let Ok(maps) = self.target.maps() else { return Ok(()) };
        if self.unwinder.update(&maps) {
            self.stacks.renew();
            if let Ok(detected) = Detector::default().detect(self.target.pid, &maps) {
                check_code(&detected)?;
            }
        }
        if check_threads(self.target.pid)? && !self.survives_filters {
            return Err(NoStacks::Filters);
        }
        self.resident.clear();
        self.sampler.allow(MAX_HITS);
        let asked = Instant::now();
        let pid = self.target.pid;
        let attach = |found: &Functions| {
            let offsets = match self.sampler.attachment() {
                Attachment::Multi => &found.offsets,
                Attachment::Perf => &found.common,
            };
            let file = found.file.file();
            let opened = file.and_then(|file| self.sampler.at_returns(file, offsets, pid));
            opened.map_err(|error| NoStacks::from_error(&error))
        };
        let opened: Vec<Result<Probes, NoStacks>> = self.functions.iter().map(attach).collect();
        let mut looks = Looks::default();
        let opened_at = Instant::now();
        while opened_at.elapsed() < MAX_WINDOW && self.sampler.hits() < MAX_HITS && !self.is_over()
        {
            self.look(&mut looks);
            thread::sleep(POLL_INTERVAL);
        }
        self.sampler.stop();
        self.look(&mut looks);
        let failure = opened
            .iter()
            .all(Result::is_err)
            .then(|| opened.iter().find_map(|opened| opened.as_ref().err().cloned()));
        drop(opened);
        self.budget.spend(asked.elapsed());
        self.counts.windows += 1;
        self.counts.hits += self.sampler.hits();
        // Only now: the tables for unwinding come from the process itself, and it has no probes any
        // more.
        let mut hits = Vec::new();
        self.sampler.drain(&mut |hit| hits.push(hit));
        let contents = looks.all.into_iter().map(|look| look.content);
        let contents = contents.chain(std::iter::repeat(None));
        if let Some(python) = &mut self.python {
            python.begin_window(&maps);
        }
        for (hit, content) in hits.iter().zip(contents) {
            if self.is_over() {
                break;
            }
            self.follow(hit, content);
        }
        self.counts.failures = if failure.is_some() { self.counts.failures + 1 } else { 0 };
        match failure.flatten().filter(|_| self.counts.failures >= MAX_FAILURES) {
            Some(reason) => Err(reason),
            None => Ok(()),
        }
    }

    /// Reads the contents of the blocks that were allocated since the last call. Reads those of
    /// earlier blocks once more: many programs still fill a block, or count references to it, in
    /// its first milliseconds. A block is known to be the sampled one only if it was allocated just
    /// now, and no allocation has been missed since.
    fn look(&mut self, looks: &mut Looks) {
        let mut new = Vec::new();
        self.sampler.look(&mut |at, time_ns| new.push((at, time_ns)));
        for (at, time_ns) in new {
            let is_late = now_ns().saturating_sub(time_ns) > MAX_LATE_NS;
            let content = if is_late { None } else { self.read(at) };
            let content = content.filter(|_| self.sampler.missed() == 0);
            looks.all.push(Look { at, time_ns, content });
        }
        let settled = now_ns().saturating_sub(SETTLED_NS);
        while let Some(look) = looks.all.get(looks.settled).filter(|look| look.time_ns <= settled) {
            let (at, is_known) = (look.at, look.content.is_some());
            let content = if is_known { self.read(at) } else { None };
            if let Some(content) = content.filter(|_| self.sampler.missed() == 0) {
                looks.all[looks.settled].content = Some(content);
            }
            looks.settled += 1;
        }
    }

    /// Follows a block from its allocation on.
    fn follow(&mut self, hit: &Hit, content: Option<FirstWords>) {
        let before = self.followed.remove(hit.address);
        let Some(content) = content else { return };
        let walk = self.unwinder.walk(hit);
        let is_whole = walk.is_whole;
        let Some(stack) = self.number(hit, walk) else { return };
        // A function that calls another one for the block returns later, from a frame further up
        // the stack.
        let is_nested = |inner: &Followed| {
            hit.time_ns.saturating_sub(inner.time_ns) < MAX_NESTED_NS
                && inner.stack_pointer < hit.stack_pointer
        };
        if let Some(inner) = before.filter(is_nested) {
            self.counts.samples -= 1;
            self.counts.cut -= u64::from(!self.stacks.all[inner.stack as usize].0.is_whole);
            self.stacks.all[inner.stack as usize].1 -= 1;
        }
        let Hit { time_ns, stack_pointer, .. } = *hit;
        if self.followed.add(hit.address, Followed::new(time_ns, stack, stack_pointer, content)) {
            self.counts.samples += 1;
            self.counts.cut += u64::from(!is_whole);
            self.stacks.all[stack as usize].1 += 1;
        }
    }

    /// Returns the number of a stack; `None` if there are too many.
    fn number(&mut self, hit: &Hit, walk: Walk) -> Option<u32> {
        let python = match &mut self.python {
            Some(functions) => {
                let places = self.unwinder.places(&walk.addresses);
                functions.of(&self.memory, &mut self.unwinder, hit, &walk, &places)
            }
            None => Vec::new(),
        };
        self.stacks.number(&mut self.unwinder, walk, python)
    }

    /// Checks the blocks that are due.
    fn check(&mut self) {
        let memory = &self.memory;
        self.followed.check(now_ns(), &mut |at| read(memory, at));
    }

    /// Reads the content of a block. Its page is checked once per window.
    fn read(&mut self, at: u64) -> Option<FirstWords> {
        let page = self.memory.page_bytes();
        let (first, last) = (at / page, at.checked_add((WORDS * 8) as u64 - 1)? / page);
        if first == last && self.resident.contains(&first) {
            let mut bytes = [0; WORDS * 8];
            let length = self.memory.read_resident(at, &mut bytes);
            return FirstWords::new(&bytes[..length.min(bytes.len())]);
        }
        let content = read(&self.memory, at)?;
        if first == last {
            self.resident.insert(first);
        }
        Some(content)
    }
}

/// Reads the content at an address, as far as its pages are resident.
pub(super) fn read(memory: &ProcessMemory, at: u64) -> Option<FirstWords> {
    let mut bytes = [0; WORDS * 8];
    let length = memory.read(at, &mut bytes);
    FirstWords::new(&bytes[..length.min(bytes.len())])
}

/// Returns the time of `CLOCK_MONOTONIC`, the clock of samples, in nanoseconds.
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
    fn a_process_with_go_code_is_not_sampled() {
        let go = DetectedRuntime {
            kind: RuntimeKind::Go,
            version: None,
            file: FileId::default(),
            memory: OwnMemory::None,
            is_started: true,
        };
        let detected = Detected { runtimes: vec![go], ..Detected::default() };
        assert_eq!(check_code(&detected), Err(NoStacks::Go));
        assert_eq!(check_code(&Detected::default()), Ok(()));
    }

    #[test]
    fn threads_without_seccomp_filters_and_shadow_stacks_are_accepted() {
        assert!(check_threads(std::process::id()).is_ok());
        assert!(matches!(check_threads(u32::MAX), Err(NoStacks::Failed(_))));
    }

    #[test]
    #[ignore = "needs root, for probes"]
    fn the_kernel_accepts_the_program_and_seccomp_filters_do_not_break_probes() {
        let _alone = trial::PROBED_BY_A_TEST.lock();
        for attachment in Attachment::ALL {
            let mut sampler = KernelSampler::load(attachment).unwrap();
            for first in
                [FirstInstruction::Push, FirstInstruction::EndBranch, FirstInstruction::Other]
            {
                let hit_s = trial::run(&mut sampler, first).unwrap();
                assert!(hit_s > 0.0, "{attachment:?} {first:?}: {hit_s}");
            }
            // This fails on kernels that filter the system call of return probes. There, filtered
            // processes are rejected.
            trial::survives_filter(&mut sampler).unwrap();
        }
    }
}
