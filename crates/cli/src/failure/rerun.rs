//! The command line that runs lowtide again: what was typed, for one process, with or without a
//! flag.

use std::fmt;

use clap::{Args, Command, CommandFactory};

use crate::args::Cli;
use crate::args::typed::typed;
use crate::select::selector::ProcessFilter;
use crate::shell::quoted;

/// A command line of lowtide: `lowtide release --dry-run 7`. Flags are as they were typed, but for
/// those that decide only how the output looks: the next step is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rerun {
    verb: String,
    flags: Vec<Flag>,
    processes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Flag {
    /// Its long name, without dashes.
    name: String,
    /// The flag and its value, as a shell reads them.
    words: Vec<String>,
    /// Whether it selects processes.
    selects: bool,
}

impl Rerun {
    /// Returns this command line.
    pub(crate) fn typed() -> Self {
        let words = typed();
        Self::parsed(words.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned()))
    }

    fn parsed(words: impl IntoIterator<Item = String>) -> Self {
        let filter = ProcessFilter::augment_args(Command::new("filter"));
        let selects = |name: &str| filter.get_arguments().any(|arg| arg.get_id() == name);
        let mut cli = Cli::command();
        // Only then do the verbs have the flags of all verbs.
        cli.build();
        let mut verb: Option<&Command> = None;
        let (mut flags, mut processes) = (Vec::new(), Vec::new());
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if word == "--" {
                // The words of a command, which can look like flags.
                processes.push(word);
                processes.extend(words.by_ref().map(|word| quoted(&word)));
                break;
            }
            let command = verb.unwrap_or(&cli);
            let Some(found) = flag(command, &word) else {
                match verb {
                    None => verb = cli.find_subcommand(&word),
                    Some(_) => processes.push(quoted(&word)),
                }
                continue;
            };
            let value = found.has_separate_value.then(|| words.next()).flatten();
            let words = [word].into_iter().chain(value).map(|word| quoted(&word));
            let selects = selects(&found.name);
            flags.push(Flag { name: found.name, words: words.collect(), selects });
        }
        let is_of_output = |flag: &Flag| cli.get_arguments().any(|arg| arg.get_id() == &*flag.name);
        flags.retain(|flag| !is_of_output(flag));
        Self { verb: verb.map_or("", Command::get_name).to_owned(), flags, processes }
    }

    /// Returns it for one of the selected processes.
    pub(crate) fn only(&self, pid: u32) -> Self {
        let flags = self.flags.iter().filter(|flag| !flag.selects).cloned().collect();
        Self { verb: self.verb.clone(), flags, processes: vec![pid.to_string()] }
    }

    /// Returns whether it has a flag, by its long name without dashes.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag.name == name)
    }

    /// Returns a flag with its value, as it was typed; its name, if it was not typed.
    pub(crate) fn flag(&self, name: &str) -> String {
        let typed = self.flags.iter().find(|flag| flag.name == name);
        typed.map_or_else(|| format!("--{name}"), |flag| flag.words.join(" "))
    }

    /// Returns it without a flag.
    pub(crate) fn without(&self, name: &str) -> Self {
        let mut other = self.clone();
        other.flags.retain(|flag| flag.name != name);
        other
    }

    /// Returns it with a flag.
    pub(crate) fn with(&self, name: &str) -> Self {
        self.with_words(name, vec![format!("--{name}")])
    }

    /// Returns it with another value of a flag.
    pub(crate) fn with_value(&self, name: &str, value: &str) -> Self {
        self.with_words(name, vec![format!("--{name}"), quoted(value)])
    }

    fn with_words(&self, name: &str, words: Vec<String>) -> Self {
        let mut other = self.clone();
        let flag = Flag { name: name.to_owned(), words, selects: false };
        match other.flags.iter_mut().find(|flag| flag.name == name) {
            Some(known) => *known = flag,
            None => other.flags.push(flag),
        }
        other
    }
}

impl fmt::Display for Rerun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lowtide {}", self.verb)?;
        let flags = self.flags.iter().flat_map(|flag| &flag.words);
        flags.chain(&self.processes).try_for_each(|word| write!(f, " {word}"))
    }
}

/// A flag among the words of a command line.
struct FoundFlag {
    name: String,
    /// Whether its value is the next word.
    has_separate_value: bool,
}

/// Returns the flag that a word is: `--wait`, `--wait=5s`, `-n` or `-n5`.
fn flag(command: &Command, word: &str) -> Option<FoundFlag> {
    let (arg, has_own_value) = match word.strip_prefix("--") {
        Some(long) => {
            let name = long.split_once('=').map_or(long, |(name, _)| name);
            (command.get_arguments().find(|arg| arg.get_long() == Some(name))?, long != name)
        }
        None => {
            let mut letters = word.strip_prefix('-')?.chars();
            let letter = letters.next()?;
            let arg = command.get_arguments().find(|arg| arg.get_short() == Some(letter))?;
            (arg, letters.next().is_some())
        }
    };
    let takes_value = arg.get_action().takes_values();
    let name = arg.get_long().unwrap_or_default().to_owned();
    Some(FoundFlag { name, has_separate_value: takes_value && !has_own_value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(words: &str) -> Rerun {
        Rerun::parsed(shlex::split(words).unwrap())
    }

    #[test]
    fn the_command_to_rerun_keeps_all_options_and_names_one_pid() {
        for words in [
            "release 7",
            "release --dry-run 7",
            "release --unbounded --max-pause=500us --method purge --wait 5s --deadline 5m 7",
            "leaks --older 5m --every 2s --top 5 --folded --pprof 'a b' --overhead 2% 7",
            "watch -i 2s -n 5 -o record.jsonl --log 'it'\\''s' 7",
            "inspect --arenas --watch 60s 7",
        ] {
            assert_eq!(typed(words).only(7).to_string(), format!("lowtide {words}"));
        }
        assert_eq!(
            typed("--json release --color never 7 8 9").only(8).to_string(),
            "lowtide release 8"
        );
        let group = typed("release --exe '/bin/a b' --subprocesses --untested");
        assert_eq!(group.only(8).to_string(), "lowtide release --untested 8");
        assert_eq!(group.to_string(), "lowtide release --exe '/bin/a b' --subprocesses --untested");
    }

    #[test]
    fn a_flag_is_added_changed_or_left_out() {
        let again = typed("release --method purge --wait 5s --dry-run 7");
        assert!(again.has("wait") && !again.has("untested"));
        assert_eq!(again.flag("wait"), "--wait 5s");
        assert_eq!(
            again.without("dry-run").to_string(),
            "lowtide release --method purge --wait 5s 7"
        );
        let chunks = again.with_value("method", "chunks").with("untested");
        let text = "lowtide release --method chunks --wait 5s --dry-run --untested 7";
        assert_eq!(chunks.to_string(), text);
        let study = typed("study -a glibc,jemalloc --repeat 3 -- sh -c 'exit 0' --repeat 9");
        assert_eq!(
            study.with_value("repeat", "6").with("resume").to_string(),
            "lowtide study -a glibc,jemalloc --repeat 6 --resume -- sh -c 'exit 0' --repeat 9"
        );
        // A value may contain the name of a flag.
        let path =
            typed("leaks --stacks --pprof 'x --stacks' 7").without("stacks").with("no-stacks");
        assert_eq!(path.to_string(), "lowtide leaks --pprof 'x --stacks' --no-stacks 7");
    }
}
