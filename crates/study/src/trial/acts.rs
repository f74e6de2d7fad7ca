//! What a treatment does to the subject at a moment of the trial.

use std::time::Instant;

use lowtide_record::v1::{HookRun, Line};

use super::Stop;
use super::bench::Bench;
use super::shell::{Stdout, read_last_object};
use super::subject::Subject;

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
            shell.stdout = Some(Stdout { path: output.clone(), reason: "reason" });
            shell.variables.extend(round.map(|n| ("LOWTIDE_ROUND".to_owned(), n.to_string())));
            let (keeper, recorder) = (self.setting.keeper, self.setting.recorder.clone());
            let begin = Instant::now();
            let ran = shell.run(keeper, &recorder, || self.watch());
            self.record(&Line::Act(HookRun {
                t_s: recorder.time_of(begin),
                wall_s: begin.elapsed().as_secs_f64(),
                at: moment.to_owned(),
                name: act.name.clone(),
                round,
                succeeded: ran.is_ok(),
                report: read_last_object(&output),
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
