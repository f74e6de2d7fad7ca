//! The growth of what a cgroup is charged for, for people.

use lowtide_model::bytes::Human;
use lowtide_model::cgroup::{ChargeGrowth, ChargeReading, RowGrowth};
use lowtide_model::duration::HumanSeconds;
use lowtide_model::growth::GrowthCourse;

use super::rows::description;
use crate::screen::Screen;
use crate::text::{printable, signed};

/// Minimum change of a row that is shown, in bytes.
const MIN_CHANGE: u64 = 64 << 10;
/// Number of rows of a line, and of the summary.
const SHOWN: usize = 3;
const SHOWN_AT_END: usize = 8;

/// Formats a reading as a line for people and for `awk`, with the rows that changed most, as far as
/// they fit.
pub fn line(reading: &ChargeReading, screen: Screen) -> String {
    let charge = &reading.charge;
    let numbers = [charge.charged_bytes, charge.kept_bytes()].map(|bytes| Human(bytes).to_string());
    let head = format!("{:>7.1} s  charged {:>9}  kept {:>9}", reading.t_s, numbers[0], numbers[1]);
    let changes = reading.growth.iter().flat_map(changed).take(SHOWN);
    let changes = changes.map(|row| format!("  {} {}", row.kind.name(), signed(row.change())));
    let mut line = head;
    for change in changes {
        if line.chars().count() + change.chars().count() > usize::from(screen.width) {
            break;
        }
        line += &change;
    }
    line
}

/// Formats the growth over the whole watch.
pub fn summary(reading: &ChargeReading) -> Option<String> {
    let growth = reading.growth.as_ref()?;
    let [before, after] = growth.charged_bytes.map(Human);
    let mut out = format!(
        "\nin {}, the charge of {} went from {before} to {after}\n",
        HumanSeconds(growth.elapsed_s),
        printable(&reading.path)
    );
    for row in changed(growth).take(SHOWN_AT_END) {
        out += &format!(
            "{:>12}  {}: {}; {}\n",
            signed(row.change()),
            row.kind.name(),
            course(row),
            description(row.kind, reading.version)
        );
    }
    out += &(fate(growth, reading.version) + "\n");
    Some(out)
}

/// Returns the rows that changed, the largest change first.
fn changed(growth: &ChargeGrowth) -> impl Iterator<Item = &RowGrowth> {
    let mut rows: Vec<&RowGrowth> = growth.by.iter().collect();
    rows.retain(|row| row.change().unsigned_abs() >= MIN_CHANGE);
    rows.sort_by_key(|row| std::cmp::Reverse(row.change().unsigned_abs()));
    rows.into_iter()
}

fn course(row: &RowGrowth) -> String {
    let rate = Human(row.bytes_per_hour.max(0).unsigned_abs());
    match row.course {
        _ if row.change() < 0 => "shrank".to_owned(),
        GrowthCourse::Steady => format!("grows steadily, {rate} an hour"),
        GrowthCourse::Little => format!("grows a little, {rate} an hour"),
        GrowthCourse::Once => "grew, but not steadily".to_owned(),
        GrowthCourse::Level => "fluctuates".to_owned(),
        GrowthCourse::Unknown => "too few readings for its course".to_owned(),
    }
}

/// Returns a sentence on what the growth leads to.
fn fate(growth: &ChargeGrowth, version: u32) -> String {
    let human = |rate: i64| Human(rate.max(0).unsigned_abs());
    let rate = human(growth.kept_bytes_per_hour);
    match (growth.course, growth.seconds_to_limit, growth.limit_bytes) {
        (GrowthCourse::Unknown, ..) => {
            "too few readings to know whether it grows: watch for longer".to_owned()
        }
        (_, Some(left_s), Some(limit)) => format!(
            "at {} an hour, without page cache, the limit of {} is reached in {}",
            human(growth.limit_bytes_per_hour(version)),
            Human(limit),
            HumanSeconds(left_s)
        ),
        (GrowthCourse::Steady | GrowthCourse::Little, ..) if growth.is_undivided(version) => {
            format!(
                "without page cache, it grows by {rate} an hour, most of it kernel memory: version 1 does not tell how \
             much of that the kernel can reclaim before it kills"
            )
        }
        (GrowthCourse::Steady | GrowthCourse::Little, ..) => {
            format!("without page cache, it grows by {rate} an hour")
        }
        (GrowthCourse::Once, ..) => {
            "without page cache, it grew, but not steadily: it may have stopped".to_owned()
        }
        (GrowthCourse::Level, ..) => {
            "without page cache, which the kernel drops before it kills, it does not grow"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use lowtide_model::cgroup::growth::SCHEMA;
    use lowtide_model::cgroup::{CgroupCharge, CgroupKind};

    use super::*;

    fn reading(course: GrowthCourse) -> ChargeReading {
        let row = |kind, bytes: [i64; 2], course| RowGrowth {
            kind,
            bytes: bytes.map(|mib| mib << 20),
            course,
            bytes_per_hour: 3600 << 20,
        };
        let growth = ChargeGrowth {
            elapsed_s: 30.0,
            charged_bytes: [60 << 20, 90 << 20],
            kept_bytes: [60 << 20, 90 << 20],
            course,
            kept_bytes_per_hour: 3600 << 20,
            by: vec![
                row(CgroupKind::ShmemUnmapped, [10, 40], course),
                row(CgroupKind::Anon, [50, 50], GrowthCourse::Level),
                row(CgroupKind::FileInactive, [9, 1], GrowthCourse::Level),
            ],
            ..ChargeGrowth::default()
        };
        let charge = CgroupCharge { charged_bytes: 90 << 20, ..CgroupCharge::default() };
        let path = "/a\x1b[2J".to_owned();
        ChargeReading { schema: SCHEMA, t_s: 30.0, path, version: 2, charge, growth: Some(growth) }
    }

    #[test]
    fn rows_that_change_are_shown_with_their_course() {
        let mut found = reading(GrowthCourse::Steady);
        let growth = found.growth.as_mut().unwrap();
        growth.set_limit(Some(150 << 20), Some(90 << 20), 2);
        let wide = Screen { width: 120, colour: false };
        assert_eq!(
            line(&found, wide),
            "   30.0 s  charged  90.0 MiB  kept  90.0 MiB  shmem_unmapped +30.0 MiB  file_inactive -8.00 MiB"
        );
        let narrow = Screen { width: 80, ..wide };
        assert!(line(&found, narrow).ends_with("  shmem_unmapped +30.0 MiB"));
        let text = summary(&found).unwrap();
        for part in [
            "in 30.0 s, the charge of /a [2J went from 60.0 MiB to 90.0 MiB",
            "   +30.0 MiB  shmem_unmapped: grows steadily, 3.52 GiB an hour; files that no process maps",
            "   -8.00 MiB  file_inactive: shrank",
            "the limit of 150 MiB is reached in 1 min 0 s",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("anon"), "{text}");
    }

    #[test]
    fn kernel_memory_that_may_be_reclaimed_leads_to_no_limit() {
        let mut found = reading(GrowthCourse::Steady);
        found.version = 1;
        let growth = found.growth.as_mut().unwrap();
        growth.by[0].kind = CgroupKind::KernelOther;
        growth.set_limit(Some(150 << 20), Some(90 << 20), 1);
        let text = summary(&found).unwrap();
        assert!(text.contains("most of it kernel memory: version 1 does not tell"), "{text}");
        assert!(!text.contains("is reached"), "{text}");
    }

    #[test]
    fn no_sentence_says_that_nothing_grows_without_enough_readings() {
        let says = |course| summary(&reading(course)).unwrap();
        assert!(says(GrowthCourse::Unknown).contains("too few readings to know"));
        assert!(says(GrowthCourse::Once).contains("it may have stopped"));
        assert!(says(GrowthCourse::Steady).contains("it grows by 3.52 GiB an hour"));
        assert!(says(GrowthCourse::Level).contains("it does not grow"));
    }
}
