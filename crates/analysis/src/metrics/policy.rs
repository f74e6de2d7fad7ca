//! The effects and the costs of a policy in a trial.

use lowtide_model::act::{self, Act, ActEvent};
use lowtide_model::release::ReleaseOutcome;
use lowtide_record::TrialRecord;
use serde::Serialize;

/// The effects and the costs of a treatment's policy in a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PolicyMetrics {
    /// Bytes that its releases returned to the OS.
    pub returned_bytes: u64,
    /// The part of them that was faulted in again: after a minute, or before the next release.
    pub refaulted_bytes: u64,
    /// Releases that were refused, or failed in part.
    pub failed_releases: u64,
    /// Number of times that the budget of CPU time delayed releases.
    pub held_back: u64,
    /// Longest pause of a thread due to a release, in seconds.
    pub longest_pause_s: f64,
    /// CPU time of lowtide for the policy and its releases, in seconds.
    pub lowtide_cpu_s: Option<f64>,
    /// Minor page faults of the subject after the first release; `null` without a release.
    pub minor_faults_after: Option<u64>,
    /// The reason why the subject was left alone, if it was.
    pub left_alone_because: Option<String>,
}

/// Returns the acts that the policy of a trial reported, each with its time in seconds.
pub fn acts(trial: &TrialRecord) -> Vec<(f64, Act)> {
    let parsed = |report: &serde_json::Value| {
        let is_act = report.get("schema").and_then(|schema| schema.as_str()) == Some(act::SCHEMA);
        is_act.then(|| serde_json::from_value(report.clone()).ok())?
    };
    let runs = trial.acts.iter();
    runs.filter_map(|run| Some((run.t_s, parsed(run.report.as_ref()?)?))).collect()
}

impl PolicyMetrics {
    /// Measures the policy of a trial; `None` if its treatment has none. The policy of a treatment
    /// with hooks is a label.
    pub(crate) fn new(trial: &TrialRecord) -> Option<Self> {
        let lowtide_cpu_s = trial.end.as_ref().and_then(|end| end.policy_cpu_s);
        let acts = acts(trial);
        if lowtide_cpu_s.is_none() && acts.is_empty() {
            return None;
        }
        let mut metrics = Self { lowtide_cpu_s, ..Self::default() };
        let mut first_release_s = None;
        for (t_s, act) in acts {
            match act.event {
                ActEvent::Act => metrics.add(&act),
                ActEvent::Returned => metrics.refaulted_bytes += act.refaulted_bytes.unwrap_or(0),
                ActEvent::HeldBack => metrics.held_back += 1,
                ActEvent::LeftAlone => metrics.left_alone_because = Some(act.reason.clone()),
            }
            if act.event == ActEvent::Act && act.returned_bytes > 0 {
                first_release_s.get_or_insert(t_s);
            }
        }
        metrics.minor_faults_after = first_release_s.and_then(|t_s| faults_after(trial, t_s));
        Some(metrics)
    }

    fn add(&mut self, act: &Act) {
        self.returned_bytes += act.returned_bytes;
        self.longest_pause_s = self.longest_pause_s.max(act.longest_pause_s);
        let has_failed =
            matches!(act.outcome, Some(ReleaseOutcome::Refused | ReleaseOutcome::Partial));
        self.failed_releases += u64::from(has_failed);
    }
}

/// Returns the minor page faults of a trial after a time, in seconds.
fn faults_after(trial: &TrialRecord, t_s: f64) -> Option<u64> {
    let at = trial.samples.iter().rfind(|sample| sample.t_s <= t_s)?;
    let last = trial.samples.last()?;
    Some(last.total.minor_faults.saturating_sub(at.total.minor_faults))
}

#[cfg(test)]
mod tests {
    use lowtide_record::fixtures::trial;
    use lowtide_record::v1::HookRun;
    use serde_json::json;

    use super::*;

    fn line(event: &str, returned: u64, refaulted: Option<u64>) -> HookRun {
        let report = json!({
            "schema": "lowtide.act/1", "event": event, "id": 1, "time": "", "pid": 1, "command": "", "policy": "",
            "reason": "because", "dry_run": false, "outcome": "released", "hazard": null, "message": "",
            "periodMs": null, "elapsedMs": 1.0, "rss.before": 0, "rss.after": 0, "rss.diff": 0, "predicted_bytes": 0,
            "returned_bytes": returned, "longest_pause_s": 0.002, "cpu_s": 0.1, "refaulted_bytes": refaulted,
            "refaulted_after_s": null,
        });
        let (at, name) = ("policy".to_owned(), "adaptive".to_owned());
        HookRun {
            t_s: 1.0,
            wall_s: 0.1,
            at,
            name,
            round: None,
            succeeded: true,
            report: Some(report),
        }
    }

    #[test]
    fn releases_by_the_policy_are_summed_and_releases_by_hooks_are_not() {
        let mut trial = trial("glibc", 1, true);
        assert_eq!(PolicyMetrics::new(&trial), None);
        trial.trial.treatment.policy = "adaptive".to_owned();
        trial.acts = vec![
            line("act", 1000, None),
            line("returned", 1000, Some(10)),
            line("act", 500, None),
            line("held_back", 0, None),
            HookRun {
                report: Some(json!({"schema": "lowtide.release/1", "returned_bytes": 9})),
                ..line("act", 9, None)
            },
            HookRun { report: None, ..line("act", 9, None) },
        ];
        let metrics = PolicyMetrics::new(&trial).unwrap();
        assert_eq!(
            (metrics.returned_bytes, metrics.refaulted_bytes, metrics.held_back),
            (1500, 10, 1)
        );
        assert_eq!(metrics.longest_pause_s, 0.002);
    }
}
