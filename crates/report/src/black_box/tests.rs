use lowtide_model::black_box::{BoxLimit, OtherProcess, OtherRecord};
use lowtide_model::counters::{GroupBytes, ProcessBytes};
use lowtide_model::ledger::{Ledger, Owner};

use super::*;

const MIB: u64 = 1 << 20;

fn report() -> BlackBoxReport {
    let mut ledger = Ledger::default();
    ledger.add(Owner::Allocated, 150 * MIB);
    ledger.add(Owner::File, 10 * MIB);
    BlackBoxReport {
        cause: "oom_kill",
        summary: "The kernel killed this process for lack of memory.".to_owned(),
        time: "2026-11-27T03:00:12.345Z".to_owned(),
        pid: 4711,
        command: "server --port 80".to_owned(),
        cgroup: Some("/pod/a".to_owned()),
        limit: Some(BoxLimit {
            path: Some("/pod".to_owned()),
            limit_bytes: 200 * MIB,
            used_bytes: 199 * MIB,
            is_own: false,
        }),
        group: Some(GroupBytes { anon: 180 * MIB, ..GroupBytes::default() }),
        last: ProcessBytes { anon: 170 * MIB, ..ProcessBytes::default() },
        ledger: Some(ledger),
        last_full_ledger_age_s: Some(0.3),
        last_full_ledger_bytes: Some(160 * MIB),
        reclaimable_bytes: Some(0),
        notes: vec!["something".to_owned()],
        ..BlackBoxReport::default()
    }
}

#[test]
fn the_page_has_the_conclusion_the_limit_and_the_owners_on_one_screen() {
    let page = render(&report(), Screen { width: 80, colour: false });
    for part in
        ["The kernel killed", "limit of /pod: 200 MiB", "allocated", "94 %", "note: something"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    assert!(page.lines().count() <= 24, "{page}");
}

#[test]
fn one_reading_is_not_several() {
    let mut report = report();
    for (readings, expected) in [(1, "1 reading left"), (2, "2 readings left")] {
        report.recorded.readings = readings;
        let page = render(&report, Screen { width: 120, colour: false });
        assert!(page.contains(expected), "{page}");
    }
}

#[test]
fn names_from_processes_steer_neither_a_terminal_nor_a_browser() {
    let mut report = report();
    let name = "<script>x\u{1b}[2J\n".to_owned();
    report.command.clone_from(&name);
    report.summary.clone_from(&name);
    report.cgroup = Some(name.clone());
    report.notes = vec![name.clone()];
    report.others = vec![OtherProcess {
        pid: Some(1),
        name: Some(name.clone()),
        bytes: ProcessBytes::default(),
    }];
    report.other_records = vec![OtherRecord { file: name.clone(), name, ..OtherRecord::default() }];
    let page = render(&report, Screen { width: 80, colour: false });
    assert!(!page.contains('\u{1b}'), "{page}");
    let page = super::page(&report).unwrap();
    assert!(!page.contains("<script>x") && !page.contains('\u{1b}'), "{page}");
}
