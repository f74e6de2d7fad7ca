//! The record of one process or command, in the format of a study's trial, so that a report draws
//! it like any other: the record of `lowtide watch`, `run` and `attach`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use lowtide_model::treatment::Treatment;

use crate::Recorder;
use crate::v1::{End, Event, FileKind, Line, Machine, Mark, Outcome, Trial};

/// A record with a single trial. Its head may be written later than its first lines: the treatment
/// is known from the first inspection on.
#[derive(Debug)]
pub struct SingleTrial {
    recorder: Recorder,
    interval: Duration,
    /// Lines that wait for the head; `None` once it is written.
    waiting: Option<Vec<Line>>,
}

impl SingleTrial {
    /// Creates the record in a new file. `interval` is the time between two samples.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn create(path: &Path, machine: &Machine, interval: Duration) -> io::Result<Self> {
        let recorder = Recorder::create(path, FileKind::Trial, machine)?;
        Ok(Self { recorder, interval, waiting: Some(Vec::new()) })
    }

    /// Returns the writer of the file. It does not wait for the head.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Writes the head, and the lines that waited for it. Does nothing if it is already written.
    pub fn begin(&mut self, treatment: Treatment, command: Vec<String>) {
        let Some(waiting) = self.waiting.take() else { return };
        self.recorder.write(&Line::Trial(Box::new(Trial {
            number: 1,
            treatment,
            repeat: 1,
            command,
            directory: None,
            program: None,
            environment: BTreeMap::new(),
            loaded: false,
            interval_s: self.interval.as_secs_f64(),
        })));
        self.mark(0.0, Event::Start);
        waiting.iter().for_each(|line| self.recorder.write(line));
    }

    /// Writes a line, after the head.
    pub fn line(&mut self, line: Line) {
        match &mut self.waiting {
            Some(waiting) => waiting.push(line),
            None => self.recorder.write(&line),
        }
    }

    /// Writes the last lines: the mark of the end and the cost of the samples, in seconds of CPU
    /// and ticks. Without a head, it is an unknown treatment.
    pub fn end(&mut self, t_s: f64, mark: Event, sampler_cpu_s: f64, missed_ticks: u64) {
        self.begin(Treatment::plain("unknown", None), Vec::new());
        self.mark(t_s, mark);
        self.recorder.write(&Line::End(End {
            t_s,
            outcome: Outcome::Done,
            exit_code: None,
            signal: None,
            usage: None,
            sampler_cpu_s,
            missed_ticks,
            ledgers_cpu_s: None,
            policy_cpu_s: None,
        }));
    }

    fn mark(&self, t_s: f64, mark: Event) {
        self.recorder.write(&Line::Mark(Mark { t_s, mark, round: None, name: None }));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::BufReader;

    use lowtide_model::sample::Sample;

    use super::*;
    use crate::{read_lines, read_trial};

    #[test]
    fn lines_wait_for_the_head_and_the_end_writes_one_that_is_missing() {
        let home = tempfile::tempdir().unwrap();
        let sampled = |t_s| Line::Sample(Sample { t_s, ..Sample::default() });
        for has_head in [true, false] {
            let path = home.path().join(has_head.to_string());
            let interval = Duration::from_secs(1);
            let mut trial = SingleTrial::create(&path, &Machine::default(), interval).unwrap();
            trial.line(sampled(1.0));
            if has_head {
                let command = vec!["server".to_owned()];
                trial.begin(Treatment::plain("glibc", Some("2.36")), command.clone());
                trial.begin(Treatment::plain("other", None), Vec::new());
                trial.line(sampled(2.0));
            }
            trial.end(3.0, Event::Stop, 0.5, 0);
            let read = read_trial(read_lines(BufReader::new(File::open(&path).unwrap())).unwrap())
                .unwrap();
            assert_eq!(read.samples.len(), if has_head { 2 } else { 1 });
            let allocator = if has_head { "glibc" } else { "unknown" };
            assert_eq!(read.trial.treatment.allocator, allocator);
        }
    }
}
