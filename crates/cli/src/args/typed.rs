//! The words of the command line. Without a verb, a process is inspected: `lowtide 4711` and
//! `lowtide python3`; or a heap file: `lowtide app.heap`. `inspect --watch` without a duration is
//! `watch`.

use std::ffi::OsString;

use clap::CommandFactory;

use crate::args::Cli;
use crate::select::selector::named;

/// Returns the words that were typed, with the verb that they stand for.
pub(crate) fn typed() -> Vec<OsString> {
    live(with_verb(std::env::args_os().collect(), |name| !named(name).is_empty()))
}

/// Adds the verb to words without one, if the first names a process or a heap file.
fn with_verb(mut words: Vec<OsString>, is_process: impl Fn(&str) -> bool) -> Vec<OsString> {
    let verb: &[&str] = match words.get(1).and_then(|word| word.to_str()) {
        None => return words,
        Some(word) if word.starts_with('-') || is_verb(word) => return words,
        Some(word) if word.parse::<u32>().is_ok() => &["inspect"],
        Some(word) if word.ends_with(".heap") => &["inspect"],
        Some(word) if is_process(word) => &["inspect", "--comm"],
        Some(_) => return words,
    };
    words.splice(1..1, verb.iter().map(OsString::from));
    words
}

/// Replaces `inspect --watch` by `watch` if no duration follows.
fn live(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_inspect = words.get(1).is_some_and(|verb| verb == "inspect");
    let Some(place) = words.iter().position(|word| word == "--watch").filter(|_| is_inspect) else {
        return words;
    };
    let after = words.get(place + 1).and_then(|word| word.to_str());
    let has_duration =
        after.is_some_and(|word| !word.starts_with('-') && word.parse::<u32>().is_err());
    if !has_duration {
        words.remove(place);
        words[1] = "watch".into();
    }
    words
}

fn is_verb(word: &str) -> bool {
    word == "help" || Cli::command().find_subcommand(word).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_verb_is_inspected() {
        let typed = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let words = with_verb(words, |name| name == "python3");
            words.join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(typed("lowtide 4711 --json"), "lowtide inspect 4711 --json");
        assert_eq!(typed("lowtide python3"), "lowtide inspect --comm python3");
        assert_eq!(typed("lowtide a.heap b.heap"), "lowtide inspect a.heap b.heap");
        for line in ["lowtide", "lowtide top", "lowtide help", "lowtide --json", "lowtide insect"] {
            assert_eq!(typed(line), line);
        }
    }

    #[test]
    fn inspect_watch_without_a_duration_is_the_live_view() {
        let typed = |line: &str| {
            let words = live(line.split(' ').map(OsString::from).collect());
            words.join(" ".as_ref()).into_string().unwrap()
        };
        for line in ["lowtide inspect --watch 4711", "lowtide inspect 4711 --watch"] {
            assert_eq!(typed(line), "lowtide watch 4711");
        }
        assert_eq!(typed("lowtide inspect --watch --json 4711"), "lowtide watch --json 4711");
        for line in [
            "lowtide inspect --watch 60s 4711",
            "lowtide inspect --watch=60s 4711",
            "lowtide release --watch 4711",
        ] {
            assert_eq!(typed(line), line);
        }
    }
}
