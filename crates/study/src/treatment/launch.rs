//! Launches a command under a treatment: the command line and the environment that put its
//! allocator in place.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::ResolvedTreatment;
use crate::allocator::Delivery;
use crate::keeper::Launch;
use crate::programs::find_program;

/// Prefixes of variables that configure an allocator: those of a user's shell must not leak into a
/// trial.
const SETTINGS: [&str; 5] = ["MALLOC_", "MIMALLOC_", "TCMALLOC_", "JE_MALLOC_", "_RJEM_MALLOC_"];

/// Returns the variables of lowtide's own environment that configure an allocator, which the
/// subject does not inherit.
pub(crate) fn inherited_settings() -> Vec<(String, String)> {
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

impl ResolvedTreatment {
    /// Returns the launch that runs `command` under the treatment.
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
            // The first library that defines `malloc` provides it.
            Delivery::Preload { path, .. } => launch.preload_first(path),
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
        // It must precede the allocator to count the memory that the allocator frees.
        if let Some(counter) = &self.counter {
            launch.preload_first(counter);
        }
        launch
    }
}

impl Launch {
    /// Puts a library before all others that are preloaded.
    pub(crate) fn preload_first(&mut self, library: &Path) {
        let others = self.variable("LD_PRELOAD").or_else(|| env::var("LD_PRELOAD").ok());
        let library = library.display();
        let list = match others.filter(|others| !others.is_empty()) {
            Some(others) => format!("{library}:{others}"),
            None => library.to_string(),
        };
        self.set.push(("LD_PRELOAD".to_owned(), list));
    }
}

/// Returns the arguments of the loader: a program that it loads. The loader cannot load a script,
/// so its interpreter is named instead, as the kernel would do.
fn behind_loader(program: &str, directory: Option<&Path>, list: Option<&str>) -> Vec<String> {
    let Some(path) = find_program(program, directory, list) else {
        return vec![program.to_owned()];
    };
    let shown = path.display().to_string();
    let Some(line) = first_line(&path) else { return vec![shown] };
    let Some(interpreter) = line.strip_prefix("#!") else { return vec![shown] };
    let mut words = interpreter.trim().splitn(2, char::is_whitespace);
    let (interpreter, argument) = (words.next().unwrap_or_default(), words.next().map(str::trim));
    // `env NAME` only searches for a program, and would start it with the system's loader.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TreatmentSettings;
    use crate::treatment::fixtures::{glibc, preloaded};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_treatment_can_have_its_own_command_and_arguments() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let ResolvedTreatment { allocator, .. } = glibc();
        let settings = TreatmentSettings { args: words(&["-r"]), ..TreatmentSettings::default() };
        let more = ResolvedTreatment::described(&allocator, settings.clone()).unwrap();
        assert_eq!(
            more.launch(&words(&["x", "1"]), None, &BTreeMap::new()).command,
            ["x", "1", "-r"]
        );
        let settings = TreatmentSettings { command: Some(words(&["y"])), ..settings };
        let other = ResolvedTreatment::described(&allocator, settings).unwrap();
        assert_eq!(other.launch(&words(&["x", "1"]), None, &BTreeMap::new()).command, ["y", "-r"]);
    }

    #[test]
    fn the_allocator_library_precedes_the_libraries_that_the_study_preloads() {
        let own = BTreeMap::from([("LD_PRELOAD".to_owned(), "/lib/other.so".to_owned())]);
        let launch = preloaded().launch(&["x".to_owned()], None, &own);
        assert_eq!(launch.set.last().unwrap().1, "/cache/libjemalloc.so:/lib/other.so");
    }

    #[test]
    fn a_script_is_started_through_its_interpreter_after_the_loader() {
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
