//! Resolves the treatments of a study.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use lowtide_policy::PolicyKind;

use lowtide_record::v1::Event;

use crate::allocator::{self, TreatmentAllocator};
use crate::error::PlanError;
use crate::keeper::Launch;
use crate::settings::{DEFAULT_ALLOCATORS, Settings, Words};
use crate::timeline::Phase;
use crate::treatment::ResolvedTreatment;
use crate::tune;

/// Returns the requested treatments in order: the allocators, the settings, and those that a file
/// describes. `notes` lists the omitted ones.
pub(crate) fn treatments(
    settings: &Settings,
    notes: &mut Vec<String>,
) -> Result<Vec<ResolvedTreatment>, PlanError> {
    let list = match &settings.allocator {
        Some(words) => Some(words.joined()),
        // The treatments that a file describes are enough.
        None if settings.treatment.is_empty() => Some(DEFAULT_ALLOCATORS.to_owned()),
        None => None,
    };
    let listed = list.map(|list| allocator::resolve_list(&list, notes)).transpose()?;
    let allocators: Vec<TreatmentAllocator> = listed.unwrap_or_default();
    let resolve = |name: &str| match allocators.iter().find(|a| a.name == name) {
        Some(known) => Ok(known.clone()),
        None => allocator::resolve(name),
    };
    let mut plain: Vec<ResolvedTreatment> =
        allocators.iter().map(|a| ResolvedTreatment::new(a, None)).collect();
    for text in settings.tune.iter().flatten() {
        let tune = tune::parse(text)?;
        plain.push(ResolvedTreatment::new(&resolve(&tune.allocator)?, Some(&tune)));
    }
    let policies = settings.policy.as_ref().map_or(Ok(vec![PolicyKind::None]), policies)?;
    let with_policies = |one: ResolvedTreatment| {
        policies.iter().map(move |policy| one.clone().with_policy(*policy))
    };
    let mut found: Vec<ResolvedTreatment> =
        plain.into_iter().flat_map(with_policies).collect::<Result<_, _>>()?;
    let mut left_out: Vec<(String, &str)> = Vec::new();
    for described in &settings.treatment {
        let not_here = described.when.as_deref().filter(|line| !is_so(line));
        for name in described.allocator.joined().split(',') {
            let one = ResolvedTreatment::described(&resolve(name.trim())?, described.clone())?;
            match not_here {
                Some(line) => left_out.push((one.treatment.label(), line)),
                None => found.push(one),
            }
        }
    }
    notes.extend(note_on(&left_out));
    for (place, one) in found.iter().enumerate() {
        let label = one.treatment.label();
        if found[..place].iter().any(|other| other.treatment.label() == label) {
            return Err(PlanError::SameLabel(label));
        }
    }
    Ok(found)
}

/// Returns the launch of a command under one allocator, one setting and one policy. Keeps the
/// environment variables.
///
/// # Errors
/// Fails if the allocator or the setting is unknown or cannot be used, or if they do not belong
/// together.
pub fn launch_under(
    allocator: Option<&str>,
    setting: Option<&str>,
    policy: PolicyKind,
    command: &[String],
) -> Result<Launch, PlanError> {
    let tune = setting.map(tune::parse).transpose()?;
    let name = match (allocator, &tune) {
        (Some(name), Some(tune)) if name != tune.allocator => {
            let reason =
                format!("`{}` sets {}, and the allocator is {name}", tune.label, tune.allocator);
            return Err(PlanError::Value { flag: "tune", reason });
        }
        (Some(name), _) => name,
        (None, Some(tune)) => &tune.allocator,
        (None, None) => "glibc",
    };
    let one =
        ResolvedTreatment::new(&allocator::resolve(name)?, tune.as_ref()).with_policy(policy)?;
    let mut launch = one.launch(command, None, &BTreeMap::new());
    launch.remove.clear();
    Ok(launch)
}

/// Returns one sentence about omitted treatments; each has a label and the command that decides
/// whether it can be tried.
fn note_on(left_out: &[(String, &str)]) -> Option<String> {
    match left_out {
        [] => None,
        [(label, line)] => {
            Some(format!("{label} is left out: `{line}` reports that it cannot be tried here"))
        }
        several => {
            let labels: Vec<&str> = several.iter().map(|(label, _)| label.as_str()).collect();
            Some(format!(
                "{} are left out: the conditions in their `when` are not met here",
                labels.join(", ")
            ))
        }
    }
}

/// Returns whether a shell command succeeds.
fn is_so(line: &str) -> bool {
    let mut shell = Command::new("sh");
    let quiet = shell.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::null());
    quiet.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Keeps only the treatments with the given labels.
pub(crate) fn keep_only(
    treatments: &mut Vec<ResolvedTreatment>,
    list: &str,
) -> Result<(), PlanError> {
    let wanted: Vec<&str> = list.split(',').map(str::trim).filter(|l| !l.is_empty()).collect();
    let labels: Vec<String> = treatments.iter().map(|t| t.treatment.label()).collect();
    if let Some(unknown) = wanted.iter().find(|w| !labels.iter().any(|l| l == *w)) {
        let reason = format!("there is no treatment `{unknown}`: there are {}", labels.join(", "));
        return Err(PlanError::Value { flag: "only", reason });
    }
    if wanted.is_empty() {
        let reason = "names no treatment".to_owned();
        return Err(PlanError::Value { flag: "only", reason });
    }
    treatments.retain(|t| wanted.contains(&t.treatment.label().as_str()));
    Ok(())
}

/// Rejects hooks at a moment that never comes.
pub(crate) fn check_moments(
    treatments: &[ResolvedTreatment],
    phases: &[Phase],
) -> Result<(), PlanError> {
    let events: Vec<&str> = Event::WITH_HOOKS.into_iter().filter_map(Event::hook_name).collect();
    let is_known =
        |moment: &str| events.contains(&moment) || phases.iter().any(|phase| phase.name == moment);
    let unknown = treatments.iter().flat_map(|t| &t.hooks).find(|hook| !is_known(&hook.moment));
    unknown.map_or(Ok(()), |hook| {
        let reason = format!(
            "`{}` is not a moment of a trial: the moments are {} and the phases of the subject",
            hook.moment,
            events.join(", ")
        );
        Err(PlanError::Value { flag: "at", reason })
    })
}

/// Parses a list of policies.
fn policies(list: &Words) -> Result<Vec<PolicyKind>, PlanError> {
    let mut policies = Vec::new();
    for name in list.joined().split(',').map(str::trim) {
        let parsed: Result<PolicyKind, _> = name.parse();
        let policy = parsed
            .map_err(|error| PlanError::Value { flag: "policy", reason: error.to_string() })?;
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TreatmentSettings;

    #[test]
    fn a_treatment_with_several_allocators_is_expanded_to_one_for_each() {
        let described = TreatmentSettings {
            allocator: Words::Joined("glibc, own".to_owned()),
            label: Some("axum".to_owned()),
            ..TreatmentSettings::default()
        };
        let settings = Settings { treatment: vec![described], ..Settings::default() };
        let found = treatments(&settings, &mut Vec::new()).unwrap();
        let labels: Vec<String> = found.iter().map(|one| one.treatment.label()).collect();
        assert_eq!(labels, ["glibc/axum", "own/axum"]);
    }

    #[test]
    fn a_policy_is_applied_to_every_listed_treatment_once() {
        let words = |text: &str| Some(Words::Joined(text.to_owned()));
        let settings = |list: &str| Settings {
            allocator: words("glibc,own"),
            policy: words(list),
            ..Settings::default()
        };
        let found = treatments(&settings("none, none"), &mut Vec::new()).unwrap();
        let labels: Vec<String> = found.iter().map(|one| one.treatment.label()).collect();
        assert_eq!(labels, ["glibc", "own"]);
        let found = treatments(&settings("none,periodic=30s"), &mut Vec::new()).unwrap();
        let labels: Vec<String> = found.iter().map(|one| one.treatment.label()).collect();
        assert_eq!(labels, ["glibc", "glibc + periodic=30s", "own", "own + periodic=30s"]);
        let error = treatments(&settings("none,sometimes"), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with("--policy: there is no policy `sometimes`"));
    }
}
