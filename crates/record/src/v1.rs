//! The first version of the format: `lowtide.record/1`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::plan::StudyPlan;
pub use lowtide_model::event::Event;
use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::Ledger;
pub use lowtide_model::machine::Machine;
use lowtide_model::pins::{BlockSummary, PinSummary};
pub use lowtide_model::process::{AllocatorCheck, Process, ProcessEnd};
use lowtide_model::sample::{ProcessSample, Sample};
use lowtide_model::treatment::Treatment;
use serde::{Deserialize, Serialize};

/// The value of the header's `schema`.
pub const SCHEMA: &str = "lowtide.record/1";

/// One line of a record.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(Deserialize))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// The header. Always the first line.
    Header(Box<Header>),
    /// The plan of a study. In `study.jsonl`; of several, the last counts.
    Plan(Box<StudyPlan>),
    /// A trial starts. In `study.jsonl`; of several with one number, the last counts.
    TrialBegin(TrialBegin),
    /// A trial has ended. In `study.jsonl`.
    TrialEnd(TrialEnd),
    /// The command of a trial and its conditions. In a trial's file, once, after the header.
    Trial(Box<Trial>),
    /// A process was seen for the first time, or its allocator was detected.
    Process(Process),
    /// A process has ended, or its sampling has stopped.
    ProcessEnd(ProcessEnd),
    /// A reading of the whole tree.
    Sample(Sample),
    /// A reading of one process of the tree.
    ProcessSample(ProcessSample),
    /// Resident memory by owner.
    Ledger(LedgerReading),
    /// An event at a moment of the trial.
    Mark(Mark),
    /// One run of the load.
    Load(Load),
    /// The plan of a load. In the file of a load, once, after the header.
    LoadPlan(LoadPlan),
    /// The progress of a load.
    LoadSample(LoadSample),
    /// Metrics that the subject reports about itself.
    Figures(SubjectMetrics),
    /// A hook that a study ran at a moment of the trial.
    Act(HookRun),
    /// The outcome of the trial. The last line of its file.
    End(End),
}

impl Line {
    /// Parses a line of a record; `None` if it is of a kind that this version does not know.
    ///
    /// # Errors
    /// Fails if it is not JSON, has no kind, or does not match its kind.
    // Written by hand: the code that serde derives for a tagged enum keeps a copy of each line, and
    // is compiled anew in every crate that reads records.
    pub fn parse(text: &[u8]) -> serde_json::Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Tag<'a> {
            #[serde(borrow)]
            kind: Cow<'a, str>,
        }
        let Tag { kind } = serde_json::from_slice(text)?;
        Ok(Some(match &*kind {
            "header" => Self::Header(serde_json::from_slice(text)?),
            "plan" => Self::Plan(serde_json::from_slice(text)?),
            "trial_begin" => Self::TrialBegin(serde_json::from_slice(text)?),
            "trial_end" => Self::TrialEnd(serde_json::from_slice(text)?),
            "trial" => Self::Trial(serde_json::from_slice(text)?),
            "process" => Self::Process(serde_json::from_slice(text)?),
            "process_end" => Self::ProcessEnd(serde_json::from_slice(text)?),
            "sample" => Self::Sample(serde_json::from_slice(text)?),
            "process_sample" => Self::ProcessSample(serde_json::from_slice(text)?),
            "ledger" => Self::Ledger(serde_json::from_slice(text)?),
            "mark" => Self::Mark(serde_json::from_slice(text)?),
            "load" => Self::Load(serde_json::from_slice(text)?),
            "load_plan" => Self::LoadPlan(serde_json::from_slice(text)?),
            "load_sample" => Self::LoadSample(serde_json::from_slice(text)?),
            "figures" => Self::Figures(serde_json::from_slice(text)?),
            "act" => Self::Act(serde_json::from_slice(text)?),
            "end" => Self::End(serde_json::from_slice(text)?),
            _ => return Ok(None),
        }))
    }
}

/// The header of a file: format, contents and origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The contents of the file.
    pub holds: FileKind,
    /// The version of lowtide that wrote it.
    pub lowtide_version: String,
    /// Start of the record, in seconds since 1970-01-01 UTC. All other times count from here.
    pub started_unix_s: f64,
    /// The machine on which it was written.
    pub machine: Machine,
    /// The source of the metrics, if lowtide did not measure them itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<String>,
    /// The same moment on a clock that cannot be set.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub clock: Option<ClockReading>,
}

/// A moment on a clock that all processes of a machine share. Unlike the wall clock, it cannot be
/// set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClockReading {
    /// The kernel's `boot_id`, which distinguishes this boot of this machine from all others.
    pub boot: String,
    /// `CLOCK_MONOTONIC`, in seconds.
    pub monotonic_s: f64,
}

impl Header {
    /// Returns the offset in seconds that turns a time of this record into a time of another
    /// record. Uses the shared clock if both records come from one boot of one machine, and the
    /// wall clock otherwise.
    pub fn seconds_behind(&self, other: &Self) -> f64 {
        match (&self.clock, &other.clock) {
            (Some(ours), Some(theirs)) if ours.boot == theirs.boot => {
                ours.monotonic_s - theirs.monotonic_s
            }
            _ => self.started_unix_s - other.started_unix_s,
        }
    }
}

/// The contents of a file of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// The course of a study.
    Study,
    /// The samples of one trial.
    Trial,
    /// The samples of a load: of `lowtide load -o`, or on their way into the file of a trial.
    Load,
    /// A kind that a later version records.
    #[serde(other)]
    Unknown,
}

/// The start of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialBegin {
    /// Position in the order of trials, from 1.
    pub number: u32,
    /// Index of the treatment, from 0.
    pub treatment: usize,
    /// Number of the repeat, from 1.
    pub repeat: u32,
    /// Its file, relative to the record.
    pub samples: String,
}

/// The end of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialEnd {
    /// Position in the order of trials, from 1.
    pub number: u32,
    /// The outcome.
    pub outcome: Outcome,
}

/// The command of a trial and its conditions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Position in the order of trials, from 1.
    pub number: u32,
    /// The treatment.
    pub treatment: Treatment,
    /// Number of the repeat, from 1.
    pub repeat: u32,
    /// The command as it was started.
    pub command: Vec<String>,
    /// The working directory.
    pub directory: Option<String>,
    /// The program that the first word of the command resolves to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program: Option<String>,
    /// The environment variables that the treatment or the study sets, or that affect memory.
    pub environment: BTreeMap<String, String>,
    /// Whether a load drives the subject. Otherwise it generates its own load.
    pub loaded: bool,
    /// Time between two samples, in seconds.
    pub interval_s: f64,
}

/// The resident bytes of all processes together, by owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerReading {
    /// Start of the inspection, in seconds since the record began.
    pub t_s: f64,
    /// Number of inspected processes.
    pub processes: u64,
    /// Resident pages that were counted, in bytes. Pages that several processes share count once
    /// for each.
    pub rss_bytes: u64,
    /// The same by owner.
    pub ledger: Ledger,
    /// Memory of each runtime and allocator in the row `runtime`, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub managers: Vec<Manager>,
    /// The layout of their heaps together. Absent if no glibc heap was walked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub heap: Option<HeapSummary>,
    /// What pins fragmented memory: of several processes, in the one with most of it. Absent if it
    /// was not read, or if there is little.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pins: Option<PinSummary>,
    /// The blocks in use: of several processes, in the one with most of them. Absent if they were
    /// not read, or if there are few.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub blocks: Option<BlockSummary>,
}

/// A mark in the trace of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds since the record began.
    pub t_s: f64,
    /// The event.
    pub mark: Event,
    /// The round, from 1; 0 is the warm-up.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub round: Option<u32>,
    /// The name of a phase.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
}

/// One run of the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The round, from 1; 0 is the warm-up.
    pub round: u32,
    /// Whether its command succeeded.
    pub succeeded: bool,
    /// Duration, in seconds.
    pub wall_s: f64,
    /// Its own report: the rounds of the `lowtide.load/1` object that it printed.
    pub report: Option<serde_json::Value>,
}

/// The plan of a load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadPlan {
    /// URLs, one for each round in turn, without the user names and passwords in them.
    pub urls: Vec<String>,
    /// Description for people: `100000 requests over 8 connections, HTTP/2`.
    pub about: String,
}

/// The progress of a load.
///
/// The counts are those of the round and start at 0: `in_flight + succeeded + failed` is the number
/// of requests sent in it so far. Requests of a trickle between two rounds count as in flight only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadSample {
    /// Seconds since the record began.
    pub t_s: f64,
    /// The round, from 1; between two rounds, the earlier one. In the file of a trial, the round of
    /// the trial.
    pub round: u32,
    /// Requests that were sent, and neither answered nor given up. For bare connections:
    /// connections that are being established.
    pub in_flight: u64,
    /// Requests that were answered completely, with a status below 400. For bare connections:
    /// connections that were established.
    pub succeeded: u64,
    /// All other completed requests.
    pub failed: u64,
    /// Open connections, as the load sees them. Absent if it does not count them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connections: Option<u64>,
}

/// Metrics that the subject reports about itself: the numbers of its JSON object by name. A number
/// in a nested object has both names, separated by a dot.
///
/// These names have a meaning: `inner_memory_bytes` (memory that the program has allocated),
/// `alive_tasks`, `connections`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SubjectMetrics {
    /// Seconds since the record began.
    pub t_s: f64,
    /// The numbers by name.
    pub values: BTreeMap<String, f64>,
}

/// The metric for the memory that the program itself has allocated, in bytes.
pub const INNER_MEMORY: &str = "inner_memory_bytes";
/// The metric for the number of tasks that have started and not ended.
pub const ALIVE_TASKS: &str = "alive_tasks";

/// The metric for the number of connections of the program.
pub const CONNECTIONS: &str = "connections";

/// Maximum number of metrics that are kept per object; further ones are dropped.
const MOST_FIGURES: usize = 200;

impl SubjectMetrics {
    /// Returns the numbers of a JSON object and of its nested objects by name.
    pub fn numbers_of(object: &serde_json::Value) -> BTreeMap<String, f64> {
        let mut numbers = BTreeMap::new();
        // Objects still to be searched, each with the prefix of its names.
        let mut open = vec![(String::new(), object)];
        while let Some((before, value)) = open.pop() {
            for (name, value) in value.as_object().into_iter().flatten() {
                let name = format!("{before}{name}");
                match value.as_f64() {
                    Some(number) if numbers.len() < MOST_FIGURES => {
                        numbers.insert(name, number);
                    }
                    _ => open.push((format!("{name}."), value)),
                }
            }
        }
        numbers
    }
}

/// A hook that a study ran at a moment of the trial, such as a release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookRun {
    /// Start, in seconds since the record began.
    pub t_s: f64,
    /// Duration, in seconds.
    pub wall_s: f64,
    /// The event of the trial at which it was due.
    pub at: String,
    /// Name, also in charts.
    pub name: String,
    /// The round, from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub round: Option<u32>,
    /// Whether its command succeeded.
    pub succeeded: bool,
    /// The last JSON object that it printed, if any.
    pub report: Option<serde_json::Value>,
}

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Seconds since the record began.
    pub t_s: f64,
    /// The outcome.
    pub outcome: Outcome,
    /// Exit status of the subject; `null` if lowtide or a signal terminated it.
    pub exit_code: Option<i32>,
    /// The signal that terminated it, if lowtide did not send it.
    pub signal: Option<i32>,
    /// Resource usage of all processes of the subject, as the kernel accounted it when they were
    /// reaped.
    pub usage: Option<TrialUsage>,
    /// CPU time of the sampling, in seconds.
    pub sampler_cpu_s: f64,
    /// Number of ticks that were skipped because they came too late.
    pub missed_ticks: u64,
    /// CPU time of the inspections by owner, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ledgers_cpu_s: Option<f64>,
    /// CPU time of lowtide for the policy and its releases, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy_cpu_s: Option<f64>,
}

/// Resource usage of the processes of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TrialUsage {
    /// CPU time in user and kernel mode, in seconds.
    pub cpu_s: f64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Maximum RSS of any single process, in bytes.
    pub max_rss_bytes: u64,
}

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome {
    /// The trial ran as planned.
    Done,
    /// The trial failed.
    Failed {
        /// The reason, in one sentence.
        because: String,
    },
    /// Ctrl-C or a signal interrupted the trial.
    Interrupted,
}

impl Outcome {
    /// Returns whether the trial ran as planned.
    pub fn is_done(&self) -> bool {
        *self == Self::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_kind_is_parsed_and_unknown_kinds_are_skipped() {
        // serde's message lists all kinds.
        let error = serde_json::from_str::<Line>(r#"{"kind": "of a later version"}"#).unwrap_err();
        let said = error.to_string();
        let kinds: Vec<&str> = said.split('`').skip(3).step_by(2).collect();
        assert!(kinds.contains(&"header") && kinds.contains(&"end"), "{said}");
        for kind in kinds {
            let text = format!(r#"{{"kind": "{kind}"}}"#);
            // It may lack fields, but is not skipped.
            assert!(!matches!(Line::parse(text.as_bytes()), Ok(None)), "{kind}");
        }
        assert!(matches!(Line::parse(br#"{"kind": "of a later version"}"#), Ok(None)));
        assert!(Line::parse(b"{}").is_err());
    }
}
