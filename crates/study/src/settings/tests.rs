use std::collections::BTreeSet;
use std::path::Path;

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
    let given = flags(&["--repeat", "5", "--phase", "x=log:b", "--phase", "y=log:c", "--resume"]);
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
    let keys = keys.filter(|key| *key != "no-such-key").map(str::to_owned);
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
