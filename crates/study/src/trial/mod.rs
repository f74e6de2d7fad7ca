//! One trial: one subject under one treatment and one load.
//!
//! [`perform`] is the choreography: the order of the steps, and the handling of errors. It drives a
//! [`Stage`], which is the real one (`process_stage.rs`) or, in tests, one that has its own clock
//! and never waits.

mod environment;
mod hook_queue;
mod hooks;
mod ledgers;
mod load_tail;
mod log_events;
mod metrics_poller;
pub(crate) mod process_stage;
mod sampling;
pub(crate) mod shell;
mod subject;
pub(crate) mod supervision;

use std::time::Duration;

use lowtide_analysis::metrics::SETTLED_WINDOW_S;
use lowtide_record::v1::{Event, Outcome};

use crate::ready::Ready;
use crate::timeline::{BASELINE, TrialTimeline};

/// The reason why a trial cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TrialStop {
    /// Something went wrong; one sentence.
    Failed(String),
    /// Ctrl-C, or a signal.
    Interrupted,
}

/// The environment in which a trial takes place.
pub(crate) trait Stage {
    /// Records that an event happens now.
    fn mark(&mut self, moment: Event, round: Option<u32>);

    /// Runs the command before the trial.
    fn prepare(&mut self) -> Result<(), TrialStop>;

    /// Starts the subject and its sampler.
    fn start(&mut self) -> Result<(), TrialStop>;

    /// Waits until the subject is ready.
    fn await_ready(&mut self, ready: &Ready) -> Result<(), TrialStop>;

    /// Runs one round of the load to completion; 0 is a round of the warm-up.
    fn load(&mut self, round: u32) -> Result<(), TrialStop>;

    /// Lets time pass. `close` requests slow metrics more often, because the memory is to be
    /// judged.
    fn pass(&mut self, time: Duration, close: bool) -> Result<(), TrialStop>;

    /// Returns whether memory has risen since the last call, by more than its usual fluctuation.
    fn has_risen(&mut self) -> bool;

    /// Waits until the subject ends by itself, or, if a time is given, until that long after its
    /// phase `load_end`.
    fn await_end(&mut self, after_load: Option<Duration>) -> Result<(), TrialStop>;

    /// Fails if a required observation of the subject is missing.
    fn check(&mut self) -> Result<(), TrialStop>;

    /// Ends the subject and all processes that it started.
    fn end(&mut self) -> Result<(), TrialStop>;

    /// Runs the command after the trial.
    fn cleanup(&mut self) -> Result<(), TrialStop>;
}

/// Maximum number of waits for the end of a rise, and the duration of each: a server that listens
/// may still be starting its workers. The report warns of a longer rise.
const MOST_WAITS: u32 = 15;
const WAIT: Duration = Duration::from_secs(1);

/// Runs one trial. In any case, everything that was started is ended, and the cleanup runs.
pub(crate) fn perform(stage: &mut impl Stage, timeline: &TrialTimeline) -> Outcome {
    let ran = stage.prepare().and_then(|()| run(stage, timeline));
    let ended = stage.end();
    let cleaned = stage.cleanup();
    match ran.and(ended).and(cleaned) {
        Ok(()) => Outcome::Done,
        Err(TrialStop::Failed(because)) => Outcome::Failed { because },
        Err(TrialStop::Interrupted) => Outcome::Interrupted,
    }
}

fn run(stage: &mut impl Stage, timeline: &TrialTimeline) -> Result<(), TrialStop> {
    stage.start()?;
    if let Some(ready) = &timeline.ready {
        stage.await_ready(ready)?;
        stage.mark(Event::Ready, None);
    }
    if timeline.load.is_none() {
        stage.await_end(timeline.settle_after_phase.then_some(timeline.settle))?;
        return stage.check();
    }
    for _ in 0..timeline.warmup {
        stage.load(0)?;
        stage.pass(timeline.pause, false)?;
    }
    stage.has_risen();
    stage.pass(BASELINE, true)?;
    for _ in 0..MOST_WAITS {
        if !stage.has_risen() {
            break;
        }
        stage.pass(WAIT, true)?;
    }
    stage.mark(Event::Baseline, None);
    for round in 1..=timeline.rounds {
        stage.mark(Event::LoadBegin, Some(round));
        stage.load(round)?;
        stage.mark(Event::LoadEnd, Some(round));
        let time = if round == timeline.rounds { timeline.settle } else { timeline.pause };
        let judged = Duration::from_secs_f64(SETTLED_WINDOW_S).min(time);
        stage.pass(time - judged, false)?;
        stage.pass(judged, true)?;
        stage.mark(Event::Settled, Some(round));
    }
    stage.check()
}

#[cfg(test)]
mod tests;
