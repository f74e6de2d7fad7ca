//! Tests of the small verbs, and of the claims of the README.

use crate::support::lowtide;

fn stdout(arguments: &[&str]) -> String {
    let output = lowtide().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn completions_are_generated_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(stdout(&["completions", shell]).contains("max-slowdown"), "{shell}");
    }
}

/// Returns the verbs in the help.
fn verbs() -> Vec<String> {
    let help = stdout(&["--help"]);
    let (_, list) = help.split_once("Commands:\n").expect("the help lists the verbs");
    let lines = list.lines().take_while(|line| !line.is_empty());
    let first = |line: &str| line.strip_prefix("  ")?.split(' ').next().map(str::to_owned);
    lines.filter_map(first).filter(|verb| !verb.is_empty() && verb != "help").collect()
}

/// Returns the long flags at the start of lines in the help of a verb, as `--flag`.
fn flags(verb: &str) -> Vec<String> {
    let help = stdout(&[verb, "--help"]);
    let words = |line: &str| {
        let words = line.trim_start().split([' ', ',']).take(3);
        words.filter(|word| word.starts_with("--")).map(str::to_owned).collect::<Vec<_>>()
    };
    let lines =
        help.lines().filter(|line| line.starts_with("  ") && line.trim_start().starts_with('-'));
    lines.flat_map(words).collect()
}

#[test]
fn the_manual_page_describes_every_verb_and_every_flag() {
    let whole = stdout(&["man"]);
    let mut count = 0;
    for verb in verbs() {
        assert!(whole.contains(&format!("lowtide\\-{verb}(1)")), "{verb}");
        let page = stdout(&["man", &verb]);
        for flag in flags(&verb) {
            // Between the roff marks for bold type, with escaped dashes.
            let marked = format!("\\fB{}\\fR", flag.replace('-', "\\-"));
            assert!(page.contains(&marked), "{verb} {flag}");
            count += 1;
        }
    }
    assert!(count > 80, "{count}");
}

#[test]
fn the_help_omits_hidden_verbs_and_the_readme_contains_every_visible_one() {
    let help = stdout(&["--help"]);
    let shows = |verb| help.lines().any(|line| line.split_whitespace().next() == Some(verb));
    assert!(!shows("keep") && !shows("demo-server") && shows("study"), "{help}");
    let readme = include_str!("../../../../README.md");
    let verbs = verbs();
    for verb in ["demo", "inspect", "release", "study", "load", "watch", "report"] {
        assert!(verbs.iter().any(|shown| shown == verb), "{verb}");
    }
    for verb in verbs {
        assert!(readme.contains(&format!("`lowtide {verb}")), "{verb} is not in the README");
    }
}

#[test]
fn without_a_word_the_help_is_printed_and_the_exit_code_is_that_of_a_usage_error() {
    let output = lowtide().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let help = String::from_utf8_lossy(&output.stderr);
    assert!(verbs().iter().all(|verb| help.contains(&format!("\n  {verb} "))), "{help}");
}

#[test]
fn starting_the_keeper_by_hand_is_an_error() {
    let output = lowtide().arg("keep").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("an internal command of lowtide"));
}

#[test]
fn a_closed_stdout_pipe_is_not_an_error() {
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
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // The pipe may have had room for all output. Here the reader is gone before the first write.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = lowtide().args(["completions", "bash"]).stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_report_documentation_defines_the_metrics_as_the_code_does() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/reading-a-report.md")).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (figure, definition) in lowtide_analysis::metrics::DEFINITIONS {
        let sentence = format!("- **{figure}**: {definition}");
        assert!(text.contains(&sentence), "{sentence}");
    }
}

/// Returns the words in backticks that look like paths of this repository, except those with a
/// `NAME`.
fn paths(document: &str) -> Vec<&str> {
    let is_path = |word: &&str| {
        let is_file = [".rs", ".c", ".h", ".toml", ".json"].iter().any(|end| word.ends_with(end));
        (is_file || (word.ends_with('/') && word.starts_with("crates/")))
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
            && !word.contains("NAME")
    };
    document.split('`').skip(1).step_by(2).filter(is_path).collect()
}

/// Collects all files and folders below a folder, relative to the repository.
fn files_below(folder: &std::path::Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        if path.is_dir() && !path.is_symlink() {
            found.push(format!("{name}/"));
            files_below(&path, found);
        } else {
            found.push(name);
        }
    }
}

#[test]
fn every_path_in_the_contributor_documents_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut files = Vec::new();
    for folder in ["crates", "schemas", "studies", "subjects"] {
        files_below(&root.join(folder), &mut files);
    }
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        let found = paths(&text);
        assert!(found.len() > 10, "{document}: {found:?}");
        // Within a section, paths are relative to the folder that it names.
        for path in found {
            let end = format!("/{path}");
            assert!(files.iter().any(|file| file.ends_with(&end)), "{document}: {path}");
        }
    }
}

/// Returns the crates of lowtide that a crate depends on, by the names of their folders, in order.
fn dependencies(folder: &std::path::Path) -> Vec<String> {
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let (_, rest) = manifest.split_once("[dependencies]").unwrap_or_default();
    let own = rest.split("\n[").next().unwrap().lines();
    let mut names: Vec<String> = own
        .filter_map(|line| line.strip_prefix("lowtide-"))
        .map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn the_table_of_crates_lists_every_crate_with_its_dependencies() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let folders = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap());
    let all: Vec<String> =
        folders.map(|folder| folder.file_name().into_string().unwrap()).collect();
    for name in &all {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{name}` | ")));
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {name}"));
        let listed = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let found = dependencies(&root.join("crates").join(name));
        let mut others: Vec<&str> = all.iter().map(String::as_str).collect();
        others.retain(|other| other != name && !found.iter().any(|own| own == other));
        others.sort_unstable();
        let expected = match (found.len(), others.len()) {
            (0, _) => "–".to_owned(),
            (many, few) if many > few => format!("all but {}", others.join(", ")),
            _ => found.join(", "),
        };
        assert_eq!(listed, expected, "the row of {name} in ARCHITECTURE.md");
    }
}

#[test]
fn the_tests_that_the_security_page_names_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let page = std::fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let is_test = |word: &&str| word.split('_').count() > 4;
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(named.len() > 15, "{named:?}");
    let mut files = Vec::new();
    files_below(&root.join("crates"), &mut files);
    files.retain(|file| file.ends_with(".rs"));
    let sources: String = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    for test in named {
        assert!(sources.contains(&format!("fn {test}(")), "{test}");
    }
}
