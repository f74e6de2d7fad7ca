//! Merges the shards of a study, which may have run on several machines.

use std::path::{Component, Path, PathBuf};

use lowtide_analysis::analyze::analyze;
use lowtide_record::plan::Difference;
use lowtide_record::plan::StudyPlan;
use lowtide_record::shard::Shard;
use lowtide_record::v1::{Machine, Outcome};
use lowtide_record::{StudyRecord, TrialRecord};

use crate::read::LoadedRecord;

/// Merges the shards of each study among some records, in the place of the first of them. Records
/// that are not shards, or do not fit, are kept.
pub fn merge_shards(records: Vec<LoadedRecord>) -> Vec<LoadedRecord> {
    let mut groups: Vec<Vec<LoadedRecord>> = Vec::new();
    for mut record in records {
        let Some(shard) = record.study.shard else {
            groups.push(vec![record]);
            continue;
        };
        let mut misfit = None;
        let home = groups.iter_mut().find(|group| match fits(&group[0], &record, shard) {
            Some(Ok(())) => true,
            Some(Err(why)) => {
                misfit = Some(why);
                false
            }
            None => false,
        });
        match home {
            Some(group) => group.push(record),
            None => {
                record.notes.extend(misfit);
                groups.push(vec![record]);
            }
        }
    }
    groups.into_iter().filter_map(merged).collect()
}

/// Returns whether a record is a shard of the same study as another one; `None` if that is not a
/// shard.
fn fits(first: &LoadedRecord, record: &LoadedRecord, shard: Shard) -> Option<Result<(), String>> {
    first.study.shard?;
    let (ours, theirs) = (&first.study.plan, &record.study.plan);
    let of = |plan: &StudyPlan| plan.shard.map_or(0, |shard| shard.of);
    let counts = |what: &str, here: u32, there: u32| {
        let (what, here, there) = (what.to_owned(), here.to_string(), there.to_string());
        (here != there).then_some(Difference { what, here, there })
    };
    let difference = ours
        .difference(theirs)
        .or_else(|| counts("parts", of(ours), shard.of))
        .or_else(|| counts("repeats", ours.repeats, theirs.repeats));
    Some(match difference {
        None => Ok(()),
        Some(it) => Err(format!(
            "part {shard} is not combined with {}: `{}` is {} there, and {} here",
            first.study.record, it.what, it.here, it.there
        )),
    })
}

/// Merges the shards of one study.
fn merged(mut parts: Vec<LoadedRecord>) -> Option<LoadedRecord> {
    parts.sort_by_key(|part| part.study.shard);
    let mut notes: Vec<String> = missing(&parts).into_iter().chain(other_machine(&parts)).collect();
    if parts.len() < 2 {
        let mut only = parts.pop()?;
        only.notes.splice(0..0, notes);
        return Some(only);
    }
    let directory = common(&parts);
    let mut trials: Vec<(String, TrialRecord)> = Vec::new();
    for part in &mut parts {
        notes.append(&mut part.notes);
        let place = home(part);
        let place = place.strip_prefix(&directory).unwrap_or(&place).to_owned();
        for (samples, trial) in part.trials.drain(..) {
            let samples = place.join(samples).display().to_string();
            let number = trial.trial.number;
            let mut other = (samples, trial);
            if let Some(known) = trials.iter_mut().find(|(_, known)| known.trial.number == number) {
                // An aborted trial may have been run again elsewhere.
                if is_done(&other.1) && !is_done(&known.1) {
                    std::mem::swap(known, &mut other);
                }
                let (taken, left) = (&known.0, other.0);
                notes.push(format!(
                    "trial {number} occurs twice: {taken} is used, and {left} is left out"
                ));
            } else {
                trials.push(other);
            }
        }
    }
    trials.sort_by_key(|(_, trial)| trial.trial.number);
    let first = parts
        .into_iter()
        .min_by(|a, b| a.header.started_unix_s.total_cmp(&b.header.started_unix_s))?;
    let plan = StudyPlan { shard: None, ..first.study.plan };
    let course =
        StudyRecord { header: first.header.clone(), plan, begun: Vec::new(), ended: Vec::new() };
    let study = analyze(&directory.display().to_string(), course, &trials);
    let LoadedRecord { header, source, beside, .. } = first;
    Some(LoadedRecord { study, header, trials, source, notes, beside })
}

/// Returns whether a trial ended as planned.
fn is_done(trial: &TrialRecord) -> bool {
    trial.end.as_ref().is_some_and(|end| end.outcome == Outcome::Done)
}

/// Maximum number of shards whose absence is reported; no study has more.
const MAX_SHARDS: u32 = 10_000;

/// Returns a sentence on missing shards.
fn missing(parts: &[LoadedRecord]) -> Option<String> {
    // A record may come from an untrusted source.
    let of = parts.first()?.study.shard.filter(|shard| shard.of <= MAX_SHARDS)?.of;
    let is_there = |part: &u32| {
        parts.iter().any(|record| record.study.shard.is_some_and(|shard| shard.part == *part))
    };
    let missing: Vec<String> = (1..=of).filter(|p| !is_there(p)).map(|p| p.to_string()).collect();
    (!missing.is_empty()).then(|| {
        // A shard may have been named twice, or run twice.
        let there = of as usize - missing.len();
        let missing = missing.join(", ");
        format!(
            "{there} of {of} parts are given (missing: {missing}); for the whole study, name the records of all parts"
        )
    })
}

/// Returns a sentence on shards that ran on different machines.
fn other_machine(parts: &[LoadedRecord]) -> Option<String> {
    // The available memory changes all the time.
    let alike = |machine: &Machine| Machine { memory_available_bytes: None, ..machine.clone() };
    let first = alike(&parts.first()?.header.machine);
    let other = parts.iter().any(|part| alike(&part.header.machine) != first);
    other.then(|| {
        "the parts ran on different machines, or with different machine settings: CPU and latency are compared \
         within each part, but memory is summarised over all parts"
            .to_owned()
    })
}

/// Returns the directory of a shard, also if its `study.jsonl` was named.
fn home(part: &LoadedRecord) -> PathBuf {
    let path = Path::new(&part.study.record);
    let is_file = path.extension().is_some_and(|ending| ending == "jsonl");
    path.parent().filter(|_| is_file).unwrap_or(path).to_owned()
}

/// Returns the directory that contains all shards.
fn common(parts: &[LoadedRecord]) -> PathBuf {
    let mut paths = parts.iter().map(home);
    let first = paths.next().unwrap_or_default();
    let shared = |a: PathBuf, b: PathBuf| -> PathBuf {
        a.components().zip(b.components()).take_while(|(x, y)| x == y).map(|(x, _)| x).collect()
    };
    let common = paths.fold(first, shared);
    let is_some = common.components().any(|part| part != Component::CurDir);
    if is_some { common } else { PathBuf::from(".") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::load;

    /// Returns the record of the tests as a shard, under another path.
    fn part(path: &str, part: u32, of: u32) -> LoadedRecord {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record");
        let mut loaded = load(&home).unwrap();
        loaded.study.record = path.to_owned();
        loaded.study.shard = Some(Shard { part, of });
        loaded.study.plan.shard = loaded.study.shard;
        loaded.notes.clear();
        loaded
    }

    #[test]
    fn of_two_trials_with_the_same_number_the_complete_one_is_kept() {
        let (mut broken, again) = (part("a/old", 1, 2), part("a/again", 1, 2));
        broken.trials.truncate(2);
        broken.trials[1].1.end = None;
        for parts in [vec![broken.clone(), again.clone()], vec![again, broken]] {
            let merged = merge_shards(parts).pop().unwrap();
            assert_eq!(merged.trials.len(), 4);
            assert!(merged.trials.iter().all(|(_, trial)| is_done(trial)));
            let shown = "trial 2 occurs twice: again/trials/002-jemalloc.jsonl is used, and \
                        old/trials/002-jemalloc.jsonl is left out";
            assert!(merged.notes.iter().any(|note| note == shown), "{:?}", merged.notes);
        }
    }

    #[test]
    fn a_shard_that_is_listed_twice_counts_once() {
        let parts = vec![part("a/one", 1, 2), part("a/copy", 1, 2)];
        let notes = merge_shards(parts).pop().unwrap().notes;
        assert!(notes[0].starts_with("1 of 2 parts are given (missing: 2)"), "{notes:?}");
    }
}
