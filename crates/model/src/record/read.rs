//! Reading a record back.

use std::io::{self, BufRead, Read};

use thiserror::Error;

use super::v1::{
    AllocatorCheck, End, Header, Line, Load, Mark, Plan, Process, SCHEMA, Trial, TrialBegin,
    TrialEnd,
};
use crate::sample::{ProcessSample, Sample};

/// No line of ours comes near this; a file without line ends must not fill the memory.
const LONGEST_LINE: u64 = 4 << 20;

/// Why a file could not be read as a record.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It could not be read at all.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// There is nothing in it.
    #[error("is empty: nothing was recorded")]
    Empty,
    /// Its first line is not a header of ours.
    #[error("is not a record of lowtide: its first line is not a header with a `schema`")]
    Foreign,
    /// It was written in a format of another version.
    #[error("is a record in the format `{0}`, and this lowtide reads `{SCHEMA}`: use a newer one")]
    OtherVersion(String),
    /// A line in the middle is damaged.
    #[error("line {line} is damaged ({reason}); remove that line to read the rest")]
    Damaged {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A line that everything else depends on is not there.
    #[error("has no `{0}` line: it was ended before anything was recorded")]
    Missing(&'static str),
}

/// The lines of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// Its first line.
    pub header: Header,
    /// The others, in order.
    pub lines: Vec<Line>,
    /// Whether the last line was torn, and dropped.
    pub torn: bool,
}

/// Reads the lines of one file of a record.
///
/// The last line may be torn. Kinds that are not known are passed over.
///
/// # Errors
/// When the file is not a record of this version, or a line that is not the last is damaged.
pub fn read_lines(mut input: impl BufRead) -> Result<Records, ReadError> {
    let mut header = None;
    let mut lines = Vec::new();
    let mut text = Vec::new();
    let mut number = 0;
    let mut torn = false;
    loop {
        text.clear();
        if input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        number += 1;
        let complete = text.last() == Some(&b'\n') || text.len() as u64 == LONGEST_LINE;
        let trimmed = text.trim_ascii();
        if header.is_none() {
            header = Some(parse_header(trimmed)?);
            continue;
        }
        if trimmed.is_empty() {
            continue;
        }
        match serde_json::from_slice::<Line>(trimmed) {
            Ok(line) => lines.push(line),
            Err(_) if is_unknown_kind(trimmed) => {}
            Err(_) if !complete => torn = true,
            Err(error) => {
                return Err(ReadError::Damaged { line: number, reason: error.to_string() });
            }
        }
    }
    Ok(Records { header: header.ok_or(ReadError::Empty)?, lines, torn })
}

fn parse_header(text: &[u8]) -> Result<Header, ReadError> {
    let value: serde_json::Value = serde_json::from_slice(text).map_err(|_| ReadError::Foreign)?;
    let schema = value.get("schema").and_then(|s| s.as_str()).ok_or(ReadError::Foreign)?;
    if schema != SCHEMA {
        return Err(if schema.starts_with("lowtide.record/") {
            ReadError::OtherVersion(schema.to_owned())
        } else {
            ReadError::Foreign
        });
    }
    match serde_json::from_value(value) {
        Ok(Line::Header(header)) => Ok(header),
        Ok(_) => Err(ReadError::Foreign),
        Err(error) => Err(ReadError::Damaged { line: 1, reason: error.to_string() }),
    }
}

/// Whether a line is sound JSON of a kind that this version does not know.
fn is_unknown_kind(text: &[u8]) -> bool {
    const KNOWN: [&str; 11] = [
        "header",
        "plan",
        "trial_begin",
        "trial_end",
        "trial",
        "process",
        "sample",
        "process_sample",
        "mark",
        "load",
        "end",
    ];
    serde_json::from_slice::<serde_json::Value>(text)
        .ok()
        .and_then(|v| v.get("kind")?.as_str().map(|kind| !KNOWN.contains(&kind)))
        .unwrap_or(false)
}

/// The course of a study, as `study.jsonl` tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyRecord {
    /// Where and when.
    pub header: Header,
    /// What it was going to do.
    pub plan: Plan,
    /// The trials that began.
    pub begun: Vec<TrialBegin>,
    /// The trials that ended.
    pub ended: Vec<TrialEnd>,
}

/// Puts the lines of `study.jsonl` in their places.
///
/// # Errors
/// When the plan was never written.
pub fn read_study(records: Records) -> Result<StudyRecord, ReadError> {
    let mut plan = None;
    let mut begun = Vec::new();
    let mut ended = Vec::new();
    for line in records.lines {
        match line {
            Line::Plan(it) => plan = Some(*it),
            Line::TrialBegin(it) => begun.push(it),
            Line::TrialEnd(it) => ended.push(it),
            _ => {}
        }
    }
    let plan = plan.ok_or(ReadError::Missing("plan"))?;
    Ok(StudyRecord { header: records.header, plan, begun, ended })
}

/// Everything that was written of one trial.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialRecord {
    /// Where and when.
    pub header: Header,
    /// What was run.
    pub trial: Trial,
    /// The processes, each as it was last described.
    pub processes: Vec<Process>,
    /// The readings of the tree, in order of time.
    pub samples: Vec<Sample>,
    /// The readings of single processes.
    pub process_samples: Vec<ProcessSample>,
    /// What happened, in order of time.
    pub marks: Vec<Mark>,
    /// The runs of the load.
    pub loads: Vec<Load>,
    /// How it ended; absent when the writer was killed.
    pub end: Option<End>,
}

impl TrialRecord {
    /// What was found out of each process's allocator.
    pub fn allocator_checks(&self) -> impl Iterator<Item = (&Process, &AllocatorCheck)> {
        self.processes.iter().filter_map(|p| Some((p, p.allocator.as_ref()?)))
    }
}

/// Puts the lines of a trial's file in their places.
///
/// # Errors
/// When the line that says what was run was never written.
pub fn read_trial(records: Records) -> Result<TrialRecord, ReadError> {
    let mut trial = None;
    let mut processes: Vec<Process> = Vec::new();
    let mut samples = Vec::new();
    let mut process_samples = Vec::new();
    let mut marks = Vec::new();
    let mut loads = Vec::new();
    let mut end = None;
    for line in records.lines {
        match line {
            Line::Trial(it) => trial = Some(*it),
            Line::Process(it) => match processes
                .iter_mut()
                .rfind(|p| p.pid == it.pid && p.start_ticks == it.start_ticks)
            {
                Some(known) => *known = it,
                None => processes.push(it),
            },
            Line::Sample(it) => samples.push(it),
            Line::ProcessSample(it) => process_samples.push(it),
            Line::Mark(it) => marks.push(it),
            Line::Load(it) => loads.push(it),
            Line::End(it) => end = Some(it),
            Line::Header(_) | Line::Plan(_) | Line::TrialBegin(_) | Line::TrialEnd(_) => {}
        }
    }
    let trial = trial.ok_or(ReadError::Missing("trial"))?;
    Ok(TrialRecord {
        header: records.header,
        trial,
        processes,
        samples,
        process_samples,
        marks,
        loads,
        end,
    })
}
