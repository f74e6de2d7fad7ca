//! Work that never ends: a bounded number of threads waits for it. A test of its own process,
//! because all threads of a process count.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{PipeWriter, Read};
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use lowtide_exporter::{Exporter, GroupBy};
use lowtide_probe::inspect::Inspector;
use lowtide_probe::mapped::open_mapped;
use lowtide_probe::patience::{GivenUp, Patience};
use lowtide_probe::selection::Selection;
use lowtide_probe::target::{Target, TargetError};
use lowtide_survey::budget::UncountedCpu;

use lowtide_survey::{ScanFilter, Survey, SurveyOptions};
use lowtide_testing::{Running, until_true};

/// The short name of the process that is read.
const NAME: &str = "beside-silent";

/// Abandons a thread for each process. It ends when the returned pipe is closed.
fn abandon(targets: &[Target]) -> Vec<PipeWriter> {
    let patience = Patience { deadline: Some(Duration::from_millis(1)), ..Patience::default() };
    let abandon_one = |target| {
        let (mut waited_for, other_end) = std::io::pipe().unwrap();
        let read = move || waited_for.read(&mut [0]).is_ok();
        let given_up = patience.work_on(target, &AtomicBool::new(false), read).unwrap_err();
        assert!(matches!(given_up, GivenUp::Blocked | GivenUp::Slow), "{given_up:?}");
        other_end
    };
    thread::scope(|scope| {
        let all: Vec<_> =
            targets.iter().map(|target| scope.spawn(move || abandon_one(target))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Waits until a new exporter of the process has inspected it. Returns the metrics.
fn metrics() -> String {
    let selection = Selection { comm: Some(NAME.to_owned()), ..Selection::default() };
    let options = SurveyOptions {
        filter: ScanFilter { selection, subprocesses: false },
        between_scans: Duration::from_millis(100),
        workers: 1,
        budget: 1.0,
        hurries: true,
        patience: Patience::default(),
        cgroup_of: None,
        uncounted_cpu: UncountedCpu::default(),
    };
    let survey = Survey::start(options.clone()).unwrap();
    let exporter = Exporter::new(survey, &options, GroupBy::Comm, 10);
    let inspected = format!("lowtide_uninspected_processes{{groupname=\"{NAME}\"}} 0\n");
    until_true("an inspection by the exporter", || exporter.text().contains(&inspected));
    exporter.text()
}

/// Returns the value of a metric of the process with another label.
fn value(metrics: &str, metric: &str, label: &str) -> u64 {
    let start = format!("{metric}{{groupname=\"{NAME}\",{label}}} ");
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix(start.as_str()));
    values.next().map_or(0, |value| value.parse().unwrap())
}

#[test]
fn beyond_64_abandoned_threads_no_file_is_read_and_beyond_128_no_process() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join(NAME);
    symlink("/bin/sleep", &program).unwrap();
    let start = |program: &str| Running::from(Command::new(program).arg("1000").spawn().unwrap());
    let silent: Vec<Running> = (0..128).map(|_| start("sleep")).collect();
    let other = start(program.to_str().unwrap());
    let silent: Vec<Target> =
        silent.iter().map(|child| Target::open(child.id()).unwrap()).collect();
    let target = Target::open(other.id()).unwrap();
    until_true("the program", || {
        Inspector::default().inspect(&target).is_ok_and(|found| found.allocator.is_some())
    });
    let maps = target.maps().unwrap();
    let program = maps.iter().find(|mapping| mapping.name.contains("sleep")).unwrap();
    let open = || open_mapped(target.pid, program).map(drop).map_err(|error| error.to_string());

    let mut ends = abandon(&silent[..63]);
    assert_eq!(open(), Ok(()));
    ends.extend(abandon(&silent[63..64]));
    assert!(open().unwrap_err().contains("too many reads of other files are still blocked"));
    let found = Inspector::default().inspect(&target).unwrap();
    assert!(found.rss_bytes > 0 && found.allocator.is_none(), "{:?}", found.allocator);
    let said = found.notes.join("; ");
    assert!(said.contains("too many reads of other files are still blocked"), "{said}");
    let exported = metrics();
    assert_eq!(value(&exported, "lowtide_unreadable_processes", "reason=\"failed\""), 0);
    assert!(value(&exported, "lowtide_resident_bytes", "owner=\"file\"") > 0, "{exported}");

    ends.extend(abandon(&silent[64..]));
    let refused = Inspector::default().inspect(&target).unwrap_err();
    assert!(matches!(refused, TargetError::Other(..)), "{refused}");
    assert!(refused.to_string().contains("too many reads of other processes"), "{refused}");
    let exported = metrics();
    assert_eq!(value(&exported, "lowtide_unreadable_processes", "reason=\"failed\""), 1);

    // Their reads end.
    drop(ends);
    until_true("an inspection with files", || {
        Inspector::default().inspect(&target).is_ok_and(|found| found.allocator.is_some())
    });
}
