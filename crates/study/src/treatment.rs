//! A treatment as it is applied: what is started, in which environment, and how to see afterwards
//! whether it is in force.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lowtide_model::treatment::Treatment;
use lowtide_probe::allocator::{Examination, ExamineError, Provider};
use lowtide_record::v1::AllocatorCheck;

use crate::allocator::{Allocator, Delivery};
use crate::keeper::Launch;
use crate::programs::find_program;
use crate::settings::{ActSettings, TreatmentSettings};
use crate::tune::Tune;

/// A treatment, and what it takes to apply it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// What tables call it.
    pub treatment: Treatment,
    allocator: Allocator,
    variables: Vec<(String, String)>,
    /// The command, in place of the study's.
    command: Option<Vec<String>>,
    /// More arguments for it.
    arguments: Vec<String>,
    /// What is done at moments of the trial.
    pub acts: Vec<Act>,
}

/// Something that is done to the subject at a moment of the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Act {
    /// The moment.
    pub moment: String,
    /// What it is called.
    pub name: String,
    /// The command, for the shell.
    pub line: String,
}

/// Variables that set an allocator: what a user's shell happens to hold must not leak into a trial.
const SETTINGS: [&str; 5] = ["MALLOC_", "MIMALLOC_", "TCMALLOC_", "JE_MALLOC_", "_RJEM_MALLOC_"];

/// The variables of our own environment that set an allocator, and so are kept from the subject.
pub fn inherited_settings() -> Vec<(String, String)> {
    env::vars_os()
        .filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        })
        .filter(|(name, value)| {
            SETTINGS.iter().any(|prefix| name.starts_with(prefix))
                || (name == "GLIBC_TUNABLES" && value.contains("glibc.malloc."))
        })
        .collect()
}

impl Applied {
    /// An allocator with its settings, or as it is.
    pub fn new(allocator: &Allocator, tune: Option<&Tune>) -> Self {
        let mut treatment = Treatment::plain(&allocator.name, allocator.version.as_deref());
        treatment.tune = tune.map(|t| t.label.clone());
        Self {
            treatment,
            allocator: allocator.clone(),
            variables: tune.map(|t| t.variables.clone()).unwrap_or_default(),
            command: None,
            arguments: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// A treatment that a study file describes.
    pub fn described(allocator: &Allocator, settings: TreatmentSettings) -> Self {
        let mut one = Self::new(allocator, None);
        one.treatment.tune = settings.label;
        one.treatment.policy = settings.policy.unwrap_or(one.treatment.policy);
        one.variables = settings.environment.into_iter().collect();
        one.command = settings.command;
        one.arguments = settings.args;
        let act = |a: ActSettings| Act { moment: a.moment, name: a.name, line: a.run };
        one.acts = settings.at.into_iter().map(act).collect();
        one
    }

    /// What it takes beside its allocator, in words.
    pub fn takes(&self) -> Vec<String> {
        let mut words: Vec<String> =
            self.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        words.extend(self.command.iter().flatten().cloned());
        words.extend(self.arguments.iter().cloned());
        words.extend(self.acts.iter().map(|act| format!("at {}: {}", act.moment, act.line)));
        words
    }

    /// The command that it has in place of the study's.
    pub fn own_command(&self) -> Option<&[String]> {
        self.command.as_deref()
    }

    /// One of the variables that it sets.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// What is started, so that `command` runs under the treatment.
    pub fn launch(
        &self,
        command: &[String],
        directory: Option<PathBuf>,
        own: &BTreeMap<String, String>,
    ) -> Launch {
        let mut command = self.command.clone().unwrap_or_else(|| command.to_vec());
        command.extend(self.arguments.iter().cloned());
        let mut launch = Launch {
            command: command.clone(),
            directory,
            set: own.clone().into_iter().collect(),
            remove: inherited_settings().into_iter().map(|(name, _)| name).collect(),
            stdout: None,
        };
        launch.set.extend(self.variables.iter().cloned());
        match &self.allocator.delivery {
            Delivery::System | Delivery::Own => {}
            Delivery::Preload { path, .. } => {
                let others = launch.variable("LD_PRELOAD").or_else(|| env::var("LD_PRELOAD").ok());
                let mut list = path.display().to_string();
                // The first that defines `malloc` provides it, so that ours must stand first.
                if let Some(others) = others.filter(|o| !o.is_empty()) {
                    list = format!("{list}:{others}");
                }
                launch.set.push(("LD_PRELOAD".to_owned(), list));
            }
            Delivery::Loader { loader, libraries, .. } => {
                let program = command.first().map(String::as_str).unwrap_or_default();
                let mut line = vec![
                    loader.display().to_string(),
                    "--library-path".to_owned(),
                    libraries.display().to_string(),
                ];
                let path = launch.variable("PATH");
                line.extend(behind_loader(program, launch.directory.as_deref(), path.as_deref()));
                line.extend(command.iter().skip(1).cloned());
                launch.command = line;
            }
        }
        launch
    }

    /// The library that is preloaded for it.
    pub(crate) fn library(&self) -> Option<&Path> {
        match &self.allocator.delivery {
            Delivery::Preload { path, .. } => Some(path),
            Delivery::System | Delivery::Own | Delivery::Loader { .. } => None,
        }
    }

    /// Whether the treatment is in force in a process that was examined.
    pub fn check(
        &self,
        command: &[String],
        found: &Result<Examination, ExamineError>,
    ) -> AllocatorCheck {
        match found {
            Ok(found) => self.check_found(found),
            Err(error) => {
                let setuid = matches!(error, ExamineError::NotPermitted)
                    && command.first().is_some_and(|program| is_setuid(program))
                    && matches!(self.allocator.delivery, Delivery::Preload { .. });
                AllocatorCheck {
                    active: setuid.then_some(false),
                    provider: None,
                    because: Some(if setuid { SETUID.to_owned() } else { error.to_string() }),
                }
            }
        }
    }

    fn check_found(&self, found: &Examination) -> AllocatorCheck {
        if self.allocator.delivery == Delivery::Own {
            let (Provider::Library(file) | Provider::Executable(file) | Provider::Static(file)) =
                &found.provider;
            let provider = Some(file.path.display().to_string());
            return AllocatorCheck { active: Some(true), provider, because: None };
        }
        let (file, place) = match &found.provider {
            Provider::Library(file) => (file, "library"),
            Provider::Executable(file) => (file, "executable"),
            Provider::Static(file) => (file, "static"),
        };
        let path = file.path.display();
        let wanted = match &self.allocator.delivery {
            Delivery::Own => true,
            Delivery::System => file.is_c_library() && !path.to_string().contains("ld-musl"),
            Delivery::Preload { path, library } => file.id == *library || file.path == *path,
            Delivery::Loader { library, libraries, .. } => {
                file.id == *library || (file.is_c_library() && file.path.starts_with(libraries))
            }
        };
        let because = if place == "static" {
            Some("it is linked statically: nothing can be put before its own malloc".to_owned())
        } else if place == "executable" {
            Some("it exports a malloc of its own, which comes before every library".to_owned())
        } else if let Some(built_in) = &found.built_in {
            Some(format!("it has an allocator of its own compiled in ({})", built_in.kind))
        } else if wanted {
            None
        } else if found.is_secure {
            Some(SETUID.to_owned())
        } else if matches!(self.allocator.delivery, Delivery::Loader { .. }) {
            Some(format!("it was started by the system's loader, and runs on {path}"))
        } else if file.is_c_library() && matches!(self.allocator.delivery, Delivery::Preload { .. })
        {
            Some(format!(
                "its malloc comes from {path}: LD_PRELOAD did not reach it, as with su, sudo or env -i. Run lowtide \
                 as that user, or start the program with setpriv --reuid=USER, which keeps the environment"
            ))
        } else {
            Some(format!("its malloc comes from {path}"))
        };
        AllocatorCheck {
            active: Some(because.is_none()),
            provider: Some(path.to_string()),
            because,
        }
    }
}

const SETUID: &str = "it is a setuid program: the loader ignores LD_PRELOAD";

/// What stands behind the loader on its command line: a program for it to load. A script is not
/// one, so that its interpreter is named instead, as the kernel would do.
fn behind_loader(program: &str, directory: Option<&Path>, list: Option<&str>) -> Vec<String> {
    let Some(path) = find_program(program, directory, list) else {
        return vec![program.to_owned()];
    };
    let shown = path.display().to_string();
    let Some(line) = first_line(&path) else { return vec![shown] };
    let Some(interpreter) = line.strip_prefix("#!") else { return vec![shown] };
    let mut words = interpreter.trim().splitn(2, char::is_whitespace);
    let (interpreter, argument) = (words.next().unwrap_or_default(), words.next().map(str::trim));
    // `env NAME` only looks for a program, and would start it with the system's loader.
    if interpreter.ends_with("/env")
        && let Some(name) = argument.filter(|a| !a.contains(char::is_whitespace))
        && let Some(found) = find_program(name, directory, list)
    {
        return vec![found.display().to_string(), shown];
    }
    let mut words = vec![interpreter.to_owned()];
    words.extend(argument.map(str::to_owned));
    words.push(shown);
    words
}

fn first_line(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut head = Vec::new();
    fs::File::open(path).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.split(|b| *b == b'\n').next()?;
    String::from_utf8(line.to_vec()).ok()
}

fn is_setuid(program: &str) -> bool {
    let meta = find_program(program, None, None).and_then(|path| fs::metadata(path).ok());
    let us = rustix::process::geteuid().as_raw();
    meta.is_some_and(|m| m.permissions().mode() & 0o6000 != 0 && m.uid() != us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lowtide_model::allocator_kind::AllocatorKind;
    use lowtide_probe::allocator::{BuiltIn, LoadedFile};
    use lowtide_probe::proc::maps::FileId;

    fn file(path: &str, inode: u64) -> LoadedFile {
        LoadedFile { path: path.into(), id: FileId { device: (8, 1), inode } }
    }

    fn preloaded() -> Applied {
        let id = FileId { device: (8, 1), inode: 7 };
        let delivery = Delivery::Preload { path: "/cache/libjemalloc.so".into(), library: id };
        Applied::new(&Allocator { name: "jemalloc".into(), version: None, delivery }, None)
    }

    fn glibc() -> Applied {
        let allocator =
            Allocator { name: "glibc".into(), version: None, delivery: Delivery::System };
        Applied::new(&allocator, None)
    }

    fn found(provider: Provider) -> Examination {
        Examination { provider, built_in: None, is_secure: false }
    }

    #[test]
    fn a_preloaded_library_is_in_force_when_it_provides_malloc() {
        let ours = found(Provider::Library(file("/elsewhere/same.so", 7)));
        assert_eq!(preloaded().check_found(&ours).active, Some(true));
        let libc = found(Provider::Library(file("/lib/libc.so.6", 9)));
        let because = preloaded().check_found(&libc).because.unwrap();
        assert!(because.starts_with("its malloc comes from /lib/libc.so.6: LD_PRELOAD did not"));
    }

    #[test]
    fn glibc_is_not_in_force_in_a_program_that_is_linked_with_jemalloc() {
        let redis = found(Provider::Library(file("/usr/lib/libjemalloc.so.2", 9)));
        assert_eq!(glibc().check_found(&redis).active, Some(false));
        let libc = found(Provider::Library(file("/lib/libc.so.6", 9)));
        assert_eq!(glibc().check_found(&libc).active, Some(true));
        let musl = found(Provider::Library(file("/lib/ld-musl-x86_64.so.1", 9)));
        assert_eq!(glibc().check_found(&musl).active, Some(false));
    }

    #[test]
    fn static_setuid_and_self_served_programs_are_told_with_their_reason() {
        let reason = |e: &Examination| preloaded().check_found(e).because.unwrap_or_default();
        assert!(reason(&found(Provider::Static(file("/bin/x", 1)))).contains("statically"));
        assert!(reason(&found(Provider::Executable(file("/bin/x", 1)))).contains("of its own"));
        let mut rust = found(Provider::Library(file("/cache/libjemalloc.so", 7)));
        rust.built_in = Some(BuiltIn { kind: AllocatorKind::Mimalloc });
        assert!(reason(&rust).contains("compiled in (mimalloc)"));
        let mut setuid = found(Provider::Library(file("/lib/libc.so.6", 9)));
        setuid.is_secure = true;
        assert!(reason(&setuid).contains("setuid"));
    }

    #[test]
    fn what_a_program_brings_is_in_force_whatever_it_is() {
        let allocator = Allocator { name: "own".into(), version: None, delivery: Delivery::Own };
        let own = Applied::new(&allocator, None);
        let found = found(Provider::Static(file("/bin/x", 1)));
        assert_eq!(own.check_found(&found).active, Some(true));
    }

    #[test]
    fn a_treatment_may_have_a_command_and_arguments_of_its_own() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let Applied { allocator, .. } = glibc();
        let settings = TreatmentSettings { args: words(&["-r"]), ..TreatmentSettings::default() };
        let more = Applied::described(&allocator, settings.clone());
        assert_eq!(
            more.launch(&words(&["x", "1"]), None, &BTreeMap::new()).command,
            ["x", "1", "-r"]
        );
        let settings = TreatmentSettings { command: Some(words(&["y"])), ..settings };
        let other = Applied::described(&allocator, settings);
        assert_eq!(other.launch(&words(&["x", "1"]), None, &BTreeMap::new()).command, ["y", "-r"]);
    }

    #[test]
    fn our_library_stands_before_those_that_the_study_preloads() {
        let own = BTreeMap::from([("LD_PRELOAD".to_owned(), "/lib/other.so".to_owned())]);
        let launch = preloaded().launch(&["x".to_owned()], None, &own);
        assert_eq!(launch.set.last().unwrap().1, "/cache/libjemalloc.so:/lib/other.so");
    }

    #[test]
    fn a_script_is_started_by_its_interpreter_behind_the_loader() {
        let script = tempfile::NamedTempFile::new().unwrap();
        fs::write(script.path(), "#!/bin/sh -eu\n").unwrap();
        fs::set_permissions(script.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = script.path().display().to_string();
        assert_eq!(behind_loader(&path, None, None), ["/bin/sh", "-eu", &path]);
        fs::write(script.path(), "#!/usr/bin/env sh\n").unwrap();
        assert!(behind_loader(&path, None, None)[0].ends_with("/sh"));
        assert!(behind_loader("sh", None, None)[0].ends_with("/sh"));
        assert_eq!(behind_loader("no-such-program", None, None), ["no-such-program"]);
    }
}
