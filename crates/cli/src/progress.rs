//! How far a study is: a bar with the time left on a terminal, a line for each trial elsewhere.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::record::v1::Outcome;
use lowtide_study::progress::{Observer, Progress};

use crate::output::note;

/// Shows progress on the standard error.
pub(crate) struct Show {
    bar: Option<ProgressBar>,
    record: Option<PathBuf>,
    trials: u32,
    done: u32,
    begun: Instant,
    trial_begun: Instant,
    /// How long a trial takes, as far as that is known.
    trial_takes: Option<Duration>,
    label: String,
    step: String,
    reading: String,
}

/// The bar moves in thousandths of a trial.
const PARTS: u64 = 1000;

impl Show {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            bar: None,
            record: None,
            trials: 0,
            done: 0,
            begun: now,
            trial_begun: now,
            trial_takes: None,
            label: String::new(),
            step: String::new(),
            reading: String::new(),
        }
    }

    /// The directory of the record, once it is made.
    pub(crate) fn record(&self) -> Option<PathBuf> {
        self.record.clone()
    }

    /// A line of its own, above the bar where there is one.
    fn tell(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => note!("{line}"),
        }
    }

    fn draw(&mut self) {
        let Some(bar) = &self.bar else { return };
        let in_trial = self.trial_begun.elapsed();
        let part = self.trial_takes.map_or(0.0, |takes| {
            (in_trial.as_secs_f64() / takes.as_secs_f64().max(0.001)).min(0.99)
        });
        let running = self.done < self.trials && !self.label.is_empty();
        let position =
            u64::from(self.done) * PARTS + if running { (part * PARTS as f64) as u64 } else { 0 };
        bar.set_position(position);
        let left = self.trial_takes.map_or(String::new(), |takes| {
            let whole = takes * (self.trials - self.done);
            let left = whole.saturating_sub(in_trial.min(takes));
            format!("  {} left", HumanSeconds(left.as_secs_f64().round().max(1.0)))
        });
        bar.set_message(format!("{}: {}{}{left}", self.label, self.step, self.reading));
    }
}

impl Observer for Show {
    fn see(&mut self, progress: Progress) {
        match progress {
            Progress::Begin { record, trials, shortest_trial } => {
                self.trials = trials;
                self.trial_takes = Some(shortest_trial).filter(|d| !d.is_zero());
                note!("recording to {}", record.display());
                self.record = Some(record);
                if std::io::stderr().is_terminal() {
                    let bar = ProgressBar::with_draw_target(
                        Some(u64::from(trials) * PARTS),
                        ProgressDrawTarget::stderr(),
                    );
                    let style = ProgressStyle::with_template("{bar:24} {msg}");
                    bar.set_style(
                        style
                            .unwrap_or_else(|_| ProgressStyle::default_bar())
                            .progress_chars("━╸─"),
                    );
                    self.bar = Some(bar);
                }
            }
            Progress::TrialBegin { number, label, repeat } => {
                self.trial_begun = Instant::now();
                self.label = format!("{number}/{} {label}, repeat {repeat}", self.trials);
                self.step.clear();
                self.reading.clear();
            }
            Progress::Step(step) => self.step = step,
            Progress::Note(text) => self.tell(&format!("note: {text}")),
            Progress::CleaningUp => {
                self.tell("finishing the clean-up; Ctrl-C again ends lowtide at once");
            }
            Progress::Reading { rss_bytes, connections } => {
                self.reading = format!("  {}", Human(rss_bytes));
                if connections > 0 {
                    self.reading += &format!("  {connections} connections");
                }
            }
            Progress::TrialEnd { outcome, .. } => {
                self.done += 1;
                self.trial_takes = Some(self.begun.elapsed() / self.done);
                let ended = match &outcome {
                    Outcome::Done => {
                        HumanSeconds(self.trial_begun.elapsed().as_secs_f64()).to_string()
                    }
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
        }
        self.draw();
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
