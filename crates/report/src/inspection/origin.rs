//! Where and when a heap file was written.

use lowtide_model::heap_file::Origin;

use crate::screen::{Screen, dim};
use crate::text::{printable, wrapped};

/// Formats the origin of a file.
pub(super) fn render(origin: &Origin, screen: Screen) -> String {
    let machine = [Some("Linux"), origin.kernel.as_deref(), origin.architecture.as_deref()];
    let machine: Vec<&str> = machine.into_iter().flatten().collect();
    let text = format!(
        "saved {} by lowtide {} on {}",
        time(origin.unix_s),
        origin.lowtide,
        machine.join(" ")
    );
    format!("{}\n", dim(&wrapped(&printable(&text), screen.width), screen))
}

/// Formats a time in seconds since 1970, in UTC.
pub(crate) fn time(unix_s: f64) -> String {
    let seconds = unix_s as i64;
    let (days, second) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    // Days since 1 March of the year 0; the era of 400 years has 146,097 days (civil_from_days of
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let days = days + 719_468;
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + days.div_euclid(146_097) * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(time(0.0), "1970-01-01 00:00:00 UTC");
        assert_eq!(time(951_827_696.5), "2000-02-29 12:34:56 UTC");
        assert_eq!(time(1_795_824_000.0), "2026-11-28 00:00:00 UTC");
    }
}
