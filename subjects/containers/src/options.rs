//! The command-line options.

use std::time::Duration;

/// The kind of content that is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Tasks,
    OneStays,
    Interleaved,
    Sleepers,
    Tcp,
    Attempts,
    Map,
    MapOfVec,
    DashMap,
}

impl Mode {
    const ALL: [Self; 9] = [
        Self::Tasks,
        Self::OneStays,
        Self::Interleaved,
        Self::Sleepers,
        Self::Tcp,
        Self::Attempts,
        Self::Map,
        Self::MapOfVec,
        Self::DashMap,
    ];

    /// Returns its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tasks => "tasks",
            Self::OneStays => "one-stays",
            Self::Interleaved => "interleaved",
            Self::Sleepers => "sleepers",
            Self::Tcp => "tcp",
            Self::Attempts => "attempts",
            Self::Map => "map",
            Self::MapOfVec => "map-of-vec",
            Self::DashMap => "dashmap",
        }
    }
}

/// The phases in which it can stay.
const PHASES: [&str; 3] = ["filled", "emptied", "dropped"];

/// Sizes of the memory that a sleeper can hold, in bytes.
const STATES: [usize; 4] = [0, 64, 1 << 10, 16 << 10];

/// The command-line options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// The kind of content that is filled.
    pub(crate) mode: Mode,
    /// Whether each round has a runtime of its own.
    pub(crate) each: bool,
    /// Number of elements.
    pub(crate) count: usize,
    /// Whether sleepers are spawned by a task, as in the post.
    pub(crate) inside: bool,
    /// Size of the memory that each sleeper holds, in bytes: one of [`STATES`].
    pub(crate) state: usize,
    /// Sleep time of each sleeper.
    pub(crate) sleep: Duration,
    /// Number of rounds.
    pub(crate) rounds: usize,
    /// Time for which memory may fall before a phase is announced.
    pub(crate) pause: Duration,
    /// The phase in which it stays.
    pub(crate) until: Option<String>,
}

const USAGE: &str = "usage: subject-containers \
    mode=tasks|one-stays|interleaved|sleepers|tcp|attempts|map|map-of-vec|dashmap [runtime=kept|each] [count=N] [rounds=N] \
    [pause=MS] [until=filled|emptied|dropped] [spawn=outside|inside] [state=0|64|1024|16384] [sleep=MS]";

impl Options {
    /// Parses the options.
    pub(crate) fn read(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            mode: Mode::Tasks,
            each: false,
            count: 1_000_000,
            inside: false,
            state: 0,
            sleep: Duration::from_secs(5),
            rounds: 3,
            pause: Duration::from_secs(1),
            until: None,
        };
        for word in words {
            let (name, value) =
                word.split_once('=').ok_or(format!("`{word}` is not NAME=VALUE; {USAGE}"))?;
            options.set(name, value).ok_or(format!("`{word}` is not understood; {USAGE}"))?;
        }
        if options.dropped_is_never_announced() {
            return Err(format!("the phase dropped needs runtime=each in this mode; {USAGE}"));
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let number = || value.parse().ok().filter(|n: &usize| *n > 0);
        match name {
            "mode" => self.mode = Mode::ALL.into_iter().find(|mode| mode.name() == value)?,
            "runtime" => {
                self.each = ["kept", "each"].iter().position(|word| *word == value)? == 1;
            }
            "count" => self.count = number()?,
            "rounds" => self.rounds = number()?,
            "spawn" => {
                self.inside = ["outside", "inside"].iter().position(|word| *word == value)? == 1;
            }
            "state" => {
                let bytes = value.parse().ok()?;
                self.state = STATES.into_iter().find(|state| *state == bytes)?;
            }
            "sleep" => self.sleep = Duration::from_millis(value.parse().ok()?),
            "pause" => self.pause = Duration::from_millis(value.parse().ok()?),
            "until" => self.until = Some(PHASES.iter().find(|p| **p == value)?.to_string()),
            _ => return None,
        }
        Some(())
    }

    fn dropped_is_never_announced(&self) -> bool {
        let drops_a_runtime =
            matches!(self.mode, Mode::Tasks | Mode::Sleepers | Mode::Tcp | Mode::Attempts);
        self.until.as_deref() == Some("dropped") && drops_a_runtime && !self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, String> {
        Options::read(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_that_are_set_replace_the_defaults() {
        let options = read("mode=tcp runtime=each count=7 until=dropped").unwrap();
        assert_eq!((options.mode, options.each, options.count), (Mode::Tcp, true, 7));
        assert_eq!((options.rounds, options.until.as_deref()), (3, Some("dropped")));
    }

    #[test]
    fn an_invalid_option_is_an_error_with_the_usage() {
        for text in
            ["mode=list", "count=0", "rounds=x", "runtime=two", "until=full", "n=1", "state=7"]
        {
            let message = read(text).unwrap_err();
            assert!(
                message.starts_with(&format!("`{text}` is not understood; usage")),
                "{message}"
            );
        }
        assert!(read("tasks").unwrap_err().contains("is not NAME=VALUE"));
        assert!(read("mode=tasks until=dropped").unwrap_err().contains("needs runtime=each"));
    }
}
