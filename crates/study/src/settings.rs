//! The settings of a study, as a study file or the command line gives them. Each is one field of
//! [`Settings`], with its help, its flag and its key.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

mod file;

/// The allocators of a study that names none.
pub(crate) const DEFAULT_ALLOCATORS: &str = "glibc,jemalloc,mimalloc";
/// Trials per treatment by default: the fewest that show a spread.
pub(crate) const DEFAULT_REPEATS: u32 = 3;
/// Time between two rounds by default.
pub(crate) const DEFAULT_PAUSE: Duration = Duration::from_secs(10);
/// Time after the last round by default.
pub(crate) const DEFAULT_SETTLE: Duration = Duration::from_secs(10);
/// Time between two samples by default.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum duration of a trial by default.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
/// Cost that a recommendation may have by default, as a ratio.
pub(crate) const DEFAULT_MAX_SLOWDOWN: f64 = 0.05;
/// Permitted growth of a metric since an earlier study by default, as a ratio.
pub(crate) const DEFAULT_TOLERANCE: f64 = 0.10;
/// Difference between two versions that does not matter by default, as a ratio.
pub(crate) const DEFAULT_TOLERANCE_AGAINST: f64 = 0.01;

/// The settings of a study, unchecked: see [`crate::Plan::new`].
///
/// The doc of a flag is its help. A field without a flag is `arg(skip)`, one without a key
/// `serde(skip)`. A new field is a condition of its trials (see `Settings::conditions`) unless
/// `NOT_CONDITIONS` names it. A path that is not a condition is not serialized, since it may not be
/// UTF-8.
#[derive(Debug, Clone, Default, PartialEq, Args, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Settings {
    /// The question of the study, for the report.
    #[arg(skip)]
    pub about: Option<String>,

    /// The command under study. The command line has it after `--`.
    #[arg(skip)]
    pub command: Option<Vec<String>>,

    /// Compare the command with this older version of it
    ///
    /// The two run in alternation.
    /// The report compares the memory that stays, the peak, and the memory of each owner. The
    /// program is started without a shell, as the command is. Both keep their own allocator, unless
    /// -a names one. Differences below --tolerance do not matter. With fewer than 10 repeats,
    /// nothing is decided.
    #[arg(long, value_name = "CMD", help_heading = "Treatments")]
    pub against: Option<Words>,

    /// The working directory of everything that the study starts.
    #[arg(skip)]
    #[serde(serialize_with = "lossy")]
    pub directory: Option<PathBuf>,

    /// Variables for the subject.
    #[arg(skip)]
    pub environment: BTreeMap<String, String>,

    /// Values that replace `{name}` in the strings of a file. `--set` overrides them.
    #[arg(skip)]
    pub parameters: BTreeMap<String, toml::Value>,

    /// A command that runs once, before the first trial.
    #[arg(skip)]
    pub setup: Option<String>,

    /// glibc, jemalloc, mimalloc, mimalloc2, tcmalloc, all, or NAME=/path/lib.so [default:
    /// glibc,jemalloc,mimalloc]
    ///
    /// The first is the reference.
    /// glibc=/path/to/libdir is another version: its loader and libraries.
    #[arg(short, long, value_name = "LIST", help_heading = "Treatments")]
    pub allocator: Option<Words>,

    /// A setting, which adds a treatment: 'ALLOCATOR/LABEL: ENV=VALUE …', or a preset such as
    /// glibc/arena_max=2 (repeatable; --help has all presets)
    #[arg(short, long, value_name = "TUNE", help_heading = "Treatments")]
    pub tune: Option<Vec<String>>,

    /// Policies that release memory: none, adaptive, pressure, periodic=30s, freed=1GiB
    /// [default: none]
    ///
    /// Each is combined with each allocator and setting. `lowtide run --help` describes them.
    #[arg(short, long, value_name = "LIST", help_heading = "Treatments")]
    pub policy: Option<Words>,

    /// Treatments with more than an allocator and variables.
    #[arg(skip)]
    pub treatment: Vec<TreatmentSettings>,

    /// Run only the treatments with these labels, such as glibc,glibc/arena_max
    #[arg(long, value_name = "LIST", help_heading = "Treatments", hide_short_help = true)]
    pub only: Option<Words>,

    /// Metrics of the subject itself: an http: URL or a file with a JSON object of numbers
    ///
    /// They are sampled into the record; inner_memory_bytes and alive_tasks are drawn.
    #[arg(long, value_name = "URL|FILE", help_heading = "Trials", hide_short_help = true)]
    pub figures: Option<String>,

    /// Shell command that puts a load on the command
    ///
    /// Without it, the command makes its own load.
    #[arg(long, value_name = "CMD", help_heading = "Trials")]
    pub load: Option<String>,

    /// Condition for the start of the load: tcp:HOST:PORT, http:URL, log:REGEX or after:5s
    #[arg(long, value_name = "CONDITION", help_heading = "Trials")]
    pub ready: Option<String>,

    /// A line of the subject's output that starts a phase (repeatable)
    ///
    /// A phase named baseline, peak, load_end or settled replaces the moment of the same name.
    #[arg(long, value_name = "NAME=log:REGEX", help_heading = "Trials", hide_short_help = true)]
    pub phase: Option<Vec<String>>,

    /// Shell command before each trial
    #[arg(long, value_name = "CMD", help_heading = "Trials", hide_short_help = true)]
    pub prepare: Option<String>,

    /// Shell command after each trial
    #[arg(long, value_name = "CMD", help_heading = "Trials", hide_short_help = true)]
    pub cleanup: Option<String>,

    /// Rounds of the load before the baseline [default: 0]
    #[arg(long, value_name = "COUNT", help_heading = "Trials", hide_short_help = true)]
    pub warmup: Option<u32>,

    /// Rounds of the load [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = "Trials")]
    pub rounds: Option<u32>,

    /// Time between two rounds [default: 10s]
    #[arg(long, value_name = "DURATION", help_heading = "Trials")]
    pub pause: Option<String>,

    /// Time after the last round [default: 10s]
    ///
    /// For a command that makes its own load: the time after its phase load_end. Without such a
    /// phase, the trial lasts until the command ends.
    #[arg(long, value_name = "DURATION", help_heading = "Trials")]
    pub settle: Option<String>,

    /// Number of trials of each treatment [default: 3; with --against: 10]
    ///
    /// With fewer than 6, the report shows ranges; with 6 or more, confidence intervals.
    #[arg(long, value_name = "COUNT", help_heading = "Trials")]
    pub repeat: Option<u32>,

    /// Time between two samples [default: 100ms]
    #[arg(long, value_name = "DURATION", help_heading = "Trials", hide_short_help = true)]
    pub interval: Option<String>,

    /// Maximum duration of a trial [default: 10m]
    #[arg(long, value_name = "DURATION", help_heading = "Trials", hide_short_help = true)]
    pub timeout: Option<String>,

    /// Seed of the random order of the trials [default: 0]
    #[arg(long, value_name = "SEED", help_heading = "Trials", hide_short_help = true)]
    pub seed: Option<u64>,

    /// Maximum cost of the recommended treatment in CPU time and latency [default: 5%]
    #[arg(long, value_name = "SHARE", help_heading = "Results", hide_short_help = true)]
    pub max_slowdown: Option<String>,

    /// Directory of the record
    ///
    /// By default lowtide-NAME-DATE-TIME. Without --resume, it must be empty or not exist.
    #[arg(short, long, value_name = "DIR", help_heading = "Results")]
    #[serde(skip_serializing)]
    pub output: Option<PathBuf>,

    /// Continue the record in --output, or start it if there is none
    ///
    /// Trials that were interrupted or failed are run again. --repeat may be larger than before.
    #[arg(long, help_heading = "Results")]
    #[serde(skip)]
    pub resume: bool,

    /// Run only part I of N, such as 1/4
    ///
    /// Each part has whole repeats. `lowtide report PART1 PART2 …` combines the parts.
    #[arg(long, value_name = "I/N", help_heading = "Results", hide_short_help = true)]
    #[serde(skip)]
    pub shard: Option<String>,

    /// Minimum limit of open files for each process of the study
    ///
    /// The soft limit is raised to it. The study does not start if that is not permitted.
    #[arg(
        long,
        value_name = "COUNT",
        help_heading = "Trials",
        hide_short_help = true,
        value_parser = clap::value_parser!(u64).range(1..).map(Number::Plain)
    )]
    pub open_files: Option<Number>,

    /// Exit with 99 if a trial crosses this threshold, such as settled_bytes>500MiB (repeatable)
    ///
    /// Others: settled_ratio>0.3, load.failed>0; with --against also worse, difference>5% or
    /// peak_difference>20MiB.
    #[arg(long, value_name = "EXPR", help_heading = "Results")]
    pub fail_on: Option<Vec<String>>,

    /// Exit with 99 if settled or peak memory has grown since this record
    #[arg(long, value_name = "DIR", help_heading = "Results", hide_short_help = true)]
    #[serde(skip_serializing)]
    pub baseline: Option<PathBuf>,

    /// Permitted growth since the record of --baseline [default: 10%], or difference from
    /// --against that does not matter [default: 1%]
    #[arg(long, value_name = "SHARE", help_heading = "Results", hide_short_help = true)]
    pub tolerance: Option<String>,

    /// Name of the study, for titles [default: that of the program or of the file]
    #[arg(long, value_name = "NAME", help_heading = "Results", hide_short_help = true)]
    pub name: Option<String>,

    /// Records to draw beside this one.
    #[arg(skip)]
    #[serde(skip_serializing)]
    pub beside: Option<Vec<PathBuf>>,

    /// Whether one of the treatments is recommended; not if they are different workloads.
    #[arg(skip)]
    pub recommend: Option<bool>,

    /// Whether the rounds of the load are alike. If not, the memory after each does not show
    /// growth.
    #[arg(skip)]
    pub rounds_alike: Option<bool>,

    /// The directories that replace `{study}` and `{cache}`.
    #[arg(skip)]
    #[serde(skip)]
    pub places: Vec<(String, String)>,
}

/// A treatment with more than an allocator and variables.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TreatmentSettings {
    /// One or several, as in the list of allocators; each makes a treatment. `own` is the allocator
    /// that the command itself brings, whichever it is.
    pub allocator: Words,
    /// The text after the allocator's name in its label.
    pub label: Option<String>,
    /// Variables for the subject.
    pub environment: BTreeMap<String, String>,
    /// The command under study, which replaces the study's.
    pub command: Option<Vec<String>>,
    /// Additional arguments of the command.
    pub args: Vec<String>,
    /// The policy that releases memory; any other text is a label for the time at which hooks
    /// release it.
    pub policy: Option<String>,
    /// Commands at moments of the trial.
    pub at: Vec<HookSettings>,
    /// A shell command that exits with 0 if the treatment can be tried here; otherwise the
    /// treatment is omitted.
    pub when: Option<String>,
}

/// A command that affects the subject at a moment of the trial.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HookSettings {
    /// The moment: `ready`, `drained`, `closed`, `load_end`, or a phase of the subject.
    pub moment: String,
    /// Its name, also in charts.
    pub name: String,
    /// The command, for the shell.
    pub run: String,
}

/// A list that is written as one text with commas, or as several words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Words {
    /// `"glibc,jemalloc"`.
    Joined(String),
    /// `["glibc", "jemalloc"]`.
    Listed(Vec<String>),
}

impl Default for Words {
    fn default() -> Self {
        Self::Joined(String::new())
    }
}

impl Words {
    /// Returns the words, separated by commas.
    pub fn joined(&self) -> String {
        match self {
            Self::Joined(text) => text.clone(),
            Self::Listed(words) => words.join(","),
        }
    }
}

impl FromStr for Words {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::Joined(text.to_owned()))
    }
}

/// A number, or a parameter that stands for one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Number {
    /// `3000`.
    Plain(u64),
    /// `"{connections}"`.
    Written(String),
}

/// The settings that do not affect a trial, or are recorded apart from the conditions.
pub(crate) const NOT_CONDITIONS: [&str; 27] = [
    // The record's plan has a field for each; the treatments have their own conditions.
    "allocator",
    "tune",
    "policy",
    "treatment",
    "against",
    "only",
    "warmup",
    "rounds",
    "pause",
    "settle",
    "interval",
    "seed",
    "shard",
    // These only add trials of the same kind, or time for a trial that took too long.
    "repeat",
    "timeout",
    // Their values are already in the strings that use them.
    "parameters",
    // The location of the record, and its use.
    "name",
    "about",
    "output",
    "resume",
    "max-slowdown",
    "fail-on",
    "baseline",
    "tolerance",
    "beside",
    "recommend",
    "rounds-alike",
];

impl Settings {
    /// Returns the settings that bear on a trial, by their keys, as texts: all but
    /// [`NOT_CONDITIONS`].
    ///
    /// # Errors
    /// Fails if one of them is a path that is not UTF-8.
    pub(crate) fn conditions(&self) -> serde_json::Result<BTreeMap<String, String>> {
        let mut keys: BTreeMap<String, Value> =
            serde_json::from_value(serde_json::to_value(self)?)?;
        keys.retain(|key, _| !NOT_CONDITIONS.contains(&key.as_str()));
        Ok(keys.into_iter().filter_map(|(key, value)| Some((key, text_of(value)?))).collect())
    }
}

/// Returns a setting as one text; `None` if it is not given.
fn text_of(value: Value) -> Option<String> {
    let list = |items: Vec<String>| Some(items.join(" ")).filter(|text| !text.is_empty());
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        Value::Array(items) => list(items.into_iter().filter_map(text_of).collect()),
        Value::Object(items) => list(
            items
                .into_iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", text_of(value)?)))
                .collect(),
        ),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
    }
}

/// Serializes a path that may not be UTF-8.
fn lossy<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(serializer)
}

/// The settings of the command line. They override those of a file, one by one.
#[derive(Debug, Clone, Default)]
pub struct Flags(ArgMatches);

impl Flags {
    /// Returns the settings, overridden by those of the command line.
    ///
    /// # Errors
    /// Never fails, since the parser has accepted each value as a setting's.
    pub fn over(&self, mut settings: Settings) -> Result<Settings, clap::Error> {
        settings.update_from_arg_matches(&self.0)?;
        Ok(settings)
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        Settings::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args_for_update(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = matches.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
