//! Reading a record back.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use thiserror::Error;

use crate::plan::StudyPlan;
use crate::v1::{
    End, Header, HookRun, LedgerReading, Line, Load, LoadPlan, LoadSample, Mark, Process,
    ProcessEnd, SCHEMA, SubjectMetrics, Trial, TrialBegin, TrialEnd,
};
use lowtide_model::sample::{ProcessSample, Sample};

/// No line of ours comes near this; a file without line ends must not fill the memory.
const LONGEST_LINE: u64 = 4 << 20;

/// Why a file could not be read as a record.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It could not be read at all.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A directory without a record in it.
    #[error("is no record: there is no study.jsonl in it")]
    NoStudy,
    /// There is nothing in it.
    #[error("is empty: nothing was recorded")]
    Empty,
    /// Its first line is not a header of ours.
    #[error("is not a record of lowtide: its first line is not a header with a `schema`")]
    Foreign,
    /// It was written in a format of another version.
    #[error("is a record in the format `{0}`, and this lowtide reads `{SCHEMA}`: use a newer one")]
    OtherVersion(String),
    /// It holds something that this version does not know.
    #[error(
        "holds what a later lowtide has recorded, which this one does not know: use a newer one"
    )]
    UnknownContent,
    /// It is what a load wrote of itself, where memory was to be read.
    #[error(
        "is the record of a load, and holds no memory: name the record of what it loaded first, as in \
         `lowtide report RECORD LOAD`"
    )]
    OnlyALoad,
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

/// Reads one line, for whoever reads a file while it is written. `None` where it is not whole, or of a
/// kind that is not known.
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

/// Whether this is how a header of ours begins, and no more.
fn is_torn_header(text: &[u8]) -> bool {
    const BEGIN: &[u8] = br#"{"kind":"header","#;
    let common = text.len().min(BEGIN.len());
    text[..common] == BEGIN[..common]
}

/// The course of a study, as `study.jsonl` tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyRecord {
    /// Where and when.
    pub header: Header,
    /// What it was going to do: of a study that was gone on with, the last that it was.
    pub plan: StudyPlan,
    /// The trials that began, each as it was begun last, in their order.
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
    // One that was interrupted has been begun again.
    let last: BTreeMap<u32, TrialBegin> = begun.into_iter().map(|it| (it.number, it)).collect();
    let begun = last.into_values().collect();
    Ok(StudyRecord { header: records.header, plan, begun, ended })
}

/// Everything that was written of one trial.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialRecord {
    /// Where and when.
    pub header: Header,
    /// What was run.
    pub trial: Trial,
    /// The processes in the order in which they were first seen, each as it was last described.
    pub processes: Vec<Process>,
    /// Those that have ended, or were there at the end.
    pub process_ends: Vec<ProcessEnd>,
    /// The readings of the tree, in order of time.
    pub samples: Vec<Sample>,
    /// The readings of single processes.
    pub process_samples: Vec<ProcessSample>,
    /// Ledgers, in order of time.
    pub ledgers: Vec<LedgerReading>,
    /// What happened, in order of time.
    pub marks: Vec<Mark>,
    /// The runs of the load.
    pub loads: Vec<Load>,
    /// How far the load was, in order of time.
    pub load_samples: Vec<LoadSample>,
    /// What the subject told of itself, in order of time.
    pub figures: Vec<SubjectMetrics>,
    /// What was done to the subject, in order of time.
    pub acts: Vec<HookRun>,
    /// How it ended; absent when the writer was killed.
    pub end: Option<End>,
}

/// Puts the lines of a trial's file in their places.
///
/// # Errors
/// When the line that says what was run was never written.
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
                // It is described anew, but was first seen when it was.
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
    // A load hands its samples and marks over a moment after they were taken.
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

/// What a load wrote of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadRecord {
    /// Where and when.
    pub header: Header,
    /// What it was going to do.
    pub plan: LoadPlan,
    /// How far it was, in order of time.
    pub samples: Vec<LoadSample>,
    /// What happened, in order of time.
    pub marks: Vec<Mark>,
    /// Its rounds.
    pub rounds: Vec<Load>,
}

/// Puts the lines of the file of a load in their places. One that does not say what it was going to do
/// is read all the same.
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

    /// The file of a made-up trial, line by line.
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
    fn what_was_written_is_read_again() {
        let trial = read_trial(read(&(file().join("\n") + "\n")).unwrap()).unwrap();
        let made = fixtures::trial("glibc", 1, false).with_samples(0.0, 0.5, |_| 5.0);
        assert_eq!(trial, made);
    }

    #[test]
    fn a_torn_last_line_is_dropped_wherever_it_is_torn() {
        let lines = file();
        let whole = lines[..lines.len() - 1].join("\n") + "\n";
        let last = &lines[lines.len() - 1];
        for cut in 1..last.len() {
            let records = read(&format!("{whole}{}", &last[..cut])).unwrap();
            assert_eq!((records.lines.len(), records.torn), (lines.len() - 2, true), "{cut}");
        }
        // All but the line end was written: nothing is lost.
        assert!(!read(&format!("{whole}{last}")).unwrap().torn);
    }

    #[test]
    fn a_torn_header_is_a_file_in_which_nothing_was_recorded() {
        let header = &file()[0];
        for cut in 1..header.len() {
            assert!(matches!(read(&header[..cut]), Err(ReadError::Empty)), "{cut}");
        }
    }

    #[test]
    fn a_mark_that_a_later_version_may_add_does_no_harm() {
        let mut lines = file();
        lines.push(r#"{"kind":"mark","t_s":1.0,"mark":"release","bytes":5}"#.to_owned());
        let trial = read_trial(read(&(lines.join("\n") + "\n")).unwrap()).unwrap();
        assert_eq!(trial.marks[0].mark, crate::v1::Event::Unknown);
    }

    #[test]
    fn what_a_load_hands_over_late_is_read_in_order_of_time() {
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
    fn a_damaged_line_in_the_middle_is_told_with_its_number() {
        let mut lines = file();
        lines[3].truncate(20);
        let error = read(&(lines.join("\n") + "\n")).unwrap_err().to_string();
        assert!(error.starts_with("line 4 is damaged (EOF while parsing"), "{error}");
    }

    #[test]
    fn a_kind_that_a_later_version_may_add_is_passed_over() {
        let mut lines = file();
        lines.insert(3, r#"{"kind":"weather","t_s":1,"rows":[]}"#.to_owned());
        assert_eq!(read(&(lines.join("\n") + "\n")).unwrap().lines.len(), file().len() - 1);
    }

    #[test]
    fn foreign_empty_and_newer_files_are_told_apart() {
        let told = |text: &str| read(text).unwrap_err().to_string();
        assert!(told("").contains("is empty"));
        assert!(told("11:19:33 PM UID PID minflt/s\n").contains("not a record of lowtide"));
        assert!(told("{\"schema\":\"other/1\"}\n").contains("not a record of lowtide"));
        assert!(told("\u{0}\u{1}\u{2}").contains("not a record of lowtide"));
        let newer = file()[0].replace("lowtide.record/1", "lowtide.record/2");
        assert!(told(&newer).contains("in the format `lowtide.record/2`"));
        let other = file()[0].replace("\"holds\":\"trial\"", "\"holds\":\"weather\"");
        assert_eq!(read(&other).unwrap().header.holds, crate::v1::FileKind::Unknown);
        assert!(matches!(read_trial(read(&file()[0]).unwrap()), Err(ReadError::Missing("trial"))));
    }

    #[test]
    fn a_number_that_was_given_twice_means_two_processes() {
        let mut lines = file();
        lines.push(lines[2].replace("\"start_ticks\":1", "\"start_ticks\":2"));
        lines.push(lines[2].clone());
        let trial = read_trial(read(&(lines.join("\n") + "\n")).unwrap()).unwrap();
        assert_eq!(trial.processes.len(), 2);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read_lines(bytes.as_slice());
        }

        #[test]
        fn no_damage_makes_the_reader_panic(at in 0_usize..2000, byte in any::<u8>()) {
            let mut bytes = (file().join("\n") + "\n").into_bytes();
            let place = at % bytes.len();
            bytes[place] = byte;
            if let Ok(records) = read_lines(bytes.as_slice()) {
                let _ = read_trial(records);
            }
        }
    }
}
