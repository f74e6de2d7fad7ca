//! The first version of the format: `lowtide.record/1`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::plan::StudyPlan;
use lowtide_model::heap_summary::HeapSummary;
use lowtide_model::inspection::Manager;
use lowtide_model::ledger::Ledger;
use lowtide_model::sample::{ProcessSample, Sample};
use lowtide_model::treatment::Treatment;
use serde::{Deserialize, Serialize};

/// What the header's `schema` says.
pub const SCHEMA: &str = "lowtide.record/1";

/// One line of a record.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(Deserialize))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// Always the first.
    Header(Box<Header>),
    /// The plan of a study. In `study.jsonl`; of several, the last counts.
    Plan(Box<StudyPlan>),
    /// A trial starts. In `study.jsonl`; of several with one number, the last counts.
    TrialBegin(TrialBegin),
    /// A trial has ended. In `study.jsonl`.
    TrialEnd(TrialEnd),
    /// What a trial runs. In a trial's file, once, behind the header.
    Trial(Box<Trial>),
    /// A process was seen for the first time, or its allocator was found out.
    Process(Process),
    /// A process has ended, or sampling has while it lived.
    ProcessEnd(ProcessEnd),
    /// A reading of the whole tree.
    Sample(Sample),
    /// A reading of one process of the tree.
    ProcessSample(ProcessSample),
    /// Whose the resident bytes were.
    Ledger(LedgerReading),
    /// Something happened at this moment.
    Mark(Mark),
    /// One run of the load.
    Load(Load),
    /// What a load is going to do. In the file of a load, once, behind the header.
    LoadPlan(LoadPlan),
    /// How far a load is.
    LoadSample(LoadSample),
    /// What the subject tells of itself.
    Figures(SubjectMetrics),
    /// Something that a study did to the subject at a moment of the trial.
    Act(HookRun),
    /// How the trial ended. The last line of its file.
    End(End),
}

impl Line {
    /// Parses a line of a record; `None` if it is of a kind that this version does not know.
    ///
    /// # Errors
    /// When it is not JSON, has no kind, or is not what its kind has to be.
    // By hand: what serde derives for an enum with a tag keeps a copy of each line, and is compiled anew in
    // every crate that reads records.
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

/// Says what a file is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// What the file holds.
    pub holds: FileKind,
    /// The version of lowtide that wrote it.
    pub lowtide_version: String,
    /// When the record began: seconds since 1970-01-01 UTC. All other times count from here.
    pub started_unix_s: f64,
    /// Where it was written.
    pub machine: Machine,
    /// Where the figures come from, when lowtide did not measure them itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<String>,
    /// The same moment on a clock that nobody sets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub clock: Option<ClockReading>,
}

/// A moment on a clock that all processes of a machine share and that nobody sets, unlike that of
/// the time of day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClockReading {
    /// Tells one boot of one machine from all others: the kernel's `boot_id`.
    pub boot: String,
    /// `CLOCK_MONOTONIC`, in seconds.
    pub monotonic_s: f64,
}

impl Header {
    /// What is added to a time of this record to have it count from the beginning of another: by the
    /// clock that both share when they come from one boot of one machine, and by the time of day
    /// otherwise.
    pub fn seconds_behind(&self, other: &Self) -> f64 {
        match (&self.clock, &other.clock) {
            (Some(ours), Some(theirs)) if ours.boot == theirs.boot => {
                ours.monotonic_s - theirs.monotonic_s
            }
            _ => self.started_unix_s - other.started_unix_s,
        }
    }
}

/// What a file of a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// The course of a study.
    Study,
    /// The samples of one trial.
    Trial,
    /// The samples of a load: of `lowtide load -o`, or on their way into the file of a trial.
    Load,
    /// Something that a later version records.
    #[serde(other)]
    Unknown,
}

/// The machine, as far as it bears on memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system, as it names itself: `Debian GNU/Linux 12 (bookworm)`.
    pub os: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Instruction set: `x86_64`.
    pub architecture: Option<String>,
    /// Processor model.
    pub cpu: Option<String>,
    /// Processors that may be used.
    pub cpus: Option<u64>,
    /// Memory of the machine.
    pub memory_bytes: Option<u64>,
    /// Memory that was available when the record began.
    pub memory_available_bytes: Option<u64>,
    /// Swap space of the machine.
    pub swap_bytes: Option<u64>,
    /// The limit of the control group that lowtide runs in.
    pub cgroup_limit_bytes: Option<u64>,
    /// Size of a page.
    pub page_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// When the kernel works for a huge page: `defer`, `madvise`, ….
    pub thp_defrag: Option<String>,
    /// `vm.overcommit_memory`: 0, 1 or 2.
    pub overcommit: Option<u64>,
    /// `vm.max_map_count`.
    pub max_map_count: Option<u64>,
    /// Version of the system's C library.
    pub libc: Option<String>,
}

/// A trial begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialBegin {
    /// Its place in the order, from 1.
    pub number: u32,
    /// Which of the treatments, from 0.
    pub treatment: usize,
    /// Which repeat of it, from 1.
    pub repeat: u32,
    /// Its file, relative to the record.
    pub samples: String,
}

/// A trial has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialEnd {
    /// Its place in the order, from 1.
    pub number: u32,
    /// How it ended.
    pub outcome: Outcome,
}

/// What a trial runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its place in the order, from 1.
    pub number: u32,
    /// The treatment.
    pub treatment: Treatment,
    /// Which repeat of it, from 1.
    pub repeat: u32,
    /// The command as it was started.
    pub command: Vec<String>,
    /// The working directory.
    pub directory: Option<String>,
    /// The program that its first word leads to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program: Option<String>,
    /// The environment, as far as the treatment or the study set it, or it bears on memory.
    pub environment: BTreeMap<String, String>,
    /// Whether a load drives the subject; otherwise it loads itself.
    pub loaded: bool,
    /// Time between two samples.
    pub interval_s: f64,
}

/// A process of the subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// When this was found out, in seconds since the record began.
    pub t_s: f64,
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since the machine booted: with the number, what tells it from
    /// every other process.
    pub start_ticks: u64,
    /// Its parent's number.
    pub parent: u32,
    /// Its owner.
    pub uid: u32,
    /// Its short name, as `ps` shows it.
    pub name: String,
    /// Its command line.
    pub command: Vec<String>,
    /// Who serves its `malloc`; absent while that has not been looked at.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub allocator: Option<AllocatorCheck>,
}

/// A process has ended, or sampling has while it lived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// When it was last looked for, in seconds since the record began.
    pub t_s: f64,
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since the machine booted.
    pub start_ticks: u64,
    /// The most that it was seen to have resident.
    pub peak_rss_bytes: u64,
}

/// Whether the treatment is really in force in a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorCheck {
    /// `null` when it could not be found out.
    pub active: Option<bool>,
    /// The file that provides `malloc`.
    pub provider: Option<String>,
    /// Why it is not in force, or could not be found out.
    pub because: Option<String>,
}

/// The resident bytes of all processes together, by owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerReading {
    /// When the inspection began, in seconds since the record began.
    pub t_s: f64,
    /// How many processes were inspected.
    pub processes: u64,
    /// The resident pages that were counted, in bytes. Pages that several processes share count once
    /// for each.
    pub rss_bytes: u64,
    /// The same by owner.
    pub ledger: Ledger,
    /// What each runtime and allocator managed of the row `runtime`, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub managers: Vec<Manager>,
    /// How the heaps of all of them lay; absent where none of glibc's was walked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub heap: Option<HeapSummary>,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds since the record began.
    pub t_s: f64,
    /// What happened.
    pub mark: Event,
    /// In which round, from 1; 0 is the warm-up.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub round: Option<u32>,
    /// The name of a phase.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
}

/// The moments of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The subject was started.
    Start,
    /// It answers.
    Ready,
    /// The end of the window from which the baseline is read.
    Baseline,
    /// A round of the load begins.
    LoadBegin,
    /// A round of the load has ended.
    LoadEnd,
    /// The pause behind a round, or the settle time, has passed.
    Settled,
    /// The subject has ended by itself.
    Exit,
    /// The subject is ended by lowtide, or is no longer watched.
    Stop,
    /// A line of the subject matched a phase.
    Phase,
    /// The last request of a round was answered or given up; the connections still stand.
    Drained,
    /// The load has closed its connections.
    Closed,
    /// Something that a later version marks.
    #[serde(other)]
    Unknown,
}

impl Event {
    /// The events at which a treatment can run hooks.
    pub const WITH_HOOKS: [Self; 4] = [Self::Ready, Self::Drained, Self::Closed, Self::LoadEnd];

    /// Returns the name in a study file of an event that can have hooks.
    pub fn hook_name(self) -> Option<&'static str> {
        match self {
            Self::Ready => Some("ready"),
            Self::Drained => Some("drained"),
            Self::Closed => Some("closed"),
            Self::LoadEnd => Some("load_end"),
            Self::Start
            | Self::Baseline
            | Self::LoadBegin
            | Self::Settled
            | Self::Exit
            | Self::Stop
            | Self::Phase
            | Self::Unknown => None,
        }
    }
}

/// One run of the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Which round, from 1; 0 is the warm-up.
    pub round: u32,
    /// Whether its command ended well.
    pub succeeded: bool,
    /// How long it ran.
    pub wall_s: f64,
    /// What it reported of itself: the rounds of a `lowtide.load/1` object that it printed.
    pub report: Option<serde_json::Value>,
}

/// What a load is going to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadPlan {
    /// Its addresses, one for each round in turn; without names and passwords that stood in them.
    pub urls: Vec<String>,
    /// Words for people: `100000 requests over 8 connections, HTTP/2`.
    pub about: String,
}

/// How far a load is.
///
/// The counts are those of the round, from 0 at its beginning: `in_flight + succeeded + failed` is what
/// was sent in it so far. Requests of a trickle between two rounds are in flight, and not counted
/// otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadSample {
    /// Seconds since the record began.
    pub t_s: f64,
    /// Which round, from 1; between two, the last. In the file of a trial, the round of the trial.
    pub round: u32,
    /// Requests that were sent, and neither answered nor given up. Of bare connections: those that are
    /// being made.
    pub in_flight: u64,
    /// Requests that were answered whole, with a status below 400. Of bare connections: those that
    /// were made.
    pub succeeded: u64,
    /// All other requests that are over.
    pub failed: u64,
    /// Connections that stand, as the load sees them; absent where it does not count them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connections: Option<u64>,
}

/// What the subject tells of itself: the numbers of its JSON object, by their names. Those of an object
/// within it have both names, with a dot between.
///
/// These names have a meaning: `inner_memory_bytes` (what the program has allocated), `alive_tasks`,
/// `connections`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SubjectMetrics {
    /// Seconds since the record began.
    pub t_s: f64,
    /// Its numbers.
    pub values: BTreeMap<String, f64>,
}

/// The figure that is what the program itself has allocated, in bytes.
pub const INNER_MEMORY: &str = "inner_memory_bytes";
/// The figure that is how many tasks a program has that have begun and not ended.
pub const ALIVE_TASKS: &str = "alive_tasks";

/// The figure that is how many connections a program has.
pub const CONNECTIONS: &str = "connections";

/// A program that tells more numbers than these tells the others for nothing.
const MOST_FIGURES: usize = 200;

impl SubjectMetrics {
    /// The numbers of a JSON object by their names, and those of the objects within it.
    pub fn numbers_of(object: &serde_json::Value) -> BTreeMap<String, f64> {
        let mut numbers = BTreeMap::new();
        // What is still to be looked through, with what stands before its names.
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

/// Something that a study did to the subject at a moment of the trial, such as a release.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookRun {
    /// When it began, in seconds since the record began.
    pub t_s: f64,
    /// How long it took, in seconds.
    pub wall_s: f64,
    /// At which moment of the trial it was to be done.
    pub at: String,
    /// What it is called, in charts as well.
    pub name: String,
    /// In which round, from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub round: Option<u32>,
    /// Whether its command ended well.
    pub succeeded: bool,
    /// The JSON object that it printed last, if it did.
    pub report: Option<serde_json::Value>,
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Seconds since the record began.
    pub t_s: f64,
    /// How it ended.
    pub outcome: Outcome,
    /// The exit status of the subject; `null` when it was ended by lowtide, or by a signal.
    pub exit_code: Option<i32>,
    /// The signal that ended it, when lowtide did not send it.
    pub signal: Option<i32>,
    /// What all processes of the subject used, by the kernel's account when they were reaped.
    pub usage: Option<Usage>,
    /// CPU time that looking at them took, in seconds.
    pub sampler_cpu_s: f64,
    /// Ticks that came too late to be taken.
    pub missed_ticks: u64,
    /// CPU time that looking at whose the bytes are took, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ledgers_cpu_s: Option<f64>,
    /// CPU time of lowtide for the policy and its releases, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy_cpu_s: Option<f64>,
}

/// What the processes of a trial used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in user and kernel mode, in seconds.
    pub cpu_s: f64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// The largest resident set of any one of them.
    pub max_rss_bytes: u64,
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome {
    /// As planned.
    Done,
    /// Something went wrong.
    Failed {
        /// One sentence.
        because: String,
    },
    /// Ctrl-C, or a signal.
    Interrupted,
}

impl Outcome {
    /// Whether the trial ran as planned.
    pub fn is_done(&self) -> bool {
        *self == Self::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_parsed_and_those_of_later_versions_are_passed_over() {
        // serde knows all kinds, and names them.
        let error = serde_json::from_str::<Line>(r#"{"kind": "of a later version"}"#).unwrap_err();
        let said = error.to_string();
        let kinds: Vec<&str> = said.split('`').skip(3).step_by(2).collect();
        assert!(kinds.contains(&"header") && kinds.contains(&"end"), "{said}");
        for kind in kinds {
            let text = format!(r#"{{"kind": "{kind}"}}"#);
            // It may lack what it has to say, but is not passed over.
            assert!(!matches!(Line::parse(text.as_bytes()), Ok(None)), "{kind}");
        }
        assert!(matches!(Line::parse(br#"{"kind": "of a later version"}"#), Ok(None)));
        assert!(Line::parse(b"{}").is_err());
    }
}
