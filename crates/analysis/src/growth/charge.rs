//! Follows what a cgroup is charged for.

use std::collections::BTreeSet;

use lowtide_model::cgroup::{CgroupCharge, CgroupKind, ChargeGrowth, RowGrowth};

use super::course::course;
use super::follower::{Series, rate};

/// Follows a cgroup, for any length of time.
#[derive(Debug, Clone, Default)]
pub struct ChargeFollower {
    readings: Series<(f64, CgroupCharge)>,
}

impl ChargeFollower {
    /// Adds a reading, `t_s` seconds after the first.
    pub fn add(&mut self, t_s: f64, charge: CgroupCharge) {
        self.readings.add((t_s, charge));
    }

    /// Returns the growth from the first reading to the last; `None` for a single reading.
    pub fn growth(&self) -> Option<ChargeGrowth> {
        let readings = &self.readings.samples;
        let ((first_s, first), (last_s, last)) = (readings.first()?, readings.last()?);
        let kept = self.series(CgroupCharge::kept_bytes);
        let kinds: BTreeSet<CgroupKind> =
            readings.iter().flat_map(|(_, charge)| &charge.rows).map(|row| row.kind).collect();
        let mut by: Vec<RowGrowth> = kinds.into_iter().map(|kind| self.row(kind)).collect();
        by.sort_by_key(|row| std::cmp::Reverse(row.change()));
        (last_s > first_s).then(|| ChargeGrowth {
            elapsed_s: last_s - first_s,
            charged_bytes: [first.charged_bytes, last.charged_bytes],
            kept_bytes: [first.kept_bytes(), last.kept_bytes()],
            course: course(&kept),
            kept_bytes_per_hour: per_hour(&kept),
            by,
            ..ChargeGrowth::default()
        })
    }

    fn row(&self, kind: CgroupKind) -> RowGrowth {
        let bytes = |reading: Option<&(f64, CgroupCharge)>| {
            reading.map_or(0, |(_, charge)| charge.bytes(kind))
        };
        let readings = &self.readings.samples;
        let series = self.series(|charge| u64::try_from(charge.bytes(kind)).unwrap_or(0));
        RowGrowth {
            kind,
            bytes: [bytes(readings.first()), bytes(readings.last())],
            course: course(&series),
            bytes_per_hour: per_hour(&series),
        }
    }

    fn series(&self, bytes: impl Fn(&CgroupCharge) -> u64) -> Vec<(f64, u64)> {
        self.readings.samples.iter().map(|(t_s, charge)| (*t_s, bytes(charge))).collect()
    }
}

fn per_hour(series: &[(f64, u64)]) -> i64 {
    (rate(series) * 3600.0).round() as i64
}

#[cfg(test)]
mod tests {
    use lowtide_model::cgroup::CgroupRow;
    use lowtide_model::growth::GrowthCourse;

    use super::*;

    fn followed(seconds: u64, rows: impl Fn(u64) -> Vec<(CgroupKind, u64)>) -> ChargeGrowth {
        let mut follower = ChargeFollower::default();
        for t_s in 0..seconds {
            let row = |(kind, mib): (CgroupKind, u64)| CgroupRow {
                kind,
                bytes: (mib << 20) as i64,
                estimated: false,
                bound_bytes: None,
            };
            let rows: Vec<CgroupRow> = rows(t_s).into_iter().map(row).collect();
            let charged_bytes = rows.iter().map(|row| row.bytes.unsigned_abs()).sum();
            let cache = rows.iter().filter(|row| row.kind == CgroupKind::FileInactive);
            let reclaimable_bytes = cache.map(|row| row.bytes.unsigned_abs()).sum();
            let charge =
                CgroupCharge { charged_bytes, reclaimable_bytes, rows, ..Default::default() };
            follower.add(t_s as f64, charge);
        }
        follower.growth().unwrap()
    }

    #[test]
    fn growth_is_divided_by_row_and_leads_to_the_limit() {
        let rows = |t_s| vec![(CgroupKind::Anon, 50), (CgroupKind::ShmemUnmapped, 10 + t_s)];
        let mut growth = followed(31, rows);
        let most = growth.by[0];
        assert_eq!((most.kind, most.change()), (CgroupKind::ShmemUnmapped, 30 << 20));
        assert_eq!((most.course, growth.course), (GrowthCourse::Steady, GrowthCourse::Steady));
        assert_eq!(most.bytes_per_hour, 3600 << 20);
        assert_eq!(growth.by[1].course, GrowthCourse::Level);
        growth.set_limit(Some(150 << 20), Some(90 << 20), 1);
        assert_eq!(growth.seconds_to_limit, Some(60.0));
    }

    #[test]
    fn page_cache_grows_without_leading_to_a_limit() {
        let rows = |t_s| vec![(CgroupKind::Anon, 50), (CgroupKind::FileInactive, t_s * 10)];
        let mut growth = followed(31, rows);
        assert_eq!(growth.by[0].course, GrowthCourse::Steady);
        assert_eq!((growth.course, growth.kept_bytes), (GrowthCourse::Level, [50 << 20; 2]));
        growth.set_limit(Some(400 << 20), Some(50 << 20), 1);
        assert_eq!(growth.seconds_to_limit, None);
    }

    #[test]
    fn kernel_memory_that_version_1_does_not_divide_leads_to_no_limit() {
        let rows = |t_s| vec![(CgroupKind::Anon, 50), (CgroupKind::KernelOther, t_s)];
        let mut growth = followed(31, rows);
        growth.set_limit(Some(150 << 20), Some(80 << 20), 1);
        assert!(growth.is_undivided(1) && growth.seconds_to_limit.is_none(), "{growth:?}");
        growth.set_limit(Some(150 << 20), Some(80 << 20), 2);
        assert!(!growth.is_undivided(2) && growth.seconds_to_limit == Some(70.0), "{growth:?}");
        // Beside memory of processes that grows faster, only this leads to it.
        let rows = |t_s| vec![(CgroupKind::Anon, 2 * t_s), (CgroupKind::KernelOther, t_s)];
        let mut growth = followed(31, rows);
        growth.set_limit(Some(150 << 20), Some(90 << 20), 1);
        assert_eq!(growth.seconds_to_limit, Some(30.0), "{growth:?}");
    }

    #[test]
    fn a_row_that_appears_later_was_empty_before() {
        let rows = |t_s| match t_s {
            0..10 => vec![(CgroupKind::Anon, 50)],
            _ => vec![(CgroupKind::Anon, 50), (CgroupKind::PageTables, 30)],
        };
        let growth = followed(20, rows);
        assert_eq!(
            (growth.by[0].kind, growth.by[0].bytes),
            (CgroupKind::PageTables, [0, 30 << 20])
        );
        assert_eq!(growth.by[0].course, GrowthCourse::Once);
        assert!(ChargeFollower::default().growth().is_none());
    }
}
