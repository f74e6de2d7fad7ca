//! The metrics at one moment, as text.
//!
//! `prometheus-client` writes the format of OpenMetrics. Prometheus' older text format 0.0.4
//! differs only in the names of counters in comments, and has no end mark.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use lowtide_model::cgroup::{CgroupCharge, CgroupRow};
use lowtide_model::inspection::CLibrary;
use lowtide_model::ledger::Owner;
use lowtide_model::text::printable;
use lowtide_model::verdict::VerdictKind;
use lowtide_probe::machine::{memory, process_cpu_s};
use lowtide_probe::proc::status::Status;
use lowtide_survey::budget::UncountedCpu;
use lowtide_survey::survey::InspectionCounts;
use lowtide_survey::{Host, HostProcess, Survey, SurveyOptions, Unread};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::groups::{GroupBy, NamedGroups, OTHER};

/// Upper bounds of the durations of inspections, in seconds.
const DURATIONS_S: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];

/// The result of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrapeResult {
    /// The client received metrics.
    Ok,
    /// The user name or the password was wrong.
    Unauthorized,
    /// A connection was closed because too many were open, or a password was not verified in time.
    Busy,
}

/// Ages of what the exporter knows, in seconds.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    /// Age of the last scan; `None` before the first.
    pub scan_s: Option<f64>,
    /// Time since the thread that inspects last looked for a process.
    pub silence_s: f64,
    /// Age of the last inspection.
    pub last_inspection_s: Option<f64>,
    /// Age of the oldest values of a process.
    pub oldest_s: Option<f64>,
    /// Number of processes that were not inspected yet.
    pub uninspected: usize,
}

/// The metrics of a host, from a survey that runs in other threads.
#[derive(Debug)]
pub struct Exporter {
    survey: Survey,
    budget: f64,
    serving_cpu: UncountedCpu,
    groups: Mutex<NamedGroups>,
    durations: Histogram,
    scrapes: [AtomicU64; 3],
}

impl Exporter {
    /// Creates the exporter of a survey that was started with `options`.
    pub fn new(survey: Survey, options: &SurveyOptions, by: GroupBy, max_groups: usize) -> Self {
        Self {
            survey,
            budget: options.budget,
            serving_cpu: options.uncounted_cpu.clone(),
            groups: Mutex::new(NamedGroups::new(by, max_groups)),
            durations: Histogram::new(DURATIONS_S),
            scrapes: Default::default(),
        }
    }

    /// Returns the metrics in the text format 1.0.0 of OpenMetrics.
    pub(crate) fn open_metrics(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.moment()));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &registry);
        text
    }

    /// Returns the metrics in the text format 0.0.4 of Prometheus.
    pub fn text(&self) -> String {
        without_open_metrics(&self.open_metrics())
    }

    /// Counts a response.
    pub fn count(&self, result: ScrapeResult) {
        self.scrapes[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the age of the last scan, in seconds; `None` before the first.
    pub fn scan_age_s(&self) -> Option<f64> {
        self.survey.read(Host::scan_age_s)
    }

    /// Returns the ages that decide whether the exporter is healthy.
    pub(crate) fn ages(&self) -> Ages {
        let (scan_s, oldest_s, uninspected) = self.survey.read(|host| {
            let of = |process: &HostProcess| process.inspected.as_ref().map(|found| found.at);
            let oldest = host.processes().filter_map(of).min();
            let uninspected = host.processes().filter(|process| process.is_waiting()).count();
            (host.scan_age_s(), oldest.map(|at| at.elapsed().as_secs_f64()), uninspected)
        });
        Ages {
            scan_s,
            silence_s: self.survey.silence_s(),
            last_inspection_s: self.survey.last_inspection_age_s(),
            oldest_s,
            uninspected,
        }
    }

    /// Returns the account of the server's CPU time.
    pub(crate) fn serving_cpu(&self) -> UncountedCpu {
        self.serving_cpu.clone()
    }

    fn moment(&self) -> Moment {
        for duration in self.survey.take_durations() {
            self.durations.observe(duration);
        }
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let (groups, scan_age_s) = self.survey.read(|host| {
            let now = Instant::now();
            let divided = groups.divide(host.processes(), now);
            let of = |(name, processes): (String, Vec<&HostProcess>)| {
                let cgroup = groups.cgroup(&name, &processes);
                let charge = cgroup.and_then(|path| host.charge(&path)).cloned();
                (name, GroupValues { charge, ..GroupValues::new(&processes, now) })
            };
            (divided.into_iter().map(of).collect::<BTreeMap<_, _>>(), host.scan_age_s())
        });
        let (memory_bytes, available_bytes) = memory();
        Moment {
            groups,
            scan_age_s,
            silence_s: self.survey.silence_s(),
            last_inspection_age_s: self.survey.last_inspection_age_s(),
            memory_bytes,
            available_bytes,
            outcomes: self.survey.outcomes(),
            durations: self.durations.clone(),
            cpu_s: process_cpu_s(),
            serving_cpu_s: self.serving_cpu.total_s(),
            own_rss_bytes: Status::own().ok().map(|status| status.rss_bytes()),
            budget: self.budget,
            scrapes: [0, 1, 2].map(|place: usize| self.scrapes[place].load(Ordering::Relaxed)),
        }
    }
}

/// The values of a group of processes.
#[derive(Debug, Default)]
struct GroupValues {
    processes: u64,
    rss_bytes: u64,
    swap_bytes: u64,
    lazyfree_bytes: u64,
    owners: [u64; Owner::ALL.len()],
    free_blocks: u64,
    largest_free_bytes: u64,
    arenas: u64,
    verdicts: [u64; VerdictKind::ALL.len()],
    unread: [u64; Unread::ALL.len()],
    uninspected: u64,
    age_s: Option<f64>,
    /// Number of processes by allocator, its version, C library and its version.
    allocators: BTreeMap<[String; 4], u64>,
    /// The charge of its cgroup, if groups are cgroups.
    charge: Option<CgroupCharge>,
}

impl GroupValues {
    fn new(processes: &[&HostProcess], now: Instant) -> Self {
        let (mut values, mut seen) = (Self::default(), HashSet::new());
        values.processes = processes.len() as u64;
        // Memory that several of them use counts once.
        let mut is_new =
            |process: &HostProcess| seen.insert(process.same_memory_as.unwrap_or(process.pid));
        let counted = processes.iter().filter(|process| is_new(process));
        counted.for_each(|process| values.add(process, now));
        values
    }

    fn add(&mut self, process: &HostProcess, now: Instant) {
        self.rss_bytes += process.rss_bytes;
        self.uninspected += u64::from(process.is_waiting());
        if let Some(reason) = process.unread {
            // Earlier values would be out of date.
            self.unread[reason as usize] += 1;
            return;
        }
        let Some(found) = &process.inspected else { return };
        self.swap_bytes += found.swap_bytes;
        self.lazyfree_bytes += found.lazyfree_bytes.unwrap_or(0);
        for (sum, owner) in self.owners.iter_mut().zip(Owner::ALL) {
            *sum += found.ledger.bytes(owner);
        }
        self.free_blocks += found.free_blocks;
        self.largest_free_bytes = self.largest_free_bytes.max(found.largest_free_bytes);
        self.arenas += found.arenas;
        self.verdicts[found.verdict.kind as usize] += 1;
        let age_s = now.saturating_duration_since(found.at).as_secs_f64();
        self.age_s = Some(self.age_s.unwrap_or(0.0).max(age_s));
        let (allocator, version) = match &found.allocator {
            Some(allocator) => (allocator.kind.to_string(), allocator.version.clone()),
            None => (String::new(), None),
        };
        let (libc, libc_version) = match &found.c_library {
            Some(CLibrary { name, version }) => ((*name).to_owned(), version.clone()),
            None => (String::new(), None),
        };
        let key = [allocator, version.unwrap_or_default(), libc, libc_version.unwrap_or_default()];
        // Names and versions come from the files of the process.
        *self.allocators.entry(key.map(|value| printable(&value))).or_default() += 1;
    }
}

/// All values at one moment.
#[derive(Debug)]
struct Moment {
    groups: BTreeMap<String, GroupValues>,
    scan_age_s: Option<f64>,
    silence_s: f64,
    last_inspection_age_s: Option<f64>,
    memory_bytes: Option<u64>,
    available_bytes: Option<u64>,
    outcomes: InspectionCounts,
    durations: Histogram,
    cpu_s: f64,
    serving_cpu_s: f64,
    own_rss_bytes: Option<u64>,
    budget: f64,
    scrapes: [u64; 3],
}

impl Collector for Moment {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut writer = MetricWriter(&mut encoder);
        self.write_group_values(&mut writer)?;
        self.write_group_shares(&mut writer)?;
        self.write_charges(&mut writer)?;
        self.write_host(&mut writer)?;
        self.write_own(&mut writer)
    }
}

impl Moment {
    /// Writes the metrics that have one value for each group.
    fn write_group_values(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        type Value = fn(&GroupValues) -> u64;
        let of_group: [(&str, &str, Value); 8] = [
            ("lowtide_processes", "Number of processes.", |v| v.processes),
            ("lowtide_rss_bytes", "Resident memory by the kernel's count.", |v| v.rss_bytes),
            ("lowtide_swap_bytes", "Memory in swap, at the last inspections.", |v| v.swap_bytes),
            (
                "lowtide_lazyfree_bytes",
                "Memory that was freed lazily and is resident until the kernel needs it.",
                |v| v.lazyfree_bytes,
            ),
            ("lowtide_free_blocks", "Number of free blocks in glibc's arenas.", |v| v.free_blocks),
            (
                "lowtide_largest_free_block_bytes",
                "Size of the largest free block in glibc's arenas.",
                |v| v.largest_free_bytes,
            ),
            ("lowtide_arenas", "Number of glibc's arenas.", |v| v.arenas),
            (
                "lowtide_uninspected_processes",
                "Number of processes that were not inspected yet.",
                |v| v.uninspected,
            ),
        ];
        for (name, help, value) in of_group {
            let each =
                self.groups.iter().map(|(group, v)| ([("groupname", group.as_str())], value(v)));
            writer.gauges(name, help, each)?;
        }
        let help = "Time since the inspection of the process that was inspected least recently.";
        let ages = self
            .groups
            .iter()
            .filter_map(|(group, v)| Some(([("groupname", group.as_str())], v.age_s?)));
        writer.gauges_f64("lowtide_inspection_age_seconds", help, ages)
    }

    /// Writes the metrics that have a value for each group and another label.
    fn write_group_shares(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        let help = "Resident memory by owner, at the last inspections.";
        writer.gauges(
            "lowtide_resident_bytes",
            help,
            self.each(|v| {
                Owner::ALL
                    .iter()
                    .zip(v.owners)
                    .map(|(owner, bytes)| ("owner", owner.key(), bytes))
                    .collect()
            }),
        )?;
        let help = "Number of processes by verdict.";
        writer.gauges(
            "lowtide_verdicts",
            help,
            self.each(|v| {
                VerdictKind::ALL
                    .iter()
                    .zip(v.verdicts)
                    .map(|(kind, n)| ("verdict", kind.name(), n))
                    .collect()
            }),
        )?;
        let help = "Number of processes whose memory could not be read, by reason.";
        writer.gauges(
            "lowtide_unreadable_processes",
            help,
            self.each(|v| {
                Unread::ALL.iter().zip(v.unread).map(|(why, n)| ("reason", why.name(), n)).collect()
            }),
        )?;
        let help = "Number of processes by allocator and C library, with their versions.";
        let allocators = self.groups.iter().flat_map(|(group, values)| {
            values.allocators.iter().map(
                move |([allocator, version, libc, libc_version], count)| {
                    let labels = [
                        ("groupname", group.as_str()),
                        ("allocator", allocator),
                        ("allocator_version", version),
                        ("libc", libc),
                        ("libc_version", libc_version),
                    ];
                    (labels, *count)
                },
            )
        });
        writer.gauges("lowtide_allocators", help, allocators)
    }

    /// Writes what the cgroups of groups are charged for.
    fn write_charges(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        let charges = || {
            self.groups.iter().filter_map(|(group, v)| Some((group.as_str(), v.charge.as_ref()?)))
        };
        if charges().next().is_none() {
            return Ok(());
        }
        let help = "What the cgroup is charged for, by kind; the kinds add up to its charge.";
        let rows = charges().flat_map(|(group, charge)| {
            let labels = move |row: &CgroupRow| [("groupname", group), ("kind", row.kind.name())];
            charge.rows.iter().map(move |row| (labels(row), row.bytes as f64))
        });
        writer.gauges_f64("lowtide_cgroup_bytes", help, rows)?;
        let help = "The lowest limit of the cgroup and its parents.";
        let limits = charges()
            .filter_map(|(group, charge)| Some(([("groupname", group)], charge.limit_bytes?)));
        writer.gauges("lowtide_cgroup_limit_bytes", help, limits)?;
        let help = "The charge of the cgroup without inactive file pages, as Kubernetes counts.";
        let sets =
            charges().map(|(group, charge)| ([("groupname", group)], charge.working_set_bytes));
        writer.gauges("lowtide_cgroup_working_set_bytes", help, sets)
    }

    /// Returns the values of each group with a second label.
    fn each(
        &self,
        values: fn(&GroupValues) -> Vec<(&'static str, &'static str, u64)>,
    ) -> impl Iterator<Item = ([(&'static str, &str); 2], u64)> {
        self.groups.iter().flat_map(move |(group, v)| {
            let of_group = move |(label, value, number)| {
                ([("groupname", group.as_str()), (label, value)], number)
            };
            values(v).into_iter().map(of_group)
        })
    }

    fn write_host(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        let bytes = [
            ("lowtide_host_memory_bytes", "Memory of the host.", self.memory_bytes),
            (
                "lowtide_host_memory_available_bytes",
                "Memory of the host that programs can use without swapping (MemAvailable).",
                self.available_bytes,
            ),
        ];
        bytes.into_iter().try_for_each(|(name, help, value)| match value {
            Some(value) => writer.gauge(name, help, value),
            None => Ok(()),
        })
    }

    fn write_own(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        let help = "Version of lowtide.";
        writer.gauges(
            "lowtide_build_info",
            help,
            [([("version", env!("CARGO_PKG_VERSION"))], 1)],
        )?;
        let help = "CPU time of the exporter.";
        writer.counter("lowtide_exporter_cpu_seconds", help, self.cpu_s)?;
        let help = "CPU time for connections and passwords, which the budget does not include.";
        writer.counter("lowtide_exporter_serving_cpu_seconds", help, self.serving_cpu_s)?;
        let help = "Share of a core that inspections may use.";
        writer.gauge_f64("lowtide_exporter_cpu_budget_ratio", help, self.budget)?;
        if let Some(bytes) = self.own_rss_bytes {
            writer.gauge("lowtide_exporter_resident_bytes", "RSS of the exporter.", bytes)?;
        }
        if let Some(age_s) = self.scan_age_s {
            let help = "Age of lowtide_rss_bytes and lowtide_processes.";
            writer.gauge_f64("lowtide_exporter_scan_age_seconds", help, age_s)?;
        }
        if let Some(age_s) = self.last_inspection_age_s {
            let help = "Time since the last inspection of any process ended.";
            writer.gauge_f64("lowtide_exporter_last_inspection_age_seconds", help, age_s)?;
        }
        let help = "Time since the thread that inspects last looked for a process to inspect.";
        writer.gauge_f64("lowtide_exporter_inspector_silence_seconds", help, self.silence_s)?;
        let other = self.groups.get(OTHER).map_or(0, |group| group.processes);
        let help = "Number of processes in the group `other`.";
        writer.gauge("lowtide_exporter_grouped_as_other", help, other)?;
        let outcomes = [
            ("done", self.outcomes.done),
            ("not_permitted", self.outcomes.not_permitted),
            ("blocked", self.outcomes.blocked),
            ("slow", self.outcomes.slow),
            ("failed", self.outcomes.failed),
            ("gone", self.outcomes.gone),
        ];
        let help = "Inspections by result.";
        writer.counters("lowtide_exporter_inspections", help, outcomes)?;
        let results = ["ok", "unauthorized", "busy"].into_iter().zip(self.scrapes);
        writer.counters("lowtide_exporter_scrapes", "Scrapes by result.", results)?;
        let help = "Durations of inspections.";
        let name = "lowtide_exporter_inspection_seconds";
        let metric = writer.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        self.durations.encode(metric)
    }
}

/// Writes families of metrics.
struct MetricWriter<'w, 'e>(&'w mut DescriptorEncoder<'e>);

impl MetricWriter<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn gauge_f64(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(labels, value)| {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)
        })
    }

    fn gauges_f64<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(labels, value)| {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)
        })
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn counters<'l>(
        &mut self,
        name: &str,
        help: &str,
        results: impl IntoIterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        results.into_iter().try_for_each(|(result, count)| {
            ConstCounter::new(count).encode(family.encode_family(&[("result", result)])?)
        })
    }
}

/// Translates the text format of OpenMetrics into that of Prometheus.
fn without_open_metrics(text: &str) -> String {
    let counter = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        (kind == "counter").then(|| name.to_owned())
    };
    let counters: BTreeSet<String> = text.lines().filter_map(counter).collect();
    let mut translated = String::with_capacity(text.len());
    for line in text.lines() {
        if line == "# EOF" {
            continue;
        }
        let comment = ["# HELP ", "# TYPE "].into_iter().find_map(|head| {
            let (name, rest) = line.strip_prefix(head)?.split_once(' ')?;
            counters.contains(name).then(|| format!("{head}{name}_total {rest}"))
        });
        translated.push_str(comment.as_deref().unwrap_or(line));
        translated.push('\n');
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_and_type_comments_of_counters_get_the_total_suffix_in_the_text_format() {
        let text = "# HELP a Some.\n# TYPE a counter\na_total{x=\"# TYPE b counter\"} 1\n# HELP b More.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_total Some.\n# TYPE a_total counter\na_total{x=\"# TYPE b counter\"} 1\n# HELP b More.\n# TYPE b gauge\nb 2\n";
        assert_eq!(without_open_metrics(text), expected);
    }
}
