//! Tails the record that a load writes while it runs: its samples and marks are copied into the
//! record of the trial.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use lowtide_record::read_line;
use lowtide_record::v1::{Event, Header, Line, LoadSample, Mark, SCHEMA};

/// Maximum number of bytes per read.
const MAX_READ: u64 = 4 << 20;

/// The record of a load, read while it grows.
#[derive(Debug)]
pub(super) struct LoadTail {
    path: PathBuf,
    round: u32,
    /// The offset up to which it was read.
    offset: u64,
    /// The offset of its clock to the trial's, in seconds, once its header was read.
    clock_offset_s: Option<f64>,
}

impl LoadTail {
    /// Starts at the beginning of a file, which may not exist yet.
    pub(super) fn new(path: PathBuf, round: u32) -> Self {
        Self { path, round, offset: 0, clock_offset_s: None }
    }

    /// Returns the new lines, on the clock of the trial. An incomplete line is returned later.
    pub(super) fn read(&mut self, trial: &Header) -> Vec<Line> {
        let mut lines = Vec::new();
        let bytes = self.new_bytes().unwrap_or_default();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if line.last() != Some(&b'\n') {
                break;
            }
            self.offset += line.len() as u64;
            lines.extend(read_line(line).and_then(|line| self.converted(line, trial)));
        }
        lines
    }

    fn new_bytes(&self) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(MAX_READ).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Converts a line to the form of the trial's record. The trial has its own marks for the start
    /// and the end of a load.
    fn converted(&mut self, line: Line, trial: &Header) -> Option<Line> {
        if let Line::Header(header) = &line {
            let offset_s = (header.schema == SCHEMA).then(|| header.seconds_behind(trial));
            self.clock_offset_s = self.clock_offset_s.or(offset_s);
            return None;
        }
        let (offset_s, round) = (self.clock_offset_s?, self.round);
        let on_our_clock = |t_s: f64| (t_s + offset_s).max(0.0);
        match line {
            Line::LoadSample(it) => {
                Some(Line::LoadSample(LoadSample { t_s: on_our_clock(it.t_s), round, ..it }))
            }
            Line::Mark(it) if matches!(it.mark, Event::Drained | Event::Closed) => {
                let (t_s, round) = (on_our_clock(it.t_s), Some(round));
                Some(Line::Mark(Mark { t_s, round, ..it }))
            }
            _ => None,
        }
    }

    /// Removes the file if all of it is in the record of the trial.
    pub(super) fn finish(self) {
        let is_all = std::fs::metadata(&self.path).is_ok_and(|m| m.len() == self.offset);
        if is_all && self.clock_offset_s.is_some() {
            // A remaining file does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_record::Recorder;
    use lowtide_record::v1::{FileKind, Machine};
    use std::io::Write;

    #[test]
    fn load_samples_and_marks_are_copied_to_the_trial_record_on_its_clock() {
        let home = tempfile::tempdir().unwrap();
        let machine = Machine::default();
        let trial =
            Recorder::create(&home.path().join("trial"), FileKind::Trial, &machine).unwrap();
        let path = home.path().join("load");
        let mut load_tail = LoadTail::new(path.clone(), 2);
        assert_eq!(load_tail.read(trial.header()), []);
        let load = Recorder::create(&path, FileKind::Load, &machine).unwrap();
        let sample = LoadSample { t_s: 1.0, round: 1, in_flight: 7, ..LoadSample::default() };
        load.write(&Line::LoadSample(sample));
        let mark = |mark| Line::Mark(Mark { t_s: 1.0, mark, round: Some(1), name: None });
        for moment in [Event::LoadBegin, Event::Drained] {
            load.write(&mark(moment));
        }
        let found = load_tail.read(trial.header());
        let [Line::LoadSample(sample), Line::Mark(mark)] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert!(sample.t_s >= 1.0 && sample.t_s == mark.t_s, "{found:?}");
        assert_eq!((sample.round, sample.in_flight), (2, 7));
        assert_eq!((mark.round, mark.mark), (Some(2), Event::Drained));
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"kind\":\"mark\",\"t_s\":2.0,").unwrap();
        assert_eq!(load_tail.read(trial.header()), []);
        file.write_all(b"\"mark\":\"closed\"}\n").unwrap();
        assert_eq!(load_tail.read(trial.header()).len(), 1);
        load_tail.finish();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_not_a_record_is_neither_read_nor_removed() {
        let home = tempfile::tempdir().unwrap();
        let trial = home.path().join("trial");
        let trial = Recorder::create(&trial, FileKind::Trial, &Machine::default()).unwrap();
        let path = home.path().join("load");
        std::fs::write(&path, "hello\n{\"kind\":\"mark\",\"t_s\":2.0,\"mark\":\"closed\"}\n")
            .unwrap();
        let mut load_tail = LoadTail::new(path.clone(), 1);
        assert_eq!(load_tail.read(trial.header()), []);
        load_tail.finish();
        assert!(path.exists());
    }
}
