//! A collection by the runtime of a process, before a release.
//!
//! Only HotSpot can be asked for one from outside: by its attach socket (`attach.rs`), as `jcmd`
//! does. It runs `GC.run`, in which all threads of the program wait without a bound, and then
//! `System.trim_native_heap`, if it has that (JDK 17.0.9, 18 and newer).
//!
//! If HotSpot has no socket yet, SIGQUIT makes it create one. The signal ends a process that does
//! not handle it: so it is sent only if HotSpot's own settings in force (`lowtide_probe::hotspot`),
//! the kernel's set of handled signals, and a thread that handles signals were seen. What cannot be
//! read counts as a reason not to send it.

mod attach;
mod exchange;
mod user;

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use lowtide_heap::hotspot::PerfData;
use lowtide_model::release::{Collected, JavaHeapSize, Release};
use lowtide_model::runtime_kind::RuntimeKind;
use lowtide_probe::hotspot::{Collector, Flags, perf_data, read_flags};
use lowtide_probe::memory::ProcessMemory;
use lowtide_probe::proc::maps::Mapping;
use lowtide_probe::target::Target;

use crate::checks;
use crate::error::{Abort, ReleaseError};
use crate::examination::unstarted;
use crate::options::Options;
use crate::refusal::Refusal;
use attach::Attach;
use exchange::NotAsked;

/// The commands, by their names in HotSpot.
const COLLECT: &str = "GC.run";
const TRIM: &str = "System.trim_native_heap";
/// The reply to [`COLLECT`] of a HotSpot that ignores it begins with this.
const IGNORED: &str = "Explicit GC is disabled";
/// Interval between two readings of RSS after the collection, number of readings without a decrease
/// that end them, and their maximum number: Shenandoah returns memory in a thread of its own.
const READING_INTERVAL: Duration = Duration::from_millis(100);
const STEADY_READINGS: u32 = 4;
const MAX_READINGS: u32 = 50;

/// Makes the runtime of a process collect. `announce` receives what is known before. With
/// `dry_run`, nothing else happens.
///
/// # Errors
/// Returns the reason to leave the process alone. Nothing was done then, except that a request that
/// HotSpot did not answer may still be carried out. Fails if the process cannot be read.
pub fn collect(
    target: &Target,
    options: &Options,
    announce: &mut dyn FnMut(&Collected),
) -> Result<Result<Collected, Box<Release>>, ReleaseError> {
    let prepared = Prepared::new(target, options);
    let outcome = prepared.and_then(|prepared| {
        announce(&prepared.before);
        if options.dry_run { Ok(prepared.before) } else { prepared.run(options) }
    });
    match outcome {
        Ok(collected) => Ok(Ok(collected)),
        Err(Abort::Failed(error)) => Err(error),
        Err(Abort::Refused(refusal)) => {
            let mut release = unstarted(target, options)?;
            refusal.enter(&mut release);
            Ok(Err(Box::new(release)))
        }
    }
}

/// A collection that was checked, and not asked for yet.
struct Prepared<'t> {
    target: &'t Target,
    hotspot: HotSpot,
    data: Option<PerfData>,
    before: Collected,
}

impl<'t> Prepared<'t> {
    fn new(target: &'t Target, options: &Options) -> Result<Self, Abort> {
        checks::check_permission(target)?;
        options.hold.check()?;
        checks::check_running(target)?;
        let again = target.try_clone().map_err(|error| target.failed(error))?;
        let of_thread = options.clone();
        let find = move || HotSpot::find(&again, &of_thread);
        let found = options.patience.work_on(target, &options.interrupt, find);
        let hotspot = found.map_err(|given_up| given_up.error(target.pid))??;
        let data = perf_data(&hotspot.memory, &hotspot.maps);
        let before = Collected {
            runtime: RuntimeKind::HotSpot.name().to_owned(),
            collector: hotspot.collector.map(|collector| collector.name().to_owned()),
            by: vec![COLLECT.to_owned()],
            pause_s: None,
            elapsed_s: None,
            before_bytes: target.status()?.rss_bytes(),
            after_bytes: None,
            heap_before: data.as_ref().map(size),
            heap_after: None,
        };
        Ok(Self { target, hotspot, data, before })
    }

    fn run(self, options: &Options) -> Result<Collected, Abort> {
        let begin = Instant::now();
        let mut collected = self.before;
        let trims = self.hotspot.attach.ask_all(self.target, options, |ask| {
            let reply = ask(COLLECT)?;
            if reply.code != 0 || reply.text.starts_with(IGNORED) {
                return Err(NotAsked::Because(format!("HotSpot replied: {}", reply.text)));
            }
            await_uncommit(self.target, options);
            Ok(ask(TRIM).is_ok_and(|reply| reply.code == 0))
        })?;
        if trims {
            collected.by.push(TRIM.to_owned());
        }
        let after = perf_data(&self.hotspot.memory, &self.hotspot.maps);
        let both = after.as_ref().zip(self.data.as_ref());
        collected.pause_s = both.and_then(|(after, before)| after.pause_s_since(before));
        collected.heap_after = after.as_ref().map(size);
        collected.elapsed_s = Some(begin.elapsed().as_secs_f64());
        collected.after_bytes = Some(self.target.status()?.rss_bytes());
        Ok(collected)
    }
}

fn size(data: &PerfData) -> JavaHeapSize {
    JavaHeapSize { used_bytes: data.used_bytes, committed_bytes: data.committed_bytes }
}

/// Waits until a process no longer returns memory by itself.
fn await_uncommit(target: &Target, options: &Options) {
    let (mut least, mut steady) = (u64::MAX, 0);
    for _ in 0..MAX_READINGS {
        let Ok(status) = target.status() else { return };
        steady = if status.rss_bytes() < least { 0 } else { steady + 1 };
        least = least.min(status.rss_bytes());
        if steady >= STEADY_READINGS || options.interrupt.load(Ordering::Relaxed) {
            return;
        }
        thread::sleep(READING_INTERVAL);
    }
}

/// The HotSpot in a process.
struct HotSpot {
    attach: Attach,
    memory: ProcessMemory,
    maps: Vec<Mapping>,
    collector: Option<Collector>,
}

impl HotSpot {
    fn find(target: &Target, options: &Options) -> Result<Self, Abort> {
        let maps = target.maps().map_err(|error| target.failed(error))?;
        let memory = ProcessMemory::open(target.pid).map_err(|error| target.failed(error))?;
        let detected = {
            let mut detector = options.detector.lock().unwrap_or_else(|dead| dead.into_inner());
            let detected = detector.detect(target.pid, &maps);
            detected.map_err(|error| checks::unrecognised(target, error))?
        };
        if !detected.has(RuntimeKind::HotSpot) {
            let why = match detected.runtimes.first() {
                Some(other) => format!("its runtime is {}", other.kind.name()),
                None => "it has no runtime that lowtide knows".to_owned(),
            };
            let why = format!(
                "{why}, and only HotSpot (Java) can be asked for a collection from outside"
            );
            return Err(Refusal::NoCollection { why, may_pass: false }.into());
        }
        let flags = read_flags(target.pid, &memory, &maps, &detected);
        if let Some(why) = flags.and_then(|flags| never_collects(&flags)) {
            return Err(Refusal::NoCollection { why: why.to_owned(), may_pass: false }.into());
        }
        let attach = Attach::prepare(target, flags)?;
        let collector = flags.and_then(|flags| flags.collector);
        Ok(Self { attach, memory, maps, collector })
    }
}

/// Returns the setting because of which a request to collect has no effect.
fn never_collects(flags: &Flags) -> Option<&'static str> {
    match () {
        () if flags.explicit_disabled => {
            Some("it ignores requests to collect (-XX:+DisableExplicitGC)")
        }
        () if flags.collector == Some(Collector::Epsilon) => {
            Some("its collector never collects (-XX:+UseEpsilonGC)")
        }
        () => None,
    }
}
