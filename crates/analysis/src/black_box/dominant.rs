//! What held most of the memory. A wrong owner is worse than an unknown one: memory that came after
//! the last inspection gets an owner only if all growth before it had this one.
//!
//! What processes share after a fork counts in each of them, but once in their cgroup. So the
//! others are measured by what the cgroup has beyond the process, and not by their sizes.

use lowtide_model::black_box::{BlackBoxReport, Dominant};
use lowtide_model::inspection::Observation;
use lowtide_model::ledger::{Ledger, Owner, Row, State};
use lowtide_model::number::HumanCount;
use lowtide_record::black_box::{Cause, Member, MembersLine};

use super::timeline::Timeline;

/// Owner of memory that no inspection has seen.
const UNKNOWN: &str = "unknown";
/// Owner of memory of other processes below the same limit.
pub(super) const OTHER_PROCESS: &str = "other_process";
/// Share of the growth between ledgers that one owner must have, to own the growth after them too.
const SAME_OWNER: f64 = 0.8;
/// Maximum ratio of the growth after the last ledger to that between ledgers, for the same.
const MAX_RATIO: f64 = 4.0;
/// Minimum growth between ledgers, for the same, in bytes.
const MIN_GROWTH: i64 = 2 << 20;

/// Returns what held most of the memory below the limit, or of the process.
pub(super) fn dominant(timeline: &Timeline, report: &BlackBoxReport) -> Option<Dominant> {
    let own = timeline.last().process;
    let own_bytes = own.anon.saturating_add(own.shared);
    let is_other = report.cause == Cause::GroupOomKill.name();
    let is_oom_kill = is_other || report.cause == Cause::OomKill.name();
    let of_others = |outside: &Dominant| match outside.owner.as_str() {
        OTHER_PROCESS => outside.bytes.saturating_add(common(timeline, report)),
        _ => outside.bytes,
    };
    match outside(timeline, report).filter(|_| is_oom_kill) {
        Some(outside) if of_others(&outside) > own_bytes => Some(outside),
        // This process may not be the victim: it is named only if it held most.
        _ if is_other && !holds_most(own_bytes, report) => None,
        _ => within(timeline, report),
    }
}

/// Returns whether bytes are most of the limit that was reached.
fn holds_most(bytes: u64, report: &BlackBoxReport) -> bool {
    report.limit_bytes.is_some_and(|limit| bytes.saturating_mul(2) > limit)
}

/// Returns the anonymous memory that the process shared with one of the others when they were
/// listed: at least so much more than their cgroup they had together. Less than a twentieth is 0,
/// because the counters are not of the same moment.
pub(super) fn common(timeline: &Timeline, report: &BlackBoxReport) -> u64 {
    let members = &timeline.members;
    let before = timeline.readings.iter().rev().find(|reading| reading.t_s <= members.t_s);
    let then = before.or(timeline.readings.first());
    let group = then.and_then(|then| then.groups.get(place_of(timeline, report)?));
    let Some((then, group)) = then.zip(group) else { return 0 };
    let largest = members.largest.iter().map(|member| member.bytes.anon).max().unwrap_or(0);
    let own = then.process.anon;
    let common = own.saturating_add(largest).saturating_sub(group.anon).min(own).min(largest);
    if common.saturating_mul(20) < group.anon { 0 } else { common }
}

/// Returns the place of the group of the limit in the readings.
fn place_of(timeline: &Timeline, report: &BlackBoxReport) -> Option<usize> {
    let path = report.limit.as_ref()?.path.as_deref()?;
    timeline.head.groups.iter().position(|group| group.path == path)
}

/// Returns the largest part of the group that is not of the process.
fn outside(timeline: &Timeline, report: &BlackBoxReport) -> Option<Dominant> {
    let group = report.group?;
    let own = timeline.last().process;
    let members = &timeline.members;
    let (others_anon, others_shared) = members.anon_and_shared;
    let part = |owner: &str, name: Option<String>, bytes: u64| Dominant {
        owner: owner.to_owned(),
        name,
        bytes,
        estimated: false,
    };
    let mapped = own.shared.max(others_shared);
    let unmapped = part("shared_unmapped", None, group.shared.saturating_sub(mapped));
    let kernel = part("kernel", None, group.kernel);
    let beyond = group.anon.saturating_sub(own.anon);
    // The list may be of part of them, or from before they grew.
    let is_listed = others_anon.saturating_mul(2) >= beyond;
    let name = members.largest.first().filter(|_| is_listed).map(|one| name_of(one, members));
    let shared = others_shared.min(group.shared).saturating_sub(own.shared);
    let estimated = name.is_none();
    let others = Dominant { estimated, ..part(OTHER_PROCESS, name, beyond.saturating_add(shared)) };
    [unmapped, kernel, others].into_iter().max_by_key(|part| part.bytes)
}

/// Returns a name for the other processes: one process, or many, as each child of a fork storm is
/// small.
fn name_of(largest: &Member, members: &MembersLine) -> String {
    let (anon, shared) = members.anon_and_shared;
    let own = largest.bytes.anon.saturating_add(largest.bytes.shared);
    let has_most = own.saturating_mul(2) >= anon.saturating_add(shared);
    match (has_most, members.count.saturating_sub(1)) {
        (true, _) | (_, 0 | 1) => format!("{} (PID {})", largest.name, largest.pid),
        (false, count) => {
            format!(
                "{} processes, such as {} (PID {})",
                HumanCount(count),
                largest.name,
                largest.pid
            )
        }
    }
}

/// Returns the largest part of the process.
fn within(timeline: &Timeline, report: &BlackBoxReport) -> Option<Dominant> {
    let last = timeline.last().process;
    let Some(ledger) = timeline.ledger() else {
        let unknown =
            Dominant { owner: UNKNOWN.to_owned(), bytes: last.anon, ..Dominant::default() };
        return (last.anon > 0).then_some(unknown);
    };
    let mut parts = parts(&ledger.observation);
    let after = report.after_ledger.unwrap_or_default();
    if after.shared_bytes > 0 {
        add(&mut parts, Owner::Shared.key(), after.shared_bytes, false);
    }
    let largest = parts.iter().map(|part| part.bytes).max().unwrap_or(0);
    let unseen = u64::try_from(after.anon_bytes).unwrap_or(0);
    match growing(timeline, after.anon_bytes) {
        Some(owner) => add(&mut parts, owner, after.anon_bytes, true),
        None if unseen > 0 => {
            // Even if all of it had the owner of the second largest part, the largest stays so.
            let second = parts.iter().map(|part| part.bytes).filter(|bytes| *bytes < largest).max();
            if second.unwrap_or(0).saturating_add(unseen) > largest {
                let unknown =
                    Dominant { owner: UNKNOWN.to_owned(), bytes: unseen, ..Dominant::default() };
                return if unseen >= largest { Some(unknown) } else { largest_of(parts, true) };
            }
        }
        None => {}
    }
    largest_of(parts, false)
}

fn largest_of(parts: Vec<Dominant>, estimated: bool) -> Option<Dominant> {
    let largest = parts.into_iter().max_by_key(|part| part.bytes).filter(|part| part.bytes > 0)?;
    Some(Dominant { estimated: largest.estimated || estimated, ..largest })
}

/// Adds a change to the part of an owner.
fn add(parts: &mut Vec<Dominant>, owner: &str, bytes: i64, estimated: bool) {
    if let Some(part) = parts.iter_mut().find(|part| part.owner == owner) {
        part.bytes = part.bytes.saturating_add_signed(bytes);
        part.estimated |= estimated;
    } else if let Ok(bytes) = u64::try_from(bytes) {
        parts.push(Dominant { owner: owner.to_owned(), name: None, bytes, estimated });
    }
}

/// Returns the owner of nearly all growth between the ledgers, if the growth after them is not much
/// larger.
fn growing(timeline: &Timeline, after: i64) -> Option<&'static str> {
    let (first, last) = (timeline.ledgers.first()?, timeline.ledgers.last()?);
    let anon = |ledger: &Ledger| total(ledger, is_anonymous);
    let change = |now: u64, then: u64| now as i64 - then as i64;
    let rise = change(anon(&last.observation.ledger), anon(&first.observation.ledger));
    if after <= 0 || rise < MIN_GROWTH || after as f64 > rise as f64 * MAX_RATIO {
        return None;
    }
    let of = |owner: Owner| {
        change(last.observation.ledger.bytes(owner), first.observation.ledger.bytes(owner))
    };
    let owners = Owner::ALL.into_iter().filter(|owner| is_anonymous(*owner));
    let most = owners.max_by_key(|owner| of(*owner))?;
    (of(most) as f64 >= rise as f64 * SAME_OWNER).then(|| most.key())
}

fn is_anonymous(owner: Owner) -> bool {
    !matches!(owner, Owner::File | Owner::Shared | Owner::Device)
}

fn total(ledger: &Ledger, wanted: impl Fn(Owner) -> bool) -> u64 {
    ledger.rows().iter().filter(|row| wanted(row.owner)).map(|row| row.bytes).sum()
}

/// Returns the rows of a ledger as parts with names. Memory of a runtime that is in use counts as
/// allocated.
fn parts(observation: &Observation) -> Vec<Dominant> {
    let first = |names: &[lowtide_model::inspection::NamedMemory]| {
        names.first().map(|named| named.name.clone())
    };
    let part = |row: &Row| {
        let owner = match (row.owner, row.state) {
            (Owner::Runtime, Some(State::Allocated)) => Owner::Allocated,
            (owner, _) => owner,
        };
        let name = match (row.manager, row.owner) {
            (Some(manager), _) => Some(manager.kind().name().to_owned()),
            (None, Owner::Runtime) => observation.managers.first().map(|one| one.name.clone()),
            (None, Owner::File) => first(&observation.files),
            (None, Owner::Shared) => first(&observation.shared),
            _ => None,
        };
        Dominant { owner: owner.key().to_owned(), name, bytes: row.bytes, estimated: row.estimated }
    };
    observation.ledger.rows().iter().map(part).collect()
}
