use lowtide_model::counters::{GroupBytes, ProcessBytes};
use lowtide_model::inspection::Observation;
use lowtide_record::black_box::{
    BoxLine, Cause, Course, GroupHead, HeadLine, LedgerLine, MembersLine, ReleaseLine,
};

use super::*;
use crate::diagnose::tests::{MIB, observed};

const LIMIT: u64 = 200 * MIB;

/// A record of a process in a cgroup with a limit, in MiB.
struct Made {
    lines: Vec<BoxLine>,
}

impl Made {
    fn new() -> Self {
        Self { lines: Vec::new() }
    }

    fn reading(mut self, t_s: f64, anon: u64, shared: u64, group_shared: u64) -> Self {
        let process = ProcessBytes { anon: anon * MIB, shared: shared * MIB, ..Default::default() };
        let group = GroupBytes {
            charged: (anon + group_shared) * MIB,
            limit: Some(LIMIT),
            anon: anon * MIB,
            shared: group_shared * MIB,
            ..GroupBytes::default()
        };
        self.lines.push(BoxLine::Reading(ReadingLine {
            t_s,
            process,
            groups: vec![group],
            available_bytes: None,
        }));
        self
    }

    /// Sets the anonymous memory of the cgroup at the last reading, in MiB.
    fn group(mut self, anon: u64) -> Self {
        if let Some(BoxLine::Reading(reading)) = self.lines.last_mut() {
            (reading.groups[0].anon, reading.groups[0].charged) = (anon * MIB, anon * MIB);
        }
        self
    }

    /// Adds a list of one other process, with its anonymous memory in MiB.
    fn other(mut self, t_s: f64, name: &str, anon: u64) -> Self {
        let bytes = ProcessBytes { anon: anon * MIB, ..ProcessBytes::default() };
        self.lines.push(BoxLine::Members(MembersLine {
            t_s,
            count: 2,
            largest: vec![Member { pid: 9, name: name.to_owned(), bytes }],
            anon_and_shared: (anon * MIB, 0),
        }));
        self
    }

    fn ledger(mut self, t_s: f64, rows: &[(Owner, u64)]) -> Self {
        let mut found = observed(rows);
        found.rss_bytes = found.ledger.total();
        self.lines.push(BoxLine::Ledger(Box::new(LedgerLine::new(t_s, 0, found))));
        self
    }

    /// Sets the number of kills in the cgroup at the last reading.
    fn kills(mut self, kills: u64) -> Self {
        if let Some(BoxLine::Reading(reading)) = self.lines.last_mut() {
            reading.groups[0].kills = Some(kills);
        }
        self
    }

    /// Ends it after a kill of another process, whose PID is known or not.
    fn group_kill(mut self, t_s: f64, pid: u32) -> BlackBoxReport {
        let name = if pid > 0 { "child" } else { "" }.to_owned();
        let end = EndLine {
            t_s,
            cause: Cause::GroupOomKill,
            groups: vec![GroupBytes { kills: Some(1), ..GroupBytes::default() }],
            limit: Some(0),
            victim: Some(Member { pid, name, ..Member::default() }),
            ..EndLine::default()
        };
        self.lines.push(BoxLine::End(Box::new(end)));
        self.conclude()
    }

    fn end(mut self, t_s: f64, cause: Cause) -> BlackBoxReport {
        let limit = cause.is_oom().then_some(0);
        let status = Some(ExitStatus::Signal(9));
        let end = EndLine { t_s, cause, status, limit, ..EndLine::default() };
        self.lines.push(BoxLine::End(Box::new(end)));
        self.conclude()
    }

    fn conclude(self) -> BlackBoxReport {
        let groups = vec![GroupHead { path: "/a".to_owned(), version: 1 }];
        let head =
            HeadLine { pid: 7, groups, command: vec!["x".to_owned()], ..HeadLine::default() };
        conclude(&BoxRecord { head, lines: self.lines, invalid: 0 }, "x.box")
    }
}

fn dominant(report: &BlackBoxReport) -> (&str, u64, bool) {
    let found = report.dominant.as_ref().unwrap();
    (found.owner.as_str(), found.bytes / MIB, found.estimated)
}

#[test]
fn a_leak_is_named_even_if_its_last_part_was_not_inspected() {
    let report = Made::new()
        .reading(0.0, 20, 0, 0)
        .ledger(0.0, &[(Owner::Allocated, 10), (Owner::File, 10)])
        .reading(1.0, 120, 0, 0)
        .ledger(1.0, &[(Owner::Allocated, 110), (Owner::File, 10)])
        .reading(1.8, 195, 0, 0)
        .end(1.81, Cause::OomKill);
    assert_eq!(dominant(&report), ("allocated", 185, true));
    let growth = report.growth.as_ref().unwrap();
    assert_eq!(growth.by[0].bytes, 100 * MIB as i64);
    assert!(
        report.summary.contains("the cgroup /a reached its limit of 200 MiB"),
        "{}",
        report.summary
    );
    assert!((report.last_full_ledger_age_s.unwrap() - 0.81).abs() < 1e-6);
}

#[test]
fn memory_that_no_inspection_has_seen_has_no_owner() {
    let report = Made::new()
        .reading(0.0, 20, 0, 0)
        .ledger(0.0, &[(Owner::Allocated, 15), (Owner::File, 5)])
        .reading(0.1, 190, 0, 0)
        .end(0.11, Cause::OomKill);
    assert_eq!(dominant(&report), ("unknown", 170, false));
    let report = Made::new().reading(0.1, 190, 0, 0).end(0.11, Cause::OomKill);
    assert_eq!(dominant(&report), ("unknown", 190, false));
    assert!(report.notes.iter().any(|note| note.contains("never inspected")), "{:?}", report.notes);
}

#[test]
fn tmpfs_that_no_process_maps_is_not_blamed_on_the_victim() {
    let report = Made::new()
        .reading(0.0, 20, 0, 170)
        .ledger(0.0, &[(Owner::Allocated, 20)])
        .end(0.5, Cause::OomKill);
    assert_eq!(dominant(&report), ("shared_unmapped", 170, false));
    let mapped = Made::new()
        .reading(0.0, 20, 170, 170)
        .ledger(0.0, &[(Owner::Allocated, 20), (Owner::Shared, 170)])
        .end(0.5, Cause::OomKill);
    assert_eq!(dominant(&mapped), ("shared", 170, false));
}

#[test]
fn another_process_of_the_group_can_hold_most() {
    let report = Made::new()
        .reading(0.0, 20, 0, 0)
        .group(170)
        .ledger(0.0, &[(Owner::Allocated, 20)])
        .other(0.0, "node", 150)
        .end(0.5, Cause::OomKill);
    let found = report.dominant.as_ref().unwrap();
    assert_eq!(
        (found.owner.as_str(), found.name.as_deref()),
        ("other_process", Some("node (PID 9)"))
    );
}

#[test]
fn a_forked_child_that_fills_the_limit_is_named_and_not_its_idle_parent() {
    let made = || {
        Made::new()
            .reading(0.0, 100, 0, 0)
            .ledger(0.0, &[(Owner::Allocated, 100)])
            .other(0.0, "child", 100)
            .reading(6.0, 100, 0, 0)
            .group(198)
    };
    let rest = "In the last 6.00 s, the cgroup grew by 98.0 MiB, and this process did not grow; the \
                largest other process, child (PID 9), had an RSS of";
    let stale = made().end(6.25, Cause::OomKill);
    assert_eq!(dominant(&stale), ("other_process", 98, false));
    let expected = format!(
        "98.0 MiB of it was in other processes of its cgroup (child (PID 9)); at least 100 MiB more is in \
         both this process and one of them, or charged elsewhere. {rest} 100 MiB 6.25 s before the end."
    );
    assert!(stale.summary.ends_with(&expected), "{}", stale.summary);
    let listed = made().other(6.0, "child", 198).end(6.25, Cause::OomKill);
    assert_eq!(dominant(&listed), ("other_process", 98, false));
    assert!(listed.summary.contains("an RSS of 198 MiB 250 ms"), "{}", listed.summary);
}

#[test]
fn after_the_kill_of_another_process_the_survivor_is_neither_the_victim_nor_blamed() {
    let made = |others: u64| {
        Made::new()
            .reading(0.0, 14, 0, 0)
            .group(14 + others)
            .kills(0)
            .ledger(0.0, &[(Owner::File, 10), (Owner::Allocated, 4)])
            // The memory of the victim is gone.
            .reading(0.5, 14, 0, 0)
            .kills(1)
    };
    let unknown = made(0).group_kill(2.5, 0);
    assert_eq!((unknown.cause, &unknown.dominant), ("group_oom_kill", &None));
    assert!(
        unknown.summary.starts_with(
            "The kernel killed another process of its cgroup, it is not known which, for lack of memory"
        ),
        "{}",
        unknown.summary
    );
    let known = made(180).group_kill(2.5, 9);
    assert_eq!(dominant(&known).0, "other_process");
    assert_eq!(known.limit.unwrap().used_bytes, 194 * MIB);
    assert!(known.summary.contains("killed child (PID 9), another process"), "{}", known.summary);
    let ended = Made::new().reading(0.0, 14, 0, 0).end(0.5, Cause::GroupOomKill);
    assert!(ended.summary.contains("this or another process of its cgroup"), "{}", ended.summary);
}

#[test]
fn a_part_of_less_than_half_is_not_called_most() {
    let report = Made::new()
        .reading(0.0, 100, 0, 0)
        .group(190)
        .ledger(0.0, &[(Owner::Allocated, 60), (Owner::Stacks, 40)])
        .other(0.0, "node", 90)
        .end(0.5, Cause::OomKill);
    let expected = "The largest part of this process, 60.0 MiB, was memory in use by the program. This \
                    process was the largest of the cgroup, with an RSS of 100 MiB; the next one, node \
                    (PID 9), had an RSS of 90.0 MiB 500 ms before the end.";
    assert!(report.summary.ends_with(expected), "{}", report.summary);
}

#[test]
fn the_largest_process_is_named_where_none_holds_most_of_the_limit() {
    let made = |own: u64, other: u64| {
        Made::new()
            .reading(0.0, own, 0, 0)
            .group(own + other)
            .ledger(0.0, &[(Owner::Allocated, own)])
            .other(0.0, "node", other)
            .end(0.5, Cause::OomKill)
            .summary
    };
    let smaller = made(80, 78);
    assert!(
        smaller.contains("The largest part of this process, 80.0 MiB, was")
            && smaller
                .contains("This process was the largest of the cgroup, with an RSS of 80.0 MiB"),
        "{smaller}"
    );
    let larger = made(78, 79);
    assert!(
        larger.contains(
            "The largest process of the cgroup, node (PID 9), had an RSS of 79.0 MiB 500 ms before the end"
        ),
        "{larger}"
    );
    assert!(!smaller.contains("Most of it") && !larger.contains("Most of it"));
    // Half of what the group held is not half of the limit.
    let single = Made::new().reading(0.0, 60, 0, 0).ledger(0.0, &[(Owner::Allocated, 60)]);
    let single = single.end(0.5, Cause::OomKill).summary;
    assert!(!single.contains("Most of it"), "{single}");
}

#[test]
fn more_than_the_limit_is_said_to_be_so_and_files_are_not_anonymous_memory() {
    let report = Made::new().reading(0.0, 210, 0, 0).end(0.5, Cause::OomKill);
    assert!(
        report.summary.contains("210 MiB when it was read (more than the limit"),
        "{}",
        report.summary
    );
    assert!(report.summary.contains("that no inspection has seen"), "{}", report.summary);
    let mut files = Made::new().reading(0.0, 190, 0, 0);
    if let Some(BoxLine::Reading(reading)) = files.lines.last_mut() {
        reading.process.file = 20 * MIB;
    }
    assert_eq!(dominant(&files.end(0.5, Cause::OomKill)), ("unknown", 190, false));
}

#[test]
fn remedies_of_a_process_are_shown_only_if_they_bear_on_the_kill() {
    let rows = [(Owner::Allocated, 10), (Owner::Reclaimable, 10)];
    let of = |report: &BlackBoxReport| report.remedies.len();
    let tmpfs = Made::new().reading(0.0, 20, 0, 170).ledger(0.0, &rows).end(0.5, Cause::OomKill);
    assert_eq!(of(&tmpfs), 0, "{:?}", tmpfs.remedies);
    assert!(
        tmpfs.notes.iter().any(|note| note.contains("lowtide inspect --cgroup /a shows who")),
        "{:?}",
        tmpfs.notes
    );
    let fresh = Made::new()
        .reading(0.0, 20, 0, 0)
        .ledger(0.0, &rows)
        .reading(0.2, 190, 0, 0)
        .end(0.21, Cause::OomKill);
    assert_eq!((dominant(&fresh).0, of(&fresh)), ("unknown", 0), "{:?}", fresh.remedies);
    // The same process, which a signal has ended.
    let crashed = Made::new().reading(0.0, 20, 0, 170).ledger(0.0, &rows).end(0.5, Cause::Signal);
    assert!(of(&crashed) > 0);
    let heap = [(Owner::Allocated, 100), (Owner::Reclaimable, 90)];
    let heap = Made::new().reading(0.0, 190, 0, 0).ledger(0.0, &heap).end(0.5, Cause::OomKill);
    assert!(of(&heap) > 0 && heap.notes.iter().all(|note| !note.contains("inspect --cgroup")));
}

#[test]
fn a_record_covers_the_time_of_its_process_and_not_that_of_its_recorder() {
    let report =
        Made::new().reading(30.0, 20, 0, 0).reading(30.4, 190, 0, 0).end(30.5, Cause::OomKill);
    assert!((report.recorded.elapsed_s - 0.5).abs() < 1e-6, "{}", report.recorded.elapsed_s);
    assert_eq!(Made::new().conclude().recorded.elapsed_s, 0.0);
}

#[test]
fn a_record_that_breaks_off_at_a_limit_does_not_say_that_the_process_was_running() {
    let broken = Made::new().reading(0.0, 120, 0, 0).reading(1.0, 195, 0, 0).conclude();
    assert_eq!(broken.cause, "peak");
    let expected = "Its end is not in the record: at the last reading, the cgroup /a had used 195 MiB of 200 MiB, \
                    so the kernel may have killed it";
    assert!(broken.summary.starts_with(expected), "{}", broken.summary);
    let killed =
        Made::new().reading(0.0, 20, 0, 0).kills(0).reading(1.0, 20, 0, 0).kills(1).conclude();
    assert!(
        killed.summary.contains("the kernel had killed a process of its cgroup"),
        "{}",
        killed.summary
    );
    let far = Made::new().reading(0.0, 20, 0, 0).conclude();
    assert!(
        far.summary.starts_with("Its end is not in the record: it was running"),
        "{}",
        far.summary
    );
    let ended = Made::new().reading(0.0, 195, 0, 0).end(1.0, Cause::Peak);
    assert!(ended.summary.starts_with("It was running at the last reading"), "{}", ended.summary);
}

#[test]
fn a_record_without_an_end_shows_the_peak_and_what_was_released() {
    let mut made = Made::new()
        .reading(0.0, 90, 0, 0)
        .ledger(0.0, &[(Owner::Allocated, 20), (Owner::Reclaimable, 70)]);
    made.lines.push(BoxLine::Course(Course {
        peak: (90 * MIB, 0.0),
        released: (60 * MIB, 1),
        ..Course::default()
    }));
    made.lines.push(BoxLine::Release(ReleaseLine { returned: 60 * MIB, ..ReleaseLine::default() }));
    let report = made.reading(5.0, 30, 0, 0).conclude();
    assert_eq!((report.cause, report.peak.unwrap().rss_bytes), ("peak", 90 * MIB));
    assert_eq!(report.released_before_bytes, 60 * MIB);
    assert_eq!(report.reclaimable_bytes, Some(70 * MIB));
    assert_eq!(report.limit_bytes, Some(LIMIT));
}

#[test]
fn a_record_of_nothing_is_concluded_without_a_panic() {
    let report = Made::new().conclude();
    assert_eq!((report.cause, report.dominant, report.ledger.is_none()), ("peak", None, true));
    let contradictory = LedgerLine::new(0.0, 0, Observation { rss_bytes: 9, ..Default::default() });
    let lines = vec![BoxLine::Ledger(Box::new(contradictory))];
    assert!(Made { lines }.conclude().ledger.is_none());
}
