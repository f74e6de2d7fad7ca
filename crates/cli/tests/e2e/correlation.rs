//! The samples of a load, the metrics of a subject, and actions at a moment of a trial.

use std::path::Path;

use serde_json::Value;

use crate::schemas::hold_record;
use crate::support::{Ran, lowtide, study, subject};

/// A load that writes samples and marks as `lowtide load` does in a study. It writes the last mark
/// after the action at the drain is done.
const LOAD: &str = r#"
printf '{"kind":"header","schema":"lowtide.record/1","holds":"load","lowtide_version":"0","started_unix_s":%s,"machine":{}}\n' \
    "$(date +%s.%N)" >"$LOWTIDE_LOAD_SAMPLES"
report() { printf '%s\n' "$1" >>"$LOWTIDE_LOAD_SAMPLES"; }
report '{"kind":"load_sample","t_s":0.0,"round":1,"in_flight":70000,"succeeded":0,"failed":0}'
report '{"kind":"load_sample","t_s":0.1,"round":1,"in_flight":0,"succeeded":69999,"failed":1}'
report '{"kind":"mark","t_s":0.1,"mark":"drained","round":1}'
until [ -e {home}/acted-$LOWTIDE_ROUND ]; do sleep 0.02; done
report '{"kind":"mark","t_s":0.2,"mark":"closed","round":1}'
"#;

/// Writes a study file, optionally with a treatment that acts at the drain. Returns its path.
fn file(home: &Path, load: &str, more: &str) -> String {
    let home_text = home.display().to_string();
    let text = format!(
        "command = ['{}', 'fill:4', 'ms:600000']\nready = 'after:50ms'\nprepare = '''\necho '{{\"inner_memory_bytes\": 7000000, \"more\": {{\"x\": 1.5}}}}' >{home_text}/figures.json'''\n\
         figures = '{home_text}/figures.json'\nload = '''{load}'''\nrepeat = 1\nsettle = '300ms'\ninterval = '50ms'\n{more}",
        subject(&[])
    );
    let path = home.join("study.toml");
    std::fs::write(&path, text.replace("{home}", &home_text)).unwrap();
    path.display().to_string()
}

const RELEASE: &str = r#"[[treatment]]
allocator = "glibc"
policy = "release at the drain"
at = [{ moment = "drained", name = "release", run = '''
echo '{"schema":"lowtide.release/1","returned_bytes":5}'; touch {home}/acted-$LOWTIDE_ROUND''' }]
"#;

fn kinds<'l>(lines: &'l [Value], kind: &str) -> Vec<&'l Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

fn run(more: &str) -> (tempfile::TempDir, Ran) {
    let home = tempfile::tempdir().unwrap();
    let file = file(home.path(), LOAD, more);
    let ran = study(&[file.as_str()]);
    (home, ran)
}

#[test]
fn a_trial_records_load_samples_and_metrics_and_runs_a_hook_at_the_drain() {
    let (_home, ran) = run(&format!("rounds = 2\npause = '100ms'\n{RELEASE}"));
    let trials = ran.trials();
    let trial = &trials[0];
    assert_eq!(trial["releases"], 2, "{trial}");
    assert_eq!(trial["rounds"][0]["allocated_bytes"], 7_000_000, "{trial}");
    let lines = ran.lines(trial);
    hold_record(&lines);
    let time = |line: &Value| line["t_s"].as_f64().unwrap();
    let mark = |name: &str| {
        let found = kinds(&lines, "mark").into_iter().find(|m| m["mark"] == name);
        time(found.unwrap_or_else(|| panic!("no {name}")))
    };
    let samples = kinds(&lines, "load_sample");
    let rounds: Vec<u64> = samples.iter().map(|s| s["round"].as_u64().unwrap()).collect();
    assert_eq!(rounds, [1, 1, 2, 2]);
    assert!(mark("load_begin") - 0.1 < time(samples[0]) && time(samples[0]) < mark("load_end"));
    let acts = kinds(&lines, "act");
    assert_eq!(acts.len(), 2, "{acts:?}");
    assert_eq!(
        (&acts[0]["at"], &acts[0]["report"]["returned_bytes"]),
        (&"drained".into(), &5.into())
    );
    assert!(mark("drained") - 0.1 < time(acts[0]) && time(acts[0]) < mark("load_end"));
    let figures = kinds(&lines, "figures");
    assert_eq!(figures[0]["values"]["more.x"], 1.5);
    let left = std::fs::read_dir(ran.record.join("trials")).unwrap().flatten();
    let left: Vec<_> =
        left.filter(|e| e.file_name().to_string_lossy().contains("load-1.jsonl")).collect();
    assert!(left.is_empty(), "{left:?}");
    let drawn = |how: &str| {
        let drawn = lowtide().arg("report").arg(&ran.record).args([how, "-"]).output().unwrap();
        String::from_utf8_lossy(&drawn.stdout).into_owned()
    };
    let svg = drawn("--svg");
    for reported in ["requests in flight", "blue: allocated", ">drained<", ">release<"] {
        assert!(svg.contains(reported), "{reported}");
    }
    assert!(drawn("--html").contains("\"in_flight\":[["));
    assert!(drawn("--csv").lines().any(|line| line.contains(",70000,7000000,")));
}

#[test]
fn an_event_that_never_occurs_fails_the_trial() {
    let home = tempfile::tempdir().unwrap();
    let file = file(home.path(), "true", RELEASE);
    let ran = study(&[file.as_str()]);
    assert_eq!(ran.code(), Some(1));
    let because = ran.json()["trials"][0]["failed_because"].to_string();
    assert!(because.contains("the moment `drained` never came"), "{because}");
}

#[test]
fn a_failing_hook_fails_the_trial_with_its_output() {
    let act = "[[treatment]]\nallocator = 'glibc'\nlabel = 'x'\nat = [{ moment = 'load_end', name = 'cure', \
               run = 'echo no cure >&2; exit 5' }]\n";
    let home = tempfile::tempdir().unwrap();
    let file = file(home.path(), "true", act);
    let ran = study(&[file.as_str()]);
    let because = ran.json()["trials"][0]["failed_because"].to_string();
    assert!(
        because.contains("`cure` at the moment `load_end` failed with exit code 5"),
        "{because}"
    );
    assert!(because.contains("no cure"), "{because}");
}

#[test]
fn missing_metrics_are_reported_once_and_do_not_fail_the_study() {
    let ran = study(&[
        "-a",
        "glibc",
        "--repeat",
        "1",
        "--figures",
        "/nonexistent/figures.json",
        "--",
        &subject(&[]),
        "fill:4",
        "ms:1000",
    ]);
    assert_eq!(ran.code(), Some(0), "{}", ran.stderr());
    assert_eq!(ran.stderr().matches("no metrics at /nonexistent").count(), 1);
}

#[test]
fn treatments_of_a_file_are_selected_by_label_and_skipped_if_unavailable() {
    let home = tempfile::tempdir().unwrap();
    let more = "allocator = 'glibc'\n[[treatment]]\nallocator = 'own'\nlabel = 'a'\nwhen = 'false'\n\
                [[treatment]]\nallocator = 'own'\nlabel = 'b'\n";
    let file = file(home.path(), "true", more);
    let ran = study(&[file.as_str(), "--only", "own/b"]);
    assert!(ran.stderr().contains("own/a is left out: `false`"), "{}", ran.stderr());
    let trials = ran.trials();
    assert_eq!(trials.len(), 1);
    assert_eq!(trials[0]["treatment"]["tune"], "b");
    assert_eq!(trials[0]["allocator_active"], true);
    let ran = study(&[file.as_str(), "--only", "own/c"]);
    assert_eq!(ran.code(), Some(2));
    assert!(
        ran.stdout().contains("there is no treatment `own/c`: there are glibc, own/b"),
        "{}",
        ran.stdout()
    );
}
