//! The reader of records.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use thiserror::Error;

use crate::plan::StudyPlan;
use crate::v1::{
    End, Header, HookRun, LedgerReading, Line, Load, LoadPlan, LoadSample, Mark, Process,
    ProcessEnd, SCHEMA, SubjectMetrics, Trial, TrialBegin, TrialEnd,
};
use lowtide_model::sample::{ProcessSample, Sample};

/// Maximum length of a line, in bytes. No line that lowtide writes comes near it. A file without
/// line ends must not fill the memory.
const LONGEST_LINE: u64 = 4 << 20;

/// The reason why a file could not be read as a record.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It could not be read at all.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is a directory without a record.
    #[error("is not a record: it contains no study.jsonl")]
    NoStudy,
    /// It is empty.
    #[error("is empty: nothing was recorded")]
    Empty,
    /// Its first line is not a lowtide header.
    #[error("is not a record of lowtide: its first line is not a header with a `schema`")]
    Foreign,
    /// It has another version of the format.
    #[error(
        "is a record in the format `{0}`, but this lowtide reads `{SCHEMA}`: use a newer lowtide"
    )]
    OtherVersion(String),
    /// Its contents are of a kind that this version does not know.
    #[error(
        "contains data of a newer lowtide, which this version cannot read: use a newer lowtide"
    )]
    UnknownContent,
    /// It is the file of a load, where a record of memory was expected.
    #[error(
        "is the record of a load, which contains no memory samples: name the record of the loaded \
         process first, as in \
         `lowtide report RECORD LOAD`"
    )]
    OnlyALoad,
    /// A line in the middle is damaged.
    #[error("line {line} is damaged ({reason}); remove that line to read the rest")]
    Damaged {
        /// Number of the line, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// A line that everything else depends on is missing.
    #[error("has no `{0}` line: it ended before anything was recorded")]
    Missing(&'static str),
}

/// The lines of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// Its first line.
    pub header: Header,
    /// The other lines, in order.
    pub lines: Vec<Line>,
    /// Whether the last line was torn and therefore dropped.
    pub torn: bool,
}

/// Reads the lines of one file of a record.
///
/// The last line may be torn. Lines of unknown kinds are skipped.
///
/// # Errors
/// Fails if the file is not a record of this version, or if a line other than the last is damaged.
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
            header = Some(match parse_header(trimmed) {
                Err(ReadError::Foreign) if !complete && is_torn_header(trimmed) => {
                    return Err(ReadError::Empty);
                }
                parsed => parsed?,
            });
            continue;
        }
        if trimmed.is_empty() {
            continue;
        }
        match Line::parse(trimmed) {
            Ok(line) => lines.extend(line),
            Err(_) if !complete => torn = true,
            Err(error) => {
                return Err(ReadError::Damaged { line: number, reason: error.to_string() });
            }
        }
    }
    Ok(Records { header: header.ok_or(ReadError::Empty)?, lines, torn })
}

/// Parses one line, for a caller that reads a file while it is written. Returns `None` if the line
/// is incomplete or of an unknown kind.
pub fn read_line(text: &[u8]) -> Option<Line> {
    Line::parse(text.trim_ascii()).ok().flatten()
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
    match Line::parse(text) {
        Ok(Some(Line::Header(header))) => Ok(*header),
        Ok(_) => Err(ReadError::Foreign),
        Err(error) => Err(ReadError::Damaged { line: 1, reason: error.to_string() }),
    }
}

/// Returns whether the text is an incomplete lowtide header.
fn is_torn_header(text: &[u8]) -> bool {
    const BEGIN: &[u8] = br#"{"kind":"header","#;
    let common = text.len().min(BEGIN.len());
    text[..common] == BEGIN[..common]
}

/// The course of a study, from `study.jsonl`.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyRecord {
    /// The header.
    pub header: Header,
    /// The plan. If the study was resumed, its last plan.
    pub plan: StudyPlan,
    /// The trials that started, in order. Each is the last start of its number.
    pub begun: Vec<TrialBegin>,
    /// The trials that have ended.
    pub ended: Vec<TrialEnd>,
}

/// Builds the course of a study from the lines of `study.jsonl`.
///
/// # Errors
/// Fails if there is no plan.
pub fn read_study(records: Records) -> Result<StudyRecord, ReadError> {
    let mut plan = None;
    let mut begun: Vec<TrialBegin> = Vec::new();
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
    // An interrupted trial was started again.
    let last: BTreeMap<u32, TrialBegin> = begun.into_iter().map(|it| (it.number, it)).collect();
    let begun = last.into_values().collect();
    Ok(StudyRecord { header: records.header, plan, begun, ended })
}

/// The record of one trial.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialRecord {
    /// The header.
    pub header: Header,
    /// The command of the trial and its conditions.
    pub trial: Trial,
    /// The processes in the order in which they were first seen, each with its last description.
    pub processes: Vec<Process>,
    /// The processes that have ended, or that were still running at the end.
    pub process_ends: Vec<ProcessEnd>,
    /// The samples of the tree, in order of time.
    pub samples: Vec<Sample>,
    /// The samples of single processes.
    pub process_samples: Vec<ProcessSample>,
    /// Ledgers, in order of time.
    pub ledgers: Vec<LedgerReading>,
    /// The marks, in order of time.
    pub marks: Vec<Mark>,
    /// The runs of the load.
    pub loads: Vec<Load>,
    /// The progress of the load, in order of time.
    pub load_samples: Vec<LoadSample>,
    /// Metrics that the subject reported about itself, in order of time.
    pub figures: Vec<SubjectMetrics>,
    /// The hooks that ran, in order of time.
    pub acts: Vec<HookRun>,
    /// The outcome. Absent if the writer was killed.
    pub end: Option<End>,
}

/// Builds the record of a trial from the lines of its file.
///
/// # Errors
/// Fails if there is no line with the trial's command and conditions.
pub fn read_trial(records: Records) -> Result<TrialRecord, ReadError> {
    let mut trial = None;
    let mut processes: Vec<Process> = Vec::new();
    let mut process_ends = Vec::new();
    let mut samples = Vec::new();
    let mut process_samples = Vec::new();
    let mut ledgers = Vec::new();
    let mut marks = Vec::new();
    let mut loads = Vec::new();
    let mut load_samples = Vec::new();
    let mut figures = Vec::new();
    let mut acts = Vec::new();
    let mut end = None;
    for line in records.lines {
        match line {
            Line::Trial(it) => trial = Some(*it),
            Line::Process(it) => match processes
                .iter_mut()
                .rfind(|p| p.pid == it.pid && p.start_ticks == it.start_ticks)
            {
                // This is a new description; the time at which the process was first seen stays.
                Some(known) => *known = Process { t_s: known.t_s, ..it },
                None => processes.push(it),
            },
            Line::ProcessEnd(it) => process_ends.push(it),
            Line::Sample(it) => samples.push(it),
            Line::ProcessSample(it) => process_samples.push(it),
            Line::Ledger(it) => ledgers.push(it),
            Line::Mark(it) => marks.push(it),
            Line::Load(it) => loads.push(it),
            Line::LoadSample(it) => load_samples.push(it),
            Line::Figures(it) => figures.push(it),
            Line::Act(it) => acts.push(it),
            Line::End(it) => end = Some(it),
            Line::Header(_)
            | Line::Plan(_)
            | Line::LoadPlan(_)
            | Line::TrialBegin(_)
            | Line::TrialEnd(_) => {}
        }
    }
    // A load passes its samples and marks on a moment after they were taken.
    load_samples.sort_by(|a: &LoadSample, b| a.t_s.total_cmp(&b.t_s));
    marks.sort_by(|a: &Mark, b| a.t_s.total_cmp(&b.t_s));
    let trial = trial.ok_or(ReadError::Missing("trial"))?;
    Ok(TrialRecord {
        header: records.header,
        trial,
        processes,
        process_ends,
        samples,
        process_samples,
        ledgers,
        marks,
        loads,
        load_samples,
        figures,
        acts,
        end,
    })
}

/// The record of a load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadRecord {
    /// The header.
    pub header: Header,
    /// The plan.
    pub plan: LoadPlan,
    /// The progress, in order of time.
    pub samples: Vec<LoadSample>,
    /// The marks, in order of time.
    pub marks: Vec<Mark>,
    /// Its rounds.
    pub rounds: Vec<Load>,
}

/// Builds the record of a load from the lines of its file. A file without a plan is accepted.
pub fn read_load(records: Records) -> LoadRecord {
    let mut record = LoadRecord {
        header: records.header,
        plan: LoadPlan::default(),
        samples: Vec::new(),
        marks: Vec::new(),
        rounds: Vec::new(),
    };
    for line in records.lines {
        match line {
            Line::LoadPlan(it) => record.plan = it,
            Line::LoadSample(it) => record.samples.push(it),
            Line::Mark(it) => record.marks.push(it),
            Line::Load(it) => record.rounds.push(it),
            _ => {}
        }
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use proptest::prelude::*;

    /// Returns the file of a synthetic trial, line by line.
    fn file() -> Vec<String> {
        let trial = fixtures::trial("glibc", 1, false).with_samples(0.0, 0.5, |_| 5.0);
        let mut lines = vec![
            Line::Header(Box::new(trial.header.clone())),
            Line::Trial(Box::new(trial.trial.clone())),
            Line::Process(trial.processes[0].clone()),
        ];
        lines.extend(trial.samples.into_iter().map(Line::Sample));
        lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect()
    }

    fn read(text: &str) -> Result<Records, ReadError> {
        read_lines(text.as_bytes())
    }

    #[test]
    fn a_written_trial_is_read_back_unchanged() {
        let trial = read_trial(read(&(file().join("\n") + "\n")).unwrap()).unwrap();
        let made = fixtures::trial("glibc", 1, false).with_samples(0.0, 0.5, |_| 5.0);
        assert_eq!(trial, made);
    }

    #[test]
    fn a_truncated_last_line_is_dropped_at_any_cut() {
        let lines = file();
        let whole = lines[..lines.len() - 1].join("\n") + "\n";
        let last = &lines[lines.len() - 1];
        for cut in 1..last.len() {
            let records = read(&format!("{whole}{}", &last[..cut])).unwrap();
            assert_eq!((records.lines.len(), records.torn), (lines.len() - 2, true), "{cut}");
        }
        // Everything except the line end was written: nothing is lost.
        assert!(!read(&format!("{whole}{last}")).unwrap().torn);
    }

    #[test]
    fn a_file_with_a_truncated_header_counts_as_empty() {
        let header = &file()[0];
        for cut in 1..header.len() {
            assert!(matches!(read(&header[..cut]), Err(ReadError::Empty)), "{cut}");
        }
    }

    #[test]
    fn an_unknown_mark_from_a_later_version_is_accepted() {
        let mut lines = file();
        lines.push(r#"{"kind":"mark","t_s":1.0,"mark":"release","bytes":5}"#.to_owned());
        let trial = read_trial(read(&(lines.join("\n") + "\n")).unwrap()).unwrap();
        assert_eq!(trial.marks[0].mark, crate::v1::Event::Unknown);
    }

    #[test]
    fn late_load_lines_are_sorted_by_time() {
        let mut lines = file();
        for t_s in [2.0, 1.0] {
            let sample = LoadSample { t_s, round: 1, in_flight: 7, ..LoadSample::default() };
            lines.push(serde_json::to_string(&Line::LoadSample(sample)).unwrap());
        }
        lines.push(r#"{"kind":"mark","t_s":0.5,"mark":"drained","round":1}"#.to_owned());
        let trial = read_trial(read(&(lines.join("\n") + "\n")).unwrap()).unwrap();
        let times: Vec<f64> = trial.load_samples.iter().map(|s| s.t_s).collect();
        assert_eq!(times, [1.0, 2.0]);
        assert_eq!(trial.marks[0].mark, crate::v1::Event::Drained);
    }

    #[test]
    fn a_damaged_line_in_the_middle_is_an_error_with_its_line_number() {
        let mut lines = file();
        lines[3].truncate(20);
        let error = read(&(lines.join("\n") + "\n")).unwrap_err().to_string();
        assert!(error.starts_with("line 4 is damaged (EOF while parsing"), "{error}");
    }

    #[test]
    fn an_unknown_line_kind_from_a_later_version_is_skipped() {
        let mut lines = file();
        lines.insert(3, r#"{"kind":"weather","t_s":1,"rows":[]}"#.to_owned());
        assert_eq!(read(&(lines.join("\n") + "\n")).unwrap().lines.len(), file().len() - 1);
    }

    #[test]
    fn foreign_empty_and_newer_files_are_distinguished() {
        let message = |text: &str| read(text).unwrap_err().to_string();
        assert!(message("").contains("is empty"));
        assert!(message("11:19:33 PM UID PID minflt/s\n").contains("not a record of lowtide"));
        assert!(message("{\"schema\":\"other/1\"}\n").contains("not a record of lowtide"));
        assert!(message("\u{0}\u{1}\u{2}").contains("not a record of lowtide"));
        let newer = file()[0].replace("lowtide.record/1", "lowtide.record/2");
        assert!(message(&newer).contains("in the format `lowtide.record/2`"));
        let other = file()[0].replace("\"holds\":\"trial\"", "\"holds\":\"weather\"");
        assert_eq!(read(&other).unwrap().header.holds, crate::v1::FileKind::Unknown);
        assert!(matches!(read_trial(read(&file()[0]).unwrap()), Err(ReadError::Missing("trial"))));
    }

    #[test]
    fn a_reused_pid_counts_as_two_processes() {
        let mut lines = file();
        lines.push(lines[2].replace("\"start_ticks\":1", "\"start_ticks\":2"));
        lines.push(lines[2].clone());
        let trial = read_trial(read(&(lines.join("\n") + "\n")).unwrap()).unwrap();
        assert_eq!(trial.processes.len(), 2);
    }

    proptest! {
        #[test]
        fn the_reader_does_not_panic_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read_lines(bytes.as_slice());
        }

        #[test]
        fn the_reader_does_not_panic_on_a_damaged_record(at in 0_usize..2000, byte in any::<u8>()) {
            let mut bytes = (file().join("\n") + "\n").into_bytes();
            let place = at % bytes.len();
            bytes[place] = byte;
            if let Ok(records) = read_lines(bytes.as_slice()) {
                let _ = read_trial(records);
            }
        }
    }
}
