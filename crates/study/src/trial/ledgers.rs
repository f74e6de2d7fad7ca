//! The thread that takes ledgers of a subject: on request, when its memory has changed, and
//! periodically, because owners change without RSS. It is separate from the sampler, which must not
//! wait for it. When memory has settled, the ledger also has what pins fragmented memory.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lowtide_leaks::pins::HeldMemory;
use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::{Ledger, Owner};
use lowtide_model::pins::{BlockSummary, PinSummary};
use lowtide_probe::inspect::Inspector;
use lowtide_probe::machine::thread_cpu_s;
use lowtide_probe::patience::Patience;
use lowtide_probe::target::{Target, TargetError};
use lowtide_probe::tree;
use lowtide_record::Recorder;
use lowtide_record::v1::{LedgerReading, Line};

use super::sampling::SamplerHandle;
use crate::on_demand::{OnDemand, Requests};

/// Time between two checks whether the memory has changed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Inverse of the share of the time that ledgers without a request may take: when RSS has changed,
const SHARE_CHANGED: u32 = 25;
/// and when it has not.
const SHARE: u32 = 50;
/// Minimum difference of RSS that counts as a change: as a part of it, and in bytes.
const CHANGED: f64 = 0.1;
const CHANGED_BYTES: u64 = 1 << 20;
/// Amount of fragmented memory of a process below which its cause is not read, and of allocated
/// memory below which its blocks are not read, in bytes.
const MIN_READ: u64 = 1 << 20;
/// Minimum time between two ledgers when RSS has not changed. A command that ends by itself
/// announces nothing: its last ledger must be recent.
const UNCHANGED_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time for a ledger: a tree that takes longer has changed meanwhile.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a requested ledger.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A request for a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LedgerRequest {
    Ledger,
    /// Also for the blocks in use, and what pins fragmented memory.
    WithPins,
}

/// The running thread. Its result is the CPU time that it used, in seconds.
#[derive(Debug)]
pub(super) struct Ledgers(OnDemand<LedgerRequest, f64>);

impl Ledgers {
    /// Starts to take ledgers of everything below `root`. The sampler provides its resident bytes.
    pub(super) fn start(root: u32, recorder: Recorder, sampler: SamplerHandle) -> Self {
        let work = LedgerReader {
            root,
            recorder,
            sampler,
            inspector: Inspector::default().without_predictions(),
            last: None,
            last_pins: None,
            cpu_s: 0.0,
        };
        Self(OnDemand::start(Requests::default(), move |requests| work.run(requests)))
    }

    /// Requests a ledger.
    pub(super) fn take_soon(&self) {
        self.0.ask(LedgerRequest::Ledger);
    }

    /// Requests a ledger, and waits for it.
    pub(super) fn take_now(&self) {
        self.0.ask_and_wait(LedgerRequest::Ledger, REQUEST_TIMEOUT);
    }

    /// Requests a ledger with the blocks in use and what pins fragmented memory, and waits for it.
    pub(super) fn take_with_pins(&self) {
        self.0.ask_and_wait(LedgerRequest::WithPins, REQUEST_TIMEOUT);
    }

    /// Tells the thread to stop, without waiting: it may be inspecting a large heap whose process
    /// ends meanwhile.
    pub(super) fn stop(&self) {
        self.0.stop();
    }

    /// Waits until the thread has ended, and returns the CPU time that it used, in seconds.
    pub(super) fn finish(self) -> f64 {
        self.0.finish().unwrap_or_default()
    }
}

struct LedgerReader {
    root: u32,
    recorder: Recorder,
    sampler: SamplerHandle,
    inspector: Inspector,
    last: Option<LastLedger>,
    /// When blocks were last read, and the CPU time that this used.
    last_pins: Option<(Instant, Duration)>,
    /// CPU time of all inspections, in seconds.
    cpu_s: f64,
}

/// The last ledger.
struct LastLedger {
    end: Instant,
    /// CPU time that it used.
    cost: Duration,
    rss_bytes: u64,
    /// Number of moments that had been announced.
    moments: u64,
}

impl LedgerReader {
    fn run(mut self, requests: &Requests<LedgerRequest>) -> f64 {
        loop {
            requests.wait(POLL_INTERVAL);
            if requests.is_stopped() {
                return self.cpu_s + thread_cpu_s();
            }
            let batch = requests.take();
            let is_requested = !batch.requests.is_empty();
            let with_pins = match is_requested {
                true => batch.requests.contains(&LedgerRequest::WithPins),
                false => self.pins_are_due(),
            };
            if is_requested || self.is_due() {
                self.take(requests, with_pins);
            }
        }
    }

    fn has_changed(&self, last: &LastLedger) -> bool {
        let difference = self.sampler.rss_bytes().abs_diff(last.rss_bytes);
        difference > CHANGED_BYTES && difference as f64 > last.rss_bytes as f64 * CHANGED
    }

    /// Returns whether blocks are to be read without a request: if RSS is unchanged, so
    /// that it may have settled, and at most [`SHARE`] of the time is used.
    fn pins_are_due(&self) -> bool {
        let is_unchanged = self.last.as_ref().is_some_and(|last| !self.has_changed(last));
        is_unchanged && self.last_pins.is_none_or(|(end, cost)| end.elapsed() >= cost * SHARE)
    }

    fn is_due(&self) -> bool {
        let Some(last) = &self.last else { return self.sampler.rss_bytes() > 0 };
        if self.sampler.moments() > last.moments {
            return true;
        }
        let since = last.end.elapsed();
        if self.has_changed(last) {
            since >= last.cost * SHARE_CHANGED
        } else {
            since >= UNCHANGED_INTERVAL && since >= last.cost * SHARE
        }
    }

    fn take(&mut self, requests: &Requests<LedgerRequest>, with_pins: bool) {
        let begin = Instant::now();
        // Each inspection runs in its own thread.
        let mut cpu_s = 0.0;
        let (t_s, moments) = (self.recorder.now(), self.sampler.moments());
        let mut ledger = Ledger::default();
        let mut heap: Option<HeapSummary> = None;
        let mut managers = Vec::new();
        let mut processes = 0;
        let mut most = MostOf::default();
        for pid in tree::descendants_of(self.root) {
            // A process that has just ended no longer has memory.
            let inspected = Target::open(pid).and_then(|target| {
                let observed = self.inspector.inspect(&target)?;
                Ok((target, observed))
            });
            if let Ok((target, observed)) = inspected {
                most.add(target, &observed.ledger);
                ledger.join(&observed.ledger);
                managers = Manager::join(managers, &observed.managers);
                let of_process = HeapSummary::from_arenas(&observed.arenas);
                heap = heap.into_iter().chain(of_process).reduce(HeapSummary::join);
                processes += 1;
                cpu_s += observed.cpu_s;
            }
            if requests.is_stopped() || begin.elapsed() > LEDGER_TIMEOUT {
                processes = 0;
                break;
            }
        }
        let rss_bytes = ledger.total();
        self.cpu_s += cpu_s;
        let cost = Duration::try_from_secs_f64(cpu_s).unwrap_or_default();
        self.last = Some(LastLedger { end: Instant::now(), cost, rss_bytes, moments });
        if processes > 0 {
            let (pins, blocks) = if with_pins { self.blocks(most) } else { (None, None) };
            let reading =
                LedgerReading { t_s, processes, rss_bytes, ledger, managers, heap, pins, blocks };
            self.recorder.write(&Line::Ledger(reading));
        }
    }

    /// Reads what pins fragmented memory, and the blocks in use, by size and type. Mostly, both are
    /// in the same process, which is read once.
    fn blocks(&mut self, most: MostOf) -> (Option<PinSummary>, Option<BlockSummary>) {
        let begin_cpu_s = self.cpu_s;
        let is_same = most.pid_of(Owner::Fragmented) == most.pid_of(Owner::Allocated);
        let (fragmented, allocated) = most.into_targets();
        let found = match (fragmented, allocated) {
            (Some(target), Some(_)) if is_same => self.read(&target, true, true),
            (fragmented, allocated) => {
                let pins = fragmented.and_then(|target| self.read(&target, true, false).0);
                let blocks = allocated.and_then(|target| self.read(&target, false, true).1);
                (pins, blocks)
            }
        };
        if self.cpu_s > begin_cpu_s {
            let cost = Duration::try_from_secs_f64(self.cpu_s - begin_cpu_s).unwrap_or_default();
            self.last_pins = Some((Instant::now(), cost));
        }
        found
    }

    /// Reads the blocks of a process: what pins its memory, and the blocks in use.
    fn read(
        &mut self,
        target: &Target,
        with_pins: bool,
        with_blocks: bool,
    ) -> (Option<PinSummary>, Option<BlockSummary>) {
        let Ok(of_thread) = target.try_clone() else { return (None, None) };
        let read = move || {
            let held = HeldMemory::read(&of_thread, true)?;
            let pins = with_pins.then(|| PinSummary::new(&held.pins(PinSummary::MAX_GROUPS)));
            let blocks = with_blocks.then(|| held.blocks(BlockSummary::MAX_GROUPS));
            let blocks = blocks.map(|census| BlockSummary::new(&census));
            Ok::<_, TargetError>((pins, blocks, thread_cpu_s()))
        };
        let done = Patience::default().work_on(target, &AtomicBool::new(false), read);
        let Ok(Ok((pins, blocks, cpu_s))) = done else { return (None, None) };
        self.cpu_s += cpu_s;
        (pins, blocks)
    }
}

/// The processes with most fragmented and most allocated memory.
#[derive(Default)]
struct MostOf([Option<(u64, Target)>; 2]);

impl MostOf {
    /// The owners, in the order of the processes.
    const OWNERS: [Owner; 2] = [Owner::Fragmented, Owner::Allocated];

    fn add(&mut self, target: Target, ledger: &Ledger) {
        for (most, owner) in self.0.iter_mut().zip(Self::OWNERS) {
            let bytes = ledger.bytes(owner);
            let is_more = bytes >= MIN_READ && most.as_ref().is_none_or(|(most, _)| bytes > *most);
            if is_more && let Ok(clone) = target.try_clone() {
                *most = Some((bytes, clone));
            }
        }
    }

    fn pid_of(&self, owner: Owner) -> Option<u32> {
        let place = Self::OWNERS.iter().position(|known| *known == owner)?;
        self.0[place].as_ref().map(|(_, target)| target.pid)
    }

    fn into_targets(self) -> (Option<Target>, Option<Target>) {
        let [fragmented, allocated] = self.0.map(|most| most.map(|(_, target)| target));
        (fragmented, allocated)
    }
}
