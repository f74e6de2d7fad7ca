//! What a supervision has done, in a sentence at its end.

use std::time::Duration;

use lowtide_model::act::{Act, ActEvent};
use lowtide_model::bytes::Human;
use lowtide_model::duration::HumanSeconds;
use lowtide_model::number::counted;

use super::is_release;

/// The totals of the acts of a supervision.
#[derive(Debug, Default)]
pub(super) struct Totals {
    releases: u64,
    returned_bytes: u64,
    longest_pause_s: f64,
    pauses_over_bound: u64,
    waited_over_bound_s: f64,
    /// Number of simulated releases, and their predicted gain in bytes.
    simulated: u64,
    predicted_bytes: u64,
    /// The last process whose memory was not released for a reason, and the reason.
    hindrance: Option<(u32, String)>,
}

impl Totals {
    /// Adds an act.
    pub(super) fn add(&mut self, act: &Act) {
        if is_release(act) {
            self.releases += 1;
            self.returned_bytes += act.returned_bytes;
            self.longest_pause_s = self.longest_pause_s.max(act.longest_pause_s);
            self.pauses_over_bound += act.pauses_over_bound;
            self.waited_over_bound_s += act.waited_over_bound_s;
        } else if act.event == ActEvent::Act && act.dry_run {
            self.simulated += 1;
            self.predicted_bytes += act.predicted_bytes;
        } else if act.event == ActEvent::LeftAlone {
            self.hindrance = Some((act.pid, act.reason.clone()));
        } else if act.event == ActEvent::HeldBack {
            self.hindrance = Some((act.pid, act.message.clone()));
        }
    }

    /// Returns whether there was no release, not even a simulated one.
    pub(super) fn is_empty(&self) -> bool {
        self.releases == 0 && self.simulated == 0
    }

    /// Formats the totals. `max_pause` is the bound of a pause.
    pub(super) fn sentence(&self, max_pause: Duration) -> String {
        if self.simulated > 0 {
            let bytes = Human(self.predicted_bytes);
            return format!(
                "{} (--dry-run), {bytes} predicted",
                counted(self.simulated, "release")
            );
        }
        if self.releases == 0 {
            return match &self.hindrance {
                Some((pid, why)) => format!("nothing was released; process {pid}: {why}"),
                None => "nothing was released".to_owned(),
            };
        }
        format!(
            "{}, {} returned, longest pause {}{}",
            counted(self.releases, "release"),
            Human(self.returned_bytes),
            HumanSeconds(self.longest_pause_s),
            self.over_bound(max_pause)
        )
    }

    fn over_bound(&self, max_pause: Duration) -> String {
        if self.pauses_over_bound == 0 {
            return String::new();
        }
        let excess_s = self.longest_pause_s - max_pause.as_secs_f64();
        let why = match self.waited_over_bound_s > 0.0 && self.waited_over_bound_s >= excess_s / 2.0
        {
            true => "the machine was busy",
            false => "the kernel took longer",
        };
        let bound = HumanSeconds(max_pause.as_secs_f64());
        format!(", {} above the bound of {bound}: {why}", self.pauses_over_bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_are_a_sentence_also_if_nothing_was_released() {
        let bound = Duration::from_millis(1);
        assert_eq!(Totals::default().sentence(bound), "nothing was released");
        let hindrance = Some((7, "it is locked".to_owned()));
        assert_eq!(
            Totals { hindrance, ..Totals::default() }.sentence(bound),
            "nothing was released; process 7: it is locked"
        );
        let busy = Totals {
            releases: 3,
            returned_bytes: 437 << 20,
            longest_pause_s: 0.049,
            pauses_over_bound: 2,
            waited_over_bound_s: 0.04,
            ..Totals::default()
        };
        assert_eq!(
            busy.sentence(bound),
            "3 releases, 437 MiB returned, longest pause 49.0 ms, 2 above the bound of 1.00 ms: the machine was busy"
        );
        let quiet = Totals { pauses_over_bound: 0, releases: 1, ..busy };
        assert_eq!(quiet.sentence(bound), "1 release, 437 MiB returned, longest pause 49.0 ms");
    }
}
