//! Two versions of a command as the two treatments of a study: `--against`.

use lowtide_analysis::versions::{BASE, HEAD};
use lowtide_policy::PolicyKind;

use crate::allocator::OWN;
use crate::error::PlanError;
use crate::settings::{Settings, TreatmentSettings, Words};

/// The flag, for errors.
const FLAG: &str = "against";

/// Returns the settings of a study whose treatments are the two versions, the reference first.
/// Without `against`, they are unchanged.
///
/// # Errors
/// Fails if the other command is malformed, or with treatments that would compare something else.
pub(crate) fn as_treatments(settings: Settings) -> Result<Settings, PlanError> {
    let Some(against) = &settings.against else { return Ok(settings) };
    let command = words(against)?;
    if let Some(flag) = other_treatments(&settings) {
        return Err(wrong(format!(
            "two versions are compared under the same conditions, so it cannot be combined with {flag}: omit it, or \
             compare the versions once for each treatment"
        )));
    }
    let allocator = single("-a", settings.allocator.as_ref())?.unwrap_or_else(|| OWN.to_owned());
    let policy = single("-p", settings.policy.as_ref())?;
    let policy = policy.map(|name| name.parse::<PolicyKind>()).transpose();
    let policy =
        policy.map_err(|error| PlanError::Value { flag: "policy", reason: error.to_string() })?;
    let version = |label: &str, command: Option<Vec<String>>| TreatmentSettings {
        allocator: Words::Joined(allocator.clone()),
        label: Some(label.to_owned()),
        policy: policy.map(|policy| policy.to_string()),
        command,
        ..TreatmentSettings::default()
    };
    let treatment = vec![version(BASE, Some(command)), version(HEAD, None)];
    Ok(Settings { allocator: None, policy: None, treatment, recommend: Some(false), ..settings })
}

/// Returns the words of the other command, as a shell would split them.
fn words(against: &Words) -> Result<Vec<String>, PlanError> {
    let words = match against {
        Words::Joined(text) => shlex::split(text),
        Words::Listed(words) => Some(words.clone()),
    };
    let words = words.ok_or_else(|| wrong("a quote is not closed".to_owned()))?;
    match words.is_empty() {
        true => Err(wrong(
            "the command is empty: write the other version of the command, such as --against \
             './old --port 80' -- ./new --port 80"
                .to_owned(),
        )),
        false => Ok(words),
    }
}

/// Returns the setting that asks for other treatments, if there is one.
fn other_treatments(settings: &Settings) -> Option<&'static str> {
    let given = [
        (settings.tune.as_ref().is_some_and(|tune| !tune.is_empty()), "-t"),
        (!settings.treatment.is_empty(), "a study file that describes treatments"),
        (settings.only.is_some(), "--only"),
    ];
    given.into_iter().find_map(|(is_given, name)| is_given.then_some(name))
}

/// Returns the only word of a list.
fn single(flag: &str, list: Option<&Words>) -> Result<Option<String>, PlanError> {
    let Some(text) = list.map(Words::joined) else { return Ok(None) };
    match text.contains(',') || text.trim() == "all" {
        true => Err(wrong(format!(
            "two versions are compared under one allocator and one policy, but {flag} has several: name one"
        ))),
        false => Ok(Some(text.trim().to_owned())),
    }
}

fn wrong(reason: String) -> PlanError {
    PlanError::Value { flag: FLAG, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(against: &str) -> Settings {
        let against = Some(Words::Joined(against.to_owned()));
        Settings { against, command: Some(vec!["new".to_owned()]), ..Settings::default() }
    }

    fn refused(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = settings("old");
        change(&mut settings);
        as_treatments(settings).unwrap_err().to_string()
    }

    #[test]
    fn the_versions_are_the_treatments_under_one_allocator_and_policy() {
        let list = |text: &str| Some(Words::Joined(text.to_owned()));
        let given = Settings {
            allocator: list("jemalloc"),
            policy: list("adaptive"),
            ..settings("./old --name 'a b'")
        };
        let [base, head] = &as_treatments(given).unwrap().treatment[..] else { panic!() };
        assert_eq!(base.command.as_ref().unwrap()[..], ["./old", "--name", "a b"]);
        assert_eq!((head.command.as_ref(), head.label.as_deref()), (None, Some(HEAD)));
        for version in [base, head] {
            assert_eq!(version.allocator.joined(), "jemalloc");
            assert_eq!(version.policy.as_deref(), Some("adaptive"));
        }
        let own = as_treatments(settings("old")).unwrap();
        assert_eq!((own.treatment[0].allocator.joined(), own.recommend), (OWN.into(), Some(false)));
        let without = Settings::default();
        assert_eq!(as_treatments(without.clone()).unwrap(), without);
    }

    #[test]
    fn other_treatments_and_malformed_commands_are_errors() {
        let list = |text: &str| Some(Words::Joined(text.to_owned()));
        assert!(refused(|s| s.against = list("a 'b")).ends_with("a quote is not closed"));
        assert!(refused(|s| s.against = list(" ")).contains("the command is empty"));
        assert!(refused(|s| s.allocator = list("glibc,jemalloc")).contains("-a has several"));
        assert!(refused(|s| s.allocator = list("all")).contains("-a has several"));
        assert!(refused(|s| s.policy = list("none,adaptive")).contains("-p has several"));
        assert!(refused(|s| s.policy = list("often")).starts_with("--policy: there is no policy"));
        assert!(refused(|s| s.tune = Some(vec!["glibc/arena_max".into()])).contains("with -t"));
        assert!(refused(|s| s.only = list("own/head")).contains("with --only"));
        let described = vec![TreatmentSettings::default()];
        assert!(refused(|s| s.treatment = described).contains("a study file that describes"));
    }
}
