//! The policy at work: the totals of its acts, its last act, and the sentences that show them.

use std::path::Path;

use lowtide_model::act::{Act, ActEvent};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::number::HumanCount;

use super::canvas::whole;
use super::time_series::TimeSeries;
use crate::supervision::{is_release, outcome};

/// The acts of a policy on the process, from the log.
#[derive(Debug, Clone)]
pub(crate) struct PolicyHistory {
    pid: u32,
    /// The log, as given on the command line.
    log: String,
    /// Bytes that were returned by the releases since the watch started.
    pub(super) releases: TimeSeries<1>,
    /// The policy with its parameters; `None` before the first act.
    policy: Option<String>,
    is_dry_run: bool,
    /// Number of attempted releases.
    tries: u64,
    release_count: u64,
    returned_bytes: u64,
    came_back_bytes: u64,
    cpu_s: f64,
    /// The last attempted release.
    last: Option<PastAct>,
    /// The act that suspended releases for some time, and its name; `None` if one was attempted
    /// since.
    standstill: Option<(&'static str, PastAct)>,
}

/// An act, and when it ended, in seconds since the watch started.
#[derive(Debug, Clone)]
struct PastAct {
    t_s: f64,
    outcome: String,
}

impl PolicyHistory {
    /// Returns the history before the first act.
    pub(super) fn new(pid: u32, log: &Path) -> Self {
        Self {
            pid,
            log: log.display().to_string(),
            releases: TimeSeries::default(),
            policy: None,
            is_dry_run: false,
            tries: 0,
            release_count: 0,
            returned_bytes: 0,
            came_back_bytes: 0,
            cpu_s: 0.0,
            last: None,
            standstill: None,
        }
    }

    /// Adds an act that ended at `t_s`.
    pub(super) fn add(&mut self, t_s: f64, act: &Act) {
        let past = PastAct { t_s, outcome: short_outcome(act) };
        match act.event {
            ActEvent::Act => {
                self.add_try(t_s, act);
                self.last = Some(past);
                self.standstill = None;
            }
            ActEvent::Returned => {
                let bytes = act.refaulted_bytes.unwrap_or(0);
                self.came_back_bytes = self.came_back_bytes.saturating_add(bytes);
            }
            ActEvent::HeldBack => self.standstill = Some(("held back", past)),
            ActEvent::LeftAlone => self.standstill = Some(("left alone", past)),
        }
        self.policy = Some(act.policy.clone());
    }

    fn add_try(&mut self, t_s: f64, act: &Act) {
        self.tries += 1;
        self.is_dry_run = act.dry_run;
        self.cpu_s += act.cpu_s.max(0.0);
        if !is_release(act) {
            return;
        }
        self.release_count += 1;
        self.returned_bytes = self.returned_bytes.saturating_add(act.returned_bytes);
        if t_s >= 0.0 && act.returned_bytes > 0 {
            self.releases.add(t_s, [act.returned_bytes]);
        }
    }

    /// Returns the policy and its totals as a sentence.
    pub(crate) fn summary(&self) -> String {
        let Some(policy) = &self.policy else {
            return format!("policy: {} has no entry for process {} yet", self.log, self.pid);
        };
        let standstill = self.standstill.as_ref().map(|(name, _)| format!(", {name}"));
        let head = format!("policy {policy}{}", standstill.unwrap_or_default());
        if self.is_dry_run {
            let tries = counted(self.tries, "try", "tries");
            return format!("{head}, dry run: {tries}, none released anything");
        }
        format!(
            "{head}: {}, {} returned, {} came back, CPU {}",
            counted(self.release_count, "release", "releases"),
            Human(self.returned_bytes),
            Human(self.came_back_bytes),
            HumanSeconds(self.cpu_s)
        )
    }

    /// Returns the sentences of the view, the most important first. `now_s` is the time since the
    /// watch started, in seconds.
    pub(super) fn texts(&self, now_s: f64) -> Vec<String> {
        let ago = |act: &PastAct| format!("{} ago: {}", whole(now_s - act.t_s), act.outcome);
        let standstill = self.standstill.as_ref().map(|(_, act)| ago(act));
        let last = self.last.as_ref().map(ago);
        [Some(self.summary()), standstill, last].into_iter().flatten().collect()
    }
}

/// Returns the outcome of an act, and its reason. The chart shows the effect on RSS.
fn short_outcome(act: &Act) -> String {
    if !is_release(act) {
        return outcome(act);
    }
    let pause = HumanSeconds(act.longest_pause_s);
    format!("{} returned, longest pause {pause} ({})", Human(act.returned_bytes), act.reason)
}

/// Formats a number of things.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", HumanCount(count), if count == 1 { one } else { many })
}
