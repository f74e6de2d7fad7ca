//! Checks every command line of lowtide in the documents of the repository against the parser.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};

use super::Cli;

/// Directories without documents of ours.
const OTHERS: [&str; 2] = ["target", ".git"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Collects the files below a directory that have one of these endings.
fn collect(directory: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() {
            if !OTHERS.contains(&name.as_str()) && !name.starts_with("lowtide-") {
                collect(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// Returns the paths and texts of all files of the repository with one of these endings.
fn texts(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    collect(&root(), endings, &mut files);
    let text = |path: &PathBuf| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    files.into_iter().map(|path| (path.clone(), text(&path))).collect()
}

/// Returns the names of the verbs that users see.
fn verbs() -> Vec<String> {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    shown.map(|verb| verb.get_name().to_owned()).collect()
}

/// Returns the command of lowtide in a line of a shell, up to a comment or the end of the command:
/// from the program's name, which a verb follows. A command can be a quoted word of another one.
fn command_in(line: &str) -> Option<String> {
    let starts = line.match_indices("lowtide ").filter(|(start, _)| {
        let before = line[..*start].chars().next_back();
        before.is_none_or(|c| c == ' ' || c == '/')
    });
    let verbs = verbs();
    let is_command = |rest: &&str| {
        rest.split_whitespace().nth(1).is_some_and(|word| verbs.iter().any(|verb| verb == word))
    };
    let of_word = |start: usize| {
        let quote = line[..start].chars().rfind(|c| ['\'', '"'].contains(c));
        let is_open = quote.is_some_and(|quote| line[..start].matches(quote).count() % 2 == 1);
        let end = quote.filter(|_| is_open).and_then(|quote| line[start..].find(quote));
        &line[start..end.map_or(line.len(), |end| start + end)]
    };
    let rest = starts.map(|(start, _)| of_word(start)).find(is_command)?;
    // A remark follows after two spaces.
    let rest = rest.split("  ").next().unwrap_or_default();
    Some(rest.split(" #").next().unwrap_or_default().trim_end().to_owned())
}

/// Splits a document of Markdown into its blocks of code, with their languages, and the rest.
fn parts(document: &str) -> (Vec<(&str, &str)>, String) {
    let (mut blocks, mut prose) = (Vec::new(), String::new());
    for (index, part) in document.split("```").enumerate() {
        if index % 2 == 0 {
            prose.push_str(part);
        } else {
            blocks.push(part.split_once('\n').unwrap_or((part, "")));
        }
    }
    (blocks, prose)
}

/// Returns the commands in the blocks of a document: lines of `sh`, and those after a prompt.
fn commands_of(document: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (language, text) in parts(document).0 {
        let joined = text.replace(" \\\n", " ");
        let lines = joined.lines().map(str::trim);
        found.extend(lines.filter_map(|line| match language.trim() {
            "sh" => command_in(line),
            "console" => command_in(line.strip_prefix("$ ")?),
            _ => None,
        }));
    }
    found
}

/// Checks that a line can be parsed up to a pipe or the end of a command, with a process in place
/// of `PID`, `$!` and the numbers of examples.
pub(super) fn is_understood(line: &str) {
    let words: Vec<String> = shlex::split(line)
        .unwrap_or_default()
        .into_iter()
        .take_while(|word| !["|", "&", "&&", ";", ">", "2>"].contains(&word.as_str()))
        .map(|word| {
            if ["PID", "$!", "4711", "4242"].contains(&word.as_str()) {
                std::process::id().to_string()
            } else {
                word
            }
        })
        .collect();
    if let Err(error) = Cli::try_parse_from(&words) {
        panic!("{line}: {error}");
    }
}

#[test]
fn every_command_in_a_document_parses() {
    let mut count = 0;
    for (path, text) in texts(&[".md"]) {
        for line in commands_of(&text) {
            println!("{}: {line}", path.display());
            is_understood(&line);
            count += 1;
        }
    }
    assert!(count >= 100, "{count}");
}

#[test]
fn every_command_in_the_head_of_a_study_parses() {
    let mut count = 0;
    for (path, text) in texts(&[".toml"]) {
        if path.parent().and_then(Path::file_name).is_none_or(|folder| folder != "studies") {
            continue;
        }
        let lines = text.lines().map(|line| line.trim_start_matches(['#', ' ']));
        let joined = lines.collect::<Vec<_>>().join("\n").replace(" \\\n", " ");
        for line in joined.lines().filter_map(command_in) {
            is_understood(&line);
            count += 1;
        }
    }
    assert!(count >= 4, "{count}");
}

/// Returns the words between backticks in the prose of a document that begin with the program's
/// name and a verb.
fn mentions(document: &str) -> Vec<String> {
    let prose = parts(document).1;
    let words = prose.split('`').skip(1).step_by(2);
    let words = words.map(|words| words.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|words| command_in(words).is_some_and(|line| words.starts_with(&line))).collect()
}

#[test]
fn every_flag_of_a_verb_that_a_document_mentions_exists() {
    let mut all = Cli::command();
    all.build();
    let mut count = 0;
    for (path, text) in texts(&[".md"]) {
        for line in mentions(&text) {
            let words = line.split(' ').take_while(|word| *word != "--").collect::<Vec<_>>();
            let verb = all.find_subcommand(words[1]).unwrap();
            let flags = words.iter().filter_map(|word| word.strip_prefix("--"));
            for flag in flags {
                let flag: String =
                    flag.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
                let exists =
                    verb.get_arguments().any(|argument| argument.get_long() == Some(&flag));
                assert!(exists, "{}: `{line}`: {} has no --{flag}", path.display(), words[1]);
            }
            count += 1;
        }
    }
    assert!(count >= 60, "{count}");
}

#[test]
fn the_list_for_language_models_names_pages_that_exist_and_all_guides() {
    let docs = root().join("docs");
    let list = fs::read_to_string(docs.join("llms.txt")).unwrap();
    let links = list.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let links: Vec<&str> = links.collect();
    for link in &links {
        assert!(docs.join(link).is_file(), "{link}");
    }
    for folder in ["", "questions/"] {
        for entry in fs::read_dir(docs.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let page = format!("{folder}{name}");
            let is_listed = links.contains(&page.as_str()) || page == "index.md";
            assert!(is_listed || !page.ends_with(".md"), "docs/llms.txt does not name {page}");
        }
    }
}
