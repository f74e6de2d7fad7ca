//! The timeline of a trial: its steps and their durations.

use std::fmt;
use std::time::Duration;

use lowtide_model::duration::{HumanSeconds, parse_duration};
use regex_lite::Regex;

use lowtide_record::phase::MetricPhase;

use crate::error::PlanError;
use crate::ready::Ready;
use crate::settings::{DEFAULT_PAUSE, DEFAULT_SETTLE, DEFAULT_TIMEOUT, Settings};

/// Time without a load before the baseline is read.
pub(crate) const BASELINE: Duration = Duration::from_millis(1200);

/// The timeline of a trial.
#[derive(Debug, Clone)]
pub struct TrialTimeline {
    /// The condition for the subject to be ready.
    pub ready: Option<Ready>,
    /// The command that loads it; if absent, the subject loads itself.
    pub load: Option<String>,
    /// Rounds of the load before the baseline.
    pub warmup: u32,
    /// Rounds of the load.
    pub rounds: u32,
    /// Time between two rounds.
    pub pause: Duration,
    /// Time after the last round.
    pub settle: Duration,
    /// Whether a subject that loads itself is stopped `settle` after its phase `load_end`: only if
    /// both are given. Otherwise it runs to completion.
    pub settle_after_phase: bool,
    /// Maximum duration of a trial.
    pub timeout: Duration,
}

/// A line of the subject that starts a phase.
#[derive(Debug, Clone)]
pub struct Phase {
    /// Its name. `baseline`, `peak`, `load_end` and `settled` have a special meaning.
    pub name: String,
    /// The pattern of the line.
    pub line: Regex,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=log:{}", self.name, self.line.as_str())
    }
}

impl TrialTimeline {
    /// Builds the timeline of a trial from the settings, and checks it.
    pub(crate) fn new(settings: &Settings, phases: &[Phase]) -> Result<Self, PlanError> {
        let timeline = Self {
            ready: settings.ready.as_deref().map(str::parse).transpose()?,
            load: settings.load.clone(),
            warmup: settings.warmup.unwrap_or(0),
            rounds: settings.rounds.unwrap_or(1),
            pause: time("pause", settings.pause.as_deref(), DEFAULT_PAUSE)?,
            settle: time("settle", settings.settle.as_deref(), DEFAULT_SETTLE)?,
            settle_after_phase: settings.settle.is_some()
                && phases.iter().any(|p| p.name == MetricPhase::LoadEnd.name()),
            timeout: time("timeout", settings.timeout.as_deref(), DEFAULT_TIMEOUT)?,
        };
        timeline.check()?;
        Ok(timeline)
    }

    fn check(&self) -> Result<(), PlanError> {
        let wrong = |flag, reason: &str| Err(PlanError::Value { flag, reason: reason.to_owned() });
        within("rounds", self.rounds, 1)?;
        within("warmup", self.warmup, 0)?;
        if self.load.is_none() && (self.rounds > 1 || self.warmup > 0) {
            let flag = if self.rounds > 1 { "rounds" } else { "warmup" };
            return wrong(flag, "repeats the load, but there is none: add --load");
        }
        if self.timeout.is_zero() {
            return wrong("timeout", "must be longer than 0");
        }
        let shortest = self.shortest();
        if shortest >= self.timeout {
            let (shortest, timeout) = (shortest.as_secs_f64(), self.timeout.as_secs_f64());
            let reason = format!(
                "a trial is ended after {}, but its pauses alone take {}: allow more, such as {}m",
                HumanSeconds(timeout),
                HumanSeconds(shortest),
                (shortest / 60.0).ceil() * 2.0
            );
            return Err(PlanError::Value { flag: "timeout", reason });
        }
        Ok(())
    }

    /// Returns the minimum duration of a trial, as far as it is known.
    pub(crate) fn shortest(&self) -> Duration {
        match self.load {
            None if self.settle_after_phase => self.settle,
            None => Duration::ZERO,
            Some(_) => {
                let pauses = self.warmup.saturating_add(self.rounds.saturating_sub(1));
                BASELINE + self.pause.saturating_mul(pauses) + self.settle
            }
        }
    }
}

/// Parses the phases of a subject.
pub(crate) fn phases(texts: &[String]) -> Result<Vec<Phase>, PlanError> {
    let wrong = |text: &str, reason: String| PlanError::Value {
        flag: "phase",
        reason: format!("`{text}` {reason}"),
    };
    let phases = texts
        .iter()
        .map(|text| {
            let form = || wrong(text, "is not a phase: write NAME=log:REGEX".to_owned());
            let (name, condition) = text.split_once('=').ok_or_else(form)?;
            let regex = condition.strip_prefix("log:").ok_or_else(form)?;
            if name.trim().is_empty() {
                return Err(form());
            }
            let line =
                Regex::new(regex).map_err(|e| wrong(text, format!("has an invalid regex: {e}")))?;
            Ok(Phase { name: name.trim().to_owned(), line })
        })
        .collect::<Result<Vec<Phase>, PlanError>>()?;
    for (place, phase) in phases.iter().enumerate() {
        if phases[..place].iter().any(|other| other.name == phase.name) {
            let reason = format!(
                "two phases have the name `{}`: combine them, as in NAME=log:THIS|THAT",
                phase.name
            );
            return Err(PlanError::Value { flag: "phase", reason });
        }
    }
    Ok(phases)
}

/// Parses a duration; returns `otherwise` if none is given.
pub(crate) fn time(
    flag: &'static str,
    text: Option<&str>,
    otherwise: Duration,
) -> Result<Duration, PlanError> {
    let time = text.map_or(Ok(otherwise), parse_duration);
    time.map_err(|error| PlanError::Number { flag, error })
}

/// Maximum value of all counts of a study.
const MAX_COUNT: u32 = 10_000;

/// Rejects a count below `least`, or above the maximum of a study.
pub(crate) fn within(flag: &'static str, count: u32, least: u32) -> Result<(), PlanError> {
    if (least..=MAX_COUNT).contains(&count) {
        return Ok(());
    }
    Err(PlanError::Value { flag, reason: format!("must be from {least} to {MAX_COUNT}") })
}
