//! What a black box shows: the end of a process, who held what, and what would have helped.
//!
//! - `timeline`: the lines of a record, in order, with the ledgers of its last program.
//! - `dominant`: what held most of the memory.
//! - `remedies`: what would have lowered it.
//! - `words`: the sentences.

mod dominant;
mod remedies;
mod timeline;
mod words;

use lowtide_model::black_box::{
    BlackBoxReport, BoxLimit, BoxRelease, Change, CoursePoint, GroupGrowth, KernelKill,
    OtherProcess, Peak, Recorded, SCHEMA,
};
use lowtide_model::counters::{GroupBytes, ProcessBytes};
use lowtide_model::growth::Growth;
use lowtide_model::ledger::Owner;
use lowtide_record::black_box::{
    BoxRecord, EndLine, ExitStatus, KernelLine, Member, ReadingLine, time,
};

use crate::growth::Follower;
use timeline::Timeline;

/// Time before the end whose growth is shown, in seconds, if it has at least two ledgers.
const LAST_MINUTES_S: f64 = 300.0;
/// Maximum number of points of a course, and of releases.
const MAX_POINTS: usize = 240;
const MAX_RELEASES: usize = 10;

/// Returns what a record shows. `file` is its name.
pub fn conclude(record: &BoxRecord, file: &str) -> BlackBoxReport {
    let timeline = Timeline::new(record);
    let end = timeline.end();
    let head = &record.head;
    let limit = limit(&timeline, &end);
    let last = timeline.last();
    let inspection = timeline.inspection();
    let (exit_code, signal) = match end.status {
        Some(ExitStatus::Code(code)) => (Some(code), None),
        Some(ExitStatus::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let place = limit.as_ref().and_then(|(place, _)| *place);
    let group = place.and_then(|place| last.groups.get(place).copied());
    let mut report = BlackBoxReport {
        schema: SCHEMA,
        file: file.to_owned(),
        cause: end.cause.name(),
        time: time(head.unix_s + end.t_s),
        pid: head.pid,
        command: head.command.join(" "),
        exit_code,
        signal,
        cgroup: head.groups.first().map(|group| group.path.clone()),
        limit_bytes: limit.as_ref().map(|(_, limit)| limit.limit_bytes),
        limit: limit.map(|(_, limit)| limit),
        growth: growth(&timeline, &end),
        last_full_ledger_age_s: timeline.ledger().map(|ledger| (end.t_s - ledger.t_s).max(0.0)),
        last_full_ledger_bytes: timeline.ledger().map(|ledger| ledger.observation.rss_bytes),
        after_ledger: after_ledger(&timeline),
        last: last.process,
        group,
        peak: peak(&timeline, &end),
        released_before_bytes: timeline.course.released.0,
        kernel: end.kernel.as_ref().map(|kernel| kernel_kill(kernel, &end)),
        victim: end.victim.as_ref().map(other),
        group_growth: place.and_then(|place| group_growth(&timeline, &end, place)),
        others: timeline.members.largest.iter().map(other).collect(),
        others_before_s: (!timeline.members.largest.is_empty())
            .then(|| (end.t_s - timeline.members.t_s).max(0.0)),
        course: course(&timeline, &end, group),
        releases: releases(&timeline, &end),
        recorded: recorded(&timeline),
        notes: end.notes.clone(),
        ..BlackBoxReport::default()
    };
    if let Some(inspection) = inspection {
        report.ledger = Some(inspection.observation.ledger.clone());
        report.reclaimable_bytes = Some(inspection.observation.ledger.bytes(Owner::Reclaimable));
        report.remedies = inspection.remedies.clone();
        report.verdict = Some(inspection.verdict);
    }
    report.dominant = dominant::dominant(&timeline, &report);
    remedies::keep_fitting(&mut report, end.cause);
    report.notes.extend(words::notes(&timeline, &report, record.invalid));
    report.summary = words::summary(&report, &timeline, dominant::common(&timeline, &report));
    report
}

fn recorded(timeline: &Timeline) -> Recorded {
    let (ledgers, failed_ledgers) = timeline.course.ledgers;
    let readings = timeline.readings.len() as u64;
    Recorded { elapsed_s: timeline.elapsed_s(), readings, ledgers, failed_ledgers }
}

/// Returns the limit that was reached, or the one that was closest, with the place of its group.
fn limit(timeline: &Timeline, end: &EndLine) -> Option<(Option<usize>, BoxLimit)> {
    let last = timeline.last();
    let of_group = |place: usize| {
        let (head, group) = (timeline.head.groups.get(place)?, last.groups.get(place)?);
        let limit = BoxLimit {
            path: Some(head.path.clone()),
            limit_bytes: group.limit?,
            used_bytes: group.kept(),
            is_own: place == 0,
        };
        Some((Some(place), limit))
    };
    let of_machine = || {
        let (all, available) = (timeline.head.machine_bytes?, last.available_bytes?);
        let used_bytes = all.saturating_sub(available);
        Some((None, BoxLimit { path: None, limit_bytes: all, used_bytes, is_own: false }))
    };
    match end.cause {
        cause if cause.is_oom() && end.is_machine_wide => of_machine(),
        cause if cause.is_oom() => of_group(end.limit?),
        _ => {
            let all = (0..last.groups.len()).filter_map(of_group).chain(of_machine());
            all.max_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)))
        }
    }
}

fn share(limit: &BoxLimit) -> f64 {
    limit.used_bytes as f64 / limit.limit_bytes.max(1) as f64
}

/// Returns the growth by owner over the last minutes, or over the whole time if there are not two
/// ledgers in them.
fn growth(timeline: &Timeline, end: &EndLine) -> Option<Growth> {
    let since_s = end.t_s - LAST_MINUTES_S;
    // The last ledger before that time is the beginning.
    let first = timeline.ledgers.partition_point(|ledger| ledger.t_s < since_s).saturating_sub(1);
    let first = first.min(timeline.ledgers.len().checked_sub(2)?);
    let mut follower = Follower::default();
    let begin_s = timeline.ledgers[first].t_s;
    for ledger in &timeline.ledgers[first..] {
        follower.add(ledger.t_s - begin_s, &ledger.observation);
    }
    follower.growth()
}

/// Returns the growth of the group at a place in the readings of the last minutes.
fn group_growth(timeline: &Timeline, end: &EndLine, place: usize) -> Option<GroupGrowth> {
    let last = timeline.readings.last()?;
    let since_s = end.t_s - LAST_MINUTES_S;
    let is_first = |reading: &&ReadingLine| {
        reading.t_s >= since_s && reading.groups.get(place).is_some_and(|group| group.charged > 0)
    };
    let first = timeline.readings.iter().find(is_first)?;
    let change = |of: &dyn Fn(&ReadingLine) -> Option<u64>| {
        let of = |reading| Some(i64::try_from(of(reading)?).unwrap_or(i64::MAX));
        Some(of(last)?.saturating_sub(of(first)?))
    };
    Some(GroupGrowth {
        elapsed_s: last.t_s - first.t_s,
        bytes: change(&|reading| Some(reading.groups.get(place)?.kept()))?,
        own_bytes: change(&|ReadingLine { process, .. }| {
            Some(process.anon.saturating_add(process.shared))
        })?,
    })
}

/// Returns what has changed after the last ledger.
fn after_ledger(timeline: &Timeline) -> Option<Change> {
    let at = timeline.reading_of(timeline.ledger()?)?.process;
    let last = timeline.last().process;
    let change = |now: u64, then: u64| {
        let of = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        of(now).saturating_sub(of(then))
    };
    Some(Change {
        anon_bytes: change(last.anon, at.anon),
        file_bytes: change(last.file, at.file),
        shared_bytes: change(last.shared, at.shared),
    })
}

fn peak(timeline: &Timeline, end: &EndLine) -> Option<Peak> {
    let (rss_bytes, t_s) = timeline.course.peak;
    let highest = timeline.ledgers.iter().max_by_key(|ledger| ledger.observation.rss_bytes);
    (rss_bytes > 0).then(|| Peak {
        rss_bytes,
        before_s: (end.t_s - t_s).max(0.0),
        ledger: highest.map(|ledger| ledger.observation.ledger.clone()),
    })
}

fn kernel_kill(kernel: &KernelLine, end: &EndLine) -> KernelKill {
    KernelKill {
        victim_pid: kernel.victim_pid,
        oom_score_adj: end.oom_score_adj,
        constraint: kernel.constraint.clone(),
    }
}

fn other(member: &Member) -> OtherProcess {
    let is_known = member.pid > 0;
    OtherProcess {
        pid: is_known.then_some(member.pid),
        name: is_known.then(|| member.name.clone()),
        bytes: member.bytes,
    }
}

/// Returns the course: at most [`MAX_POINTS`] readings, the newer ones closer together.
fn course(timeline: &Timeline, end: &EndLine, group: Option<GroupBytes>) -> Vec<CoursePoint> {
    let place = timeline.last().groups.iter().position(|last| Some(*last) == group);
    let point = |reading: &ReadingLine| {
        let ProcessBytes { anon, file, shared, .. } = reading.process;
        CoursePoint {
            before_s: (end.t_s - reading.t_s).max(0.0),
            anon_bytes: anon,
            file_bytes: file,
            shared_bytes: shared,
            used_bytes: place.and_then(|place| reading.groups.get(place)).map(GroupBytes::kept),
        }
    };
    let points: Vec<CoursePoint> = timeline.readings.iter().map(point).collect();
    let half = MAX_POINTS / 2;
    let (old, new) = points.split_at(points.len().saturating_sub(half));
    let step = old.len().div_ceil(half).max(1);
    old.iter().step_by(step).chain(new).copied().collect()
}

fn releases(timeline: &Timeline, end: &EndLine) -> Vec<BoxRelease> {
    let last = timeline.releases.iter().rev().take(MAX_RELEASES).rev();
    let release = |line: &lowtide_record::black_box::ReleaseLine| BoxRelease {
        before_s: (end.t_s - line.t_s).max(0.0),
        returned_bytes: line.returned,
        reason: line.reason.clone(),
        message: line.message.clone(),
    };
    last.map(release).collect()
}

#[cfg(test)]
mod tests;
