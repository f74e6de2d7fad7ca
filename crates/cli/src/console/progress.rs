//! Progress of a study: a bar with the time left on a terminal, a line for each trial elsewhere.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_record::v1::Outcome;
use lowtide_study::{StudyEvent, StudyObserver, TimeLeft};

use crate::console::bar;
use crate::console::output::note;

/// Shows the progress of a study on stderr.
pub(crate) struct StudyProgress {
    bar: Option<ProgressBar>,
    record: Option<PathBuf>,
    trials: u32,
    /// Trials that have ended, including those of earlier runs.
    ended: u32,
    trial_started: Instant,
    /// Time left when the trial started; `None` while none runs.
    left: Option<TimeLeft>,
    label: String,
    step: String,
    reading: String,
}

/// Steps of the bar in one trial.
const STEPS_PER_TRIAL: u64 = 1000;

impl StudyProgress {
    pub(crate) fn new() -> Self {
        Self {
            bar: None,
            record: None,
            trials: 0,
            ended: 0,
            trial_started: Instant::now(),
            left: None,
            label: String::new(),
            step: String::new(),
            reading: String::new(),
        }
    }

    /// Returns the directory of the record, once it exists.
    pub(crate) fn record(&self) -> Option<PathBuf> {
        self.record.clone()
    }

    /// Prints a line, above the bar if there is one.
    fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => note!("{line}"),
        }
    }

    fn begin(&mut self, record: PathBuf, trials: u32, done: u32) {
        (self.trials, self.ended) = (trials, done);
        match done {
            0 => note!("recording to {}", record.display()),
            _ => note!("resuming {}: {done} of {trials} trials are done", record.display()),
        }
        self.record = Some(record);
        self.bar = bar::on_stderr(Some(u64::from(trials) * STEPS_PER_TRIAL), "{bar:24} {msg}");
    }

    fn trial_begin(&mut self, label: &str, repeat: u32, left: TimeLeft) {
        self.trial_started = Instant::now();
        self.label = format!("{}/{} {label}, repeat {repeat}", self.ended + 1, self.trials);
        self.left = Some(left);
        self.step.clear();
        self.reading.clear();
        if self.bar.is_none() {
            let left =
                time_left(left, Duration::ZERO).map_or(String::new(), |left| format!("; {left}"));
            note!("{}: started{left}", self.label);
        }
    }

    fn trial_end(&mut self, outcome: &Outcome) {
        self.ended += 1;
        self.left = None;
        self.step.clear();
        let ended = match outcome {
            Outcome::Done => HumanSeconds(self.trial_started.elapsed().as_secs_f64()).to_string(),
            Outcome::Failed { because } => {
                format!("failed: {}", because.lines().next().unwrap_or_default())
            }
            Outcome::Interrupted => "interrupted".to_owned(),
        };
        let line = format!("{}: {ended}", self.label);
        match &self.bar {
            Some(bar) if outcome.is_done() => bar.set_message(line),
            Some(bar) => bar.println(line),
            None => note!("{line}"),
        }
    }

    fn draw(&mut self) {
        let Some(bar) = &self.bar else { return };
        let (elapsed, over) =
            (self.trial_started.elapsed(), u64::from(self.ended) * STEPS_PER_TRIAL);
        let Some(left) = self.left else {
            bar.set_position(over);
            if !self.step.is_empty() {
                bar.set_message(self.step.clone());
            }
            return;
        };
        let part = (elapsed.as_secs_f64() / left.this.as_secs_f64().max(0.001)).min(0.99);
        let part = if left.this.is_zero() { 0.0 } else { part };
        bar.set_position(over + (part * STEPS_PER_TRIAL as f64) as u64);
        let left = time_left(left, elapsed).map_or(String::new(), |left| format!("  {left}"));
        bar.set_message(format!("{}: {}{}{left}", self.label, self.step, self.reading));
    }
}

/// Returns the time left, in words; `None` if nothing is known of it.
fn time_left(left: TimeLeft, elapsed: Duration) -> Option<String> {
    let time = left.after(elapsed).as_secs_f64().round();
    let shown = match time {
        // More digits would suggest a precision that the estimate lacks.
        ..60.0 => format!("{:.0} s", time.max(1.0)),
        _ => HumanSeconds(time).to_string(),
    };
    match left.is_least {
        true if time < 1.0 => None,
        true => Some(format!("at least {shown} left")),
        false => Some(format!("about {shown} left")),
    }
}

impl StudyObserver for StudyProgress {
    fn see(&mut self, progress: StudyEvent) {
        match progress {
            StudyEvent::Begin { record, trials, done } => self.begin(record, trials, done),
            StudyEvent::TrialBegin { label, repeat, left } => {
                self.trial_begin(&label, repeat, left)
            }
            StudyEvent::Step(step) => self.step = step,
            StudyEvent::Note(text) => self.print(&format!("note: {text}")),
            StudyEvent::CleaningUp => {
                self.print("finishing the clean-up; Ctrl-C again ends lowtide immediately");
            }
            StudyEvent::Reading { rss_bytes, connections } => {
                self.reading = format!("  {}", Human(rss_bytes));
                if connections > 0 {
                    self.reading += &format!("  {connections} connections");
                }
            }
            StudyEvent::TrialEnd { outcome } => self.trial_end(&outcome),
        }
        self.draw();
    }
}

impl Drop for StudyProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_bound_on_the_time_left_is_shown_as_at_least() {
        let s = Duration::from_secs;
        let left = TimeLeft { this: s(60), others: s(600), is_least: true };
        assert_eq!(time_left(left, s(30)).unwrap(), "at least 10 min 30 s left");
        assert_eq!(
            time_left(TimeLeft { is_least: false, ..left }, s(90)).unwrap(),
            "about 10 min 0 s left"
        );
        let short = TimeLeft { this: s(3), others: s(4), is_least: false };
        assert_eq!(time_left(short, s(1)).unwrap(), "about 6 s left");
        assert_eq!(time_left(TimeLeft { is_least: true, ..TimeLeft::default() }, s(0)), None);
    }
}
