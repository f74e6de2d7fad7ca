//! One reading of a process tree, or of one process, at every tick.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use lowtide_model::bytes::Resident;
use lowtide_model::sample::{ProcessSample, Reading, Sample, SlowReading};
use lowtide_record::v1 as record;

use crate::inspect::LARGEST_WALKED;
use crate::machine::thread_cpu_s;
use crate::process::{ProcReader, Units};
use crate::sockets::Sockets;
use crate::tree::Tree;

/// How often the slow figures are read, at most.
const SLOW_EVERY: Duration = Duration::from_secs(1);
/// How much of the time may go into the slow figures: 1 part in so many.
const SLOW_SHARE: u32 = 500;
/// The same of a tree, which is judged by them, when its RSS has changed since they were read. What
/// was not used is saved up for when much happens at once, up to `MOST_CREDIT`.
const SLOW_SHARE_CHANGED: u32 = 300;
const MOST_CREDIT: Duration = Duration::from_millis(100);
/// The same of a tree while something is about to be judged.
const SLOW_SHARE_CLOSE: u32 = 100;
/// By how much RSS must differ from what it was, to have changed. Below it, the slow figures that
/// were read then are still good.
const CHANGED: f64 = 0.05;

/// Reads a tree tick by tick.
#[derive(Debug)]
pub struct Sampler {
    scope: Scope,
    processes: BTreeMap<u32, KnownProcess>,
    /// What the processes that have ended had used.
    ended: Reading,
    sockets: Option<Sockets>,
    units: Units,
    slow: Schedule,
    /// Whether there were ever several processes at once.
    is_tree: bool,
    buffer: Vec<u8>,
}

/// What is read.
#[derive(Debug)]
enum Scope {
    /// Everything that descends from a process.
    Tree(Tree),
    /// One process; its number until hold of it was taken.
    One(Option<u32>),
}

impl Scope {
    /// Those that are new.
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
    fn remains(&self, t_s: f64) -> record::ProcessEnd {
        let ProcReader { pid, start_ticks, .. } = self.process;
        record::ProcessEnd { t_s, pid, start_ticks, peak_rss_bytes: self.peak_rss.0 }
    }
}

/// What one tick gives.
#[derive(Debug, Default)]
pub struct Tick {
    /// The whole tree.
    pub sample: Sample,
    /// Each process, at the ticks that have slow figures.
    pub processes: Vec<ProcessSample>,
    /// Processes that are new, or that started another program.
    pub changed: Vec<record::Process>,
    /// Processes that have ended.
    pub ended: Vec<record::ProcessEnd>,
}

/// What a tick may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// As little as possible.
    Normal,
    /// Something is about to be judged by the slow figures.
    Close,
    /// They are wanted in this very tick.
    Now,
}

impl Sampler {
    /// Samples all descendants of a process, without that process itself.
    pub fn for_descendants_of(root: u32) -> Self {
        Self::new(Scope::Tree(Tree::below(root)))
    }

    /// Samples one process, without its descendants.
    pub fn for_process(pid: u32) -> Self {
        Self::new(Scope::One(Some(pid)))
    }

    fn new(scope: Scope) -> Self {
        Self {
            scope,
            processes: BTreeMap::new(),
            ended: Reading::default(),
            sockets: Sockets::open().ok(),
            units: Units::of_this_machine(),
            slow: Schedule::default(),
            is_tree: false,
            buffer: Vec::new(),
        }
    }

    /// Reads the tree. `t_s` is the time that the reading will bear.
    ///
    /// # Errors
    /// When `/proc` cannot be read. A process that ends meanwhile is not an error.
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
                    // One that is about to end has no image any more; that is no other program.
                    let is_whole = stat.vsz_bytes > 0 && stat.image != (0, 0);
                    if is_whole && (stat.image != watched.image || stat.name != watched.name) {
                        watched.image = stat.image;
                        watched.name.clone_from(&stat.name);
                        // It may have been taken hold of in this tick, while it was being started.
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
        // Only what grows is kept of those that have ended.
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
        // Of one process RSS tells enough: there the slow figures are worth no hurry.
        self.is_tree |= self.processes.len() > 1;
        // A process that is not ours must not wait for us.
        let is_small = matches!(self.scope, Scope::Tree(_)) || total.rss_bytes.0 <= LARGEST_WALKED;
        if is_small && self.slow.is_due(Instant::now(), total.rss_bytes.0, attention, self.is_tree)
        {
            self.read_slow(&mut tick);
        }
        Ok(tick)
    }

    /// What would be left of the processes that are being watched, if they ended now.
    pub fn watched(&self, t_s: f64) -> impl Iterator<Item = record::ProcessEnd> {
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

    fn let_go(&mut self, pid: u32, t_s: f64) -> Option<record::ProcessEnd> {
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
                // A process that has just ended has no memory; one that may not be seen makes the
                // sum wrong.
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
        // On a busy machine most of the time that it took is others' time.
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
) -> Option<record::Process> {
    Some(record::Process {
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

/// When the slow figures are read again, so that they cost a bounded share of the time.
#[derive(Debug, Default)]
struct Schedule {
    last: Option<LastSlow>,
}

/// The last reading of the slow figures.
#[derive(Debug)]
struct LastSlow {
    end: Instant,
    /// CPU time that it took.
    cost: Duration,
    rss: u64,
    /// How much of what was saved up was left.
    credit: Duration,
}

impl LastSlow {
    fn credit(&self, now: Instant) -> Duration {
        (self.credit + now.duration_since(self.end) / SLOW_SHARE_CHANGED).min(MOST_CREDIT)
    }
}

impl Schedule {
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

    /// A reading has ended that took so much CPU time.
    fn done(&mut self, end: Instant, cost: Duration, rss: u64) {
        let credit = self.last.as_ref().map_or(MOST_CREDIT, |last| last.credit(end));
        self.last = Some(LastSlow { end, cost, rss, credit: credit.saturating_sub(cost) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A shell that runs commands which it reads, so that a test decides when what happens.
    fn shell() -> Child {
        Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn tell(shell: &mut Child, command: &str) {
        use std::io::Write;
        writeln!(shell.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Ticks until a condition holds. A test that waits for something that never comes is ended by
    /// the deadline.
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
    fn processes_come_and_go_and_what_they_used_stays() {
        let mut outer =
            Command::new("sh").args(["-c", "sh; true"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut sampler = Sampler::for_descendants_of(outer.id());
        until(&mut sampler, |t| t.sample.processes == 1);
        tell(&mut outer, "setsid sleep 1000 & echo");
        // One that is just becoming another program has no memory that could be told.
        let has_pss = |tick: &Tick| tick.sample.slow.is_some_and(|slow| slow.pss_bytes.0 > 0);
        let two = until(&mut sampler, |t| t.sample.processes == 2 && has_pss(t));
        assert_eq!(two.processes.len(), 2);
        tell(&mut outer, "kill $!; wait; exit");
        let none = until(&mut sampler, |t| t.sample.processes == 0);
        assert!(none.sample.total.minor_faults >= two.sample.total.minor_faults);
        assert_eq!(none.sample.total.rss_bytes.0, 0);
        outer.wait().unwrap();
    }

    #[test]
    fn one_process_is_watched_without_its_children_and_nobody_takes_its_place() {
        let mut outer = shell();
        tell(&mut outer, "sleep 1000 & read word; kill $!; wait; exit");
        let mut sampler = Sampler::for_process(outer.id());
        let first = until(&mut sampler, |t| t.sample.processes == 1);
        assert!(first.sample.total.rss_bytes.0 > 0);
        assert_eq!(first.changed.len(), 1);
        let child = || !crate::tree::descendants_of(outer.id()).is_empty();
        until(&mut sampler, |t| t.sample.processes == 1 && child());
        tell(&mut outer, "");
        let end = until(&mut sampler, |t| t.sample.processes == 0);
        assert_eq!(end.ended.iter().map(|e| e.pid).collect::<Vec<_>>(), [outer.id()]);
        outer.wait().unwrap();
        assert_eq!(sampler.tick(0.0, Attention::Now).unwrap().sample.processes, 0);
    }

    #[test]
    fn a_process_that_starts_another_program_is_described_again() {
        let mut outer = shell();
        let mut sampler = Sampler::for_descendants_of(std::process::id());
        let is = |name: &'static str, pid: u32| {
            move |t: &Tick| t.changed.iter().any(|d| d.pid == pid && d.name == name)
        };
        until(&mut sampler, is("sh", outer.id()));
        tell(&mut outer, "exec sleep 1000");
        until(&mut sampler, is("sleep", outer.id()));
        outer.kill().unwrap();
        outer.wait().unwrap();
    }

    #[test]
    fn slow_figures_take_a_bounded_share_of_the_time() {
        let begin = Instant::now();
        let mut schedule = Schedule::default();
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
    fn a_tree_that_changes_all_the_time_uses_up_what_was_saved() {
        let mut schedule = Schedule::default();
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
        // What was saved, and 1 part in 300 of the minute.
        assert!((10..=31).contains(&readings), "{readings}");
    }
}
