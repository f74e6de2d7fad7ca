//! `--fail-on`: a number of a trial, or of a load, compared with a constant.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use thiserror::Error;

use crate::study_report::StudyReport;
use crate::trial_result::TrialResult;
use crate::versions::{BASE, ComparedMetric, HEAD, Interval, VersionVerdict};
use lowtide_model::bytes::{Human, parse_size};
use lowtide_model::duration::parse_duration;
use lowtide_model::load::{Latency, LoadReport, LoadRound};

/// The numbers of a trial that can be compared with a constant. Those of the load have the prefix
/// `load.`, those of each round `rounds.`.
pub const METRICS: [&str; 15] = [
    "baseline_bytes",
    "peak_bytes",
    "settled_bytes",
    "settled_ratio",
    "vsz_peak_bytes",
    "excess_byte_seconds",
    "excess_mean_bytes",
    "lazyfree_bytes",
    "minor_faults",
    "major_faults",
    "wall_s",
    "cpu_s",
    "releases",
    "bytes_per_connection",
    "exit_code",
];

/// The numbers of a load's round that can be compared with a constant, and one of the load itself.
/// [`LATENCIES`] have further ones.
pub const LOAD_METRICS: [&str; 12] = [
    "requests",
    "succeeded",
    "failed",
    "failed_ratio",
    "timed_out",
    "requests_per_s",
    "sent_s",
    "completed_s",
    "peak_in_flight",
    "distinct_responses",
    "closed_while_held",
    "client_peak_rss_bytes",
];
/// The latencies of a load's round; each has the numbers [`LATENCY_METRICS`].
pub const LATENCIES: [&str; 2] = ["latency_s", "latency_with_timeouts_s"];
/// The numbers of a latency.
pub const LATENCY_METRICS: [&str; 6] = ["mean", "p50", "p90", "p99", "p999", "max"];

/// The threshold that the newer of two versions crosses if it needs more settled memory.
const WORSE: &str = "worse";
/// The differences between two versions that can be compared with a constant.
const DIFFERENCES: [&str; 2] = ["difference", "peak_difference"];

/// An expression such as `settled_ratio>0.3`, `load.failed>0`, `worse` or `difference>5%`.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    text: String,
    path: Vec<String>,
    comparison: ComparisonOperator,
    constant: f64,
    /// Whether the constant is a part of the older version's memory.
    is_share: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComparisonOperator {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
}

/// The reason why an expression is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ThresholdError {
    /// The comparison is missing.
    #[error(
        "`{text}` is not a comparison: write METRIC, one of > >= < <= == !=, and a number, such as `{example}`"
    )]
    NoComparison {
        /// The text.
        text: String,
        /// A valid expression.
        example: &'static str,
    },
    /// The name is not a metric of a trial.
    #[error("a trial has no metric `{figure}`: it has {}, and those of the load, with the prefix `load.`; two versions (--against) have {WORSE}, {}", METRICS.join(", "), DIFFERENCES.join(" and "))]
    UnknownFigure {
        /// The left side of the comparison.
        figure: String,
    },
    /// A difference between two versions is compared in another way than with its lower end.
    #[error(
        "`{text}` is not a threshold for a difference: it is crossed by the lower end of the interval, so write \
         `{figure}>5%` or `{figure}>20MiB`"
    )]
    NotALowerEnd {
        /// The text.
        text: String,
        /// The difference.
        figure: String,
    },
    /// The name is not a metric of a load.
    #[error(
        "a load has no metric `{figure}`: it has {}, and {}, each with {}",
        LOAD_METRICS.join(", "), LATENCIES.join(" and "), LATENCY_METRICS.map(|f| format!(".{f}")).join(", ")
    )]
    UnknownLoadFigure {
        /// The left side of the comparison.
        figure: String,
    },
    /// The constant is not a number.
    #[error("`{constant}` is not a number that `{figure}` can be compared with: {reason}")]
    BadConstant {
        /// The metric on the left side.
        figure: String,
        /// The right side of the comparison.
        constant: String,
        /// The reason.
        reason: String,
    },
}

/// A threshold that a trial, or a round of a load, crossed.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    /// The expression.
    pub expression: String,
    /// The trial's treatment and repeat, or the round.
    pub subject: String,
    /// The value of the metric.
    pub value: String,
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (it is {})", self.subject, self.expression, self.value)
    }
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    /// Parses an expression about the trials of a study.
    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        if text.trim() == WORSE {
            return Ok(Self::worse());
        }
        let threshold = Self::parse(text, "settled_ratio>0.3")?;
        let known = match threshold.path.as_slice() {
            [one] if DIFFERENCES.contains(&one.as_str()) => return threshold.of_difference(),
            [one] => METRICS.contains(&one.as_str()),
            [first, rest @ ..] => {
                ["load", "rounds"].contains(&first.as_str()) && rest.iter().all(|p| !p.is_empty())
            }
            [] => false,
        };
        match known {
            true => threshold.with_constant(),
            false => Err(ThresholdError::UnknownFigure { figure: threshold.path.join(".") }),
        }
    }
}

/// An expression whose constant is not parsed yet.
struct ParsedComparison<'a> {
    text: &'a str,
    path: Vec<String>,
    comparison: ComparisonOperator,
    constant: &'a str,
}

impl ParsedComparison<'_> {
    fn with_constant(self) -> Result<Threshold, ThresholdError> {
        let constant = read_constant(&self.path, self.constant).map_err(|reason| {
            ThresholdError::BadConstant {
                figure: self.path.join("."),
                constant: self.constant.to_owned(),
                reason,
            }
        })?;
        let is_share = self.constant.ends_with('%');
        let Self { text, path, comparison, .. } = self;
        Ok(Threshold { text: text.to_owned(), path, comparison, constant, is_share })
    }

    /// Returns the threshold for a difference between two versions: a part of the older version's
    /// memory, or bytes.
    fn of_difference(self) -> Result<Threshold, ThresholdError> {
        let (text, figure) = (self.text.to_owned(), self.path.join("."));
        let is_lower_end = matches!(
            self.comparison,
            ComparisonOperator::Greater | ComparisonOperator::GreaterOrEqual
        );
        let threshold = self.with_constant()?;
        match is_lower_end && threshold.constant >= 0.0 {
            true => Ok(threshold),
            false => Err(ThresholdError::NotALowerEnd { text, figure }),
        }
    }
}

/// Parses the constant in the unit of its metric: bytes, seconds, or a plain number (also in %).
fn read_constant(path: &[String], text: &str) -> Result<f64, String> {
    let is_difference = path.iter().any(|part| DIFFERENCES.contains(&part.as_str()));
    let in_unit = |suffix: &str| {
        path.iter().any(|part| part.ends_with(suffix)) || (is_difference && suffix == "_bytes")
    };
    if let Some(percent) = text.strip_suffix('%') {
        return percent.trim().parse().map(|p: f64| p / 100.0).map_err(|e| e.to_string());
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        Ok(_) => Err("it is not finite".to_owned()),
        Err(_) if in_unit("_bytes") => {
            parse_size(text).map(|b| b as f64).map_err(|e| e.to_string())
        }
        Err(_) if in_unit("_s") => {
            parse_duration(text).map(|d| d.as_secs_f64()).map_err(|e| e.to_string())
        }
        Err(error) => Err(error.to_string()),
    }
}

impl ComparisonOperator {
    fn split(text: &str) -> Option<(Self, &str)> {
        let table = [
            (">=", Self::GreaterOrEqual),
            ("<=", Self::LessOrEqual),
            ("==", Self::Equal),
            ("!=", Self::NotEqual),
            (">", Self::Greater),
            ("<", Self::Less),
        ];
        table.iter().find_map(|(sign, it)| Some((*it, text.strip_prefix(sign)?)))
    }

    fn holds(self, a: f64, b: f64) -> bool {
        match self {
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::Equal => a == b,
            Self::NotEqual => a != b,
        }
    }
}

impl Threshold {
    fn parse<'a>(
        text: &'a str,
        example: &'static str,
    ) -> Result<ParsedComparison<'a>, ThresholdError> {
        let missing = || ThresholdError::NoComparison { text: text.to_owned(), example };
        let place = text.find(['>', '<', '=', '!']).ok_or_else(missing)?;
        let (figure, rest) = text.split_at(place);
        let (comparison, constant) = ComparisonOperator::split(rest).ok_or_else(missing)?;
        let path = figure.trim().split('.').map(str::to_owned).collect();
        Ok(ParsedComparison { text: text.trim(), path, comparison, constant: constant.trim() })
    }

    /// Parses an expression about the rounds of a load, such as `failed_ratio>0.01`.
    ///
    /// # Errors
    /// Fails if the text is not a comparison of a load's metric with a number.
    pub fn parse_for_load(text: &str) -> Result<Self, ThresholdError> {
        let threshold = Self::parse(text, "failed_ratio>0.01")?;
        let known = match threshold.path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [one] => LOAD_METRICS.contains(&one),
            [latency, figure] => LATENCIES.contains(&latency) && LATENCY_METRICS.contains(&figure),
            _ => false,
        };
        match known {
            true => threshold.with_constant(),
            false => Err(ThresholdError::UnknownLoadFigure { figure: threshold.path.join(".") }),
        }
    }

    /// Returns the rounds of a load that cross it. An unknown metric never crosses it.
    pub fn crossings_of_load(&self, report: &LoadReport) -> Vec<Crossing> {
        let crosses = |value: &f64| self.comparison.holds(*value, self.constant);
        self.values_of_load(report)
            .filter(|(_, value)| crosses(value))
            .map(|(subject, value)| Crossing {
                expression: self.text.clone(),
                subject,
                value: value.to_string(),
            })
            .collect()
    }

    /// Returns whether its metric is unknown for every round of a load, so that no round can cross
    /// it.
    pub fn is_void_of_load(&self, report: &LoadReport) -> bool {
        self.values_of_load(report).next().is_none()
    }

    /// Returns the known values of the metric, each with the name of its round or load.
    fn values_of_load<'a>(
        &'a self,
        report: &'a LoadReport,
    ) -> Box<dyn Iterator<Item = (String, f64)> + 'a> {
        if self.path == ["client_peak_rss_bytes"] {
            let value = report.client_peak_rss_bytes as f64;
            return Box::new(std::iter::once(("lowtide itself".to_owned(), value)));
        }
        let value = |round: &LoadRound| {
            Some((format!("round {}", round.round), self.value_of_round(round)?))
        };
        Box::new(report.rounds.iter().filter_map(value))
    }

    fn value_of_round(&self, round: &LoadRound) -> Option<f64> {
        let of_succeeded = (round.succeeded > 0).then_some(&round.latency_s);
        let latency = match self.path.first()?.as_str() {
            "latency_s" => of_succeeded,
            // If none timed out, the succeeded requests are all requests.
            "latency_with_timeouts_s" => round.latency_with_timeouts_s.as_ref().or(of_succeeded),
            figure => return value_by_name(round, figure),
        };
        latency_by_name(latency?, self.path.get(1)?)
    }

    fn worse() -> Self {
        let path = vec![WORSE.to_owned()];
        let (comparison, constant) = (ComparisonOperator::Greater, 0.0);
        Self { text: WORSE.to_owned(), path, comparison, constant, is_share: false }
    }

    /// Returns whether it compares two versions of a command.
    pub fn compares_versions(&self) -> bool {
        matches!(&self.path[..], [name] if name == WORSE || DIFFERENCES.contains(&name.as_str()))
    }

    /// Returns the metric of two versions that it is about, with the lower end of its interval;
    /// `None` if there is no interval.
    fn lower_end<'s>(&self, study: &'s StudyReport) -> Option<(&'s ComparedMetric, Interval)> {
        let versions = study.comparison.as_ref()?;
        let is_peak = self.path.first().is_some_and(|name| name == DIFFERENCES[1]);
        let metric = if is_peak { &versions.peak } else { &versions.settled };
        Some((metric, metric.interval()?))
    }

    /// Returns the crossing of the lower end of the interval of a difference.
    fn crossing_of_versions(&self, study: &StudyReport) -> Option<Crossing> {
        let (metric, interval) = self.lower_end(study)?;
        let is_crossed = match (self.path[0] == WORSE, self.is_share) {
            (true, _) => metric.verdict == VersionVerdict::Worse,
            (false, true) => self.comparison.holds(metric.share(interval.low)?, self.constant),
            (false, false) => self.comparison.holds(interval.low as f64, self.constant),
        };
        let share = metric
            .share(interval.low)
            .map_or(String::new(), |share| format!(", {:.1} %", share * 100.0));
        is_crossed.then(|| Crossing {
            expression: self.text.clone(),
            subject: format!("{HEAD} against {BASE}"),
            value: format!("at least {}{share} more", Human(interval.low.unsigned_abs())),
        })
    }

    /// Returns the trials that cross it. A metric that is `null` never crosses it.
    pub fn crossings(&self, study: &StudyReport) -> Vec<Crossing> {
        if self.compares_versions() {
            return self.crossing_of_versions(study).into_iter().collect();
        }
        study
            .trials
            .iter()
            .filter_map(|trial| {
                let value = self
                    .values(trial)
                    .into_iter()
                    .find(|v| self.comparison.holds(*v, self.constant))?;
                Some(Crossing {
                    expression: self.text.clone(),
                    subject: format!("{}, repeat {}", trial.treatment, trial.repeat),
                    value: value.to_string(),
                })
            })
            .collect()
    }

    /// Returns whether no trial has its metric, so that it could not be crossed: because of a typo,
    /// because the load does not report it, or because the trials did not get that far.
    pub fn is_void(&self, study: &StudyReport) -> bool {
        if self.compares_versions() {
            return self.lower_end(study).is_none();
        }
        study.trials.iter().all(|trial| self.values(trial).is_empty())
    }

    fn values(&self, trial: &TrialResult) -> Vec<f64> {
        let Ok(object) = serde_json::to_value(trial) else {
            return Vec::new();
        };
        let mut path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        if path.first() == Some(&"load") {
            path.insert(0, "rounds");
        }
        let mut found = Vec::new();
        collect(&object, &path, &mut found);
        found
    }
}

/// Returns a number of a round by its name in [`LOAD_METRICS`].
fn value_by_name(round: &LoadRound, name: &str) -> Option<f64> {
    let count = |count: u64| Some(count as f64);
    match name {
        "requests" => count(round.requests),
        "succeeded" => count(round.succeeded),
        "failed" => count(round.failed),
        "failed_ratio" => round.failed_ratio,
        "timed_out" => count(round.timed_out.unwrap_or(0)),
        "requests_per_s" => Some(round.requests_per_s),
        "sent_s" => Some(round.sent_s),
        "completed_s" => Some(round.completed_s),
        "peak_in_flight" => count(round.peak_in_flight),
        "distinct_responses" => count(round.distinct_responses),
        "closed_while_held" => round.closed_while_held.and_then(count),
        _ => None,
    }
}

/// Returns a number of a latency by its name in [`LATENCY_METRICS`].
fn latency_by_name(latency: &Latency, name: &str) -> Option<f64> {
    Some(match name {
        "mean" => latency.mean,
        "p50" => latency.p50,
        "p90" => latency.p90,
        "p99" => latency.p99,
        "p999" => latency.p999,
        "max" => latency.max,
        _ => return None,
    })
}

/// Follows a path through objects; an array stands for each of its members.
fn collect(value: &Value, path: &[&str], found: &mut Vec<f64>) {
    match (value, path) {
        (Value::Array(members), _) => {
            for member in members {
                collect(member, path, found);
            }
        }
        (Value::Number(number), []) => found.extend(number.as_f64()),
        (Value::Object(map), [first, rest @ ..]) => {
            if let Some(inner) = map.get(*first) {
                collect(inner, rest, found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_parsed_in_the_unit_of_their_metric() {
        for (text, constant) in [
            ("settled_ratio>0.3", 0.3),
            ("settled_ratio >= 30%", 0.3),
            ("settled_bytes>500MiB", 524_288_000.0),
            ("settled_bytes>500", 500.0),
            ("wall_s<5m", 300.0),
            ("load.failed>0", 0.0),
            ("load.latency_s.p99>200", 200.0),
            ("exit_code!=0", 0.0),
        ] {
            assert_eq!(text.parse::<Threshold>().map(|t| t.constant), Ok(constant), "{text}");
        }
    }

    #[test]
    fn an_unknown_trial_metric_is_an_error_that_lists_the_valid_ones() {
        let error = "settled>3".parse::<Threshold>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("a trial has no metric `settled`: it has baseline_bytes, ")
        );
    }

    #[test]
    fn malformed_thresholds_are_errors() {
        for text in [
            "",
            "settled_ratio",
            "settled_ratio>",
            "settled_ratio>x",
            ">3",
            "load.>3",
            "cpu_s=1",
            "peak_bytes>inf",
        ] {
            assert!(text.parse::<Threshold>().is_err(), "{text}");
        }
    }
    fn load() -> LoadReport {
        let quick = LoadRound {
            round: 1,
            requests: 200,
            succeeded: 200,
            failed_ratio: Some(0.0),
            requests_per_s: 100.0,
            latency_s: Latency { p99: 0.4, ..Latency::default() },
            ..LoadRound::default()
        };
        let stalled = LoadRound {
            round: 2,
            succeeded: 100,
            failed: 100,
            failed_ratio: Some(0.5),
            timed_out: Some(100),
            latency_with_timeouts_s: Some(Latency { p99: 2.0, ..Latency::default() }),
            ..quick.clone()
        };
        LoadReport {
            schema: String::new(),
            client_peak_rss_bytes: 10 << 20,
            rounds: vec![quick, stalled],
            interrupted: false,
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_load_threshold_is_checked_for_each_round() {
        for (text, crossings) in [
            ("failed_ratio>0.01", vec!["round 2: failed_ratio>0.01 (it is 0.5)"]),
            ("failed_ratio > 50%", vec![]),
            ("latency_s.p99>500ms", vec![]),
            (
                "latency_with_timeouts_s.p99>=400ms",
                vec![
                    "round 1: latency_with_timeouts_s.p99>=400ms (it is 0.4)",
                    "round 2: latency_with_timeouts_s.p99>=400ms (it is 2)",
                ],
            ),
            ("timed_out>0", vec!["round 2: timed_out>0 (it is 100)"]),
            (
                "client_peak_rss_bytes>1MiB",
                vec!["lowtide itself: client_peak_rss_bytes>1MiB (it is 10485760)"],
            ),
        ] {
            let threshold = Threshold::parse_for_load(text).unwrap();
            let found: Vec<String> =
                threshold.crossings_of_load(&load()).iter().map(ToString::to_string).collect();
            assert_eq!(found, crossings);
            assert!(!threshold.is_void_of_load(&load()), "{text}");
        }
    }

    #[test]
    fn a_threshold_on_a_missing_latency_is_void_and_not_crossed() {
        let mut report = load();
        report.rounds.truncate(1);
        report.rounds[0].succeeded = 0;
        for text in ["latency_s.p99<1", "latency_with_timeouts_s.p50<1s", "closed_while_held==0"] {
            let threshold = Threshold::parse_for_load(text).unwrap();
            assert!(threshold.crossings_of_load(&report).is_empty(), "{text}");
            assert!(threshold.is_void_of_load(&report), "{text}");
        }
    }

    #[test]
    fn every_load_metric_that_an_error_lists_can_be_compared() {
        let mut report = load();
        report.rounds[0].closed_while_held = Some(0);
        let latencies = LATENCIES.map(|l| LATENCY_METRICS.map(|f| format!("{l}.{f}"))).concat();
        for figure in LOAD_METRICS.map(str::to_owned).iter().chain(&latencies) {
            let threshold = Threshold::parse_for_load(&format!("{figure}>=0")).unwrap();
            assert!(!threshold.crossings_of_load(&report).is_empty(), "{figure}");
        }
    }

    #[test]
    fn an_unknown_load_metric_is_an_error_that_lists_the_valid_ones() {
        for figure in ["errors", "latency_s", "latency_s.p95", "settled_ratio", "load.failed", ""] {
            let error = Threshold::parse_for_load(&format!("{figure}>3")).unwrap_err().to_string();
            let begin = format!("a load has no metric `{figure}`: it has requests, succeeded, ");
            assert!(error.starts_with(&begin), "{error}");
            assert!(
                error.ends_with(
                    "latency_s and latency_with_timeouts_s, each with .mean, .p50, .p90, .p99, .p999, .max"
                ),
                "{error}"
            );
        }
        let error = Threshold::parse_for_load("failed").unwrap_err().to_string();
        assert!(error.ends_with("such as `failed_ratio>0.01`"), "{error}");
        let error = Threshold::parse_for_load("failed_ratio>x").unwrap_err().to_string();
        assert!(error.starts_with("`x` is not a number that `failed_ratio`"), "{error}");
    }
}
