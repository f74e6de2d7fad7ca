//! `inspect --pins --watch`: which blocks are older than the watch, and the code that allocates
//! them.

use serde_json::Value;

use super::{Subject, object, plain};
use crate::schemas::hold_inspection;
use crate::support::{fixture, lowtide};

/// Starts `fixtures/keeps.c`.
fn keeping() -> Subject {
    Subject::start(&mut plain(&fixture("keeps", &["-O1", "-g", "-fno-inline"])))
}

fn groups(found: &Value, key: &str, size_bytes: u64) -> Vec<Value> {
    let groups = found[key]["groups"].as_array().unwrap().iter();
    groups.filter(|group| group["size_bytes"][0] == size_bytes).cloned().collect()
}

#[test]
fn blocks_that_are_older_than_the_watch_are_a_group_of_their_own() {
    let subject = keeping();
    let found = subject.inspect_with(&["--pins", "--blocks", "--watch", "2s"]);
    hold_inspection(&found);
    for key in ["pins", "blocks"] {
        let of_age = |age: &str| {
            let groups = groups(&found, key, 64);
            groups.into_iter().find(|group| group["age"] == age)
        };
        let older = of_age("before_watch").unwrap_or_else(|| panic!("{:#}", found[key]));
        assert!(older["blocks"].as_u64().unwrap() >= 4900, "{older:#}");
        let new = of_age("since_watch").unwrap_or_else(|| panic!("{:#}", found[key]));
        assert!(new["blocks"].as_u64().unwrap() >= 4, "{new:#}");
    }
    let shares = found["pins"]["groups"].as_array().unwrap();
    let shares = shares.iter().map(|group| group["pinned_bytes"].as_u64().unwrap());
    assert_eq!(shares.sum::<u64>(), found["pins"]["pinned_bytes"].as_u64().unwrap());
}

#[test]
fn the_code_that_allocates_blocks_needs_a_time_to_sample_and_blocks_to_show() {
    let subject = Subject::silent(plain("sleep").arg("600"));
    let pid = subject.pid().to_string();
    for (words, sentence) in [
        (&["--stacks", "--watch", "2s"][..], "--stacks shows the code that allocates blocks"),
        (&["--folded", "--pins"], "--folded samples the allocations of some time"),
        (&["--pprof", "a.pb", "--blocks"], "--pprof samples the allocations of some time"),
        (&["--stacks", "--pins", "--watch", "2s", "1"], "name one PID"),
    ] {
        let output = lowtide().args(["inspect", &pid]).args(words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(sentence), "{words:?}: {text}");
    }
}

#[test]
#[ignore = "needs root, for probes"]
fn the_code_that_allocates_what_pins_memory_is_shown_and_drawn() {
    let subject = keeping();
    let home = tempfile::tempdir().unwrap();
    let words = ["--pins", "--stacks", "--overhead", "30%", "--watch"];
    // On a busy machine, the samples of a short watch may be of no block that stays.
    let known = ["6s", "20s", "60s", "180s"].into_iter().find_map(|time| {
        let found = subject.inspect_with(&[&words[..], &[time]].concat());
        let groups = groups(&found, "pins", 64);
        groups.iter().any(|group| group["stacks"][0].is_object()).then_some((time, found))
    });
    let (time, found) = known.expect("no stacks");
    hold_inspection(&found);
    let calls = |group: &Value| {
        let frames = group["stacks"][0]["frames"].as_array().cloned().unwrap_or_default();
        frames.iter().any(|frame| frame["function"] == "keep")
    };
    assert!(groups(&found, "pins", 64).iter().any(calls), "{found:#}");
    let pid = subject.pid().to_string();
    let profile = home.path().join("pins.pb");
    let run = |words: &[&str]| {
        let mut command = lowtide();
        command.args(["inspect", &pid, "--pins", "--overhead", "30%", "--watch", time]).args(words);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let folded = run(&["--folded"]);
    let text = String::from_utf8_lossy(&folded.stdout);
    let is_line = |line: &str| line.rsplit_once(' ').is_some_and(|(_, n)| n.parse::<u64>().is_ok());
    assert!(!text.is_empty() && text.lines().all(is_line), "{text}");
    let page = run(&["--pprof", profile.to_str().unwrap(), "--json"]);
    assert!(object(&page)["pins"].is_object());
    let bytes = std::fs::read(&profile).unwrap();
    assert!(bytes.windows(6).any(|found| found == b"pinned"), "{} bytes", bytes.len());
}
