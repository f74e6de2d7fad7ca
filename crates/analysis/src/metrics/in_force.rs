//! Determines whether the treatment was in force in a trial.

use lowtide_record::TrialRecord;
use lowtide_record::v1::Process;

/// Minimum lifetime of a process that matters, in seconds.
const LONG_S: f64 = 1.0;
/// Minimum part of the tree's peak memory that a process with a shorter lifetime must hold to
/// matter.
const LARGE: f64 = 0.05;
/// The same for a process that ended before it was inspected; only a larger one leaves the result
/// open.
const LARGE_UNSEEN: f64 = 0.25;

/// Returns whether the treatment was in force in every process that matters: the first one, and
/// every one that lived for a second or ever held 5 % of the tree's peak memory (25 % if it ended
/// before it was inspected). A short-lived helper does not count. `None` means that this is not
/// known. The text is the reason why it was not in force, or why that is not known.
pub fn in_force(trial: &TrialRecord) -> (Option<bool>, Option<String>) {
    let mut unknown = None;
    let mut any_active = false;
    for (place, process) in trial.processes.iter().enumerate() {
        if place > 0 && !matters(trial, process) {
            continue;
        }
        let sentence = |because: &str| format!("{} ({}): {because}", process.name, process.pid);
        match &process.allocator {
            Some(check) if check.active == Some(true) => any_active = true,
            Some(check) => {
                let because =
                    sentence(check.because.as_deref().unwrap_or("the reason is not known"));
                if check.active == Some(false) {
                    return (Some(false), Some(because));
                }
                unknown.get_or_insert(because);
            }
            None => {
                unknown.get_or_insert_with(|| sentence("it ended before it could be inspected"));
            }
        }
    }
    match (unknown, any_active) {
        (Some(because), _) => (None, Some(because)),
        (None, true) => (Some(true), None),
        (None, false) => (None, Some("no process was seen".to_owned())),
    }
}

fn matters(trial: &TrialRecord, process: &Process) -> bool {
    let highest = trial.samples.iter().map(|s| s.total.rss_bytes.0).max().unwrap_or(0);
    let end = trial
        .process_ends
        .iter()
        .find(|end| end.pid == process.pid && end.start_ticks == process.start_ticks);
    // If its end was not recorded, it was still running when the record was interrupted.
    let last = end.map_or_else(|| trial.samples.last().map_or(0.0, |s| s.t_s), |end| end.t_s);
    let held = end.map_or(0, |end| end.peak_rss_bytes);
    let large = if process.allocator.is_some() { LARGE } else { LARGE_UNSEEN };
    last - process.t_s >= LONG_S || held as f64 >= large * highest as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_record::fixtures::{MIB, process, trial};
    use lowtide_record::v1::ProcessEnd;

    /// Returns a tree of 100 MiB. Its first process is as expected, and another one is not.
    fn with_other(seen_s: f64, last_s: f64, mib: u64, active: Option<bool>) -> TrialRecord {
        let mut trial = trial("jemalloc", 1, false).with_samples(0.0, 10.0, |_| 100.0);
        let mut other = process(11, active, Some("it is linked statically"));
        other.t_s = seen_s;
        trial.processes.push(other);
        trial.process_ends.push(ProcessEnd {
            t_s: last_s,
            pid: 11,
            start_ticks: 1,
            peak_rss_bytes: mib * MIB,
        });
        trial
    }

    #[test]
    fn a_short_lived_helper_does_not_affect_the_result() {
        assert_eq!(in_force(&with_other(3.0, 3.4, 2, Some(false))), (Some(true), None));
    }

    #[test]
    fn a_long_lived_or_large_process_decides_the_result() {
        let reported = Some("x (11): it is linked statically".to_owned());
        assert_eq!(
            in_force(&with_other(3.0, 4.5, 2, Some(false))),
            (Some(false), reported.clone())
        );
        assert_eq!(
            in_force(&with_other(3.0, 3.1, 6, Some(false))),
            (Some(false), reported.clone())
        );
        assert_eq!(in_force(&with_other(3.0, 4.5, 2, None)), (None, reported));
        let mut unseen = with_other(3.0, 3.1, 20, None);
        unseen.processes[1].allocator = None;
        assert_eq!(in_force(&unseen).0, Some(true));
        unseen.process_ends[0].peak_rss_bytes = 30 * MIB;
        assert_eq!(in_force(&unseen).0, None);
    }

    #[test]
    fn an_incomplete_record_is_judged_by_the_processes_it_has() {
        let mut broken = with_other(3.0, 0.0, 2, Some(false));
        broken.process_ends.clear();
        assert_eq!(in_force(&broken).0, Some(false));
        broken.processes.clear();
        assert_eq!(in_force(&broken), (None, Some("no process was seen".to_owned())));
    }

    #[test]
    fn the_result_is_unknown_if_the_first_process_was_never_inspected() {
        let mut trial = trial("jemalloc", 1, false);
        trial.processes[0].allocator = None;
        let (active, because) = in_force(&trial);
        assert_eq!(active, None);
        assert!(because.unwrap().contains("ended before it could be inspected"));
    }
}
