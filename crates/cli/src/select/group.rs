//! Totals of several processes.

use lowtide_model::cgroup::{AnonCount, AnonProcess, CgroupLedger};
use lowtide_model::group::GroupTotals;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::Owner;
use lowtide_model::release::{Release, ReleaseOutcome};
use lowtide_model::remedy::RemedyKind;
use lowtide_probe::inspect::Proportion;
use lowtide_probe::patience::Patience;
use lowtide_probe::proc::kcmp::AddressSpaces;
use lowtide_probe::proc::status::Status;
use lowtide_probe::target::{Target, TargetError};
use lowtide_report::group::sentence;
use lowtide_report::text::{shortened, without_directory, wrapped};

use crate::console::output::Output;
use crate::failure::exit::Failure;
use crate::select::wait::in_time;

/// Maximum length of a command in the ledger of a cgroup, in characters.
const MAX_NAME: usize = 60;

/// The totals of the processes that were inspected or released from so far.
#[derive(Debug, Default)]
pub(crate) struct Group {
    totals: GroupTotals,
    /// Whether the PSS of one process is unknown; then the total is unknown, too.
    is_pss_unknown: bool,
    /// Whether the PSS of one process before its release is unknown.
    is_pss_before_unknown: bool,
    /// The anonymous memory of each process.
    anon: Vec<AnonProcess>,
    /// The memory of the processes so far.
    spaces: AddressSpaces,
}

/// Returns the PSS of a process, if it can be read.
pub(crate) fn proportion(target: &Target) -> Option<Proportion> {
    in_time(Patience::default(), target, |target| Proportion::read(&target).ok()).flatten()
}

impl Group {
    /// Adds the ledger of the cgroup of all processes.
    pub(crate) fn set_cgroup(&mut self, mut ledger: CgroupLedger) {
        ledger.set_anon(std::mem::take(&mut self.anon));
        self.totals.cgroup = Some(ledger);
    }

    /// Returns the ledger of the cgroup of all processes.
    pub(crate) fn cgroup(&self) -> Option<&CgroupLedger> {
        self.totals.cgroup.as_ref()
    }

    /// Adds the release from one process.
    pub(crate) fn add_release(
        &mut self,
        target: &Target,
        done: &Release,
        before: Option<Proportion>,
    ) {
        let is_refused = done.outcome == ReleaseOutcome::Refused;
        *self.totals.refused.get_or_insert(0) += u64::from(is_refused);
        if self.is_counted(target) {
            return;
        }
        self.is_pss_before_unknown |= before.is_none();
        self.add_proportion(proportion(target), before);
        let totals = &mut self.totals;
        totals.rss_bytes += done.rss_after_bytes;
        let shared = done.shared_bytes.unwrap_or(0);
        if done.dry_run {
            let others = done.shared_with.unwrap_or(0);
            *totals.reclaimable_bytes.get_or_insert(0) +=
                own_part(done.predicted_bytes, shared, others);
        } else {
            // The last process that returns a page returns it to the machine.
            *totals.returned_bytes.get_or_insert(0) += done.returned_bytes.saturating_sub(shared);
        }
    }

    /// Adds the inspection of one process.
    pub(crate) fn add_inspection(&mut self, target: &Target, found: &Inspection) {
        if self.is_counted(target) {
            return;
        }
        let now = proportion(target).map(|now| among_forked(now, found));
        // Without the permission to read it, its status still has the sum.
        let count = now.map(|now| now.anon).or_else(|| anon_count(target.pid));
        self.anon.extend(count.map(|count| anon(found, count)));
        self.add_proportion(now, None);
        let totals = &mut self.totals;
        totals.rss_bytes += found.observation.rss_bytes;
        let own = found.observation.forked.as_ref().map(|forked| forked.private_bytes);
        if let Some(bytes) = own {
            *totals.private_bytes.get_or_insert(0) += bytes;
        }
        if found.observation.unreadable.is_some() {
            return;
        }
        *totals.allocated_bytes.get_or_insert(0) +=
            found.observation.ledger.bytes(Owner::Allocated);
        let shared = found.observation.forked.as_ref();
        let shared = shared.and_then(|forked| Some((forked.free_shared_bytes?, forked.processes)));
        let (bytes, others) = shared.unwrap_or((0, 0));
        *totals.reclaimable_bytes.get_or_insert(0) +=
            own_part(found.observation.ledger.bytes(Owner::Reclaimable), bytes, others);
    }

    /// Adds the anonymous memory of a process that could not be inspected.
    pub(crate) fn add_unread(&mut self, pid: u32, error: &TargetError) {
        let reason = match error {
            TargetError::Blocked(_) => "blocked",
            TargetError::Slow(_) => "slow",
            _ => "failed",
        };
        // A process that has ended has no memory.
        let Some(count) = anon_count(pid) else { return };
        let name = command(pid);
        self.anon.push(AnonProcess::unread(pid, name, count, reason.to_owned()));
    }

    /// Counts a process that could not be inspected.
    pub(crate) fn add_unreadable(&mut self) {
        self.totals.unreadable += 1;
    }

    /// Counts a process. Returns whether its memory was counted with another one that uses it, too.
    fn is_counted(&mut self, target: &Target) -> bool {
        self.totals.processes += 1;
        let image = target.stat().map_or((0, 0), |stat| stat.image);
        let is_counted = self.spaces.add(target.pid, image).is_some();
        self.totals.same_memory += u64::from(is_counted);
        is_counted
    }

    fn add_proportion(&mut self, now: Option<Proportion>, before: Option<Proportion>) {
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
    pub(crate) fn print(self, output: &Output) -> Result<(), Failure> {
        let totals = self.totals();
        match (output.json, has_processes(&totals)) {
            (true, _) => output.object(&totals),
            (false, true) => output.text(&format!("\n{}\n", in_lines(&totals, output))),
            (false, false) => Ok(()),
        }
    }

    /// Returns the totals. What is unknown of one process is unknown of all.
    pub(crate) fn totals(mut self) -> GroupTotals {
        if self.is_pss_unknown {
            (self.totals.pss_bytes, self.totals.pss_before_bytes) = (None, None);
        }
        if self.is_pss_before_unknown {
            self.totals.pss_before_bytes = None;
        }
        self.totals
    }
}

/// Returns the totals as a sentence that fits the screen.
pub(crate) fn in_lines(totals: &GroupTotals, output: &Output) -> String {
    wrapped(&sentence(totals), output.screen().width)
}

/// Returns whether there is a process: a cgroup can have memory and none.
pub(crate) fn has_processes(totals: &GroupTotals) -> bool {
    totals.processes + totals.unreadable > 0
}

/// Improves an estimated PSS of a forked process: of what it shares, each process of its family
/// counts an equal part.
fn among_forked(now: Proportion, found: &Inspection) -> Proportion {
    let Some(forked) = found.observation.forked.as_ref().filter(|_| now.is_estimate) else {
        return now;
    };
    let of_others = forked.shared_bytes - forked.shared_bytes / (forked.processes + 1);
    Proportion { pss_bytes: now.pss_bytes.saturating_sub(of_others), ..now }
}

/// Returns some bytes of a process, of which it shares a part with other processes: each counts an
/// equal part of that.
fn own_part(bytes: u64, shared_bytes: u64, others: u64) -> u64 {
    let shared_bytes = shared_bytes.min(bytes);
    bytes - shared_bytes + shared_bytes / (others + 1)
}

/// Divides the anonymous memory of an inspected process.
fn anon(found: &Inspection, count: AnonCount) -> AnonProcess {
    let observation = &found.observation;
    let name = shortened(without_directory(&observation.command.join(" ")), MAX_NAME);
    if observation.unreadable.is_some() {
        return AnonProcess::unread(observation.pid, name, count, "not_permitted".to_owned());
    }
    let release = found.remedies.iter().find(|remedy| remedy.kind == RemedyKind::Release);
    let releasable_bytes = release.and_then(|remedy| remedy.predicted_bytes).unwrap_or(0);
    AnonProcess::new(observation.pid, name, &observation.ledger, count, releasable_bytes)
}

/// Returns the anonymous memory of a process by its status; `None` if it has ended.
fn anon_count(pid: u32) -> Option<AnonCount> {
    let resident_bytes = Status::read(pid).ok()?.anon_bytes;
    Some(AnonCount { resident_bytes, proportional_bytes: None })
}

/// Returns the short name of a process.
fn command(pid: u32) -> String {
    let text = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("[{}]", String::from_utf8_lossy(&text).trim_end())
}
