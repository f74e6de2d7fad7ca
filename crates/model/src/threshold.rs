//! `--fail-on`: a number of a trial held against a constant.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use thiserror::Error;

use crate::bytes::parse_size;
use crate::duration::parse_duration;
use crate::study::{Study, TrialResult};

/// The numbers of a trial that can be held against a constant. Those of the load stand under
/// `load.`, those of each round under `rounds.`.
pub const FIGURES: [&str; 15] = [
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

/// An expression such as `settled_ratio>0.3` or `load.failed>0`.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    text: String,
    path: Vec<String>,
    comparison: Comparison,
    constant: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
}

/// Why an expression was not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ThresholdError {
    /// There is no comparison in it.
    #[error(
        "`{0}` compares nothing: write FIGURE, one of > >= < <= == !=, and a number, such as `settled_ratio>0.3`"
    )]
    NoComparison(String),
    /// The figure is not one of a trial's.
    #[error("a trial has no figure `{figure}`: it has {}, and the load's under `load.`", FIGURES.join(", "))]
    UnknownFigure {
        /// What stood on the left.
        figure: String,
    },
    /// The constant is not a number.
    #[error("`{constant}` is not a number that `{figure}` can be compared with: {reason}")]
    BadConstant {
        /// The figure on the left.
        figure: String,
        /// What stood on the right.
        constant: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A threshold that a trial crossed.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    /// The expression.
    pub expression: String,
    /// The trial's treatment and repeat.
    pub trial: String,
    /// What the figure was.
    pub value: f64,
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (it is {})", self.trial, self.expression, self.value)
    }
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let missing = || ThresholdError::NoComparison(text.to_owned());
        let place = text.find(['>', '<', '=', '!']).ok_or_else(missing)?;
        let (figure, rest) = text.split_at(place);
        let (comparison, constant) = Comparison::split(rest).ok_or_else(missing)?;
        let figure = figure.trim();
        let path: Vec<String> = figure.split('.').map(str::to_owned).collect();
        let known = match path.as_slice() {
            [one] => FIGURES.contains(&one.as_str()),
            [first, rest @ ..] => {
                ["load", "rounds"].contains(&first.as_str()) && rest.iter().all(|p| !p.is_empty())
            }
            [] => false,
        };
        if !known {
            return Err(ThresholdError::UnknownFigure { figure: figure.to_owned() });
        }
        let constant = constant.trim();
        let value =
            read_constant(&path, constant).map_err(|reason| ThresholdError::BadConstant {
                figure: figure.to_owned(),
                constant: constant.to_owned(),
                reason,
            })?;
        Ok(Self { text: text.trim().to_owned(), path, comparison, constant: value })
    }
}

/// Reads the constant in the unit of its figure: bytes, seconds, or a plain number (also in %).
fn read_constant(path: &[String], text: &str) -> Result<f64, String> {
    let in_unit = |suffix: &str| path.iter().any(|part| part.ends_with(suffix));
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

impl Comparison {
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
    /// The trials that cross it. A figure that is `null` is never crossed.
    pub fn crossings(&self, study: &Study) -> Vec<Crossing> {
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
                    trial: format!("{}, repeat {}", trial.treatment, trial.repeat),
                    value,
                })
            })
            .collect()
    }

    /// Whether no trial has its figure, so that it could not be crossed: a slip of the pen, a load
    /// that does not tell it, or trials that did not get so far.
    pub fn is_void(&self, study: &Study) -> bool {
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
    fn constants_are_read_in_the_unit_of_their_figure() {
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
    fn a_figure_that_does_not_exist_is_refused_with_those_that_do() {
        let error = "settled>3".parse::<Threshold>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("a trial has no figure `settled`: it has baseline_bytes, ")
        );
    }

    #[test]
    fn nonsense_is_refused() {
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
}
