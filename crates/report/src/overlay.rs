//! Overlays the record of a load, perhaps of another host, on the trials that ran at the same time.

use lowtide_record::v1::{LoadSample, Mark};
use lowtide_record::{LoadRecord, TrialRecord};

use crate::read::LoadedRecord;

/// Overlays a load on every trial during which it ran: by the monotonic clock if both were recorded
/// on one machine, and by the wall clock otherwise. `name` is the load's name in notes.
pub fn overlay(load: &LoadRecord, name: &str, records: &mut [LoadedRecord]) {
    let mut is_overlaid = false;
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
            is_overlaid = true;
        }
    }
    let because = match has_one {
        _ if is_overlaid => return,
        Some(file) => format!("{file} already has a load"),
        None => "by both clocks, nothing was recorded while it ran".to_owned(),
    };
    if let Some(record) = records.first_mut() {
        record.notes.push(format!("{name} is not drawn: {because}"));
    }
}

/// Returns the samples that were taken during a trial, on its clock.
fn within(load: &LoadRecord, trial: &TrialRecord) -> Vec<LoadSample> {
    let behind = load.header.seconds_behind(&trial.header);
    let end = trial.samples.last().map_or(0.0, |s| s.t_s);
    let moved = load.samples.iter().map(|s| LoadSample { t_s: s.t_s + behind, ..*s });
    moved.filter(|s| s.t_s >= 0.0 && s.t_s <= end).collect()
}

/// Adds the events of a load, unless the study has recorded them itself.
fn add_marks(load: &LoadRecord, trial: &mut TrialRecord) {
    if trial.trial.loaded {
        return;
    }
    let behind = load.header.seconds_behind(&trial.header);
    let moved = load.marks.iter().map(|m| Mark { t_s: m.t_s + behind, ..m.clone() });
    trial.marks.extend(moved);
    trial.marks.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
}
