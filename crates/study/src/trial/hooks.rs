//! Runs the hooks of a treatment: commands at the moments of a trial.

use std::time::Instant;

use lowtide_record::v1::{HookRun, Line};

use super::TrialStop;
use super::process_stage::ProcessStage;
use super::shell::{Stdout, read_last_object};
use super::subject::StartedSubject;

impl ProcessStage<'_> {
    /// Runs the hooks of a moment.
    pub(super) fn run_hooks(&mut self, moment: &str, round: Option<u32>) -> Result<(), TrialStop> {
        let hooks = self.context.treatment.hooks.iter().enumerate();
        for (place, hook) in hooks.filter(|(_, hook)| hook.moment == moment) {
            self.step(&hook.name);
            self.read_all();
            self.hooks_run.push(place);
            let stem = format!(".act-{}", self.hooks_run.len());
            let (log, output) =
                (self.file(&format!("{stem}.log")), self.file(&format!("{stem}.out")));
            let what = format!("`{}` at the moment `{moment}`", hook.name);
            let mut shell = self.shell(&what, &hook.line, &log);
            shell.stdout = Some(Stdout { path: output.clone(), reason: "reason" });
            shell.variables.extend(round.map(|n| ("LOWTIDE_ROUND".to_owned(), n.to_string())));
            let (keeper, recorder) = (self.context.keeper, self.context.recorder.clone());
            let begin = Instant::now();
            let ran = shell.run(keeper, &recorder, || self.watch());
            self.record(&Line::Act(HookRun {
                t_s: recorder.time_of(begin),
                wall_s: begin.elapsed().as_secs_f64(),
                at: moment.to_owned(),
                name: hook.name.clone(),
                round,
                succeeded: ran.is_ok(),
                report: read_last_object(&output),
            }));
            ran?;
            self.read_all();
        }
        Ok(())
    }

    /// Takes a sample and a ledger, so that the record has both from before and after a hook.
    fn read_all(&self) {
        if let Some(sampling) = self.subject.as_ref().and_then(StartedSubject::sampling) {
            sampling.sample_now();
        }
        if let Some(ledgers) = self.subject.as_ref().and_then(StartedSubject::ledgers) {
            ledgers.take_now();
        }
    }

    /// Returns a sentence about a hook whose moment never came.
    pub(super) fn never_run(&self) -> Option<String> {
        let hooks = self.context.treatment.hooks.iter().enumerate();
        let (_, hook) = hooks.into_iter().find(|(place, _)| !self.hooks_run.contains(place))?;
        Some(format!(
            "`{}` did not run: the moment `{}` never came; `drained` and `closed` are reported only by \
             `lowtide load`, when all requests have ended",
            hook.name, hook.moment
        ))
    }
}
