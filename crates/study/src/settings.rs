//! What a study is asked to do, as it is written: by flags, by a file, or by both. The words are the
//! same in both, and flags win.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

/// What can be asked of a study. Nothing is checked yet: see [`crate::plan::Plan::of`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Settings {
    /// The study's name, for titles and for the name of its record.
    pub name: Option<String>,
    /// What the study asks, for the report.
    pub about: Option<String>,
    /// The command under study.
    pub command: Option<Vec<String>>,
    /// The working directory of everything that the study starts.
    pub directory: Option<PathBuf>,
    /// Variables for the subject.
    pub environment: BTreeMap<String, String>,
    /// Values that stand as `{name}` in the strings of a file.
    pub parameters: BTreeMap<String, toml::Value>,
    /// A command that is run once, before the first trial.
    pub setup: Option<String>,
    /// The allocators.
    pub allocator: Option<Words>,
    /// Settings of them: one more treatment each.
    pub tune: Option<Vec<String>>,
    /// Policies.
    pub policy: Option<Words>,
    /// Treatments that take more than an allocator and variables. Only a file has them.
    pub treatment: Vec<TreatmentSettings>,
    /// Of all treatments, only those with these labels.
    pub only: Option<Words>,
    /// Where the subject tells its own figures: an `http:` address, or a file.
    pub figures: Option<String>,
    /// A command that loads the subject.
    pub load: Option<String>,
    /// When the subject is ready.
    pub ready: Option<String>,
    /// Lines of the subject that begin a phase.
    pub phase: Option<Vec<String>>,
    /// A command before each trial.
    pub prepare: Option<String>,
    /// A command after each trial.
    pub cleanup: Option<String>,
    /// Rounds of the load before the baseline.
    pub warmup: Option<u32>,
    /// Rounds of the load.
    pub rounds: Option<u32>,
    /// Time between two rounds.
    pub pause: Option<String>,
    /// Time after the last round.
    pub settle: Option<String>,
    /// How often each treatment is tried.
    pub repeat: Option<u32>,
    /// Time between two samples.
    pub interval: Option<String>,
    /// The longest that a trial may take.
    pub timeout: Option<String>,
    /// What the order is drawn from.
    pub seed: Option<u64>,
    /// What the recommendation may cost.
    pub max_slowdown: Option<String>,
    /// The directory of the record.
    pub output: Option<PathBuf>,
    /// Thresholds.
    pub fail_on: Option<Vec<String>>,
    /// An earlier record to compare with.
    pub baseline: Option<PathBuf>,
    /// By how much a figure may have grown since.
    pub tolerance: Option<String>,
    /// Records to draw beside this one.
    pub beside: Option<Vec<PathBuf>>,
    /// Whether one of the treatments is recommended; not where they are other workloads. Only a file has it.
    pub recommend: Option<bool>,
    /// Whether the rounds of the load are alike; where they are not, what stays after each says nothing of
    /// growth. Only a file has it.
    #[serde(alias = "rounds_alike")]
    pub rounds_alike: Option<bool>,
    /// How many files each process that the study starts must be able to have open.
    pub open_files: Option<Number>,
    /// Which part of the trials is run, such as `1/4`. Only flags have it.
    #[serde(skip)]
    pub shard: Option<String>,
    /// Whether a record that was begun is gone on with. Only flags have it.
    #[serde(skip)]
    pub resume: bool,
    /// The directories that stand as `{study}` and `{cache}`.
    #[serde(skip)]
    pub places: Vec<(String, String)>,
}

/// A treatment that takes more than an allocator and variables.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TreatmentSettings {
    /// One, or several, each of which makes a treatment: as in the list of allocators; `own` is whatever the
    /// command itself brings.
    pub allocator: Words,
    /// What stands behind the allocator's name in its label.
    pub label: Option<String>,
    /// Variables for the subject.
    pub environment: BTreeMap<String, String>,
    /// The command under study, in place of the study's.
    pub command: Option<Vec<String>>,
    /// More arguments for it.
    pub args: Vec<String>,
    /// When memory is released, in a few words.
    pub policy: Option<String>,
    /// What is done at a moment of the trial.
    pub at: Vec<ActSettings>,
    /// A command (for the shell) that says by its exit code whether the treatment can be tried here;
    /// otherwise it is left out.
    pub when: Option<String>,
}

/// Something that is done to the subject at a moment of the trial.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ActSettings {
    /// The moment: `ready`, `drained`, `closed`, `load_end`, or a phase of the subject.
    pub moment: String,
    /// What it is called, in charts as well.
    pub name: String,
    /// The command, for the shell.
    pub run: String,
}

/// A list that is written as one, or as words between commas.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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
    /// The words between commas.
    pub fn joined(&self) -> String {
        match self {
            Self::Joined(text) => text.clone(),
            Self::Listed(words) => words.join(","),
        }
    }

    fn each(&mut self, mut of: impl FnMut(&mut String)) {
        match self {
            Self::Joined(text) => of(text),
            Self::Listed(words) => words.iter_mut().for_each(of),
        }
    }
}

/// A number, or a parameter that stands for one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// `3000`.
    Plain(u64),
    /// `"{connections}"`.
    Written(String),
}

/// Why a study file was not understood.
#[derive(Debug, Error)]
pub enum FileError {
    /// It could not be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is not what a study file should be.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// A parameter was set that the file does not have.
    #[error("{} has no parameter `{name}`: it has {known}", path.display())]
    NoSuchParameter {
        /// The file.
        path: PathBuf,
        /// What was set.
        name: String,
        /// What there is.
        known: String,
    },
    /// A list of allocators or settings was given beside a file that describes its treatments.
    #[error("{} describes its treatments itself: choose among them with --only", .0.display())]
    DescribesTreatments(PathBuf),
}

impl Settings {
    /// Reads a study file. `set` are values for its parameters; `cache` is a directory in which the
    /// study may keep what it can make again, and stands as `{cache}` in its strings, as `{study}`
    /// stands for the directory of the file.
    ///
    /// # Errors
    /// When it cannot be read, or is malformed; then with line and column.
    pub fn read(path: &Path, set: &[(String, String)], cache: &Path) -> Result<Self, FileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| FileError::Unreadable { path: path.to_owned(), error })?;
        let mut settings: Self = toml::from_str(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let (line, column) = place(&text, at);
            // The parser's sentence may have a second line with an explanation.
            let message = error.message().trim().replace('\n', "; ");
            FileError::Malformed { path: path.to_owned(), line, column, message }
        })?;
        for (name, value) in set {
            let Some(slot) = settings.parameters.get_mut(name) else {
                let known: Vec<&str> = settings.parameters.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let (path, name) = (path.to_owned(), name.clone());
                return Err(FileError::NoSuchParameter { path, name, known });
            };
            *slot = toml::Value::String(value.clone());
        }
        let home = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let home = std::path::absolute(home).unwrap_or_else(|_| home.to_owned());
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        settings.fill_in(&home, &cache.join("studies").join(&stem));
        settings.name.get_or_insert(stem);
        Ok(settings)
    }

    /// Puts the values of parameters in their places, and takes paths from the file's directory.
    fn fill_in(&mut self, home: &Path, cache: &Path) {
        let mut values: Vec<(String, String)> = self
            .parameters
            .iter()
            .map(|(name, value)| {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                (format!("{{{name}}}"), text)
            })
            .collect();
        self.places = vec![
            ("{study}".to_owned(), home.display().to_string()),
            ("{cache}".to_owned(), cache.display().to_string()),
        ];
        values.extend(self.places.iter().cloned());
        let fill = |text: &mut String| {
            for (name, value) in &values {
                *text = text.replace(name.as_str(), value);
            }
        };
        let texts = [
            &mut self.name,
            &mut self.about,
            &mut self.setup,
            &mut self.figures,
            &mut self.load,
            &mut self.ready,
            &mut self.prepare,
            &mut self.cleanup,
            &mut self.pause,
            &mut self.settle,
            &mut self.timeout,
            &mut self.interval,
            &mut self.max_slowdown,
            &mut self.tolerance,
        ];
        texts.into_iter().flatten().for_each(fill);
        let lists = [&mut self.command, &mut self.tune, &mut self.phase, &mut self.fail_on];
        lists.into_iter().flatten().flatten().for_each(fill);
        self.environment.values_mut().for_each(fill);
        for words in [&mut self.allocator, &mut self.policy, &mut self.only].into_iter().flatten() {
            words.each(fill);
        }
        if let Some(Number::Written(text)) = &mut self.open_files {
            fill(text);
        }
        self.treatment.iter_mut().for_each(|one| one.each(fill));
        let mut path = |path: &mut PathBuf| {
            let mut text = path.display().to_string();
            fill(&mut text);
            *path = home.join(text);
        };
        self.beside.iter_mut().flatten().for_each(&mut path);
        self.baseline.iter_mut().for_each(&mut path);
        self.directory.iter_mut().for_each(&mut path);
        self.output.iter_mut().for_each(&mut path);
        self.directory.get_or_insert_with(|| home.to_owned());
    }

    /// Whether flags may be laid over the settings of a file. To treatments that the file describes alone, with
    /// commands of their own, a list of allocators would add the bare command, and make it the reference.
    ///
    /// # Errors
    /// When they name allocators or settings, and the file names none but describes its treatments.
    pub fn admit(&self, path: &Path, flags: &Self) -> Result<(), FileError> {
        let names = |settings: &Self| settings.allocator.is_some() || settings.tune.is_some();
        match self.treatment.is_empty() || names(self) || !names(flags) {
            true => Ok(()),
            false => Err(FileError::DescribesTreatments(path.to_owned())),
        }
    }

    /// Lays other settings over these: what they name wins.
    #[must_use]
    pub fn overridden_by(self, other: Self) -> Self {
        let mut environment = self.environment;
        environment.extend(other.environment);
        let mut parameters = self.parameters;
        parameters.extend(other.parameters);
        Self {
            name: other.name.or(self.name),
            about: other.about.or(self.about),
            command: other.command.or(self.command),
            directory: other.directory.or(self.directory),
            environment,
            parameters,
            setup: other.setup.or(self.setup),
            allocator: other.allocator.or(self.allocator),
            tune: other.tune.or(self.tune),
            policy: other.policy.or(self.policy),
            treatment: if other.treatment.is_empty() { self.treatment } else { other.treatment },
            only: other.only.or(self.only),
            figures: other.figures.or(self.figures),
            load: other.load.or(self.load),
            ready: other.ready.or(self.ready),
            phase: other.phase.or(self.phase),
            prepare: other.prepare.or(self.prepare),
            cleanup: other.cleanup.or(self.cleanup),
            warmup: other.warmup.or(self.warmup),
            rounds: other.rounds.or(self.rounds),
            pause: other.pause.or(self.pause),
            settle: other.settle.or(self.settle),
            repeat: other.repeat.or(self.repeat),
            interval: other.interval.or(self.interval),
            timeout: other.timeout.or(self.timeout),
            seed: other.seed.or(self.seed),
            max_slowdown: other.max_slowdown.or(self.max_slowdown),
            output: other.output.or(self.output),
            fail_on: other.fail_on.or(self.fail_on),
            baseline: other.baseline.or(self.baseline),
            tolerance: other.tolerance.or(self.tolerance),
            beside: other.beside.or(self.beside),
            recommend: other.recommend.or(self.recommend),
            rounds_alike: other.rounds_alike.or(self.rounds_alike),
            open_files: other.open_files.or(self.open_files),
            shard: other.shard.or(self.shard),
            resume: other.resume || self.resume,
            places: if other.places.is_empty() { self.places } else { other.places },
        }
    }
}

impl TreatmentSettings {
    /// Every text in it that may hold a parameter.
    fn each(&mut self, mut of: impl FnMut(&mut String)) {
        let single = [&mut self.label, &mut self.policy, &mut self.when].into_iter().flatten();
        let acts =
            self.at.iter_mut().flat_map(|act| [&mut act.moment, &mut act.name, &mut act.run]);
        self.allocator.each(&mut of);
        single
            .chain(self.environment.values_mut())
            .chain(self.command.iter_mut().flatten())
            .chain(&mut self.args)
            .chain(acts)
            .for_each(of);
    }
}

/// Line and column, both from 1, of a byte in a text.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, set: &[(String, String)]) -> Result<Settings, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("study.toml");
        std::fs::write(&path, text).unwrap();
        let cache = Path::new("/cache");
        Settings::read(&path, set, cache)
            .map_err(|e| e.to_string().replace(&path.display().to_string(), "study.toml"))
    }

    #[test]
    fn a_wrong_key_is_told_with_line_and_column() {
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
    fn parameters_stand_in_the_strings_and_can_be_set() {
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
    fn a_treatment_has_a_command_of_its_own_and_acts_at_moments() {
        let text = "command = [\"x\"]\n[[treatment]]\nallocator = \"glibc\"\nlabel = \"trim\"\n\
                    args = [\"{n}\"]\nat = [{ moment = \"drained\", name = \"trim\", run = \"do {n}\" }]\n\
                    [parameters]\nn = 3\n";
        let found = read(text, &[]).unwrap().treatment;
        assert_eq!((found[0].args[0].as_str(), found[0].at[0].run.as_str()), ("3", "do 3"));
        let error = read("[[treatment]]\nat = [{ moment = \"drained\" }]\n", &[]).unwrap_err();
        assert!(error.contains("missing field `name`"), "{error}");
    }

    #[test]
    fn a_file_says_that_nothing_is_recommended_and_that_its_rounds_are_not_alike() {
        let said = |text: &str| {
            let all = read(text, &[]).unwrap().overridden_by(Settings::default());
            (all.recommend, all.rounds_alike)
        };
        assert_eq!(said("recommend = false\nrounds-alike = false\n"), (Some(false), Some(false)));
        assert_eq!(said("rounds_alike = false\n"), (None, Some(false)));
        assert_eq!(said(""), (None, None));
    }

    #[test]
    fn allocators_are_not_added_to_a_file_that_describes_its_treatments() {
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

    #[test]
    fn flags_win_over_the_file() {
        let file = Settings { repeat: Some(3), seed: Some(1), ..Settings::default() };
        let flags = Settings { repeat: Some(5), ..Settings::default() };
        let both = file.overridden_by(flags);
        assert_eq!((both.repeat, both.seed), (Some(5), Some(1)));
    }
}
