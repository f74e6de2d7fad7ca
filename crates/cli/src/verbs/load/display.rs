//! Shows the progress of a load on the terminal, and writes it to its own record and to the record
//! of the study that started it.

use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use lowtide_load::{LoadEvent, LoadObserver, LoadSpec, LoadState, Shape};
use lowtide_model::duration::HumanSeconds;
use lowtide_model::load::LoadRound;
use lowtide_model::number::HumanCount;
use lowtide_record::LOAD_SAMPLES;
use lowtide_record::Recorder;
use lowtide_record::v1::{FileKind, Line, Load, LoadPlan, LoadSample, Machine, Mark};
use lowtide_report::load as picture;

use crate::args::LoadArgs;
use crate::console::bar;
use crate::console::output::Output;
use crate::failure::exit::Failure;

/// Shows and records the progress of a load.
pub(super) struct ProgressDisplay {
    bar: Option<ProgressBar>,
    recorders: Vec<Recorder>,
    rounds: u32,
    output: Output,
    /// The failure to print a round, if any.
    failure: Option<Failure>,
}

impl ProgressDisplay {
    pub(super) fn new(
        args: &LoadArgs,
        plan: &LoadSpec,
        machine: &Machine,
        output: &Output,
    ) -> Result<Self, Failure> {
        let study_samples = std::env::var_os(LOAD_SAMPLES).map(std::path::PathBuf::from);
        let files = args.output.iter().chain(&study_samples);
        let recorders =
            files.map(|path| create_record(path, plan, machine)).collect::<Result<Vec<_>, _>>()?;
        let bar = bar::on_stderr(None, "{msg}");
        Ok(Self { bar, recorders, rounds: args.rounds, output: *output, failure: None })
    }

    /// Clears the line on the terminal.
    ///
    /// # Errors
    ///
    /// Fails if a round or a record could not be written.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        match self.recorders.iter().find_map(Recorder::failure) {
            Some(why) => Err(Failure::failed(format!(
                "the record could not be completed: {why}; free some disk space"
            ))),
            None => Ok(()),
        }
    }

    fn write(&self, line: impl Fn(f64) -> Line) {
        for recorder in &self.recorders {
            recorder.write(&line(recorder.now()));
        }
    }

    fn state(&self, state: LoadState) {
        self.write(|t_s| {
            Line::LoadSample(LoadSample {
                t_s,
                round: state.round,
                in_flight: state.in_flight,
                succeeded: state.succeeded,
                failed: state.failed,
                connections: Some(state.connections),
            })
        });
        if let Some(bar) = &self.bar {
            bar.set_message(self.status_line(state));
        }
    }

    fn status_line(&self, state: LoadState) -> String {
        if let Some(left) = state.pause_left {
            let left = Duration::from_secs(left.as_secs_f64().ceil() as u64);
            return format!(
                "round {} of {} starts in {}; {} connections open",
                state.round + 1,
                self.rounds,
                HumanSeconds(left.as_secs_f64()),
                HumanCount(state.connections)
            );
        }
        format!(
            "round {} of {}: {} in flight, {} succeeded, {} failed, {} connections, {}",
            state.round,
            self.rounds,
            HumanCount(state.in_flight),
            HumanCount(state.succeeded),
            HumanCount(state.failed),
            HumanCount(state.connections),
            HumanSeconds(state.since_round.as_secs_f64())
        )
    }

    fn round_end(&mut self, round: &LoadRound) {
        self.write(|_| {
            Line::Load(Load {
                round: round.round,
                succeeded: true,
                wall_s: round.completed_s,
                report: serde_json::to_value(round).ok(),
            })
        });
        if self.output.json || self.failure.is_some() {
            return;
        }
        let text = picture::round(round, self.output.screen());
        let print = || self.output.text(&text);
        let printed = match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        };
        self.failure = printed.err();
    }
}

impl LoadObserver for ProgressDisplay {
    fn observe(&mut self, progress: LoadEvent<'_>) {
        match progress {
            LoadEvent::Round { target, .. } => {
                if let Some(bar) = &self.bar {
                    bar.set_message(format!("connecting to {target}"));
                }
            }
            LoadEvent::State(state) => self.state(state),
            LoadEvent::Mark { moment, round } => self.write(|t_s| {
                Line::Mark(Mark { t_s, mark: moment, round: Some(round), name: None })
            }),
            LoadEvent::RoundEnd(round) => self.round_end(round),
        }
    }
}

/// Creates a record that starts with the plan.
fn create_record(path: &Path, plan: &LoadSpec, machine: &Machine) -> Result<Recorder, Failure> {
    let created = Recorder::create(path, FileKind::Load, machine);
    let recorder = created.map_err(|error| Failure::record_not_created(path, &error))?;
    recorder.write(&Line::LoadPlan(LoadPlan {
        urls: plan.targets.iter().map(ToString::to_string).collect(),
        about: describe(plan),
    }));
    Ok(recorder)
}

/// Describes the plan in words.
fn describe(plan: &LoadSpec) -> String {
    let rounds = match &plan.shape {
        Shape::Repeat { times, .. } => u64::from(*times).max(1),
        _ => 1,
    };
    let connections = HumanCount(plan.connections as u64);
    let what = match (plan.is_bare(), plan.shape.count()) {
        (true, _) => format!("{connections} connections"),
        (false, Some(count)) => {
            format!("{} requests over {connections} connections", HumanCount(count / rounds))
        }
        (false, None) => format!("requests over {connections} connections"),
    };
    match rounds {
        1 => what,
        rounds => format!("{what}, {rounds} rounds"),
    }
}
