//! One sample of a process tree, or of one process, per tick.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use lowtide_model::bytes::Resident;
use lowtide_model::process::{Process, ProcessEnd};
use lowtide_model::sample::{ProcessSample, Reading, Sample, SlowReading};

use crate::machine::thread_cpu_s;
use crate::proc::smaps::LARGEST_WALKED;
use crate::process::{ProcReader, Units};
use crate::sockets::Sockets;
use crate::tree::Tree;

/// Minimum interval between two readings of the slow metrics.
const SLOW_EVERY: Duration = Duration::from_secs(1);
/// Maximum share of the time for the slow metrics, as a divisor.
const SLOW_SHARE: u32 = 500;
/// The same for a tree, which is judged by them, if its RSS has changed since the last reading.
/// Unused time is saved up for bursts of changes, up to `MOST_CREDIT`.
const SLOW_SHARE_CHANGED: u32 = 300;
const MOST_CREDIT: Duration = Duration::from_millis(100);
/// The same for a tree while a judgement is due.
const SLOW_SHARE_CLOSE: u32 = 100;
/// Minimum relative difference of RSS that counts as a change. Below it, the last slow metrics are
/// still valid.
const CHANGED: f64 = 0.05;

/// Samples a tree tick by tick.
#[derive(Debug)]
pub struct Sampler {
    scope: SampledScope,
    processes: BTreeMap<u32, KnownProcess>,
    /// Sum of the last readings of the processes that have ended.
    ended: Reading,
    sockets: Option<Sockets>,
    units: Units,
    slow: SlowSchedule,
    /// Whether there have ever been several processes at once.
    is_tree: bool,
    buffer: Vec<u8>,
}

/// The processes to sample.
#[derive(Debug)]
enum SampledScope {
    /// All descendants of a process.
    Tree(Tree),
    /// One process; its PID until it has been opened.
    One(Option<u32>),
}

impl SampledScope {
    /// Returns the PIDs of new processes.
    fn refresh(&mut self, anyway: bool) -> Vec<u32> {
        match self {
            Self::Tree(tree) => tree.refresh(anyway),
            Self::One(pid) => pid.take().into_iter().collect(),
        }
    }

    fn remove(&mut self, pid: u32) {
        if let Self::Tree(tree) = self {
            tree.remove(pid);
        }
    }
}

#[derive(Debug)]
struct KnownProcess {
    process: ProcReader,
    last: Reading,
    image: (u64, u64),
    name: String,
    peak_rss: Resident,
}

impl KnownProcess {
    fn remains(&self, t_s: f64) -> ProcessEnd {
        let ProcReader { pid, start_ticks, .. } = self.process;
        ProcessEnd { t_s, pid, start_ticks, peak_rss_bytes: self.peak_rss.0 }
    }
}

/// The result of one tick.
#[derive(Debug, Default)]
pub struct Tick {
    /// The whole tree.
    pub sample: Sample,
    /// Each process, at ticks with slow metrics.
    pub processes: Vec<ProcessSample>,
    /// Processes that are new, or that executed another program.
    pub changed: Vec<Process>,
    /// Processes that have ended.
    pub ended: Vec<ProcessEnd>,
}

/// The cost that a tick may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// As little as possible.
    Normal,
    /// A judgement by the slow metrics is due.
    Close,
    /// This tick needs the slow metrics.
    Now,
}

impl Sampler {
    /// Samples all descendants of a process, without that process itself.
    pub fn for_descendants_of(root: u32) -> Self {
        Self::new(SampledScope::Tree(Tree::below(root)))
    }

    /// Samples one process, without its descendants.
    pub fn for_process(pid: u32) -> Self {
        Self::new(SampledScope::One(Some(pid)))
    }

    fn new(scope: SampledScope) -> Self {
        Self {
            scope,
            processes: BTreeMap::new(),
            ended: Reading::default(),
            sockets: Sockets::open().ok(),
            units: Units::of_this_machine(),
            slow: SlowSchedule::default(),
            is_tree: false,
            buffer: Vec::new(),
        }
    }

    /// Samples the tree. `t_s` is the time of the sample.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read. A process that ends meanwhile is not an error.
    pub fn tick(&mut self, t_s: f64, attention: Attention) -> io::Result<Tick> {
        let mut tick = Tick::default();
        let new = self.scope.refresh(attention != Attention::Normal);
        for pid in new {
            self.take_hold(pid, t_s, &mut tick)?;
        }
        let mut total = Reading::default();
        let mut gone = Vec::new();
        for (pid, watched) in &mut self.processes {
            match watched.process.read(self.units, &mut self.buffer)? {
                Some((reading, stat)) => {
                    // A process that is about to end has no image any more; it has not executed
                    // another program.
                    let is_whole = stat.vsz_bytes > 0 && stat.image != (0, 0);
                    if is_whole && (stat.image != watched.image || stat.name != watched.name) {
                        watched.image = stat.image;
                        watched.name.clone_from(&stat.name);
                        // It may have been opened in this tick, before it executed its program.
                        tick.changed.retain(|described| described.pid != *pid);
                        tick.changed.extend(describe(
                            t_s,
                            &watched.process,
                            stat.parent,
                            &stat.name,
                            &mut self.buffer,
                        ));
                    }
                    watched.last = reading;
                    watched.peak_rss = watched.peak_rss.max(reading.rss_bytes);
                    total.add(&reading);
                }
                None => gone.push(*pid),
            }
        }
        for pid in gone {
            tick.ended.extend(self.let_go(pid, t_s));
        }
        // For processes that have ended, only cumulative counters are kept.
        total.minor_faults += self.ended.minor_faults;
        total.major_faults += self.ended.major_faults;
        total.cpu_s += self.ended.cpu_s;
        tick.sample = Sample {
            t_s,
            processes: self.processes.len() as u64,
            sockets_established: self.count_sockets(total.open_files.unwrap_or(0)),
            total,
            slow: None,
        };
        // For a single process, RSS is enough: the slow metrics are not urgent.
        self.is_tree |= self.processes.len() > 1;
        // A process that lowtide did not start must not wait for lowtide.
        let is_small =
            matches!(self.scope, SampledScope::Tree(_)) || total.rss_bytes.0 <= LARGEST_WALKED;
        if is_small && self.slow.is_due(Instant::now(), total.rss_bytes.0, attention, self.is_tree)
        {
            self.read_slow(&mut tick);
        }
        Ok(tick)
    }

    /// Returns the records that the watched processes would leave if they ended now.
    pub fn watched(&self, t_s: f64) -> impl Iterator<Item = ProcessEnd> {
        self.processes.values().map(move |w| w.remains(t_s))
    }

    fn take_hold(&mut self, pid: u32, t_s: f64, tick: &mut Tick) -> io::Result<()> {
        let Some((process, stat)) = ProcReader::open(pid)? else {
            self.scope.remove(pid);
            return Ok(());
        };
        tick.changed.extend(describe(t_s, &process, stat.parent, &stat.name, &mut self.buffer));
        let watched = KnownProcess {
            process,
            last: Reading::default(),
            image: stat.image,
            name: stat.name,
            peak_rss: Resident(0),
        };
        self.processes.insert(pid, watched);
        Ok(())
    }

    fn let_go(&mut self, pid: u32, t_s: f64) -> Option<ProcessEnd> {
        self.scope.remove(pid);
        let watched = self.processes.remove(&pid)?;
        self.ended.add(&watched.last);
        Some(watched.remains(t_s))
    }

    fn count_sockets(&mut self, open_files: u64) -> Option<u64> {
        let processes = self.processes.values().map(|w| &w.process);
        self.sockets.as_mut()?.count(open_files, processes)
    }

    fn read_slow(&mut self, tick: &mut Tick) {
        let cpu_s = thread_cpu_s();
        let mut total = SlowReading::default();
        let mut complete = true;
        for watched in self.processes.values() {
            let slow = watched.process.read_slow();
            match &slow {
                Some(slow) => total.add(slow),
                // A process that has just ended has no memory. One that may not be inspected makes
                // the sum wrong.
                None => complete &= watched.process.has_ended(&mut self.buffer),
            }
            tick.processes.push(ProcessSample {
                t_s: tick.sample.t_s,
                pid: watched.process.pid,
                reading: watched.last,
                slow,
            });
        }
        tick.sample.slow = complete.then_some(total);
        // On a busy machine, most of the wall time belongs to other processes.
        let cost = Duration::try_from_secs_f64(thread_cpu_s() - cpu_s).unwrap_or_default();
        self.slow.done(Instant::now(), cost, tick.sample.total.rss_bytes.0);
    }
}

fn describe(
    t_s: f64,
    process: &ProcReader,
    parent: u32,
    name: &str,
    buffer: &mut Vec<u8>,
) -> Option<Process> {
    Some(Process {
        t_s,
        pid: process.pid,
        start_ticks: process.start_ticks,
        parent,
        uid: process.status(buffer).ok()?.uid,
        name: name.to_owned(),
        command: process.command(),
        allocator: None,
    })
}

/// The schedule of the slow metrics, which limits their cost to a share of the time.
#[derive(Debug, Default)]
struct SlowSchedule {
    last: Option<LastSlow>,
}

/// The last reading of the slow metrics.
#[derive(Debug)]
struct LastSlow {
    end: Instant,
    /// CPU time of the reading.
    cost: Duration,
    rss: u64,
    /// Saved time that was left.
    credit: Duration,
}

impl LastSlow {
    fn credit(&self, now: Instant) -> Duration {
        (self.credit + now.duration_since(self.end) / SLOW_SHARE_CHANGED).min(MOST_CREDIT)
    }
}

impl SlowSchedule {
    fn is_due(&self, now: Instant, rss: u64, attention: Attention, hurry: bool) -> bool {
        let Some(last) = &self.last else {
            return true;
        };
        let since = now.duration_since(last.end);
        let changed = rss.abs_diff(last.rss) as f64 > last.rss as f64 * CHANGED;
        let (least, share) = match attention {
            Attention::Now => return true,
            Attention::Close if hurry => (SLOW_EVERY / 2, SLOW_SHARE_CLOSE),
            Attention::Normal if hurry && changed && last.credit(now) >= last.cost => return true,
            Attention::Normal | Attention::Close => (SLOW_EVERY, SLOW_SHARE),
        };
        since >= least && since >= last.cost * share
    }

    /// Records the end of a reading and its CPU time.
    fn done(&mut self, end: Instant, cost: Duration, rss: u64) {
        let credit = self.last.as_ref().map_or(MOST_CREDIT, |last| last.credit(end));
        self.last = Some(LastSlow { end, cost, rss, credit: credit.saturating_sub(cost) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// Starts a shell that runs the commands of its input, so that a test determines the sequence
    /// of events.
    fn shell() -> Child {
        Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn send(shell: &mut Child, command: &str) {
        use std::io::Write;
        writeln!(shell.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Ticks until a condition holds. If it never holds, the deadline ends the test.
    fn until(sampler: &mut Sampler, holds: impl Fn(&Tick) -> bool) -> Tick {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let tick = sampler.tick(0.0, Attention::Now).unwrap();
            if holds(&tick) {
                return tick;
            }
            assert!(Instant::now() < deadline, "still waiting: {tick:?}");
        }
    }

    #[test]
    fn counters_of_ended_processes_remain_in_the_total() {
        let mut outer =
            Command::new("sh").args(["-c", "sh; true"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut sampler = Sampler::for_descendants_of(outer.id());
        until(&mut sampler, |t| t.sample.processes == 1);
        send(&mut outer, "setsid sleep 1000 & echo");
        // A process that is just executing another program has no measurable memory.
        let has_pss = |tick: &Tick| tick.sample.slow.is_some_and(|slow| slow.pss_bytes.0 > 0);
        let two = until(&mut sampler, |t| t.sample.processes == 2 && has_pss(t));
        assert_eq!(two.processes.len(), 2);
        send(&mut outer, "kill $!; wait; exit");
        let none = until(&mut sampler, |t| t.sample.processes == 0);
        assert!(none.sample.total.minor_faults >= two.sample.total.minor_faults);
        assert_eq!(none.sample.total.rss_bytes.0, 0);
        outer.wait().unwrap();
    }

    #[test]
    fn a_single_process_is_sampled_without_its_children_and_never_replaced() {
        let mut outer = shell();
        send(&mut outer, "sleep 1000 & read word; kill $!; wait; exit");
        let mut sampler = Sampler::for_process(outer.id());
        let first = until(&mut sampler, |t| t.sample.processes == 1);
        assert!(first.sample.total.rss_bytes.0 > 0);
        assert_eq!(first.changed.len(), 1);
        let child = || !crate::tree::descendants_of(outer.id()).is_empty();
        until(&mut sampler, |t| t.sample.processes == 1 && child());
        send(&mut outer, "");
        let end = until(&mut sampler, |t| t.sample.processes == 0);
        assert_eq!(end.ended.iter().map(|e| e.pid).collect::<Vec<_>>(), [outer.id()]);
        outer.wait().unwrap();
        assert_eq!(sampler.tick(0.0, Attention::Now).unwrap().sample.processes, 0);
    }

    #[test]
    fn a_process_that_executes_another_program_is_described_again() {
        let mut outer = shell();
        let mut sampler = Sampler::for_descendants_of(std::process::id());
        let is = |name: &'static str, pid: u32| {
            move |t: &Tick| t.changed.iter().any(|d| d.pid == pid && d.name == name)
        };
        until(&mut sampler, is("sh", outer.id()));
        send(&mut outer, "exec sleep 1000");
        until(&mut sampler, is("sleep", outer.id()));
        outer.kill().unwrap();
        outer.wait().unwrap();
    }

    #[test]
    fn slow_metrics_take_a_bounded_share_of_the_time() {
        let begin = Instant::now();
        let mut schedule = SlowSchedule::default();
        assert!(schedule.is_due(begin, 0, Attention::Normal, true));
        schedule.done(begin + Duration::from_millis(10), Duration::from_millis(10), 100);
        let after = |ms: u64| begin + Duration::from_millis(10 + ms);
        let due = |ms, rss, attention, hurry| schedule.is_due(after(ms), rss, attention, hurry);
        assert!(!due(4999, 100, Attention::Normal, true));
        assert!(due(5000, 100, Attention::Normal, true));
        assert!(due(1, 106, Attention::Normal, true));
        assert!(due(1, 94, Attention::Normal, true));
        assert!(!due(4999, 94, Attention::Normal, false));
        assert!(!due(4999, 50, Attention::Close, false));
        assert!(due(1000, 100, Attention::Close, true));
        assert!(!due(999, 100, Attention::Close, true));
        assert!(due(0, 100, Attention::Now, false));
    }

    #[test]
    fn slow_metrics_of_a_constantly_changing_tree_use_up_the_saved_time() {
        let mut schedule = SlowSchedule::default();
        let cost = Duration::from_millis(10);
        let mut now = Instant::now();
        let mut readings = 0;
        for tick in 0..600_u64 {
            let rss = if tick % 2 == 0 { 100 } else { 200 };
            if schedule.is_due(now, rss, Attention::Normal, true) {
                schedule.done(now + cost, cost, rss);
                readings += 1;
            }
            now += Duration::from_millis(100);
        }
        // The saved time, and 1 part in 300 of the minute.
        assert!((10..=31).contains(&readings), "{readings}");
    }
}
