//! Where and when a heap file or a core was written.

use std::time::{Duration, UNIX_EPOCH};

use lowtide_model::heap_file::{CoreOrigin, Origin};

use crate::screen::{Screen, dim};
use crate::text::{printable, wrapped};

/// Formats the origin of a file.
pub(super) fn render(origin: &Origin, screen: Screen) -> String {
    format!("{}\n", dim(&wrapped(&sentence(origin), screen.width), screen))
}

/// Returns when, with what and where a file was written.
pub(super) fn sentence(origin: &Origin) -> String {
    if let Some(core) = &origin.core {
        return printable(&of_core(origin, core));
    }
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

/// Returns when a core was written, and what its values mean.
fn of_core(origin: &Origin, core: &CoreOrigin) -> String {
    let end = core.signal.and_then(signal_name).map(|name| format!(", after {name}"));
    format!(
        "core of {}{}; which pages were resident is not known: the values (≈) are those of pages with content, \
         which were resident or swapped out",
        time(origin.unix_s),
        end.unwrap_or_default()
    )
}

/// Returns the name of a signal after which the kernel writes a core; `None` for one that a
/// debugger may have sent.
fn signal_name(signal: u32) -> Option<&'static str> {
    let names = [
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (11, "SIGSEGV"),
        (24, "SIGXCPU"),
        (25, "SIGXFSZ"),
        (31, "SIGSYS"),
    ];
    names.iter().find(|(number, _)| *number == signal).map(|(_, name)| *name)
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
    use lowtide_model::heap_file::{CoreOrigin, Origin};

    use super::{sentence, time};

    #[test]
    fn a_core_is_named_with_its_signal_and_with_what_its_values_are() {
        let of = |signal| {
            let core = Some(CoreOrigin { signal, ..CoreOrigin::default() });
            sentence(&Origin { core, ..Origin::default() })
        };
        let text = of(Some(6));
        assert!(text.starts_with("core of 1970-01-01 00:00:00 UTC, after SIGABRT;"), "{text}");
        assert!(text.contains("which pages were resident is not known"), "{text}");
        // gcore stops the process, which does not end it.
        assert!(!of(Some(19)).contains("after") && !of(None).contains("after"));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(time(0.0), "1970-01-01 00:00:00 UTC");
        assert_eq!(time(951_827_696.5), "2000-02-29 12:34:56 UTC");
        assert_eq!(time(1_795_824_000.0), "2026-11-28 00:00:00 UTC");
    }
}
