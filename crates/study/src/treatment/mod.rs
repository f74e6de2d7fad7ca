//! A treatment, and the means to apply it.

mod in_force;
pub(crate) mod launch;
pub(crate) mod resolve;

use std::path::{Path, PathBuf};

use lowtide_model::treatment::Treatment;
use lowtide_policy::PolicyKind;

use crate::allocator::{AllocatorError, Delivery, TreatmentAllocator};
use crate::settings::{HookSettings, TreatmentSettings};
use crate::tune::Tune;

/// A treatment, and the means to apply it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedTreatment {
    /// Its name in tables.
    pub treatment: Treatment,
    allocator: TreatmentAllocator,
    variables: Vec<(String, String)>,
    /// The command that replaces the study's.
    command: Option<Vec<String>>,
    /// Additional arguments of the command.
    arguments: Vec<String>,
    /// Decides when the subject's memory is released.
    pub policy: PolicyKind,
    /// The library that counts freed bytes, if the policy needs it.
    counter: Option<PathBuf>,
    /// Commands at moments of the trial.
    pub hooks: Vec<Hook>,
}

/// Unpacks the library that counts freed bytes, and returns its path.
pub(crate) fn freed_counter() -> Result<PathBuf, AllocatorError> {
    Ok(lowtide_preload::unpack(&lowtide_allocators::library_directory()?)?)
}

/// A command that runs at a moment of the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The moment.
    pub moment: String,
    /// Its name.
    pub name: String,
    /// The command, for the shell.
    pub line: String,
}

impl ResolvedTreatment {
    /// Returns the treatment of an allocator, with or without settings.
    pub fn new(allocator: &TreatmentAllocator, tune: Option<&Tune>) -> Self {
        let mut treatment = Treatment::plain(&allocator.name, allocator.version.as_deref());
        treatment.tune = tune.map(|t| t.label.clone());
        Self {
            treatment,
            allocator: allocator.clone(),
            variables: tune.map(|t| t.variables.clone()).unwrap_or_default(),
            command: None,
            arguments: Vec::new(),
            policy: PolicyKind::None,
            counter: None,
            hooks: Vec::new(),
        }
    }

    /// Returns the same treatment with a policy.
    ///
    /// # Errors
    /// If the library that the policy needs cannot be unpacked.
    pub fn with_policy(mut self, policy: PolicyKind) -> Result<Self, AllocatorError> {
        self.treatment.policy = policy.to_string();
        self.policy = policy;
        self.counter = policy.needs_preload().then(freed_counter).transpose()?;
        Ok(self)
    }

    /// Returns a treatment that a study file describes. If its `policy` is not the name of one, it
    /// is a label.
    ///
    /// # Errors
    /// If the library that the policy needs cannot be unpacked.
    pub fn described(
        allocator: &TreatmentAllocator,
        settings: TreatmentSettings,
    ) -> Result<Self, AllocatorError> {
        let mut one = Self::new(allocator, None);
        one.treatment.tune = settings.label;
        match settings.policy.as_deref().map(|policy| (policy, policy.parse())) {
            Some((_, Ok(policy))) => one = one.with_policy(policy)?,
            Some((label, Err(_))) => one.treatment.policy = label.to_owned(),
            None => {}
        }
        one.variables = settings.environment.into_iter().collect();
        one.command = settings.command;
        one.arguments = settings.args;
        let hook = |h: HookSettings| Hook { moment: h.moment, name: h.name, line: h.run };
        one.hooks = settings.at.into_iter().map(hook).collect();
        Ok(one)
    }

    /// Returns descriptions of what it applies besides its allocator.
    pub fn takes(&self) -> Vec<String> {
        let mut words: Vec<String> =
            self.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        words.extend(self.command.iter().flatten().cloned());
        words.extend(self.arguments.iter().cloned());
        words.extend(self.hooks.iter().map(|hook| format!("at {}: {}", hook.moment, hook.line)));
        words
    }

    /// Returns the command that replaces the study's, if it has one.
    pub(crate) fn own_command(&self) -> Option<&[String]> {
        self.command.as_deref()
    }

    /// Returns the value of a variable that it sets.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Returns the library that it preloads.
    pub(crate) fn library(&self) -> Option<&Path> {
        match &self.allocator.delivery {
            Delivery::Preload { path, .. } => Some(path),
            Delivery::System | Delivery::Own | Delivery::Loader { .. } => None,
        }
    }
}

#[cfg(test)]
mod fixtures {
    use super::*;
    use lowtide_probe::proc::maps::FileId;

    pub(super) fn preloaded() -> ResolvedTreatment {
        let id = FileId { device: (8, 1), inode: 7 };
        let delivery = Delivery::Preload { path: "/cache/libjemalloc.so".into(), library: id };
        ResolvedTreatment::new(
            &TreatmentAllocator { name: "jemalloc".into(), version: None, delivery },
            None,
        )
    }

    pub(super) fn glibc() -> ResolvedTreatment {
        let allocator =
            TreatmentAllocator { name: "glibc".into(), version: None, delivery: Delivery::System };
        ResolvedTreatment::new(&allocator, None)
    }
}
