//! What a treatment does to the subject at a moment of the trial.

use std::time::Instant;

use lowtide_record::v1::{HookRun, Line};

use super::Stop;
use super::bench::Bench;
use super::shell::read_last_object;
use super::subject::Subject;
use crate::output::PRINTED_NOTHING;

impl Bench<'_> {
    /// Does what is to be done at a moment.
    pub(super) fn act(&mut self, moment: &str, round: Option<u32>) -> Result<(), Stop> {
        let applied = self.setting.applied;
        for (place, act) in applied.acts.iter().enumerate().filter(|(_, a)| a.moment == moment) {
            self.step(&act.name);
            self.read_all();
            self.acted.push(place);
            let stem = format!(".act-{}", self.acted.len());
            let (log, output) =
                (self.file(&format!("{stem}.log")), self.file(&format!("{stem}.out")));
            let what = format!("`{}` at the moment `{moment}`", act.name);
            let mut shell = self.shell(&what, &act.line, &log);
            shell.stdout = Some(output.clone());
            shell.variables.extend(round.map(|n| ("LOWTIDE_ROUND".to_owned(), n.to_string())));
            let (keeper, recorder) = (self.setting.keeper, self.setting.recorder.clone());
            let begin = Instant::now();
            let ran = shell.run(keeper, &recorder, || self.watch());
            let report = read_last_object(&output);
            let reason = report.as_ref().and_then(|told| told.get("reason")?.as_str());
            let ran = ran.map_err(|stop| with_reason(stop, reason));
            self.record(&Line::Act(HookRun {
                t_s: recorder.time_of(begin),
                wall_s: begin.elapsed().as_secs_f64(),
                at: moment.to_owned(),
                name: act.name.clone(),
                round,
                succeeded: ran.is_ok(),
                report,
            }));
            ran?;
            self.read_all();
        }
        Ok(())
    }

    /// What there is before and after should be known.
    fn read_all(&self) {
        if let Some(sampling) = self.subject.as_ref().and_then(Subject::sampling) {
            sampling.read_now();
        }
        if let Some(ledgers) = self.subject.as_ref().and_then(Subject::ledgers) {
            ledgers.take_now();
        }
    }

    /// The sentence for an act whose moment never came.
    pub(super) fn never_done(&self) -> Option<String> {
        let acts = self.setting.applied.acts.iter().enumerate();
        let (_, act) = acts.into_iter().find(|(place, _)| !self.acted.contains(place))?;
        Some(format!(
            "`{}` was never done: the moment `{}` never came; `drained` and `closed` are told by a load \
             that is `lowtide load`, and come only when all requests are over",
            act.name, act.moment
        ))
    }
}

/// Why a command did not do what it was to do, where the object that it printed says so.
pub(super) fn with_reason(stop: Stop, reason: Option<&str>) -> Stop {
    match (stop, reason) {
        (Stop::Failed(because), Some(reason)) => {
            let because = because.strip_suffix(PRINTED_NOTHING).unwrap_or(&because);
            Stop::Failed(format!("{because}; {reason}"))
        }
        (stop, _) => stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(because: &str, reason: Option<&str>) -> String {
        match with_reason(Stop::Failed(because.to_owned()), reason) {
            Stop::Failed(because) => because,
            Stop::Interrupted => "interrupted".to_owned(),
        }
    }

    #[test]
    fn a_reason_that_was_printed_stands_in_place_of_that_nothing_was() {
        let silent = "the load failed with exit code 1; it printed nothing";
        let refused = Some("127.0.0.1:1 refuses the connection");
        let said = "the load failed with exit code 1; 127.0.0.1:1 refuses the connection";
        assert_eq!(told(silent, refused), said);
        assert_eq!(told(silent, None), silent);
        let spoke = "the load failed with exit code 1; it printed:\n    oh";
        assert_eq!(told(spoke, Some("why")), format!("{spoke}; why"));
    }
}
