//! Where and when a heap file was written.

use std::time::{Duration, UNIX_EPOCH};

use lowtide_model::heap_file::Origin;

use crate::screen::{Screen, dim};
use crate::text::{printable, wrapped};

/// Formats the origin of a file.
pub(super) fn render(origin: &Origin, screen: Screen) -> String {
    format!("{}\n", dim(&wrapped(&sentence(origin), screen.width), screen))
}

/// Returns when, with what and where a file was written.
pub(super) fn sentence(origin: &Origin) -> String {
    let machine = [Some("Linux"), origin.kernel.as_deref(), origin.architecture.as_deref()];
    let machine: Vec<&str> = machine.into_iter().flatten().collect();
    let text = format!(
        "saved {} by lowtide {} on {}",
        time(origin.unix_s),
        origin.lowtide,
        machine.join(" ")
    );
    printable(&text)
}

/// Seconds from 1970 to the last second of the year 9999, the latest that is formatted.
const LATEST: f64 = 253_402_300_799.0;

/// Formats a time in seconds since 1970, in UTC. A heap file can contain any number.
pub(crate) fn time(unix_s: f64) -> String {
    let since = Duration::from_secs(unix_s.clamp(0.0, LATEST) as u64);
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string();
    text.replace('T', " ").replace('Z', " UTC")
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
