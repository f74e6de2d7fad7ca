//! The growth of what a cgroup is charged for: the object of `lowtide watch --cgroup`.

use serde::Serialize;

use super::{CgroupCharge, CgroupKind};
use crate::growth::{GrowthCourse, seconds_to_limit};

/// Value of the object's `schema`.
pub const SCHEMA: &str = "lowtide.charge/1";

/// What a cgroup was charged for at one time, and the growth until then.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChargeReading {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    /// Time since the first reading, in seconds.
    pub t_s: f64,
    /// The path of the cgroup, as in `/proc/PID/cgroup`.
    pub path: String,
    /// Version of its hierarchy: 1 or 2.
    pub version: u32,
    /// What it is charged for.
    pub charge: CgroupCharge,
    /// The growth since the first reading; `None` for that reading.
    pub growth: Option<ChargeGrowth>,
}

/// The growth of the charge of a cgroup, by row.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChargeGrowth {
    /// Time from the first reading to the last, in seconds.
    pub elapsed_s: f64,
    /// The charge at the first reading and at the last, in bytes.
    pub charged_bytes: [u64; 2],
    /// The charge without page cache and reclaimable kernel objects, which the kernel drops before
    /// it kills, at the first reading and at the last, in bytes.
    pub kept_bytes: [u64; 2],
    /// The course of `kept_bytes`.
    pub course: GrowthCourse,
    /// Growth of `kept_bytes` in an hour: the slope of a line through all readings.
    pub kept_bytes_per_hour: i64,
    /// The limit that is reached first: that of the cgroup, of a parent, or of the machine, in
    /// bytes.
    pub limit_bytes: Option<u64>,
    /// Time until this limit is reached, in seconds; `None` without steady growth.
    pub seconds_to_limit: Option<f64>,
    /// The growth of each row, the largest first.
    pub by: Vec<RowGrowth>,
}

/// The growth of one row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RowGrowth {
    /// Its kind.
    pub kind: CgroupKind,
    /// Its bytes at the first reading and at the last. Only those of the rest can be below 0.
    pub bytes: [i64; 2],
    /// Its course.
    pub course: GrowthCourse,
    /// Growth in bytes an hour: the slope of a line through all readings.
    pub bytes_per_hour: i64,
}

impl RowGrowth {
    /// Returns its growth, in bytes; negative if it shrank.
    pub fn change(&self) -> i64 {
        self.bytes[1].saturating_sub(self.bytes[0])
    }
}

impl ChargeGrowth {
    /// Adds the limit that is reached first, and its use without page cache, both in bytes.
    pub fn set_limit(&mut self, limit_bytes: Option<u64>, used_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
        let is_lasting = matches!(self.course, GrowthCourse::Steady | GrowthCourse::Little);
        let rate = if is_lasting { self.kept_bytes_per_hour } else { 0 };
        self.seconds_to_limit = seconds_to_limit(limit_bytes, used_bytes, rate);
    }
}

impl CgroupKind {
    /// Returns whether the kernel drops it before it kills for lack of memory.
    pub(crate) fn is_dropped(self) -> bool {
        matches!(self, Self::FileActive | Self::FileInactive | Self::SlabReclaimable)
    }
}

impl CgroupCharge {
    /// Returns the charge without what the kernel drops before it kills, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        let dropped = self.rows.iter().filter(|row| row.kind.is_dropped());
        let dropped: i64 = dropped.map(|row| row.bytes).sum();
        self.charged_bytes.saturating_sub(dropped.unsigned_abs())
    }

    /// Returns the bytes of a kind.
    pub fn bytes(&self, kind: CgroupKind) -> i64 {
        self.rows.iter().filter(|row| row.kind == kind).map(|row| row.bytes).sum()
    }
}
