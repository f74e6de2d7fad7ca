//! A checked study, ready to run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lowtide_analysis::threshold::Threshold;
use lowtide_analysis::versions::FEWEST_PAIRS;
use lowtide_record::plan::{self, CONTENTS};
use lowtide_record::shard::{Shard, ShardError};

use crate::contents::contents;
use crate::error::{Obstacle, PlanError};
use crate::metrics_source::MetricsSource;
use crate::order;
use crate::programs::{find_program, first_word, is_command};
use crate::settings::{
    DEFAULT_INTERVAL, DEFAULT_MAX_SLOWDOWN, DEFAULT_REPEATS, DEFAULT_TOLERANCE,
    DEFAULT_TOLERANCE_AGAINST, Number, Settings,
};
use crate::timeline::{Phase, TrialTimeline, phases, time, within};
use crate::treatment::ResolvedTreatment;
use crate::treatment::launch::inherited_settings;
use crate::treatment::resolve::{check_moments, keep_only, treatments};
use crate::versions;

/// Minimum time between two samples: at a higher rate, the sampler mainly measures itself.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time between two samples: at a lower rate, the course of the memory is not visible.
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);

/// A checked study: its settings, and the values that were derived from them.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The settings.
    pub settings: Settings,
    /// The study's name.
    pub name: String,
    /// The command under study.
    pub command: Vec<String>,
    /// The treatments; the first is the reference.
    pub treatments: Vec<ResolvedTreatment>,
    /// The timeline of each trial.
    pub timeline: TrialTimeline,
    /// Lines of the subject that start a phase.
    pub phases: Vec<Phase>,
    /// The source of the subject's own metrics.
    pub figures: Option<MetricsSource>,
    /// Trials per treatment.
    pub repeats: u32,
    /// The seed of the order.
    pub seed: u64,
    /// Time between two samples.
    pub interval: Duration,
    /// Maximum cost of a recommendation, as a ratio.
    pub max_slowdown: f64,
    /// Thresholds.
    pub fail_on: Vec<Threshold>,
    /// An earlier record to compare with, and the permitted growth of a metric since then, as a
    /// ratio.
    pub baseline: Option<(PathBuf, f64)>,
    /// Difference between two versions that does not matter, as a ratio.
    tolerance: f64,
    /// The number of files that each started process must be able to have open.
    pub open_files: Option<u64>,
    /// The part of the trials to run; all of them if absent.
    pub shard: Option<Shard>,
    /// The settings that affect a trial, as texts.
    conditions: BTreeMap<String, String>,
    /// Notes for the user, shown before the study starts.
    pub notes: Vec<String>,
}

impl Plan {
    /// Checks settings, and finds the programs and files that they name.
    ///
    /// # Errors
    /// Fails at the first setting that cannot be applied, before anything is started.
    pub fn new(settings: Settings) -> Result<Self, PlanError> {
        let mut settings = versions::as_treatments(settings)?;
        let command =
            settings.command.clone().filter(|c| !c.is_empty()).ok_or(PlanError::NoCommand)?;
        if settings.resume && settings.output.is_none() {
            return Err(PlanError::ResumeWhat);
        }
        let mut notes = Vec::new();
        let mut treatments = treatments(&settings, &mut notes)?;
        if let Some(only) = &settings.only {
            keep_only(&mut treatments, &only.joined())?;
        }
        notes.extend(inherited_settings().into_iter().map(note_on_inherited));
        notes.extend(settings.against.iter().find_map(|_| note_on_versions(&treatments, &command)));
        let phases = phases(settings.phase.as_deref().unwrap_or_default())?;
        check_moments(&treatments, &phases)?;
        let timeline = TrialTimeline::new(&settings, &phases)?;
        let interval = interval(&settings)?;
        let (default_repeats, default_tolerance) = match settings.against {
            Some(_) => (FEWEST_PAIRS, DEFAULT_TOLERANCE_AGAINST),
            None => (DEFAULT_REPEATS, DEFAULT_TOLERANCE),
        };
        let repeats = settings.repeat.unwrap_or(default_repeats);
        within("repeat", repeats, 1)?;
        let shard = settings.shard.as_deref().map(|text| part(text, repeats)).transpose()?;
        let tolerance = ratio("tolerance", settings.tolerance.as_deref(), default_tolerance)?;
        let figures = settings.figures.as_deref().map(MetricsSource::parse).transpose();
        let figures = figures.map_err(|reason| PlanError::Value { flag: "figures", reason })?;
        let max_slowdown =
            ratio("max-slowdown", settings.max_slowdown.as_deref(), DEFAULT_MAX_SLOWDOWN)?;
        let fail_on = thresholds(&settings)?;
        let open_files = settings.open_files.as_ref().map(open_files).transpose()?;
        // The record has the parsed values, independent of their notation.
        settings.ready = timeline.ready.as_ref().map(ToString::to_string);
        settings.phase = Some(phases.iter().map(ToString::to_string).collect());
        settings.open_files = open_files.map(Number::Plain);
        let plan = Self {
            name: settings.name.clone().unwrap_or_else(|| name_of(&command)),
            command,
            treatments,
            timeline,
            phases,
            figures,
            repeats,
            seed: settings.seed.unwrap_or(0),
            interval,
            max_slowdown,
            fail_on,
            baseline: settings.baseline.clone().map(|path| (path, tolerance)),
            tolerance,
            open_files,
            shard,
            conditions: settings.conditions().map_err(PlanError::Unrecordable)?,
            notes,
            settings,
        };
        plan.check_programs()?;
        Ok(plan)
    }

    /// Checks that all programs exist, unless a set-up may still create them.
    fn check_programs(&self) -> Result<(), PlanError> {
        if self.settings.setup.is_some() {
            return Ok(());
        }
        if let Some(program) = self.missing_program() {
            return Err(PlanError::NoSuchCommand(program.to_owned()));
        }
        self.check_shell_commands().map_err(PlanError::NoShellCommand)
    }

    /// Returns the first program that a treatment would start, but that does not exist.
    pub(crate) fn missing_program(&self) -> Option<&str> {
        let path = self.settings.environment.get("PATH");
        self.treatments.iter().find_map(|one| {
            let program = one.own_command().unwrap_or(&self.command).first()?;
            let path = one.variable("PATH").or(path.map(String::as_str));
            let found = find_program(program, self.settings.directory.as_deref(), path);
            found.is_none().then_some(program.as_str())
        })
    }

    /// Checks that the programs at the start of shell commands exist, as far as they can be
    /// determined. If a command runs before each trial, it may create the programs of the others,
    /// which are then not checked.
    ///
    /// # Errors
    /// Fails at the first program that does not exist.
    pub(crate) fn check_shell_commands(&self) -> Result<(), Obstacle> {
        let settings = &self.settings;
        let later = [("the load", &settings.load), ("--cleanup", &settings.cleanup)];
        let known = later.into_iter().filter(|_| settings.prepare.is_none());
        for (what, line) in [("--prepare", &settings.prepare)].into_iter().chain(known) {
            let word = line.as_deref().and_then(first_word);
            let missing = word.filter(|word| !is_command(word, settings.directory.as_deref()));
            if let Some(word) = missing {
                return Err(Obstacle::NoShellCommand { what, word: word.to_owned() });
            }
        }
        Ok(())
    }

    /// Returns the order of the trials: indices into the treatments.
    pub fn order(&self) -> Vec<usize> {
        let order = match self.settings.against {
            Some(_) => order::independent,
            None => order::alternating,
        };
        order(self.treatments.len(), self.repeats, self.seed)
    }

    /// Returns the plan in the form of the record.
    pub(crate) fn for_record(&self) -> plan::StudyPlan {
        plan::StudyPlan {
            name: self.name.clone(),
            command: self.command.clone(),
            treatments: self.treatments.iter().map(|t| t.treatment.clone()).collect(),
            repeats: self.repeats,
            seed: self.seed,
            order: self.order(),
            load: self.timeline.load.clone(),
            warmup_rounds: self.timeline.warmup,
            rounds: self.timeline.rounds,
            pause_s: self.timeline.pause.as_secs_f64(),
            settle_s: self.timeline.settle.as_secs_f64(),
            interval_s: self.interval.as_secs_f64(),
            max_slowdown: self.max_slowdown,
            beside: self
                .settings
                .beside
                .iter()
                .flatten()
                .map(|p| p.display().to_string())
                .collect(),
            about: self.settings.about.clone(),
            shard: self.shard,
            recommend: self.settings.recommend,
            against: self.against(),
            rounds_alike: self.settings.rounds_alike,
            conditions: self.conditions(),
        }
    }

    /// Returns how the two versions of the command are compared, if they are.
    fn against(&self) -> Option<plan::Against> {
        self.settings.against.as_ref()?;
        let command = self.treatments.first()?.own_command()?.to_vec();
        Some(plan::Against { command, tolerance: self.tolerance })
    }

    /// Returns the settings that affect a trial and have no field of their own in the record, in
    /// words that are the same on every machine.
    fn conditions(&self) -> BTreeMap<String, String> {
        let placed = |text: String| {
            let places = self.settings.places.iter();
            places.fold(text, |text, (name, path)| placed_in(&text, path, name))
        };
        let mut conditions = self.conditions.clone();
        // The duration itself is the same whether it was given or not.
        if self.timeline.settle_after_phase {
            conditions.insert("settle after load_end".to_owned(), "yes".to_owned());
        }
        for one in &self.treatments {
            let takes = one.takes();
            if !takes.is_empty() {
                let name = format!("treatment {}", one.treatment.label());
                conditions.insert(name, takes.join(" "));
            }
        }
        let conditions = conditions.into_iter().map(|(name, text)| (name, placed(text)));
        conditions.chain(self.contents()).collect()
    }

    /// Returns fingerprints of the program and the libraries of the treatments that already exist.
    fn contents(&self) -> Vec<(String, String)> {
        let named =
            |name: String, path: &Path| Some((format!("{CONTENTS}{name}"), contents(path).ok()?));
        let of_command = |name: String, command: &[String]| {
            let directory = self.settings.directory.as_deref();
            named(name, &find_program(command.first()?, directory, None)?)
        };
        let program = of_command("the command".to_owned(), &self.command);
        let versions = self.treatments.iter().filter_map(|one| {
            of_command(format!("the command of {}", one.treatment), one.own_command()?)
        });
        let libraries = self
            .treatments
            .iter()
            .filter_map(|one| named(one.treatment.allocator.clone(), one.library()?));
        program.into_iter().chain(versions).chain(libraries).collect()
    }

    /// Returns the minimum duration of a trial, as far as it is known from the plan.
    pub(crate) fn shortest_trial(&self) -> Duration {
        self.timeline.shortest()
    }
}

/// Replaces a path in a text by a name, if the path is a complete name there: `/tmp/x` is not a
/// part of `/tmp/xy`.
fn placed_in(text: &str, path: &str, name: &str) -> String {
    if path.is_empty() {
        return text.to_owned();
    }
    let goes_on = |c: char| !c.is_whitespace() && !"/'\"`:;,=|&<>()".contains(c);
    let mut placed = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(path) {
        let (before, behind) = (&rest[..at], &rest[at + path.len()..]);
        placed.push_str(before);
        placed.push_str(if behind.starts_with(goes_on) { path } else { name });
        rest = behind;
    }
    placed + rest
}

fn note_on_inherited((name, value): (String, String)) -> String {
    format!(
        "{name}={value} of your environment is not passed to the subject, so that each treatment \
         matches its name; to try it, use -t 'ALLOCATOR/LABEL: {name}={value}'"
    )
}

/// Returns a note if the two versions of the command are the same.
fn note_on_versions(treatments: &[ResolvedTreatment], command: &[String]) -> Option<String> {
    let [base, head] = treatments else { return None };
    let is_same = base.own_command() == Some(command) && head.own_command().is_none();
    is_same.then(|| {
        "both versions are the same command: the comparison shows the noise of the measurement"
            .to_owned()
    })
}

/// Parses the thresholds. Those that compare versions need two of them.
fn thresholds(settings: &Settings) -> Result<Vec<Threshold>, PlanError> {
    let texts = settings.fail_on.iter().flatten();
    let thresholds: Vec<Threshold> = texts.map(|text| text.parse()).collect::<Result<_, _>>()?;
    match thresholds.iter().find(|threshold| threshold.compares_versions()) {
        Some(threshold) if settings.against.is_none() => {
            Err(PlanError::NothingToCompare(threshold.to_string()))
        }
        _ => Ok(thresholds),
    }
}

/// Parses the requested part of the trials.
fn part(text: &str, repeats: u32) -> Result<Shard, PlanError> {
    let wrong = |reason: String| PlanError::Value { flag: "shard", reason };
    let shard: Shard = text.parse().map_err(|error: ShardError| wrong(error.to_string()))?;
    if shard.of > repeats {
        return Err(wrong(format!(
            "a part consists of whole repeats, and {} parts cannot be made of {repeats}: increase \
             --repeat, or divide the treatments with --only",
            shard.of
        )));
    }
    Ok(shard)
}

fn interval(settings: &Settings) -> Result<Duration, PlanError> {
    let interval = time("interval", settings.interval.as_deref(), DEFAULT_INTERVAL)?;
    let wrong =
        |reason: &str| Err(PlanError::Value { flag: "interval", reason: reason.to_owned() });
    if interval < SHORTEST_INTERVAL {
        return wrong("less than 5 ms would measure the sampler itself");
    }
    if interval > LONGEST_INTERVAL {
        return wrong("more than 10 s between two samples would miss short changes");
    }
    Ok(interval)
}

fn open_files(number: &Number) -> Result<u64, PlanError> {
    match number {
        Number::Plain(files) => Ok(*files),
        Number::Written(text) => text.trim().parse().map_err(|_| PlanError::Value {
            flag: "open-files",
            reason: format!("`{text}` is not a number of files: write one such as 4096"),
        }),
    }
}

/// Parses `5%` or `0.05`.
fn ratio(flag: &'static str, text: Option<&str>, otherwise: f64) -> Result<f64, PlanError> {
    let Some(text) = text else { return Ok(otherwise) };
    let (number, divisor) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent, 100.0),
        None => (text, 1.0),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value / divisor),
        _ => Err(PlanError::Value {
            flag,
            reason: format!("`{text}` is not a share: write 5% or 0.05"),
        }),
    }
}

/// Returns the default name of a study: that of its program.
fn name_of(command: &[String]) -> String {
    let base =
        |word: &str| Path::new(word).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let program = command.first().map(|w| base(w)).unwrap_or_default();
    // The script is more informative than its interpreter.
    let is_script = |word: &&String| {
        let ending = Path::new(word).extension().and_then(|e| e.to_str()).unwrap_or_default();
        ending.starts_with(|c: char| c.is_ascii_alphabetic()) && !word.starts_with('-')
    };
    let script = command.get(1).filter(is_script);
    script.map_or(program, |s| base(s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{TreatmentSettings, Words};

    fn settings(command: &[&str]) -> Settings {
        Settings {
            command: Some(command.iter().map(|w| (*w).to_owned()).collect()),
            allocator: Some(Words::Joined("glibc".to_owned())),
            ..Settings::default()
        }
    }

    fn refused(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = settings(&["true"]);
        change(&mut settings);
        Plan::new(settings).unwrap_err().to_string()
    }

    #[test]
    fn an_invalid_plan_is_an_error_before_anything_starts() {
        assert!(refused(|s| s.command = None).starts_with("no command is given:"));
        assert!(refused(|s| s.command = Some(vec!["no-such".into()])).contains("`no-such`"));
        assert!(refused(|s| s.pause = Some("10".into())).starts_with("--pause: `10` has no unit"));
        assert!(refused(|s| s.rounds = Some(3)).contains("there is none: add --load"));
        assert!(refused(|s| s.repeat = Some(0)).contains("from 1 to 10000"));
        assert!(refused(|s| s.interval = Some("1h".into())).contains("more than 10 s"));
        let twice = Some(vec!["peak=log:a".to_owned(), "peak=log:b".to_owned()]);
        assert!(refused(|s| s.phase = twice).contains("two phases have the name `peak`"));
        assert!(refused(|s| s.interval = Some("1ms".into())).contains("less than 5 ms"));
        assert!(refused(|s| s.max_slowdown = Some("five".into())).contains("is not a share"));
        assert!(refused(|s| s.phase = Some(vec!["x".into()])).contains("NAME=log:REGEX"));
        let policy = refused(|s| s.policy = Some(Words::Joined("sometimes".into())));
        assert!(policy.contains("there is no policy `sometimes`"));
        assert!(refused(|s| s.fail_on = Some(vec!["x>1".into()])).contains("no metric `x`"));
    }

    #[test]
    fn a_missing_treatment_command_is_an_error_before_the_study_starts() {
        let own = |command: &str| TreatmentSettings {
            allocator: Words::Joined("glibc".to_owned()),
            label: Some("other".to_owned()),
            command: Some(vec![command.to_owned()]),
            ..TreatmentSettings::default()
        };
        let of = |command: &str| {
            Plan::new(Settings { treatment: vec![own(command)], ..settings(&["true"]) })
        };
        assert!(of("false").is_ok());
        let error = of("/no/such/command").unwrap_err().to_string();
        assert!(error.starts_with("there is no command `/no/such/command`"), "{error}");
    }

    #[test]
    fn a_settle_time_after_a_phase_is_a_condition() {
        let phase = Some(vec!["load_end=log:done".to_owned()]);
        let plan = |settle: Option<&str>| {
            let settle = settle.map(str::to_owned);
            let settings = Settings { phase: phase.clone(), settle, ..settings(&["true"]) };
            Plan::new(settings).unwrap().for_record()
        };
        assert_eq!(plan(None).settle_s, plan(Some("10s")).settle_s);
        let difference = plan(Some("10s")).difference(&plan(None)).unwrap();
        assert_eq!(difference.what, "settle after load_end");
        assert_eq!(plan(None).difference(&plan(None)), None);
    }

    #[test]
    fn a_directory_is_replaced_by_its_placeholder_only_as_a_whole_path_component() {
        let placed = |text: &str| placed_in(text, "/tmp/x", "{study}");
        assert_eq!(placed("sh '/tmp/x' /tmp/x/a /tmp/x"), "sh '{study}' {study}/a {study}");
        assert_eq!(placed("PATH=/tmp/x:/bin"), "PATH={study}:/bin");
        for other in ["/tmp/xy", "/tmp/x-1/a", "/tmp/x.d", "/tmp/x1"] {
            assert_eq!(placed(other), other);
        }
    }

    #[test]
    fn each_tune_setting_adds_one_treatment() {
        let mut settings = settings(&["true"]);
        settings.tune = Some(vec!["glibc/arena_max".into(), "glibc/arena_max=4".into()]);
        let plan = Plan::new(settings.clone()).unwrap();
        let labels: Vec<String> = plan.treatments.iter().map(|t| t.treatment.label()).collect();
        assert_eq!(labels, ["glibc", "glibc/arena_max", "glibc/arena_max=4"]);
        assert_eq!(plan.order().len(), 9);
        settings.tune = Some(vec!["glibc/x: A=1".into(), "glibc/x: A=2".into()]);
        assert!(
            matches!(Plan::new(settings), Err(PlanError::SameLabel(label)) if label == "glibc/x")
        );
    }

    #[test]
    fn a_study_is_named_after_its_script_or_program() {
        let named =
            |words: &[&str]| name_of(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        assert_eq!(named(&["python3", "dir/app.py", "-x"]), "app.py");
        assert_eq!(named(&["/usr/bin/redis-server", "--port"]), "redis-server");
        assert_eq!(named(&["sleep", "0.2"]), "sleep");
    }
}
