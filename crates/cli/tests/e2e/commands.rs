//! The small verbs, and what the README promises.

use crate::support::lowtide;

fn stdout(arguments: &[&str]) -> String {
    let output = lowtide().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(stdout(&["completions", shell]).contains("max-slowdown"), "{shell}");
    }
}

#[test]
fn the_manual_page_tells_every_verb_and_every_flag() {
    assert!(stdout(&["man"]).contains("lowtide\\-study(1)") || stdout(&["man"]).contains("study"));
    let page = stdout(&["man", "study"]);
    for flag in ["allocator", "settle", "fail\\-on", "max\\-slowdown"] {
        assert!(page.contains(flag), "{flag}");
    }
}

#[test]
fn the_help_shows_no_hidden_verb_and_every_visible_one_stands_in_the_readme() {
    let help = stdout(&["--help"]);
    assert!(!help.contains("keep") && !help.contains("demo-server"), "{help}");
    let readme = include_str!("../../../../README.md");
    for verb in ["demo", "study", "load", "watch", "report", "completions", "man"] {
        assert!(help.contains(&format!("\n  {verb}")), "{verb}");
        assert!(readme.contains(&format!("`lowtide {verb}")), "{verb} is not in the README");
    }
}

#[test]
fn a_keeper_that_is_started_by_hand_says_so() {
    let output = lowtide().arg("keep").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("started by lowtide itself"));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    use std::io::Read;
    let mut child = lowtide()
        .args(["completions", "bash"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut one = [0];
    let mut reader = child.stdout.take().unwrap();
    reader.read_exact(&mut one).unwrap();
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
}

#[test]
fn the_readme_defines_the_figures_as_reports_do() {
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(readme).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (figure, definition) in lowtide_model::judge::DEFINITIONS {
        let sentence = format!("- **{figure}**: {definition}");
        assert!(text.contains(&sentence), "{sentence}");
    }
}
