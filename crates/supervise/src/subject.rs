//! One process under supervision: its readings, its policy, and its last release.

use std::io;
use std::sync::{Arc, Mutex};

use lowtide_policy::{Brake, LastRelease, Policy, PolicyKind, ProcessState, Refaults, Returned};
use lowtide_probe::detect::Detector;
use lowtide_probe::pressure::PressureSource;
use lowtide_probe::process::{ProcReader, Units};
use lowtide_probe::target::Target;
use lowtide_release::DroppedRanges;

use crate::black_box::Alarm;
use crate::freed_counter::FreedCounter;
use crate::heap_brakes::HeapBrakes;

/// One process under supervision.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) target: Target,
    /// PID of the parent when the process was first seen.
    pub(crate) parent: u32,
    reader: ProcReader,
    /// The program that it runs, identified by the addresses of its code, as reported by the
    /// kernel.
    pub(crate) image: (u64, u64),
    /// Last reading of RSS, in bytes.
    pub(crate) rss_bytes: u64,
    /// The short name of the program.
    pub(crate) name: String,
    pub(crate) command: String,
    pub(crate) pressure: PressureSource,
    /// Time when its cgroups were read, in seconds.
    pressure_s: f64,
    /// Whether the process was missing in the last list.
    pub(crate) is_missing: bool,
    /// Time of the next reading, in seconds.
    pub(crate) due_s: f64,
    /// The limit that it will soon reach, until the policy has decided.
    pub(crate) alarm: Option<Alarm>,
    pub(crate) program: ProgramState,
}

/// What is known about the program that a process executes. Another program starts with a new
/// state.
#[derive(Debug)]
pub(crate) struct ProgramState {
    freed: FreedCounter,
    /// Time when its program was first seen, in seconds.
    pub(crate) begin_s: f64,
    /// Whether its count of freed bytes continues the count of its parent.
    pub(crate) is_fork: bool,
    /// The initial count, if it is a fork.
    freed_before: Option<u64>,
    /// Recognises its allocator. One per process, because a mapped file keeps its inode number.
    pub(crate) detector: Arc<Mutex<Detector>>,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) brake: Brake,
    /// The brakes of its heaps, if it has several.
    pub(crate) heap_brakes: HeapBrakes,
    pub(crate) last: Option<LastRelease>,
    /// The previous release, with the bytes that had come back when the last one started.
    pub(crate) previous: Option<LastRelease>,
    pub(crate) held_back_s: Option<f64>,
    /// The pages of the last release, while lowtide observes how many come back.
    pub(crate) dropped: Option<Dropped>,
    /// Whether the log already says that the budget delays its release.
    pub(crate) is_held_back: bool,
    /// The reason why it cannot be released, as last logged.
    pub(crate) refused: Option<String>,
    /// RSS, CPU time and faults, and the time of their last change, in seconds.
    changed: (ChangeKey, f64),
}

/// RSS, CPU time in milliseconds, and faults.
type ChangeKey = (u64, u64, u64);

/// The pages of the last release.
#[derive(Debug)]
pub(crate) struct Dropped {
    pub(crate) ranges: DroppedRanges,
    pub(crate) refaults: Refaults,
    pub(crate) released_bytes: u64,
    pub(crate) back: Returned,
}

/// Maximum age of the cgroups of a process, in seconds. Then they are read again: the process may
/// have been moved.
const CGROUPS_AGE_S: f64 = 30.0;
/// Maximum length of a command line in the log, in characters.
const MAX_COMMAND: usize = 300;

impl ProgramState {
    fn new(kind: PolicyKind, t_s: f64) -> Self {
        Self {
            freed: FreedCounter::default(),
            begin_s: t_s,
            is_fork: false,
            freed_before: None,
            detector: Arc::default(),
            policy: kind.policy(),
            brake: Brake::default(),
            heap_brakes: HeapBrakes::default(),
            last: None,
            previous: None,
            held_back_s: None,
            dropped: None,
            is_held_back: false,
            refused: None,
            changed: ((0, 0, 0), t_s),
        }
    }
}

impl Subject {
    /// Opens a process. Returns `None` if it has ended or has no memory.
    pub(crate) fn open(pid: u32, kind: PolicyKind, t_s: f64) -> Option<Self> {
        let target = Target::open(pid).ok()?;
        let (reader, stat) = ProcReader::open(pid).ok().flatten()?;
        if reader.start_ticks != target.start_ticks {
            return None;
        }
        Some(Self {
            target,
            parent: stat.parent,
            reader,
            image: stat.image,
            rss_bytes: 0,
            command: format!("[{}]", stat.name),
            name: stat.name,
            pressure: PressureSource::for_process(pid),
            pressure_s: t_s,
            is_missing: false,
            due_s: t_s,
            alarm: None,
            program: ProgramState::new(kind, t_s),
        })
    }

    /// Reads the state of the process; `None` if it has ended. If it has executed another program,
    /// its policy starts from the beginning.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read.
    pub(crate) fn read(
        &mut self,
        kind: PolicyKind,
        units: Units,
        buffer: &mut Vec<u8>,
        t_s: f64,
    ) -> io::Result<Option<ProcessState>> {
        let Some((reading, stat)) = self.reader.read(units, buffer)? else { return Ok(None) };
        // A process that is ending or executing a program has no image for a moment.
        if stat.image != self.image && stat.image != (0, 0) {
            self.image = stat.image;
            self.command = format!("[{}]", stat.name);
            self.name = stat.name;
            self.program = ProgramState::new(kind, t_s);
        }
        self.rss_bytes = reading.rss_bytes.0;
        if kind.has_budget() && t_s - self.pressure_s >= CGROUPS_AGE_S {
            self.pressure = PressureSource::for_process(self.target.pid);
            self.pressure_s = t_s;
        }
        let key = (reading.rss_bytes.0, (reading.cpu_s * 1e3) as u64, reading.minor_faults);
        if key != self.program.changed.0 {
            self.program.changed = (key, t_s);
        }
        let freed =
            kind.needs_preload().then(|| self.program.freed.read(&self.target, t_s)).flatten();
        let freed_bytes = freed.map(|freed| self.freed_since_begin(freed.freed_bytes));
        Ok(Some(ProcessState {
            t_s,
            rss: reading.rss_bytes,
            cpu_s: reading.cpu_s,
            minor_faults: reading.minor_faults,
            open_files: reading.open_files,
            freed_bytes,
            last_release: self.program.last,
            previous_release: self.program.previous,
            held_back_s: self.program.held_back_s,
            ..ProcessState::default()
        }))
    }

    /// Returns the number of bytes that the process itself has freed, from its count of freed
    /// bytes.
    fn freed_since_begin(&mut self, counted: u64) -> u64 {
        let before =
            self.program.freed_before.get_or_insert(if self.program.is_fork { counted } else { 0 });
        counted.saturating_sub(*before)
    }

    /// Returns the time since the last change of the process, in seconds.
    pub(crate) fn unchanged_s(&self, t_s: f64) -> f64 {
        t_s - self.program.changed.1
    }

    /// Stores the command line that a release has read.
    pub(crate) fn set_command(&mut self, command: &[String]) {
        if !command.is_empty() {
            self.command = command.join(" ").chars().take(MAX_COMMAND).collect();
        }
    }
}
