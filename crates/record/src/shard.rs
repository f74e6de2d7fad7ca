//! Parts of a study that run separately, perhaps on several machines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part of a study. The parts run separately, perhaps on several machines.
///
/// A part consists of whole repeats, so that it has equally many trials of every treatment, and
/// trials that are compared in pairs come from one machine. Its repeats are consecutive, since
/// every second repeat reverses the order of the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard {
    /// Number of the part, from 1.
    pub part: u32,
    /// Number of parts.
    pub of: u32,
}

/// The reason why a text is not a valid part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid part: write I/N, such as 1/4 for the first of four")]
pub struct ShardError(String);

impl Shard {
    /// Returns whether a repeat (from 1) belongs to the part.
    pub fn takes(self, repeat: u32, repeats: u32) -> bool {
        let up_to = |part: u32| u64::from(part) * u64::from(repeats) / u64::from(self.of);
        (up_to(self.part - 1) + 1..=up_to(self.part)).contains(&u64::from(repeat))
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let numbers = text.split_once('/');
        let shard = numbers.and_then(|(part, of)| {
            Some(Self { part: part.trim().parse().ok()?, of: of.trim().parse().ok()? })
        });
        let sound = shard.filter(|shard| (1..=shard.of).contains(&shard.part));
        sound.ok_or_else(|| ShardError(text.to_owned()))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.part, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_written_as_its_number_and_the_count() {
        assert_eq!("2/4".parse(), Ok(Shard { part: 2, of: 4 }));
        assert_eq!(Shard { part: 2, of: 4 }.to_string(), "2/4");
        for text in ["", "2", "0/4", "5/4", "1/0", "a/b", "-1/2", "1/2/3"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
