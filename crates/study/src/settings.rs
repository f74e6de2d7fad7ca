//! The settings of a study, as a study file or the command line gives them. Each is one field of
//! [`Settings`], with its help, its flag and its key.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use thiserror::Error;

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
    #[serde(alias = "rounds_alike")]
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

/// The reason why a study file is invalid.
#[derive(Debug, Error)]
pub enum FileError {
    /// It could not be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// It is malformed.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The reason.
        message: String,
    },
    /// A parameter was set that the file does not define.
    #[error("{} has no parameter `{name}`: it has {known}", path.display())]
    NoSuchParameter {
        /// The file.
        path: PathBuf,
        /// The name of the parameter.
        name: String,
        /// The parameters of the file.
        known: String,
    },
    /// A list of allocators or settings was given together with a file that describes its
    /// treatments.
    #[error("{} describes its treatments itself: choose among them with --only", .0.display())]
    DescribesTreatments(PathBuf),
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
    /// Reads a study file. `set` has values for its parameters. In its strings, `{study}` is the
    /// directory of the file, and `{cache}` a directory in `cache` for data that the study can
    /// create again.
    ///
    /// # Errors
    /// Fails if it cannot be read, or is malformed; the error then has the line and the column.
    pub fn read(path: &Path, set: &[(String, String)], cache: &Path) -> Result<Self, FileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| FileError::Unreadable { path: path.to_owned(), error })?;
        let malformed = |error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            let (line, column) = place(&text, at);
            // The parser's message may have a second line with an explanation.
            let message = error.message().trim().replace('\n', "; ");
            FileError::Malformed { path: path.to_owned(), line, column, message }
        };
        let unfilled: Self = toml::from_str(&text).map_err(malformed)?;
        let mut parameters = unfilled.parameters;
        for (name, value) in set {
            let Some(slot) = parameters.get_mut(name) else {
                let known: Vec<&str> = parameters.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let (path, name) = (path.to_owned(), name.clone());
                return Err(FileError::NoSuchParameter { path, name, known });
            };
            *slot = toml::Value::String(value.clone());
        }
        let home = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let home = std::path::absolute(home).unwrap_or_else(|_| home.to_owned());
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let cache = cache.join("studies").join(&stem);
        let places = vec![
            ("{study}".to_owned(), home.display().to_string()),
            ("{cache}".to_owned(), cache.display().to_string()),
        ];
        let table: toml::Table = toml::from_str(&text).map_err(malformed)?;
        let table = filled_in(table, &parameters, &places);
        let mut settings: Self = table.try_into().map_err(malformed)?;
        settings.paths().for_each(|path| *path = home.join(&path));
        settings.directory.get_or_insert(home);
        settings.name.get_or_insert(stem);
        Ok(Self { parameters, places, ..settings })
    }

    /// Returns the paths, which in a file are relative to its directory.
    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let single = [&mut self.baseline, &mut self.directory, &mut self.output];
        single.into_iter().flatten().chain(self.beside.iter_mut().flatten())
    }

    /// Checks that flags may override the settings of a file. If the file describes all its
    /// treatments, with their own commands, a list of allocators would add the bare command as the
    /// reference.
    ///
    /// # Errors
    /// Fails if they name allocators or settings, and the file names none but describes its
    /// treatments.
    pub fn admit(&self, path: &Path, flags: &Self) -> Result<(), FileError> {
        let names = |settings: &Self| settings.allocator.is_some() || settings.tune.is_some();
        match self.treatment.is_empty() || names(self) || !names(flags) {
            true => Ok(()),
            false => Err(FileError::DescribesTreatments(path.to_owned())),
        }
    }

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

/// Replaces the parameters and placeholders in all strings of a study file, but not in the
/// parameters themselves.
fn filled_in(
    table: toml::Table,
    parameters: &BTreeMap<String, toml::Value>,
    places: &[(String, String)],
) -> toml::Table {
    let parameters = parameters.iter().map(|(name, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (format!("{{{name}}}"), text)
    });
    let values: Vec<(String, String)> = parameters.chain(places.iter().cloned()).collect();
    let fill = |(key, mut value): (String, toml::Value)| {
        if key != "parameters" {
            fill_in(&mut value, &values);
        }
        (key, value)
    };
    table.into_iter().map(fill).collect()
}

fn fill_in(value: &mut toml::Value, values: &[(String, String)]) {
    match value {
        toml::Value::String(text) => {
            for (name, value) in values {
                *text = text.replace(name.as_str(), value);
            }
        }
        toml::Value::Array(items) => items.iter_mut().for_each(|item| fill_in(item, values)),
        toml::Value::Table(items) => items.iter_mut().for_each(|(_, item)| fill_in(item, values)),
        _ => {}
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

/// Returns the line and the column of a byte in a text, both from 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn read(text: &str, set: &[(String, String)]) -> Result<Settings, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("study.toml");
        std::fs::write(&path, text).unwrap();
        let cache = Path::new("/cache");
        Settings::read(&path, set, cache)
            .map_err(|e| e.to_string().replace(&path.display().to_string(), "study.toml"))
    }

    #[test]
    fn an_invalid_key_or_value_is_an_error_with_line_and_column() {
        let error = read("command = [\"x\"]\nrepeats = 3\n", &[]).unwrap_err();
        assert!(
            error.starts_with("study.toml:2:1: unknown field `repeats`, expected one of"),
            "{error}"
        );
        let error = read("command = [\"x\"]\nrepeat = \"three\"\n", &[]).unwrap_err();
        assert!(error.starts_with("study.toml:2:10: invalid type"), "{error}");
        let error = read("command = [\n", &[]).unwrap_err();
        assert!(error.starts_with("study.toml:"), "{error}");
    }

    #[test]
    fn parameters_are_substituted_in_strings_and_can_be_overridden() {
        let text = "command = [\"py\", \"{n}\", \"{\\\"json\\\": 1}\"]\nload = \"l --n {n} ${SHELL}\"\n[parameters]\nn = 300\n";
        let plain = read(text, &[]).unwrap();
        assert_eq!(plain.command.unwrap(), ["py", "300", "{\"json\": 1}"]);
        assert_eq!(plain.load.unwrap(), "l --n 300 ${SHELL}");
        let set = read(text, &[("n".to_owned(), "2000".to_owned())]).unwrap();
        assert_eq!(set.command.unwrap()[1], "2000");
        let error = read(text, &[("m".to_owned(), "1".to_owned())]).unwrap_err();
        assert_eq!(error, "study.toml has no parameter `m`: it has n");
    }

    #[test]
    fn a_treatment_can_have_its_own_arguments_and_hooks() {
        let text = "command = [\"x\"]\n[[treatment]]\nallocator = \"glibc\"\nlabel = \"trim\"\n\
                    args = [\"{n}\"]\nat = [{ moment = \"drained\", name = \"trim\", run = \"do {n}\" }]\n\
                    [parameters]\nn = 3\n";
        let found = read(text, &[]).unwrap().treatment;
        assert_eq!((found[0].args[0].as_str(), found[0].at[0].run.as_str()), ("3", "do 3"));
        let error = read("[[treatment]]\nat = [{ moment = \"drained\" }]\n", &[]).unwrap_err();
        assert!(error.contains("missing field `name`"), "{error}");
    }

    #[test]
    fn a_file_can_disable_recommendations_and_declare_rounds_not_alike() {
        let said = |text: &str| {
            let all = read(text, &[]).unwrap();
            (all.recommend, all.rounds_alike)
        };
        assert_eq!(said("recommend = false\nrounds-alike = false\n"), (Some(false), Some(false)));
        assert_eq!(said("rounds_alike = false\n"), (None, Some(false)));
        assert_eq!(said(""), (None, None));
    }

    #[test]
    fn allocator_flags_are_errors_with_a_file_that_describes_its_treatments() {
        let described = "[[treatment]]\nallocator = \"glibc\"\nlabel = \"axum\"\n";
        let path = Path::new("study.toml");
        let said = |text: &str, flags: &Settings| {
            read(text, &[]).unwrap().admit(path, flags).map_err(|error| error.to_string())
        };
        let allocator = Some(Words::Joined("jemalloc".to_owned()));
        let listed = Settings { allocator, ..Settings::default() };
        let tune = Some(vec!["glibc/arena_max".to_owned()]);
        let tuned = Settings { tune, ..Settings::default() };
        let sentence = "study.toml describes its treatments itself: choose among them with --only";
        for flags in [&listed, &tuned] {
            assert_eq!(said(described, flags), Err(sentence.to_owned()));
            assert_eq!(said(&format!("allocator = \"glibc\"\n{described}"), flags), Ok(()));
            assert_eq!(said("", flags), Ok(()));
        }
        let only = Some(Words::Joined("glibc/axum".to_owned()));
        assert_eq!(said(described, &Settings { only, ..Settings::default() }), Ok(()));
    }

    /// Parses the flags of a command line.
    fn flags(words: &[&str]) -> Flags {
        let command = Flags::augment_args(Command::new("study").no_binary_name(true));
        Flags::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    #[test]
    fn flags_override_the_file() {
        let file = Settings {
            repeat: Some(3),
            seed: Some(1),
            phase: Some(vec!["peak=log:a".to_owned()]),
            tune: Some(vec!["glibc/arena_max".to_owned()]),
            ..Settings::default()
        };
        let given =
            flags(&["--repeat", "5", "--phase", "x=log:b", "--phase", "y=log:c", "--resume"]);
        let both = given.over(file.clone()).unwrap();
        let phase = Some(["x=log:b", "y=log:c"].map(str::to_owned).to_vec());
        assert_eq!(both, Settings { repeat: Some(5), phase, resume: true, ..file.clone() });
        assert_eq!(flags(&[]).over(file.clone()).unwrap(), file);
    }

    /// A study file with all keys.
    const ALL_KEYS: &str = r#"
        about = "a"
        command = ["sh", "-c", "true"]
        against = "sh -c false"
        directory = "relative/d"
        environment = { A = "1", B = "2" }
        parameters = { n = 3 }
        setup = "make"
        allocator = "glibc"
        tune = ["glibc/arena_max"]
        policy = "none"
        treatment = [{ allocator = "glibc", label = "x" }]
        only = "glibc"
        figures = "http://h/"
        load = "wrk -c {n}"
        ready = "after:5s"
        phase = ["peak=log:a", "settled=log:b"]
        prepare = "p"
        cleanup = "c"
        warmup = 1
        rounds = 2
        pause = "1s"
        settle = "2s"
        repeat = 4
        interval = "50ms"
        timeout = "1m"
        seed = 5
        max-slowdown = "1%"
        output = "relative/o"
        fail-on = ["load.failed>0"]
        baseline = "relative/b"
        tolerance = "2%"
        name = "n"
        beside = ["relative/1", "relative/2"]
        recommend = false
        rounds-alike = false
        open-files = "{n}"
    "#;

    /// Returns the keys of a study file, and the flags, by their names.
    fn all_names() -> BTreeSet<String> {
        let error = toml::from_str::<Settings>("no-such-key = 1").unwrap_err().to_string();
        let keys = error.split('`').skip(1).step_by(2).skip(1);
        let keys =
            keys.filter(|key| !["rounds_alike", "no-such-key"].contains(key)).map(str::to_owned);
        let command = Settings::augment_args(Command::new("study"));
        let flags = command.get_arguments().filter_map(|flag| flag.get_long().map(str::to_owned));
        keys.chain(flags).collect()
    }

    #[test]
    fn every_setting_is_a_condition_or_excluded_by_name() {
        let known = all_names();
        let stale: Vec<&str> =
            NOT_CONDITIONS.into_iter().filter(|name| !known.contains(*name)).collect();
        assert_eq!(stale, [""; 0], "no longer settings");
        let conditions = read(ALL_KEYS, &[]).unwrap().conditions().unwrap();
        for name in known {
            let is_excluded = NOT_CONDITIONS.contains(&name.as_str());
            assert_ne!(conditions.contains_key(&name), is_excluded, "{name}");
        }
    }

    #[test]
    fn conditions_are_formatted_as_in_earlier_records() {
        let conditions = read(ALL_KEYS, &[]).unwrap().conditions().unwrap();
        let text = |name: &str| conditions[name].as_str();
        assert_eq!(text("command"), "sh -c true");
        assert_eq!(text("environment"), "A=1 B=2");
        assert_eq!(text("load"), "wrk -c 3");
        assert_eq!(text("phase"), "peak=log:a settled=log:b");
        assert!(text("directory").ends_with("/relative/d"));
        assert_eq!(Settings::default().conditions().unwrap(), BTreeMap::new());
    }

    #[test]
    fn paths_in_a_file_are_resolved_relative_to_its_directory() {
        let shown = format!("{:?}", read(ALL_KEYS, &[]).unwrap());
        assert_eq!(shown.matches("relative/").count(), 5);
        assert_eq!(shown.matches("/relative/").count(), 5, "{shown}");
    }

    #[test]
    fn the_help_shows_the_defaults() {
        let mut command = Settings::augment_args(Command::new("study"));
        let help = command.render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let seconds = |time: Duration| format!("{}s", time.as_secs());
        for default in [
            DEFAULT_ALLOCATORS.to_owned(),
            DEFAULT_REPEATS.to_string(),
            seconds(DEFAULT_PAUSE),
            seconds(DEFAULT_SETTLE),
            format!("{}ms", DEFAULT_INTERVAL.as_millis()),
            format!("{}m", DEFAULT_TIMEOUT.as_secs() / 60),
            format!("{:.0}%", DEFAULT_MAX_SLOWDOWN * 100.0),
            format!("{:.0}%", DEFAULT_TOLERANCE * 100.0),
        ] {
            // Another default may follow, for other flags.
            let is_said =
                [']', ';'].iter().any(|end| help.contains(&format!("[default: {default}{end}")));
            assert!(is_said, "{default}");
        }
    }
}
