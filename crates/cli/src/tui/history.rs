//! The history of the watched process: samples and inspections since the watch started.

use std::time::Duration;

use lowtide_model::bytes::Resident;
use lowtide_model::inspection::Inspection;
use lowtide_model::ledger::{Ledger, Owner, Row};
use lowtide_model::sample::Sample;

use super::policy::PolicyHistory;
use super::time_series::TimeSeries;

/// The owners that the chart shows.
pub(crate) const CHARTED: [Owner; 4] =
    [Owner::Allocated, Owner::Reclaimable, Owner::Fragmented, Owner::Runtime];

/// The history of a process until now.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The last inspection, with the verdict over time.
    pub(crate) latest: Option<Inspection>,
    /// The ledger of the first inspection.
    pub(crate) first: Option<Ledger>,
    /// The last sample.
    pub(crate) sample: Option<Sample>,
    /// RSS at the first sample, in bytes.
    pub(crate) first_rss_bytes: Option<u64>,
    /// Maximum RSS, in bytes.
    pub(crate) peak_rss_bytes: u64,
    /// RSS over time.
    pub(crate) rss: TimeSeries<1>,
    /// Memory of the owners in [`CHARTED`] over time.
    pub(crate) owners: TimeSeries<4>,
    /// Time since the watch started, in seconds.
    pub(crate) now_s: f64,
    /// Number of inspections.
    pub(crate) inspections: u64,
    /// When the last inspection started, in seconds since the watch started.
    pub(crate) inspected_s: f64,
    /// The acts of a policy; `None` if no log is followed.
    pub(crate) policy: Option<PolicyHistory>,
}

impl History {
    /// Adds a sample.
    pub(super) fn add_sample(&mut self, sample: Sample) {
        let Resident(rss) = sample.total.rss_bytes;
        self.now_s = sample.t_s;
        self.first_rss_bytes.get_or_insert(rss);
        self.peak_rss_bytes = self.peak_rss_bytes.max(rss);
        self.rss.add(sample.t_s, [rss]);
        self.sample = Some(sample);
    }

    /// Adds an inspection that started at `t_s`.
    pub(super) fn add_inspection(&mut self, t_s: f64, found: Inspection) {
        self.owners.add(t_s, CHARTED.map(|owner| found.observation.ledger.bytes(owner)));
        self.first.get_or_insert_with(|| found.observation.ledger.clone());
        self.inspections += 1;
        self.inspected_s = t_s;
        self.latest = Some(found);
    }

    /// Returns the change of a row of the ledger since the first inspection, in bytes.
    pub(crate) fn change_of(&self, row: &Row) -> Option<i64> {
        let (first, latest) = (self.first.as_ref()?, self.latest.as_ref()?);
        (self.inspections > 1)
            .then(|| difference(latest.observation.ledger.bytes_like(row), first.bytes_like(row)))
    }

    /// Returns the age of the last inspection in seconds, if it is noticeably older than the RSS
    /// beside it: over 2 s, and over 1.5 times the interval.
    pub(crate) fn age_s(&self, interval: Duration) -> Option<f64> {
        const MIN_AGE_S: f64 = 2.0;
        let age = self.now_s - self.inspected_s;
        (self.latest.is_some() && age > MIN_AGE_S.max(1.5 * interval.as_secs_f64())).then_some(age)
    }

    /// Returns RSS, and its change since the first sample, in bytes.
    pub(crate) fn rss(&self) -> Option<(u64, i64)> {
        let now = self.sample.as_ref()?.total.rss_bytes.0;
        Some((now, difference(now, self.first_rss_bytes?)))
    }
}

fn difference(now: u64, before: u64) -> i64 {
    let size = i64::try_from(now.abs_diff(before)).unwrap_or(i64::MAX);
    if now < before { -size } else { size }
}
