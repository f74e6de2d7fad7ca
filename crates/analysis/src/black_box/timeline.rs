//! The lines of a record, in order of time.

use lowtide_model::counters::GroupBytes;
use lowtide_model::inspection::{Inspection, Observation};
use lowtide_record::black_box::{
    BoxLine, BoxRecord, Course, EndLine, HeadLine, LedgerLine, MembersLine, ReadingLine,
    ReleaseLine,
};

use crate::diagnose::diagnose;

/// A ledger of the last program.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    pub(super) t_s: f64,
    pub(super) observation: Observation,
}

/// The lines of a record.
#[derive(Debug, Clone, Default)]
pub(super) struct Timeline {
    pub(super) head: HeadLine,
    /// The readings of the course, and those that are left of the others.
    pub(super) readings: Vec<ReadingLine>,
    pub(super) ledgers: Vec<Ledger>,
    pub(super) members: MembersLine,
    pub(super) course: Course,
    pub(super) releases: Vec<ReleaseLine>,
    end: Option<EndLine>,
}

impl Timeline {
    pub(super) fn new(record: &BoxRecord) -> Self {
        let mut timeline = Self { head: record.head.clone(), ..Self::default() };
        for line in &record.lines {
            timeline.add(line);
        }
        // The state at the beginning of a half repeats ledgers.
        timeline.ledgers.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
        timeline.ledgers.dedup_by(|a, b| a.t_s == b.t_s);
        let course = std::mem::take(&mut timeline.course.readings);
        timeline.readings.extend(course);
        timeline.readings.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
        timeline.readings.dedup_by(|a, b| a.t_s == b.t_s);
        timeline.complete_course();
        timeline
    }

    /// Completes the course by the lines after it: it is written when a half is full, and at the
    /// end.
    fn complete_course(&mut self) {
        let highest = self.readings.iter().map(|reading| (reading.process.rss(), reading.t_s));
        let highest = highest.max_by_key(|(rss, _)| *rss).unwrap_or_default();
        if highest.0 > self.course.peak.0 {
            self.course.peak = highest;
        }
        let returned = self.releases.iter().map(|release| release.returned);
        let returned = returned.fold(0, u64::saturating_add);
        self.course.released.0 = self.course.released.0.max(returned);
        self.course.ledgers.0 = self.course.ledgers.0.max(self.ledgers.len() as u64);
    }

    fn add(&mut self, line: &BoxLine) {
        match line {
            BoxLine::Reading(reading) => self.readings.push(reading.clone()),
            BoxLine::Course(course) => self.course = course.clone(),
            BoxLine::Members(members) => self.members = members.clone(),
            BoxLine::Release(release) => self.releases.push(release.clone()),
            BoxLine::End(end) => self.end = Some((**end).clone()),
            BoxLine::Ledger(line) => self.ledgers.extend(self.ledger_of(line)),
            BoxLine::Head(_) | BoxLine::Unknown => {}
        }
    }

    /// Returns a ledger, unless it is of another program or its parts contradict each other.
    fn ledger_of(&self, line: &LedgerLine) -> Option<Ledger> {
        let is_of_program = line.program == self.head.program;
        let mut observation = line.observed.clone().into_observation().filter(|_| is_of_program)?;
        // All are of one program: this is what a follower compares.
        observation.image = (u64::from(line.program) + 1, 1);
        Some(Ledger { t_s: line.t_s, observation })
    }

    /// Returns the last reading; zeros if there is none. After an OOM kill, it is the last one from
    /// before the kernel has counted it: later ones miss what the victim has lost by then.
    pub(super) fn last(&self) -> ReadingLine {
        let kills = |groups: &[GroupBytes]| groups.first().and_then(|group| group.kills);
        let end = self.end.as_ref().filter(|end| end.cause.is_oom());
        let after = end.and_then(|end| kills(&end.groups));
        let is_before = |reading: &&ReadingLine| {
            kills(&reading.groups).zip(after).is_some_and(|(then, after)| then < after)
        };
        let before = self.readings.iter().rev().find(is_before);
        before.or(self.readings.last()).cloned().unwrap_or_default()
    }

    /// Returns the end; that of a process that runs if it was not recorded.
    pub(super) fn end(&self) -> EndLine {
        let t_s = self.last().t_s;
        self.end.clone().unwrap_or_else(|| EndLine { t_s, ..EndLine::default() })
    }

    /// Returns whether the record has an end. Its writer then outlived the process.
    pub(super) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the time from the first reading to the end, in seconds.
    pub(super) fn elapsed_s(&self) -> f64 {
        let end_s = self.end().t_s;
        self.readings.first().map_or(0.0, |first| (end_s - first.t_s).max(0.0))
    }

    /// Returns whether the kernel has counted an OOM kill in its cgroup since the first reading.
    pub(super) fn has_kill(&self) -> bool {
        let kills = |reading: &ReadingLine| reading.groups.first()?.kills;
        let mut counts = self.readings.iter().filter_map(kills);
        counts.next().zip(counts.next_back()).is_some_and(|(first, last)| last > first)
    }

    /// Returns the last ledger.
    pub(super) fn ledger(&self) -> Option<&Ledger> {
        self.ledgers.last()
    }

    /// Diagnoses the last ledger.
    pub(super) fn inspection(&self) -> Option<Inspection> {
        Some(diagnose(self.ledger()?.observation.clone()))
    }

    /// Returns the reading of the moment that a ledger shows: the inspection takes time, and the
    /// process grows meanwhile. Of the readings from its beginning to its end, it is the one with
    /// the closest RSS.
    pub(super) fn reading_of(&self, ledger: &Ledger) -> Option<&ReadingLine> {
        let end_s = ledger.t_s + ledger.observation.elapsed_s;
        let first = self.readings.partition_point(|reading| reading.t_s < ledger.t_s);
        let next = self.readings.partition_point(|reading| reading.t_s <= end_s);
        // With those just before and after, there is at least one.
        let around =
            self.readings.get(first.saturating_sub(1)..self.readings.len().min(next + 1))?;
        let distance =
            |reading: &&ReadingLine| reading.process.rss().abs_diff(ledger.observation.rss_bytes);
        around.iter().min_by_key(distance)
    }
}
