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
    /// The charge without what the kernel can reclaim before it kills (page cache, memory that was
    /// given back lazily, slab), at the first reading and at the last, in bytes. In version 1, it
    /// contains slab that can be reclaimed.
    pub kept_bytes: [u64; 2],
    /// The course of `kept_bytes`.
    pub course: GrowthCourse,
    /// Growth of `kept_bytes` in an hour: the slope of a line through all readings.
    pub kept_bytes_per_hour: i64,
    /// The limit that is reached first: that of the cgroup, of a parent, or of the machine, in
    /// bytes.
    pub limit_bytes: Option<u64>,
    /// Time until this limit is reached, in seconds; `None` without steady growth, and where most
    /// of it may be memory that the kernel can reclaim.
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
    /// `version` is that of the hierarchy: version 1 does not divide kernel memory, so that its
    /// growth does not lead to the limit.
    pub fn set_limit(&mut self, limit_bytes: Option<u64>, used_bytes: Option<u64>, version: u32) {
        self.limit_bytes = limit_bytes;
        let is_lasting = matches!(self.course, GrowthCourse::Steady | GrowthCourse::Little);
        let is_kept = is_lasting && !self.is_undivided(version);
        let rate = if is_kept { self.limit_bytes_per_hour(version) } else { 0 };
        self.seconds_to_limit = seconds_to_limit(limit_bytes, used_bytes, rate);
    }

    /// Returns whether most of its growth is kernel memory of which the hierarchy does not tell
    /// whether it can be reclaimed.
    pub fn is_undivided(&self, version: u32) -> bool {
        let undivided = self.undivided_bytes_per_hour(version);
        undivided > 0 && undivided.saturating_mul(2) > self.kept_bytes_per_hour
    }

    /// Returns the growth that leads to the limit, in bytes per hour.
    pub fn limit_bytes_per_hour(&self, version: u32) -> i64 {
        self.kept_bytes_per_hour - self.undivided_bytes_per_hour(version)
    }

    fn undivided_bytes_per_hour(&self, version: u32) -> i64 {
        let is_undivided = |row: &&RowGrowth| version == 1 && row.kind == CgroupKind::KernelOther;
        let rows = self.by.iter().filter(is_undivided);
        rows.map(|row| row.bytes_per_hour.max(0)).sum()
    }
}

impl CgroupCharge {
    /// Returns the charge without what the kernel can reclaim before it kills, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.charged_bytes.saturating_sub(self.reclaimable_bytes)
    }

    /// Returns the bytes of a kind.
    pub fn bytes(&self, kind: CgroupKind) -> i64 {
        self.rows.iter().filter(|row| row.kind == kind).map(|row| row.bytes).sum()
    }
}
