//! Determines whether settled memory grows from round to round, which distinguishes a leak from
//! retained memory.
//!
//! The first round is left out, because it includes code and one-time allocations. The trend of the
//! others is
//!
//! - **growing** if the rise is larger than noise, and the test of Mann and Kendall rules out
//!   chance. The test needs at least five rounds after the first;
//! - **level** if memory stays within a twentieth of a round's rise, over at least two rounds after
//!   the first, and does not grow;
//! - **undecided** otherwise: more rounds are needed.

use serde::Serialize;

use crate::growth;
use lowtide_model::bytes::Human;

/// Part of a round's rise below which a change over all rounds is noise,
const NOISE: f64 = 0.05;
/// and the number of bytes below which it is noise.
const LEAST_BYTES: f64 = 1_048_576.0;
/// Minimum number of rounds after the first that can be level.
const FEWEST_LEVEL: usize = 2;

/// The trend of settled memory from round to round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundDirection {
    /// It stays the same.
    Level,
    /// It grows.
    Growing,
    /// The rounds do not show a trend.
    Undecided,
}

impl RoundDirection {
    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Level => "level",
            Self::Growing => "growing",
            Self::Undecided => "undecided",
        }
    }
}

/// A trend, and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoundTrend {
    /// The trend.
    pub trend: RoundDirection,
    /// The reason, with numbers.
    pub because: String,
}

/// Determines the trend of the memory after each round; `raised` is the maximum rise in a round.
/// Returns `None` for a single round.
pub(crate) fn round_trend(stayed: &[u64], raised: u64) -> Option<RoundTrend> {
    if stayed.len() < 2 {
        return None;
    }
    let later: Vec<(f64, f64)> =
        stayed[1..].iter().enumerate().map(|(round, b)| (round as f64, *b as f64)).collect();
    let (low, high) =
        later.iter().fold((f64::MAX, f64::MIN), |(low, high), p| (low.min(p.1), high.max(p.1)));
    let (first, last) = (stayed[1], stayed[stayed.len() - 1]);
    let noise = LEAST_BYTES.max(NOISE * raised as f64);
    let grown = last as f64 - first as f64;
    let course =
        format!("{} after round 2, {} after round {}", Human(first), Human(last), stayed.len());
    let (trend, because) = if later.len() < FEWEST_LEVEL {
        let because = "only one round follows the first: at least two are needed to decide whether memory is level";
        (RoundDirection::Undecided, because.to_owned())
    } else if growth::rising(&later).is_some() && grown > noise {
        (RoundDirection::Growing, course)
    } else if high - low <= noise {
        (RoundDirection::Level, course)
    } else if later.len() < growth::MIN_SAMPLES {
        (
            RoundDirection::Undecided,
            format!("{course}: {} rounds are needed to decide", growth::MIN_SAMPLES + 1),
        )
    } else {
        let (low, high) = (Human(low as u64), Human(high as u64));
        (RoundDirection::Undecided, format!("it varies between {low} and {high}"))
    };
    Some(RoundTrend { trend, because })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_record::fixtures::MIB;

    fn trend(stayed: &[u64], raised: u64) -> RoundDirection {
        let stayed: Vec<u64> = stayed.iter().map(|mib| mib * MIB).collect();
        round_trend(&stayed, raised * MIB).unwrap().trend
    }

    #[test]
    fn a_constant_settled_value_is_level_regardless_of_the_first_round() {
        assert_eq!(trend(&[40, 100, 101], 200), RoundDirection::Level);
        assert_eq!(trend(&[40, 100, 101, 99, 100, 102], 200), RoundDirection::Level);
    }

    #[test]
    fn a_rise_in_every_round_is_growth_and_few_rounds_are_undecided() {
        assert_eq!(trend(&[40, 60, 80, 100, 120, 140], 200), RoundDirection::Growing);
        assert_eq!(trend(&[40, 60, 80, 100], 200), RoundDirection::Undecided);
        assert_eq!(trend(&[40, 60], 200), RoundDirection::Undecided);
        assert_eq!(round_trend(&[40 * MIB], MIB), None);
    }

    #[test]
    fn a_slow_rise_below_the_noise_between_rounds_is_detected_over_many() {
        let leaking: Vec<u64> = (0..20).map(|round| 100 + 2 * round + round % 2).collect();
        assert_eq!(trend(&leaking, 200), RoundDirection::Growing);
    }

    #[test]
    fn an_oscillating_value_is_undecided() {
        assert_eq!(trend(&[40, 100, 60, 100, 60, 100, 60], 200), RoundDirection::Undecided);
    }

    #[test]
    fn the_reason_states_the_values() {
        let found = round_trend(&[MIB, 100 * MIB, 101 * MIB], 500 * MIB).unwrap();
        assert_eq!(found.because, "100 MiB after round 2, 101 MiB after round 3");
    }
}
