//! The results of each program as a line of JSON, and a summary of all.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::Mutex;

use lowtide_model::stats;
use serde_json::{Value, json};

use crate::run::Run;
use crate::tally::Tally;

/// Whether a program ran with releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Release,
    Control,
}

/// The results of one program.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    kind: Kind,
    glibc: String,
    shape: &'static str,
    seed: u64,
    ms: u64,
    pub(crate) tally: Tally,
    /// The results that the program has printed.
    said: Value,
}

impl Record {
    pub(crate) fn new(kind: Kind, run: &Run, glibc: String, mut tally: Tally, said: &str) -> Self {
        let said = serde_json::from_str(said.trim()).unwrap_or_else(|error| {
            tally.failures.push(format!("what it said last is no object ({error}): {said:?}"));
            Value::Null
        });
        for name in ["violation_count", "spurious_eintr", "short_sleeps", "forks_failed"] {
            if said.get(name).and_then(Value::as_u64) != Some(0) {
                let all = said.get("violations").unwrap_or(&Value::Null);
                tally.failures.push(format!("{name}: {} {all}", said[name]));
            }
        }
        let shape = run.shape.name();
        Self { kind, glibc, shape, seed: run.seed, ms: run.ms, tally, said }
    }

    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Release => "with releases",
            Kind::Control => "without releases",
        };
        format!("glibc {}, {}, seed {}, {kind}", self.glibc, self.shape, self.seed)
    }

    fn json(&self) -> Value {
        let mut line = json!({
            "kind": match self.kind { Kind::Release => "release", Kind::Control => "control" },
            "glibc": self.glibc,
            "shape": self.shape,
            "seed": self.seed,
            "ms": self.ms,
        });
        for more in [self.tally.json(), self.said.clone()] {
            if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
                line.extend(more);
            }
        }
        line
    }

    /// Returns the lateness of each kind of wait: the median and the 95th percentile, in µs.
    fn lateness(&self) -> BTreeMap<&str, [f64; 2]> {
        let calls = self.said.get("lateness_us").and_then(Value::as_object);
        let figures = |of: &Value| ["median", "p95"].map(|name| of[name].as_f64().unwrap_or(0.0));
        calls.into_iter().flatten().map(|(call, of)| (call.as_str(), figures(of))).collect()
    }
}

/// The results of all programs.
pub(crate) struct Records {
    all: Mutex<Vec<Record>>,
    file: Option<Mutex<File>>,
}

impl Records {
    pub(crate) fn open() -> Self {
        let path = std::env::var_os("LOWTIDE_TORTURE_RECORD");
        let open = |path| File::options().create(true).append(true).open(path).unwrap();
        Self { all: Mutex::default(), file: path.map(|path| Mutex::new(open(path))) }
    }

    pub(crate) fn add(&self, record: Record) {
        if let Some(file) = &self.file {
            writeln!(file.lock().unwrap(), "{}", record.json()).unwrap();
        }
        for failure in &record.tally.failures {
            eprintln!("{}: {failure}", record.name());
        }
        self.all.lock().unwrap().push(record);
    }

    pub(crate) fn assert_nothing_broke(&self) {
        let all = self.all.lock().unwrap();
        let failed: Vec<_> = all
            .iter()
            .filter(|record| !record.tally.failures.is_empty())
            .map(|record| format!("{}: {:?}", record.name(), record.tally.failures))
            .collect();
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }

    /// Summarizes the counts on each glibc, their statistical meaning, and the lateness of waits.
    pub(crate) fn summary(&self) -> String {
        let all = self.all.lock().unwrap();
        let mut text = String::new();
        let mut sums: BTreeMap<(Kind, &str, &str), (u64, Tally)> = BTreeMap::new();
        for record in all.iter() {
            let sum = sums.entry((record.kind, &record.glibc, record.shape)).or_default();
            *sum = (sum.0 + 1, std::mem::take(&mut sum.1).and(&record.tally));
        }
        for ((kind, glibc, shape), (programs, tally)) in &sums {
            let _ = match kind {
                Kind::Release => writeln!(text, "{glibc} {shape}: {}", counts(*programs, tally)),
                Kind::Control => writeln!(
                    text,
                    "{glibc} {shape}, without releases: programs {programs}, failures {}",
                    tally.failures.len()
                ),
            };
        }
        let releases = all.iter().filter(|record| record.kind == Kind::Release);
        let sum = releases.fold(Tally::default(), |sum, record| sum.and(&record.tally));
        let _ = writeln!(text, "\n{}", bound(&sum));
        text.push_str(&later(&all));
        text
    }
}

fn counts(programs: u64, tally: &Tally) -> String {
    const MS: f64 = 1e3;
    format!(
        "programs {programs}, releases {} ({} returned {:.1} GiB, {} had nothing to, {} in slices, {} at \
         once), refused {:?}, in part {:?}, failures {}; {} pauses, median {:.3} ms, the longest of a \
         release: 99 of 100 up to {:.3} ms, at most {:.3} ms; {} holds of a lock, at most {:.3} ms",
        tally.releases,
        tally.returned,
        tally.bytes as f64 / f64::from(1 << 30),
        tally.nothing,
        tally.in_slices,
        tally.doubled,
        tally.refused,
        tally.partial,
        tally.failures.len(),
        tally.pauses,
        tally.median_pause() * MS,
        tally.longest_pause(0.99) * MS,
        tally.longest_pause(1.0) * MS,
        tally.holds,
        tally.longest_lock * MS,
    )
}

/// States the statistical meaning of the number of failures.
fn bound(sum: &Tally) -> String {
    let (failures, n) = (sum.failures.len(), sum.returned);
    match failures {
        0 => format!(
            "0 failures in {n} releases that returned something: if each failed with the same \
             probability, that is below {:.4} % with a confidence of 95 % (3/n)",
            300.0 / n.max(1) as f64
        ),
        _ => format!("{failures} failures in {n} releases that returned something"),
    }
}

/// Compares the lateness of each kind of wait with and without releases, in pairs of programs.
fn later(all: &[Record]) -> String {
    let mut differences: BTreeMap<&str, [Vec<f64>; 2]> = BTreeMap::new();
    let mut longest = Vec::new();
    let of_kind = |kind| all.iter().filter(move |record| record.kind == kind);
    for control in of_kind(Kind::Control) {
        let key = |record: &Record| (record.glibc.clone(), record.shape, record.seed);
        let Some(release) = of_kind(Kind::Release).find(|other| key(other) == key(control)) else {
            continue;
        };
        longest.push(release.tally.longest_pause(1.0) * 1e6);
        let (with, without) = (release.lateness(), control.lateness());
        for (call, figures) in with {
            let Some(other) = without.get(call) else { continue };
            let of_call = differences.entry(call).or_default();
            for (list, (a, b)) in of_call.iter_mut().zip(figures.into_iter().zip(other)) {
                list.push(a - b);
            }
        }
    }
    let Some(pause) = stats::median(&longest) else { return String::new() };
    let mut text = format!(
        "waits, later than without releases by so many µs (the median of {} pairs of programs; the \
         longest pause of a program is {pause:.0} at the median):\n",
        longest.len()
    );
    for (call, [medians, p95s]) in &differences {
        let figure = |list: &[f64]| stats::median(list).unwrap_or(0.0);
        let (median, p95) = (figure(medians), figure(p95s));
        let mark = if p95 > pause { "  later than by the pauses" } else { "" };
        let _ = writeln!(
            text,
            "{call:26} at the median {median:7.0}, at the 95th percentile {p95:7.0}{mark}"
        );
    }
    text
}
