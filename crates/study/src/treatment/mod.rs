//! A treatment, and what is needed to apply it.

mod in_force;
pub(crate) mod launch;
pub(crate) mod resolve;

use std::path::Path;

use lowtide_model::treatment::Treatment;
use lowtide_policy::PolicyKind;

use crate::allocator::{Delivery, TreatmentAllocator};
use crate::settings::{HookSettings, TreatmentSettings};
use crate::tune::Tune;

/// A treatment, and what it takes to apply it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedTreatment {
    /// What tables call it.
    pub treatment: Treatment,
    allocator: TreatmentAllocator,
    variables: Vec<(String, String)>,
    /// The command, in place of the study's.
    command: Option<Vec<String>>,
    /// More arguments for it.
    arguments: Vec<String>,
    /// Decides when the subject's memory is released.
    pub policy: PolicyKind,
    /// Commands at moments of the trial.
    pub hooks: Vec<Hook>,
}

/// A command that is run at a moment of the trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The moment.
    pub moment: String,
    /// What it is called.
    pub name: String,
    /// The command, for the shell.
    pub line: String,
}

impl ResolvedTreatment {
    /// An allocator with its settings, or as it is.
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
            hooks: Vec::new(),
        }
    }

    /// The same treatment, with a policy.
    pub fn with_policy(mut self, policy: PolicyKind) -> Self {
        self.treatment.policy = policy.to_string();
        self.policy = policy;
        self
    }

    /// A treatment that a study file describes. Its `policy` is only a label.
    pub fn described(allocator: &TreatmentAllocator, settings: TreatmentSettings) -> Self {
        let mut one = Self::new(allocator, None);
        one.treatment.tune = settings.label;
        one.treatment.policy = settings.policy.unwrap_or(one.treatment.policy);
        one.variables = settings.environment.into_iter().collect();
        one.command = settings.command;
        one.arguments = settings.args;
        let hook = |h: HookSettings| Hook { moment: h.moment, name: h.name, line: h.run };
        one.hooks = settings.at.into_iter().map(hook).collect();
        one
    }

    /// What it takes beside its allocator, in words.
    pub fn takes(&self) -> Vec<String> {
        let mut words: Vec<String> =
            self.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        words.extend(self.command.iter().flatten().cloned());
        words.extend(self.arguments.iter().cloned());
        words.extend(self.hooks.iter().map(|hook| format!("at {}: {}", hook.moment, hook.line)));
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

    /// The library that is preloaded for it.
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
