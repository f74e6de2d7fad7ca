//! Lays what a load wrote of itself, perhaps on another host, onto the trials that ran at the same time.

use lowtide_record::v1::{LoadSample, Mark};
use lowtide_record::{LoadRecord, TrialRecord};

use crate::read::Loaded;

/// Lays a load onto every trial during which it ran, by the clock of the machine where both were written
/// on one, and by the time of day otherwise. `name` is what notes call it.
pub fn lay(load: &LoadRecord, name: &str, records: &mut [Loaded]) {
    let mut is_laid = false;
    let mut has_one = None;
    for record in records.iter_mut() {
        for (file, trial) in &mut record.trials {
            let samples = within(load, trial);
            if samples.is_empty() {
                continue;
            }
            if !trial.load_samples.is_empty() {
                has_one = Some(file.clone());
                continue;
            }
            trial.load_samples = samples;
            add_marks(load, trial);
            is_laid = true;
        }
    }
    let because = match has_one {
        _ if is_laid => return,
        Some(file) => format!("{file} has a load already"),
        None => "nothing was recorded while it ran, by the clocks of both".to_owned(),
    };
    if let Some(record) = records.first_mut() {
        record.notes.push(format!("{name} is not drawn: {because}"));
    }
}

/// The samples that were taken during a trial, on its clock.
fn within(load: &LoadRecord, trial: &TrialRecord) -> Vec<LoadSample> {
    let behind = load.header.seconds_behind(&trial.header);
    let end = trial.samples.last().map_or(0.0, |s| s.t_s);
    let moved = load.samples.iter().map(|s| LoadSample { t_s: s.t_s + behind, ..*s });
    moved.filter(|s| s.t_s >= 0.0 && s.t_s <= end).collect()
}

/// What happened, unless a study has noted it itself.
fn add_marks(load: &LoadRecord, trial: &mut TrialRecord) {
    if trial.trial.loaded {
        return;
    }
    let behind = load.header.seconds_behind(&trial.header);
    let moved = load.marks.iter().map(|m| Mark { t_s: m.t_s + behind, ..m.clone() });
    trial.marks.extend(moved);
    trial.marks.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
}
