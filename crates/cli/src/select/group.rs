//! Totals of several processes.

use lowtide_model::cgroup::CgroupLedger;
use lowtide_model::group::GroupTotals;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::Owner;
use lowtide_model::release::{Release, ReleaseOutcome};
use lowtide_probe::inspect::Proportion;
use lowtide_probe::target::Target;
use lowtide_report::group::sentence;

use crate::console::output::Output;
use crate::failure::exit::Failure;
use crate::select::wait::in_time;

/// The totals of the processes that were inspected or released from so far.
#[derive(Debug, Default)]
pub(crate) struct Group {
    totals: GroupTotals,
    /// Whether the PSS of one process is unknown; then the total is unknown, too.
    is_pss_unknown: bool,
    /// Whether the PSS of one process before its release is unknown.
    is_pss_before_unknown: bool,
}

/// Returns the PSS of a process, if it can be read.
pub(crate) fn proportion(target: &Target) -> Option<Proportion> {
    in_time(target, |target| Proportion::read(&target).ok()).flatten()
}

impl Group {
    /// Returns the totals of a cgroup's processes, before any process.
    pub(crate) fn of_cgroup(cgroup: Option<CgroupLedger>) -> Self {
        Self { totals: GroupTotals { cgroup, ..GroupTotals::default() }, ..Self::default() }
    }

    /// Adds the release from one process.
    pub(crate) fn add_release(
        &mut self,
        target: &Target,
        done: &Release,
        before: Option<Proportion>,
    ) {
        self.is_pss_before_unknown |= before.is_none();
        self.add_proportion(proportion(target), before);
        let totals = &mut self.totals;
        totals.rss_bytes += done.rss_after_bytes;
        if done.dry_run {
            *totals.reclaimable_bytes.get_or_insert(0) += done.predicted_bytes;
        } else {
            *totals.returned_bytes.get_or_insert(0) += done.returned_bytes;
        }
        *totals.refused.get_or_insert(0) += u64::from(done.outcome == ReleaseOutcome::Refused);
    }

    /// Adds the inspection of one process.
    pub(crate) fn add_inspection(&mut self, target: &Target, found: &Inspection) {
        self.add_proportion(proportion(target), None);
        let totals = &mut self.totals;
        totals.rss_bytes += found.observation.rss_bytes;
        *totals.allocated_bytes.get_or_insert(0) +=
            found.observation.ledger.bytes(Owner::Allocated);
        *totals.reclaimable_bytes.get_or_insert(0) +=
            found.observation.ledger.bytes(Owner::Reclaimable);
    }

    /// Counts a process that could not be inspected.
    pub(crate) fn add_unreadable(&mut self) {
        self.totals.unreadable += 1;
    }

    fn add_proportion(&mut self, now: Option<Proportion>, before: Option<Proportion>) {
        self.totals.processes += 1;
        self.is_pss_unknown |= now.is_none();
        for (sum, part) in
            [(&mut self.totals.pss_bytes, now), (&mut self.totals.pss_before_bytes, before)]
        {
            if let Some(part) = part {
                *sum.get_or_insert(0) += part.pss_bytes;
                self.totals.pss_is_estimate |= part.is_estimate;
            }
        }
    }

    /// Prints the totals.
    pub(crate) fn print(mut self, output: &Output) -> Result<(), Failure> {
        if self.is_pss_unknown {
            (self.totals.pss_bytes, self.totals.pss_before_bytes) = (None, None);
        }
        if self.is_pss_before_unknown {
            self.totals.pss_before_bytes = None;
        }
        if output.json {
            return output.object(&self.totals);
        }
        // A cgroup can have memory and no process.
        if self.totals.processes + self.totals.unreadable == 0 {
            return Ok(());
        }
        output.text(&format!("\n{}\n", sentence(&self.totals)))
    }
}
