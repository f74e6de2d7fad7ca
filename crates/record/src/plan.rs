//! The plan of a study: the trials, their order, and whether two plans define the same trials.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lowtide_model::treatment::Treatment;
use serde::{Deserialize, Serialize};

use crate::shard::Shard;

/// The plan of a study.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StudyPlan {
    /// Name for titles.
    pub name: String,
    /// The command under study.
    pub command: Vec<String>,
    /// The treatments; the first is the reference.
    pub treatments: Vec<Treatment>,
    /// Number of trials for each treatment.
    pub repeats: u32,
    /// Seed of the random order.
    pub seed: u64,
    /// The order of the trials: indices into `treatments`.
    pub order: Vec<usize>,
    /// The load that drives the subject, if any.
    pub load: Option<String>,
    /// Number of rounds of the load before the baseline.
    pub warmup_rounds: u32,
    /// Number of rounds of the load.
    pub rounds: u32,
    /// Time between two rounds, in seconds.
    pub pause_s: f64,
    /// Time after the last round, in seconds.
    pub settle_s: f64,
    /// Time between two samples, in seconds.
    pub interval_s: f64,
    /// Maximum slowdown of the recommended treatment, as a ratio: 0.05 is 5 %.
    pub max_slowdown: f64,
    /// Other records to draw beside this one, as absolute paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// The question of the study, for the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The part of the trials in this record. Absent if it contains all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Whether to recommend one of the treatments, if the study specifies it. Not if the treatments
    /// are different workloads, which cannot replace each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommend: Option<bool>,
    /// How the two versions of the command are compared. The first treatment is the version that
    /// the command is compared with. Absent if the study compares treatments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    /// Whether the rounds of the load are alike, if the study specifies it. If they are not, the
    /// memory that remains after each round is no evidence of growth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds_alike: Option<bool>,
    /// Other inputs of a trial, by the names of flags and keys: the commands, the conditions, and
    /// the settings of each treatment. The paths of the study and of the cache are written as
    /// `{study}` and `{cache}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conditions: BTreeMap<String, String>,
}

/// The comparison of two versions of a command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// The command of the other version.
    pub command: Vec<String>,
    /// Difference that does not matter, as a ratio: 0.01 is 1 %.
    pub tolerance: f64,
}

/// The position of one trial in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialSlot {
    /// Position in the order of trials, from 1. It is the same in every part.
    pub number: u32,
    /// Index of the treatment, from 0.
    pub treatment: usize,
    /// Number of the repeat, from 1.
    pub repeat: u32,
}

/// Prefix of the name of a condition that holds the contents of a file.
pub const CONTENTS: &str = "contents of ";

/// A difference between two plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the value that differs.
    pub what: String,
    /// The value in one plan.
    pub here: String,
    /// The value in the other plan.
    pub there: String,
}

impl StudyPlan {
    /// Returns the directories in which the record in a directory keeps copies of the records that
    /// are drawn beside it, in the order of [`beside`](Self::beside).
    pub fn copies_beside(&self, record: &Path) -> Vec<PathBuf> {
        let copy = |(place, original): (usize, &String)| {
            let name = Path::new(original).file_name().unwrap_or_default().to_string_lossy();
            record.join("beside").join(format!("{}-{name}", place + 1))
        };
        self.beside.iter().enumerate().map(copy).collect()
    }

    /// Returns the trials of the plan, or of its part, in the order in which they run.
    pub fn slots(&self) -> Vec<TrialSlot> {
        let treatments = self.treatments.len().max(1);
        let slots = self.order.iter().enumerate().map(|(place, treatment)| TrialSlot {
            number: place as u32 + 1,
            treatment: *treatment,
            repeat: (place / treatments) as u32 + 1,
        });
        let is_ours = |slot: &TrialSlot| match self.shard {
            // A record can come from any source, so its part may be invalid.
            Some(shard) if shard.part > 0 && shard.of > 0 => shard.takes(slot.repeat, self.repeats),
            _ => true,
        };
        slots.filter(is_ours).collect()
    }

    /// Returns whether to recommend one of the treatments. True unless the study specifies
    /// otherwise.
    pub fn recommends(&self) -> bool {
        self.recommend != Some(false)
    }

    /// Returns whether the memory that remains after each round is comparable. True unless the
    /// study specifies otherwise.
    pub fn has_alike_rounds(&self) -> bool {
        self.rounds_alike != Some(false)
    }

    /// Returns the first difference between the plans that affects a trial. The number of repeats,
    /// the part of the trials, and texts for people do not affect a trial.
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let numbers = self.numbers().into_iter().zip(other.numbers());
        let number = numbers.map(|((what, here), (_, there))| (what.to_owned(), here, there));
        let treatments = ("treatments".to_owned(), labels(self), labels(other));
        let mut names: Vec<&String> = self.conditions.keys().collect();
        names.extend(other.conditions.keys().filter(|name| !self.conditions.contains_key(*name)));
        let condition = |plan: &Self, name: &String| {
            plan.conditions.get(name).map_or_else(|| "not given".to_owned(), |text| shown(text))
        };
        let is_other = |name: &&String| {
            let both = (self.conditions.get(*name), other.conditions.get(*name));
            // The contents of a file are unknown if it did not exist yet, or if they were not
            // recorded.
            let is_unknown = name.starts_with(CONTENTS) && (both.0.is_none() || both.1.is_none());
            both.0 != both.1 && !is_unknown
        };
        let conditions = names
            .into_iter()
            .filter(is_other)
            .map(|name| (name.clone(), condition(self, name), condition(other, name)));
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

/// Returns the treatments for use in a sentence, including their versions.
fn labels(plan: &StudyPlan) -> String {
    let label = |t: &Treatment| match &t.allocator_version {
        Some(version) => format!("{t} ({version})"),
        None => t.to_string(),
    };
    plan.treatments.iter().map(label).collect::<Vec<_>>().join(", ")
}

/// Returns a text for use in a sentence.
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

    /// Returns a plan of two treatments with a number of repeats.
    fn plan(repeats: u32) -> StudyPlan {
        let treatments = ["glibc", "jemalloc"].map(|name| Treatment::plain(name, None)).to_vec();
        let order = (0..repeats).flat_map(|r| if r % 2 == 0 { [0, 1] } else { [1, 0] }).collect();
        StudyPlan { treatments, repeats, order, rounds: 1, ..StudyPlan::default() }
    }

    #[test]
    fn the_shards_cover_the_whole_plan_and_each_is_balanced() {
        for repeats in 1..14 {
            let whole = plan(repeats).slots();
            for of in 1..=repeats {
                let part =
                    |part| StudyPlan { shard: Some(Shard { part, of }), ..plan(repeats) }.slots();
                let parts: Vec<Vec<TrialSlot>> = (1..=of).map(part).collect();
                assert_eq!(parts.concat(), whole, "{repeats} repeats in {of} parts");
                for slots in &parts {
                    let of_first = slots.iter().filter(|slot| slot.treatment == 0).count();
                    assert!(!slots.is_empty() && of_first * 2 == slots.len());
                }
                let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
                let (most, least) = (sizes.iter().max(), sizes.iter().min());
                assert!(most.unwrap() - least.unwrap() <= 2, "one is longer by a repeat at most");
            }
        }
    }

    #[test]
    fn plans_differ_by_trial_conditions_but_not_by_names_or_repeats() {
        let one = plan(3);
        let words = StudyPlan { name: "x".to_owned(), max_slowdown: 0.5, ..plan(6) };
        assert_eq!(one.difference(&words), None);
        let reported = StudyPlan { recommend: Some(false), rounds_alike: Some(false), ..plan(3) };
        assert_eq!(one.difference(&reported), None);
        let reported = |other: &StudyPlan| {
            one.difference(other).map(|d| format!("{}: {}, {}", d.what, d.here, d.there)).unwrap()
        };
        assert_eq!(reported(&StudyPlan { settle_s: 2.5, ..plan(3) }), "settle: 0 s, 2.5 s");
        let mut newer = plan(3);
        newer.treatments[1].allocator_version = Some("5.3.1".to_owned());
        assert_eq!(reported(&newer), "treatments: glibc, jemalloc, glibc, jemalloc (5.3.1)");
        let mut loaded = plan(3);
        loaded.conditions.insert("load".to_owned(), format!("wrk\n -c {}", "1".repeat(200)));
        assert!(
            reported(&loaded).starts_with("load: not given, `wrk -c 111"),
            "{}",
            reported(&loaded)
        );
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
