//! Several processes together.

use lowtide_model::group::GroupTotals;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::Owner;
use lowtide_model::release::{Outcome, Release};
use lowtide_probe::inspect::{Proportion, Target};
use lowtide_report::whole::sentence;

use super::inspect::in_time;
use crate::exit::Failure;
use crate::output::Output;

/// What has been added up so far.
#[derive(Debug, Default)]
pub(super) struct Together {
    whole: GroupTotals,
    /// Whether PSS of one of them is not known: then that of all is not.
    is_unknown: bool,
    /// The same of PSS before a release.
    is_unknown_before: bool,
}

/// Its proportional memory, where that can be read.
pub(super) fn now(target: &Target) -> Option<Proportion> {
    in_time(target, |target| Proportion::read(&target).ok()).flatten()
}

impl Together {
    /// Adds what came of one process.
    pub(super) fn add(&mut self, target: &Target, done: &Release, before: Option<Proportion>) {
        self.is_unknown_before |= before.is_none();
        self.add_proportion(now(target), before);
        let whole = &mut self.whole;
        whole.rss_bytes += done.rss_after_bytes;
        if done.dry_run {
            *whole.reclaimable_bytes.get_or_insert(0) += done.predicted_bytes;
        } else {
            *whole.returned_bytes.get_or_insert(0) += done.returned_bytes;
        }
        *whole.refused.get_or_insert(0) += u64::from(done.outcome == Outcome::Refused);
    }

    /// Adds what one process was seen to hold.
    pub(super) fn look(&mut self, target: &Target, found: &Inspection) {
        self.add_proportion(now(target), None);
        let whole = &mut self.whole;
        whole.rss_bytes += found.observation.rss_bytes;
        *whole.allocated_bytes.get_or_insert(0) += found.observation.ledger.bytes(Owner::Allocated);
        *whole.reclaimable_bytes.get_or_insert(0) +=
            found.observation.ledger.bytes(Owner::Reclaimable);
    }

    /// Counts one that could not be looked at.
    pub(super) fn add_unreadable(&mut self) {
        self.whole.unreadable += 1;
    }

    fn add_proportion(&mut self, now: Option<Proportion>, before: Option<Proportion>) {
        self.whole.processes += 1;
        self.is_unknown |= now.is_none();
        for (sum, part) in
            [(&mut self.whole.pss_bytes, now), (&mut self.whole.pss_before_bytes, before)]
        {
            if let Some(part) = part {
                *sum.get_or_insert(0) += part.pss_bytes;
                self.whole.pss_is_estimate |= part.is_estimate;
            }
        }
    }

    /// Prints it.
    pub(super) fn show(mut self, output: &Output) -> Result<(), Failure> {
        if self.is_unknown {
            (self.whole.pss_bytes, self.whole.pss_before_bytes) = (None, None);
        }
        if self.is_unknown_before {
            self.whole.pss_before_bytes = None;
        }
        if output.json {
            return output.object(&self.whole);
        }
        output.text(&format!("\n{}\n", sentence(&self.whole)))
    }
}
