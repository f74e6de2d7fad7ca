//! Parsers for the values of flags. Each returns a sentence for an invalid value.

use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use lowtide_analysis::growth::MIN_SAMPLES;
use lowtide_exporter::ListenAddress;
use lowtide_model::allocator_kind::AllocatorKind;
use lowtide_model::bytes::parse_size;
use lowtide_model::duration::{HumanSeconds, parse_duration};
use lowtide_policy::PolicyKind;

/// Default of `--max-pause`.
pub(crate) const DEFAULT_MAX_PAUSE: &str = "1ms";
/// Default of `watch --interval`.
pub(crate) const DEFAULT_INTERVAL: &str = "1s";
/// Default of `top --interval`.
pub(crate) const DEFAULT_TOP_INTERVAL: &str = "2s";
/// Default of `exporter --listen`.
pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:9797";
/// Minimum time between two inspections of `inspect --watch`.
pub(crate) const MIN_INSPECTION_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum of `leaks --every`, and of `leaks --duration`.
const MIN_EVERY: Duration = Duration::from_millis(200);
const MIN_LEAKS_DURATION: Duration = Duration::from_secs(1);
/// Minimum of `--max-pause`: entering and leaving a thread takes part of this time.
const MIN_MAX_PAUSE: Duration = Duration::from_micros(100);
/// Maximum of `--max-pause`: a longer bound would not protect the users of a server.
const MAX_MAX_PAUSE: Duration = Duration::from_secs(1);
/// Minimum of `release --watch`.
const MIN_RELEASE_WATCH: Duration = Duration::from_secs(1);
/// Minimum of `watch --interval`.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The error for an invalid value of a flag: a full sentence that starts with the flag.
#[derive(Debug)]
pub(crate) struct InvalidValue(pub(super) String);

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for InvalidValue {}

/// Parses `inspect --watch`, which must be long enough for a trend.
pub(crate) fn inspect_watch(text: &str) -> Result<Duration, InvalidValue> {
    let shortest = MIN_INSPECTION_INTERVAL * (MIN_SAMPLES as u32);
    checked("--watch", text, |time| match time < shortest {
        true => Err(format!(
            "a trend requires {MIN_SAMPLES} inspections: use at least {}",
            human(shortest)
        )),
        false => Ok(()),
    })
}

/// Parses `release --watch`.
pub(crate) fn release_watch(text: &str) -> Result<Duration, InvalidValue> {
    checked("--watch", text, |time| match time < MIN_RELEASE_WATCH {
        true => Err(format!(
            "{text} is too short for memory to come back: use at least {}",
            human(MIN_RELEASE_WATCH)
        )),
        false => Ok(()),
    })
}

/// The value of `--deadline`, and the time at which it began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) time: Duration,
    pub(crate) begin: Instant,
}

/// Parses `--deadline`.
pub(crate) fn deadline(text: &str) -> Result<Deadline, InvalidValue> {
    let time = checked("--deadline", text, |time| match time.is_zero() {
        true => Err("it is the time after which lowtide gives up: use at least 1ms".to_owned()),
        false => Ok(()),
    })?;
    Ok(Deadline { time, begin: Instant::now() })
}

/// Parses `release --wait`.
pub(crate) fn release_wait(text: &str) -> Result<Duration, InvalidValue> {
    checked("--wait", text, |_| Ok(()))
}

/// Parses `--max-pause`.
pub(crate) fn max_pause(text: &str) -> Result<Duration, InvalidValue> {
    checked("--max-pause", text, |time| match (MIN_MAX_PAUSE..=MAX_MAX_PAUSE).contains(&time) {
        true => Ok(()),
        false => Err(format!(
            "{text} is out of range: use {} to {}",
            human(MIN_MAX_PAUSE),
            human(MAX_MAX_PAUSE)
        )),
    })
}

/// Parses `watch --interval`.
pub(crate) fn watch_interval(text: &str) -> Result<Duration, InvalidValue> {
    checked("--interval", text, |time| match time < MIN_INTERVAL {
        true => Err(format!("{text} is too short: use at least {} ms", MIN_INTERVAL.as_millis())),
        false => Ok(()),
    })
}

/// Parses `leaks --every`.
pub(crate) fn leaks_every(text: &str) -> Result<Duration, InvalidValue> {
    checked("--every", text, |time| match time < MIN_EVERY {
        true => Err(format!("{text} is too short: use at least {} ms", MIN_EVERY.as_millis())),
        false => Ok(()),
    })
}

/// Parses `leaks --duration`.
pub(crate) fn leaks_duration(text: &str) -> Result<Duration, InvalidValue> {
    checked("--duration", text, |time| match time < MIN_LEAKS_DURATION {
        true => Err(format!("{text} is too short: use at least {}", human(MIN_LEAKS_DURATION))),
        false => Ok(()),
    })
}

/// Parses `leaks --older`.
pub(crate) fn leaks_older(text: &str) -> Result<Duration, InvalidValue> {
    checked("--older", text, |_| Ok(()))
}

/// Parses `--policy` of one process.
pub(crate) fn policy(text: &str) -> Result<PolicyKind, InvalidValue> {
    text.parse().map_err(|error| InvalidValue(format!("--policy: {error}")))
}

/// Parses `--budget`, a share of a core: `0.5%`.
pub(crate) fn budget(text: &str) -> Result<f64, InvalidValue> {
    share(text).ok_or_else(|| {
        InvalidValue(format!(
            "--budget: `{text}` is not a share of a core: write a percentage such as 0.5%, up to 100%"
        ))
    })
}

/// Parses `leaks --overhead`, a share of the time: `1%`.
pub(crate) fn overhead(text: &str) -> Result<f64, InvalidValue> {
    share(text).ok_or_else(|| {
        InvalidValue(format!(
            "--overhead: `{text}` is not a share of the time: write a percentage such as 1%, up to 100%"
        ))
    })
}

/// Parses a percentage above 0.
fn share(text: &str) -> Option<f64> {
    let percent: f64 = text.trim().strip_suffix('%')?.trim().parse().ok()?;
    (percent > 0.0 && percent <= 100.0).then_some(percent / 100.0)
}

/// Parses `--allocators`: comma-separated names, or `all`.
pub(crate) fn allocators(text: &str) -> Result<AllocatorChoice, InvalidValue> {
    let known: Vec<AllocatorKind> = AllocatorKind::releasable().collect();
    if text.trim() == "all" {
        return Ok(AllocatorChoice(None));
    }
    let kinds = text.split(',').map(|name| {
        let kind = known.iter().find(|kind| kind.name() == name.trim());
        kind.cloned().ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(AllocatorKind::name).collect();
            InvalidValue(format!(
                "--allocators: `{name}` is not one of {}: write a list of them, separated by commas, or all",
                names.join(", ")
            ))
        })
    });
    Ok(AllocatorChoice(Some(kinds.collect::<Result<_, _>>()?)))
}

/// The allocators that `attach` acts on; `None` for all that lowtide can release.
#[derive(Debug, Clone)]
pub(crate) struct AllocatorChoice(pub(crate) Option<Vec<AllocatorKind>>);

/// Parses `exporter --listen`.
pub(crate) fn listen(text: &str) -> Result<ListenAddress, InvalidValue> {
    text.parse().map_err(|error| InvalidValue(format!("--listen: {error}")))
}

/// Parses `--min-rss`.
pub(crate) fn size(text: &str) -> Result<u64, InvalidValue> {
    parse_size(text).map_err(|error| InvalidValue(format!("--min-rss: {error}")))
}

fn human(time: Duration) -> HumanSeconds {
    HumanSeconds(time.as_secs_f64())
}

/// Parses a duration and checks its bounds.
fn checked(
    flag: &str,
    text: &str,
    check: impl Fn(Duration) -> Result<(), String>,
) -> Result<Duration, InvalidValue> {
    let parsed = parse_duration(text).map_err(|error| error.to_string());
    let value = parsed.and_then(|time| check(time).map(|()| time));
    value.map_err(|why| InvalidValue(format!("{flag}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_share_of_a_core() {
        assert_eq!(budget("0.5%").unwrap(), 0.005);
        for text in ["0%", "101%", "0.5", "x%", "nan%", "-1%", ""] {
            assert!(budget(text).unwrap_err().to_string().starts_with("--budget: "), "{text}");
        }
    }

    #[test]
    fn the_maximum_pause_ranges_from_100_us_to_1_s() {
        for (text, micros) in [("100us", 100), ("1ms", 1000), ("1s", 1_000_000)] {
            assert_eq!(max_pause(text).unwrap(), Duration::from_micros(micros));
        }
        for text in ["0", "99us", "1.1s", "-1ms", "5", "soon", ""] {
            let said = max_pause(text).unwrap_err().to_string();
            assert!(said.starts_with("--max-pause: "), "{said}");
        }
        let said = max_pause("2s").unwrap_err().to_string();
        assert_eq!(said, "--max-pause: 2s is out of range: use 100 µs to 1.00 s");
        let default = lowtide_release::Options::default().max_pause;
        assert_eq!(max_pause(DEFAULT_MAX_PAUSE).unwrap(), default);
    }
}
