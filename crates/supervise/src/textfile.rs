//! Metrics of the supervision in a file, for node_exporter's textfile collector.
//!
//! The format is Prometheus' text format 0.0.4. The file is replaced as a whole by a rename, so
//! that no reader sees a partial file.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io;
use std::path::{Path, PathBuf};

use lowtide_model::act::{Act, ActEvent};
use lowtide_model::release::ReleaseOutcome;
use lowtide_model::text::printable;
use lowtide_record::files;

use crate::log::LogError;

/// Maximum number of programs with their own metrics; the others share a name.
const MAX_PROGRAMS: usize = 200;
const OTHER: &str = "other";

/// The metrics of the supervision, by program.
#[derive(Debug)]
pub struct Textfile {
    path: PathBuf,
    programs: BTreeMap<String, ProgramCounts>,
    /// Number of kills, by program and by the owner of most of the memory.
    kills: BTreeMap<(String, String), u64>,
}

/// The counts of the processes of one program.
#[derive(Debug, Clone, Default)]
struct ProgramCounts {
    releases: u64,
    refusals: u64,
    left_alone: u64,
    held_back: u64,
    returned_bytes: u64,
    refaulted_bytes: u64,
    cpu_s: f64,
    longest_pause_s: f64,
    pauses: Pauses,
}

/// Upper bounds of the histogram of pauses, in seconds.
const PAUSES_S: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

/// The longest pause of each release.
#[derive(Debug, Clone, Default)]
struct Pauses {
    /// Number of pauses up to the bound at the same index in [`PAUSES_S`].
    up_to: [u64; PAUSES_S.len()],
    count: u64,
    sum_s: f64,
}

impl Pauses {
    fn add(&mut self, pause_s: f64) {
        for (count, bound) in self.up_to.iter_mut().zip(PAUSES_S) {
            *count += u64::from(pause_s <= bound);
        }
        self.count += 1;
        self.sum_s += pause_s;
    }
}

/// Name, type, help text and value of a metric.
type ProgramMetric = (&'static str, &'static str, &'static str, fn(&ProgramCounts) -> f64);

/// The metrics.
const METRICS: [ProgramMetric; 8] = [
    ("lowtide_releases_total", "counter", "Releases that returned memory.", |c| c.releases as f64),
    ("lowtide_refusals_total", "counter", "Releases that were refused and are tried again.", |c| {
        c.refusals as f64
    }),
    ("lowtide_left_alone_total", "counter", "Times that a process was left alone.", |c| {
        c.left_alone as f64
    }),
    ("lowtide_held_back_total", "counter", "Releases that the CPU budget held back.", |c| {
        c.held_back as f64
    }),
    ("lowtide_returned_bytes_total", "counter", "Bytes returned to the OS.", |c| {
        c.returned_bytes as f64
    }),
    (
        "lowtide_refaulted_bytes_total",
        "counter",
        "Returned bytes that became resident again.",
        |c| c.refaulted_bytes as f64,
    ),
    (
        "lowtide_cpu_seconds_total",
        "counter",
        "CPU time of lowtide for the releases in its log; walks that found nothing are not in it.",
        |c| c.cpu_s,
    ),
    ("lowtide_longest_pause_seconds", "gauge", "Longest pause of a thread by a release.", |c| {
        c.longest_pause_s
    }),
];

impl Textfile {
    /// Creates the file.
    ///
    /// # Errors
    /// Fails if it cannot be written, or if other users may replace it.
    pub fn create(path: &Path) -> Result<Self, LogError> {
        let textfile =
            Self { path: path.to_owned(), programs: BTreeMap::new(), kills: BTreeMap::new() };
        textfile.write().map_err(|error| LogError::new(path, error))?;
        Ok(textfile)
    }

    /// Counts an act of a process of a program, and writes the file.
    ///
    /// # Errors
    /// Fails if it cannot be written. The counts are kept for the next time.
    pub fn count(&mut self, program: &str, act: &Act) -> io::Result<()> {
        // A process chooses its name. Two names that differ only in what is not printable share
        // their metrics.
        let program = printable(program);
        let counts = bounded(&mut self.programs, program, OTHER.to_owned());
        match act.event {
            ActEvent::Act => counts.count(act),
            ActEvent::Returned => counts.refaulted_bytes += act.refaulted_bytes.unwrap_or(0),
            ActEvent::HeldBack => counts.held_back += 1,
            ActEvent::LeftAlone => counts.left_alone += 1,
        }
        self.write()
    }

    /// Counts a kill of a process of a program for lack of memory, and writes the file. `owner` is
    /// what held most of the memory.
    ///
    /// # Errors
    /// Fails if it cannot be written. The counts are kept for the next time.
    pub fn count_oom_kills(&mut self, program: &str, owner: &str, count: u64) -> io::Result<()> {
        let key = (printable(program), owner.to_owned());
        *bounded(&mut self.kills, key, (OTHER.to_owned(), owner.to_owned())) += count;
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        files::replace_for_all(&self.path, self.text().as_bytes())
    }

    fn text(&self) -> String {
        let mut text = MetricsText::default();
        for (name, kind, help, value) in METRICS {
            text.begin(name, kind, help);
            for (program, counts) in &self.programs {
                text.sample(name, &[("program", program)], value(counts));
            }
        }
        self.write_pauses(&mut text);
        self.write_kills(&mut text);
        text.0
    }

    fn write_kills(&self, text: &mut MetricsText) {
        let name = "lowtide_oom_kills_total";
        let help =
            "Processes that the kernel killed for lack of memory, by the owner of most of it.";
        text.begin(name, "counter", help);
        for ((program, owner), count) in &self.kills {
            text.sample(name, &[("program", program), ("owner", owner)], count);
        }
    }

    fn write_pauses(&self, text: &mut MetricsText) {
        let name = "lowtide_pause_seconds";
        let help = "Longest pause of a thread in each release that stopped one.";
        text.begin(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (program, ProgramCounts { pauses, .. }) in &self.programs {
            let bounds = PAUSES_S.iter().map(f64::to_string).zip(pauses.up_to);
            for (bound, count) in bounds.chain([("+Inf".to_owned(), pauses.count)]) {
                text.sample(&bucket, &[("program", program), ("le", &bound)], count);
            }
            let program = [("program", program.as_str())];
            text.sample(&format!("{name}_sum"), &program, pauses.sum_s);
            text.sample(&format!("{name}_count"), &program, pauses.count);
        }
    }
}

/// Metrics in Prometheus' text format.
#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    /// Adds the comments before the samples of a metric.
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let label = |(label, value): &(&str, &str)| format!("{label}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }
}

/// Returns the value of a key, or that of `other` if the key is new and there are many others.
fn bounded<K: Ord, V: Default>(values: &mut BTreeMap<K, V>, key: K, other: K) -> &mut V {
    let is_kept = values.contains_key(&key) || values.len() < MAX_PROGRAMS;
    values.entry(if is_kept { key } else { other }).or_default()
}

impl ProgramCounts {
    fn count(&mut self, act: &Act) {
        match act.outcome {
            _ if act.dry_run => {}
            Some(ReleaseOutcome::Released | ReleaseOutcome::Partial) => self.releases += 1,
            Some(ReleaseOutcome::Refused) => self.refusals += 1,
            Some(ReleaseOutcome::NothingToRelease) | None => {}
        }
        self.returned_bytes += act.returned_bytes;
        self.cpu_s += act.cpu_s;
        self.longest_pause_s = self.longest_pause_s.max(act.longest_pause_s);
        if !act.dry_run && act.longest_pause_s > 0.0 {
            self.pauses.add(act.longest_pause_s);
        }
    }
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::acts::fixtures::act;

    #[test]
    fn events_are_counted_by_program_and_names_are_escaped() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lowtide.prom");
        let mut textfile = Textfile::create(&path).unwrap();
        let name = "a\"b\\c\n\u{1b}[2J\u{7}\u{202e}";
        let release = Act { longest_pause_s: 0.002, ..act() };
        textfile.count(name, &release).unwrap();
        textfile.count(name, &release).unwrap();
        let back = Act { event: ActEvent::Returned, refaulted_bytes: Some(7), ..act() };
        textfile.count(name, &back).unwrap();
        textfile.count(name, &Act { event: ActEvent::LeftAlone, ..act() }).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let label = "{program=\"a\\\"b\\\\c  [2J  \"}";
        for line in [
            format!("lowtide_releases_total{label} 2"),
            format!("lowtide_returned_bytes_total{label} 2000"),
            format!("lowtide_refaulted_bytes_total{label} 7"),
            format!("lowtide_left_alone_total{label} 1"),
            format!("lowtide_pause_seconds_count{label} 2"),
            format!("lowtide_pause_seconds_bucket{},le=\"+Inf\"}} 2", label.trim_end_matches('}')),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn the_file_is_readable_by_a_collector_that_runs_as_another_user() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lowtide.prom");
        Textfile::create(&path).unwrap().count("server", &act()).unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
        let umask = u32::from_str_radix(umask.trim(), 8).unwrap();
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o644 & !umask);
    }

    #[test]
    fn kills_are_counted_by_program_and_owner_and_bounded() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("lowtide.prom");
        let mut textfile = Textfile::create(&path).unwrap();
        let count = |owner: &str| {
            let text = fs::read_to_string(&path).unwrap();
            let start = format!("lowtide_oom_kills_total{{program=\"a\\\"b\",owner=\"{owner}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok())
        };
        for owner in ["allocated", "shared", "allocated"] {
            textfile.count_oom_kills("a\"b", owner, 1).unwrap();
        }
        assert_eq!((count("allocated"), count("shared")), (Some(2), Some(1)));
        for number in 0..MAX_PROGRAMS {
            textfile.count_oom_kills(&format!("program{number}"), "unknown", 1).unwrap();
        }
        assert_eq!(textfile.kills.len(), MAX_PROGRAMS + 1);
    }

    #[test]
    fn the_number_of_programs_is_bounded() {
        let home = tempfile::tempdir().unwrap();
        let mut textfile = Textfile::create(&home.path().join("lowtide.prom")).unwrap();
        for number in 0..MAX_PROGRAMS + 5 {
            textfile.count(&format!("program{number:04}"), &act()).unwrap();
        }
        assert_eq!(textfile.programs.len(), MAX_PROGRAMS + 1);
        assert_eq!(textfile.programs["other"].releases, 5);
    }
}
