//! Synthetic trials, for tests of this crate and of others.

use std::collections::BTreeMap;

use crate::TrialRecord;
use crate::v1::{
    AllocatorCheck, End, Event, FileKind, Header, Machine, Mark, Outcome, Process, SCHEMA, Trial,
};
use lowtide_model::bytes::{Mapped, Proportional, Resident};
use lowtide_model::sample::{Reading, Sample, SlowReading};
use lowtide_model::treatment::Treatment;

/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;

/// Returns a trial without samples and marks.
pub fn trial(allocator: &str, repeat: u32, loaded: bool) -> TrialRecord {
    TrialRecord {
        header: Header {
            schema: SCHEMA.to_owned(),
            holds: FileKind::Trial,
            lowtide_version: "0.0.0".to_owned(),
            started_unix_s: 0.0,
            machine: Machine::default(),
            source: None,
            clock: None,
        },
        trial: Trial {
            number: repeat,
            treatment: Treatment::plain(allocator, None),
            repeat,
            command: vec!["x".to_owned()],
            directory: None,
            program: None,
            environment: BTreeMap::new(),
            loaded,
            interval_s: 0.1,
        },
        processes: vec![process(10, Some(true), None)],
        process_ends: Vec::new(),
        samples: Vec::new(),
        process_samples: Vec::new(),
        ledgers: Vec::new(),
        marks: Vec::new(),
        loads: Vec::new(),
        load_samples: Vec::new(),
        figures: Vec::new(),
        acts: Vec::new(),
        end: None,
    }
}

/// Returns a process, with the effect of its treatment.
pub fn process(pid: u32, active: Option<bool>, because: Option<&str>) -> Process {
    Process {
        t_s: 0.0,
        pid,
        start_ticks: 1,
        parent: 1,
        uid: 0,
        name: "x".to_owned(),
        command: vec!["x".to_owned()],
        allocator: Some(AllocatorCheck {
            active,
            provider: None,
            because: because.map(str::to_owned),
        }),
    }
}

impl TrialRecord {
    /// Adds samples and marks of a round of load: 10 MiB before it, `peak` MiB in it, and `settled`
    /// MiB for 10 s after it, until the end.
    #[must_use]
    pub fn with_round(self, peak: f64, settled: f64) -> Self {
        self.with_samples(0.0, 20.0, |t| match t {
            t if t < 2.0 => 10.0,
            t if t < 10.0 => peak,
            _ => settled,
        })
        .with_mark(0.0, Event::Start, None)
        .with_mark(1.9, Event::Baseline, None)
        .with_mark(2.0, Event::LoadBegin, Some(1))
        .with_mark(10.0, Event::LoadEnd, Some(1))
        .with_mark(20.0, Event::Settled, Some(1))
        .ended(20.0, Outcome::Done)
    }

    /// Adds samples every tenth of a second from `from` to `to`; `of` returns their MiB.
    #[must_use]
    pub fn with_samples(mut self, from: f64, to: f64, of: impl Fn(f64) -> f64) -> Self {
        let ticks = ((to - from) * 10.0).round() as u32;
        for tick in 0..=ticks {
            let t_s = from + f64::from(tick) / 10.0;
            let bytes = (of(t_s) * MIB as f64) as u64;
            self.samples.push(Sample {
                t_s,
                processes: 1,
                sockets_established: Some(0),
                total: Reading {
                    rss_bytes: Resident(bytes),
                    vsz_bytes: Mapped(2 * bytes),
                    cpu_s: t_s / 10.0,
                    ..Reading::default()
                },
                slow: None,
            });
        }
        self
    }

    /// Makes the subject a tree of three processes, whose PSS is half their RSS and is read once
    /// per second.
    #[must_use]
    pub fn of_a_tree(mut self) -> Self {
        for (tick, sample) in self.samples.iter_mut().enumerate() {
            sample.processes = 3;
            if tick % 10 == 0 {
                let pss_bytes = Proportional(sample.total.rss_bytes.0 / 2);
                sample.slow = Some(SlowReading { pss_bytes, ..SlowReading::default() });
            }
        }
        self
    }

    /// Adds a mark.
    #[must_use]
    pub fn with_mark(mut self, t_s: f64, mark: Event, round: Option<u32>) -> Self {
        self.marks.push(Mark { t_s, mark, round, name: None });
        self
    }

    /// Adds a phase that the subject named.
    #[must_use]
    pub fn with_phase(mut self, t_s: f64, name: &str) -> Self {
        let name = Some(name.to_owned());
        self.marks.push(Mark { t_s, mark: Event::Phase, round: None, name });
        self
    }

    /// Ends the trial.
    #[must_use]
    pub fn ended(mut self, t_s: f64, outcome: Outcome) -> Self {
        self.end = Some(End {
            t_s,
            outcome,
            exit_code: Some(0),
            signal: None,
            usage: None,
            sampler_cpu_s: 0.0,
            missed_ticks: 0,
            ledgers_cpu_s: None,
            policy_cpu_s: None,
        });
        self
    }
}
