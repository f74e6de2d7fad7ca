//! The policies by their names, as they are typed and recorded.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lowtide_model::bytes::parse_size;
use lowtide_model::duration::parse_duration;
use lowtide_model::treatment::NO_POLICY;

use crate::Policy;
use crate::adaptive::AdaptivePolicy;
use crate::freed::FreedPolicy;
use crate::none::NonePolicy;
use crate::periodic::PeriodicPolicy;
use crate::pressure::PressurePolicy;

/// A policy with its parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Leaves the process alone.
    #[default]
    None,
    /// Releases at a fixed interval.
    Periodic(Duration),
    /// Releases whenever the process has freed this many bytes.
    Freed(u64),
    /// Releases when memory is short.
    Pressure,
    /// Releases when the load has fallen and the gain is worth the cost.
    Adaptive,
}

/// Minimum period.
const MIN_PERIOD: Duration = Duration::from_millis(100);
/// Minimum of freed bytes: the preload library counts each thread's in steps of 64 KiB.
const MIN_FREED: u64 = 1 << 20;

/// Units of durations that [`PolicyKind`] prints, in nanoseconds, the largest first.
const DURATIONS: [(u128, &str); 4] =
    [(3_600_000_000_000, "h"), (60_000_000_000, "m"), (1_000_000_000, "s"), (1_000_000, "ms")];
/// Units of sizes that [`PolicyKind`] prints, in bytes, the largest first.
const SIZES: [(u128, &str); 4] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];

impl PolicyKind {
    /// Returns the policy, for one process.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::None => Box::new(NonePolicy),
            Self::Periodic(period) => Box::new(PeriodicPolicy::new(period)),
            Self::Freed(bytes) => Box::new(FreedPolicy::new(bytes)),
            Self::Pressure => Box::new(PressurePolicy::default()),
            Self::Adaptive => Box::new(AdaptivePolicy::default()),
        }
    }

    /// Returns the time between two states that the policy needs.
    pub fn tick(self) -> Duration {
        match self {
            Self::None => Duration::from_secs(1),
            Self::Periodic(period) => (period / 10).clamp(MIN_PERIOD / 2, Duration::from_secs(1)),
            Self::Freed(_) | Self::Pressure => Duration::from_millis(200),
            // The release starts within a second after the load, most of which is the time of
            // quiet.
            Self::Adaptive => Duration::from_millis(100),
        }
    }

    /// Returns whether the policy needs the preload library that counts freed bytes.
    pub fn needs_preload(self) -> bool {
        matches!(self, Self::Freed(_))
    }

    /// Returns whether a budget limits the CPU time of its releases. For the others, the user has
    /// chosen the moments.
    pub fn has_budget(self) -> bool {
        matches!(self, Self::Pressure | Self::Adaptive)
    }
}

impl FromStr for PolicyKind {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let kind = match (name, value) {
            (NO_POLICY, None) => Self::None,
            ("pressure", None) => Self::Pressure,
            ("adaptive", None) => Self::Adaptive,
            ("periodic", Some(value)) => Self::Periodic(period(value)?),
            ("freed", Some(value)) => Self::Freed(freed(value)?),
            ("periodic", None) => return Err(PolicyError::NoValue("periodic", "30s")),
            ("freed", None) => return Err(PolicyError::NoValue("freed", "1GiB")),
            (NO_POLICY | "pressure" | "adaptive", Some(_)) => {
                return Err(PolicyError::Superfluous(name.to_owned()));
            }
            _ => return Err(PolicyError::Unknown(name.to_owned())),
        };
        Ok(kind)
    }
}

fn period(value: &str) -> Result<Duration, PolicyError> {
    let period = parse_duration(value).map_err(|error| PolicyError::Value(error.to_string()))?;
    let whole = Duration::from_millis(period.as_millis() as u64);
    if whole < MIN_PERIOD {
        return Err(PolicyError::Value("the period must be 100ms or more".to_owned()));
    }
    Ok(whole)
}

fn freed(value: &str) -> Result<u64, PolicyError> {
    let bytes = parse_size(value).map_err(|error| PolicyError::Value(error.to_string()))?;
    if bytes < MIN_FREED {
        return Err(PolicyError::Value("the freed bytes must be 1MiB or more".to_owned()));
    }
    Ok(bytes)
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str(NO_POLICY),
            Self::Periodic(period) => {
                write!(f, "periodic={}", in_units(period.as_nanos(), &DURATIONS))
            }
            Self::Freed(bytes) => write!(f, "freed={}", in_units(u128::from(*bytes), &SIZES)),
            Self::Pressure => f.write_str("pressure"),
            Self::Adaptive => f.write_str("adaptive"),
        }
    }
}

/// Returns a value in the largest unit of which it is a multiple, so that it is parsed to the same
/// value.
fn in_units(value: u128, units: &[(u128, &str)]) -> String {
    let unit = units.iter().find(|(size, _)| value.is_multiple_of(*size)).or(units.last());
    unit.map_or(value.to_string(), |(size, name)| format!("{}{name}", value / size))
}

/// Errors in the text of a policy. Each is displayed as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyError {
    /// There is no policy with this name.
    Unknown(String),
    /// The policy needs a value, such as the second field.
    NoValue(&'static str, &'static str),
    /// The policy takes no value.
    Superfluous(String),
    /// The value is not valid, for this reason.
    Value(String),
}

impl std::error::Error for PolicyError {}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(
                f,
                "there is no policy `{name}`: use none, adaptive, pressure, periodic=30s or freed=1GiB"
            ),
            Self::NoValue(name, example) => {
                write!(f, "{name} needs a value: write, for example, {name}={example}")
            }
            Self::Superfluous(name) => write!(f, "{name} takes no value: write {name}"),
            Self::Value(reason) => f.write_str(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_printing_a_policy_round_trips() {
        for text in [
            "none",
            "adaptive",
            "pressure",
            "periodic=30s",
            "periodic=5m",
            "periodic=100ms",
            "periodic=90s",
            "periodic=2h",
            "freed=1GiB",
            "freed=1500MiB",
            "freed=1048577B",
        ] {
            assert_eq!(text.parse::<PolicyKind>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_invalid_policy_is_an_error_with_an_explanation() {
        for (text, sentence) in [
            (
                "sometimes",
                "there is no policy `sometimes`: use none, adaptive, pressure, periodic=30s or freed=1GiB",
            ),
            ("periodic", "periodic needs a value: write, for example, periodic=30s"),
            ("adaptive=1", "adaptive takes no value: write adaptive"),
            ("periodic=1ms", "the period must be 100ms or more"),
            ("freed=4", "the freed bytes must be 1MiB or more"),
        ] {
            assert_eq!(text.parse::<PolicyKind>().unwrap_err().to_string(), sentence);
        }
        for text in
            ["periodic=30", "periodic=", "freed=x", "", "=", "freed=-1GiB", "periodic=1e300h"]
        {
            assert!(text.parse::<PolicyKind>().is_err(), "{text}");
        }
    }
}
