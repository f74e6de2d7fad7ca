//! The plan of a study: its cells, the parts that they are divided into, and whether two plans ask for
//! the same trials.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::record::v1::Plan;
use crate::treatment::Treatment;

/// One trial of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Its place in the order, from 1. It is the same in every part.
    pub number: u32,
    /// Which of the treatments, from 0.
    pub treatment: usize,
    /// Which repeat of it, from 1.
    pub repeat: u32,
}

/// A part of a study that runs in several, perhaps on several machines.
///
/// A part takes whole repeats, so that every treatment is tried in it as often as every other, and what is
/// compared pair by pair comes from one machine. They follow one another, since every second repeat turns
/// the order of the one before it round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shard {
    /// Which, from 1.
    pub part: u32,
    /// Of how many.
    pub of: u32,
}

/// Why a text names no part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no part: write I/N, such as 1/4 for the first of four")]
pub struct ShardError(String);

impl Shard {
    /// Whether a repeat, from 1, of so many belongs to the part.
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

/// How the name of a condition begins that says what a file holds.
pub const CONTENTS: &str = "contents of ";

/// What two plans differ in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What it is.
    pub what: String,
    /// What it is in the one,
    pub here: String,
    /// and in the other.
    pub there: String,
}

impl Plan {
    /// The trials of the plan, or of its part, in the order in which they are run.
    pub fn cells(&self) -> Vec<Cell> {
        let treatments = self.treatments.len().max(1);
        let cells = self.order.iter().enumerate().map(|(place, treatment)| Cell {
            number: place as u32 + 1,
            treatment: *treatment,
            repeat: (place / treatments) as u32 + 1,
        });
        let is_ours = |cell: &Cell| match self.shard {
            // A record may come from anywhere.
            Some(shard) if shard.part > 0 && shard.of > 0 => shard.takes(cell.repeat, self.repeats),
            _ => true,
        };
        cells.filter(is_ours).collect()
    }

    /// Whether one of the treatments is to be recommended: unless the study says otherwise.
    pub fn recommends(&self) -> bool {
        self.recommend != Some(false)
    }

    /// Whether what stays after each round is comparable: unless the study says otherwise.
    pub fn has_alike_rounds(&self) -> bool {
        self.rounds_alike != Some(false)
    }

    /// The first thing that bears on a trial in which the two differ. How often each treatment is tried, and
    /// which part of the trials is run, does not bear on a trial; nor do words for people.
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let numbers = self.numbers().into_iter().zip(other.numbers());
        let number = numbers.map(|((what, here), (_, there))| (what.to_owned(), here, there));
        let treatments = ("treatments".to_owned(), labels(self), labels(other));
        let mut names: Vec<&String> = self.conditions.keys().collect();
        names.extend(other.conditions.keys().filter(|name| !self.conditions.contains_key(*name)));
        let told = |plan: &Self, name: &String| {
            plan.conditions.get(name).map_or_else(|| "not given".to_owned(), |text| shown(text))
        };
        let is_other = |name: &&String| {
            let both = (self.conditions.get(*name), other.conditions.get(*name));
            // What a file held is not known where it was not there yet, or nobody wrote it down.
            let is_unknown = name.starts_with(CONTENTS) && (both.0.is_none() || both.1.is_none());
            both.0 != both.1 && !is_unknown
        };
        let conditions = names
            .into_iter()
            .filter(is_other)
            .map(|name| (name.clone(), told(self, name), told(other, name)));
        let differs = |(_, here, there): &(String, String, String)| here != there;
        let known = std::iter::once(treatments).chain(number).filter(differs);
        let first = known.chain(conditions).next();
        first.map(|(what, here, there)| Difference { what, here, there })
    }

    fn numbers(&self) -> [(&'static str, String); 6] {
        [
            ("seed", self.seed.to_string()),
            ("rounds", self.rounds.to_string()),
            ("warmup", self.warmup_rounds.to_string()),
            ("pause", format!("{} s", self.pause_s)),
            ("settle", format!("{} s", self.settle_s)),
            ("interval", format!("{} s", self.interval_s)),
        ]
    }
}

/// The treatments as a sentence shows them; their versions count.
fn labels(plan: &Plan) -> String {
    let label = |t: &Treatment| match &t.allocator_version {
        Some(version) => format!("{t} ({version})"),
        None => t.to_string(),
    };
    plan.treatments.iter().map(label).collect::<Vec<_>>().join(", ")
}

/// A text as a sentence shows it.
fn shown(text: &str) -> String {
    const LONGEST: usize = 120;
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("`{}…`", &line[..end]),
        None => format!("`{line}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two treatments, each as often as is said.
    fn plan(repeats: u32) -> Plan {
        let treatments = ["glibc", "jemalloc"].map(|name| Treatment::plain(name, None)).to_vec();
        let order = (0..repeats).flat_map(|r| if r % 2 == 0 { [0, 1] } else { [1, 0] }).collect();
        Plan { treatments, repeats, order, rounds: 1, ..Plan::default() }
    }

    #[test]
    fn the_parts_together_are_the_whole_and_each_is_balanced() {
        for repeats in 1..14 {
            let whole = plan(repeats).cells();
            for of in 1..=repeats {
                let part = |part| Plan { shard: Some(Shard { part, of }), ..plan(repeats) }.cells();
                let parts: Vec<Vec<Cell>> = (1..=of).map(part).collect();
                assert_eq!(parts.concat(), whole, "{repeats} repeats in {of} parts");
                for cells in &parts {
                    let of_first = cells.iter().filter(|cell| cell.treatment == 0).count();
                    assert!(!cells.is_empty() && of_first * 2 == cells.len());
                }
                let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
                let (most, least) = (sizes.iter().max(), sizes.iter().min());
                assert!(most.unwrap() - least.unwrap() <= 2, "one is longer by a repeat at most");
            }
        }
    }

    #[test]
    fn a_part_is_written_as_which_of_how_many() {
        assert_eq!("2/4".parse(), Ok(Shard { part: 2, of: 4 }));
        assert_eq!(Shard { part: 2, of: 4 }.to_string(), "2/4");
        for text in ["", "2", "0/4", "5/4", "1/0", "a/b", "-1/2", "1/2/3"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_bears_on_a_trial_makes_another_plan_and_words_and_repeats_do_not() {
        let one = plan(3);
        let words = Plan { name: "x".to_owned(), max_slowdown: 0.5, ..plan(6) };
        assert_eq!(one.difference(&words), None);
        let told = Plan { recommend: Some(false), rounds_alike: Some(false), ..plan(3) };
        assert_eq!(one.difference(&told), None);
        let told = |other: &Plan| {
            one.difference(other).map(|d| format!("{}: {}, {}", d.what, d.here, d.there)).unwrap()
        };
        assert_eq!(told(&Plan { settle_s: 2.5, ..plan(3) }), "settle: 0 s, 2.5 s");
        let mut newer = plan(3);
        newer.treatments[1].allocator_version = Some("5.3.1".to_owned());
        assert_eq!(told(&newer), "treatments: glibc, jemalloc, glibc, jemalloc (5.3.1)");
        let mut loaded = plan(3);
        loaded.conditions.insert("load".to_owned(), format!("wrk\n -c {}", "1".repeat(200)));
        assert!(told(&loaded).starts_with("load: not given, `wrk -c 111"), "{}", told(&loaded));
        let built = |text: &str| {
            let mut built = plan(3);
            built.conditions.insert(format!("{CONTENTS}the command"), text.to_owned());
            built
        };
        assert_eq!(
            one.difference(&built("9 bytes")),
            None,
            "a record of before says nothing of it"
        );
        let other = built("9 bytes").difference(&built("8 bytes")).unwrap();
        assert_eq!(other.what, "contents of the command");
    }
}
