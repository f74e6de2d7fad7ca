//! Creates log lines about acts, from releases and from the state of their process.

use std::time::{Duration, SystemTime};

use lowtide_model::act::{Act, ActEvent, SCHEMA};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::release::{Release, ReleaseOutcome};
use lowtide_policy::{PolicyKind, Returned};
use lowtide_record::v1::{HookRun, Line};

/// The message of a release that returned memory. The keys of the lines are those of the log that
/// has this message.
const PURGED: &str = "Purged memory successfully";

/// The fields that all lines about a process share.
#[derive(Debug, Clone)]
pub(crate) struct About<'a> {
    pub(crate) pid: u32,
    pub(crate) command: &'a str,
    pub(crate) policy: PolicyKind,
    pub(crate) rss_bytes: u64,
}

impl About<'_> {
    /// Returns a line without a release.
    pub(crate) fn line(&self, event: ActEvent, id: u64, reason: String, message: String) -> Act {
        let period = match self.policy {
            PolicyKind::Periodic(period) => Some(period.as_millis() as u64),
            _ => None,
        };
        Act {
            schema: SCHEMA.to_owned(),
            event,
            id,
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            pid: self.pid,
            command: self.command.to_owned(),
            policy: self.policy.to_string(),
            reason,
            dry_run: false,
            outcome: None,
            hazard: None,
            message,
            period_ms: period,
            elapsed_ms: 0.0,
            rss_before: self.rss_bytes,
            rss_after: self.rss_bytes,
            rss_diff: 0,
            predicted_bytes: 0,
            returned_bytes: 0,
            longest_pause_s: 0.0,
            pauses_over_bound: 0,
            waited_over_bound_s: 0.0,
            cpu_s: 0.0,
            refaulted_bytes: None,
            refaulted_after_s: None,
        }
    }

    /// Returns the line about an attempted release.
    pub(crate) fn release(
        &self,
        id: u64,
        reason: String,
        release: &Release,
        took: Duration,
    ) -> Act {
        Act {
            dry_run: release.dry_run,
            outcome: Some(release.outcome),
            hazard: release.hazard,
            elapsed_ms: (took.as_secs_f64() * 1e6).round() / 1e3,
            rss_before: release.rss_before_bytes,
            rss_after: release.rss_after_bytes,
            rss_diff: difference(release.rss_before_bytes, release.rss_after_bytes),
            predicted_bytes: release.predicted_bytes,
            returned_bytes: release.returned_bytes,
            longest_pause_s: release.longest_pause_s,
            pauses_over_bound: release.pauses_over_bound,
            waited_over_bound_s: release.waited_over_bound_s,
            cpu_s: release.cpu_s,
            ..self.line(ActEvent::Act, id, reason, message(release))
        }
    }

    /// Returns the line about the pages of a release that came back.
    pub(crate) fn returned(&self, id: u64, released: u64, back: &Returned) -> Act {
        let message = format!(
            "{} of {} came back within {}",
            Human(back.bytes),
            Human(released),
            HumanSeconds(back.after_s)
        );
        Act {
            returned_bytes: released,
            refaulted_bytes: Some(back.bytes),
            refaulted_after_s: Some(back.after_s),
            ..self.line(ActEvent::Returned, id, String::new(), message)
        }
    }
}

/// Converts an act to a line of a record. `now_s` is the time at the end of the act, in seconds
/// since the record began.
pub fn recorded(act: &Act, now_s: f64) -> Line {
    /// The `at` value of acts of a policy.
    const AT: &str = "policy";
    let wall_s = (act.elapsed_ms / 1e3).max(0.0);
    Line::Act(HookRun {
        t_s: (now_s - wall_s).max(0.0),
        wall_s,
        at: AT.to_owned(),
        name: act.policy.clone(),
        round: None,
        succeeded: act.event != ActEvent::LeftAlone,
        report: serde_json::to_value(act).ok(),
    })
}

/// Returns the change from one number of bytes to another.
fn difference(before: u64, after: u64) -> i64 {
    let of = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    of(after) - of(before)
}

/// Returns the outcome of a release as a sentence.
fn message(release: &Release) -> String {
    let because = || release.reason.clone().unwrap_or_default();
    match release.outcome {
        ReleaseOutcome::Released if release.dry_run => {
            format!("{} would be released", Human(release.predicted_bytes))
        }
        ReleaseOutcome::Released => PURGED.to_owned(),
        ReleaseOutcome::NothingToRelease => "There was nothing to release".to_owned(),
        ReleaseOutcome::Refused => format!("The release was refused: {}", because()),
        ReleaseOutcome::Partial => format!("A part was released: {}", because()),
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    use super::*;

    /// Returns the act of a release that returned 1000 bytes.
    pub(crate) fn act() -> Act {
        let release = Release {
            outcome: ReleaseOutcome::Released,
            returned_bytes: 1000,
            rss_before_bytes: 5000,
            rss_after_bytes: 4000,
            ..Release::of(42, 7, vec!["server".to_owned()])
        };
        let period = PolicyKind::Periodic(Duration::from_secs(30));
        let about = About { pid: 42, command: "server", policy: period, rss_bytes: 5000 };
        about.release(1, "the period is over".to_owned(), &release, Duration::from_micros(1973))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_has_the_keys_of_the_published_log() {
        let value = serde_json::to_value(fixtures::act()).unwrap();
        for (key, expected) in [
            ("periodMs", serde_json::json!(30000)),
            ("elapsedMs", serde_json::json!(1.973)),
            ("message", serde_json::json!("Purged memory successfully")),
            ("rss.before", serde_json::json!(5000)),
            ("rss.after", serde_json::json!(4000)),
            ("rss.diff", serde_json::json!(-1000)),
        ] {
            assert_eq!(value[key], expected, "{key}");
        }
    }
}
