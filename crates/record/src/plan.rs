//! The plan of a study: what runs in which order, and whether two plans ask for the same trials.

use std::collections::BTreeMap;

use lowtide_model::treatment::Treatment;
use serde::{Deserialize, Serialize};

use crate::shard::Shard;

/// The plan of a study.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StudyPlan {
    /// Its name, for titles.
    pub name: String,
    /// The command under study.
    pub command: Vec<String>,
    /// The treatments; the first is the reference.
    pub treatments: Vec<Treatment>,
    /// How often each is tried.
    pub repeats: u32,
    /// What the order was drawn from.
    pub seed: u64,
    /// The order of the trials: indices into `treatments`.
    pub order: Vec<usize>,
    /// What drives the subject, if anything does.
    pub load: Option<String>,
    /// Rounds of the load before the baseline.
    pub warmup_rounds: u32,
    /// Rounds of the load.
    pub rounds: u32,
    /// Time between two rounds.
    pub pause_s: f64,
    /// Time after the last round.
    pub settle_s: f64,
    /// Time between two samples.
    pub interval_s: f64,
    /// What the recommendation may cost, as a ratio: 0.05 is 5 %.
    pub max_slowdown: f64,
    /// Records of elsewhere that are to be drawn beside this one: absolute paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// Words for the report: what the study asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Which part of the trials stands in this record; absent when it is all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Whether one of the treatments is recommended, where the study says so. It is not where they are other
    /// workloads, of which nobody can take one in place of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommend: Option<bool>,
    /// Whether the rounds of the load are alike, where the study says so. Where they are not, what stays after
    /// each says nothing of growth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds_alike: Option<bool>,
    /// What else bears on a trial, by the names of flags and keys: the commands, the conditions, and what
    /// each treatment sets. Paths of the study and of the cache stand as `{study}` and `{cache}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conditions: BTreeMap<String, String>,
}

/// The place of one trial in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialSlot {
    /// Its place in the order, from 1. It is the same in every part.
    pub number: u32,
    /// Which of the treatments, from 0.
    pub treatment: usize,
    /// Which repeat of it, from 1.
    pub repeat: u32,
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

impl StudyPlan {
    /// The trials of the plan, or of its part, in the order in which they are run.
    pub fn slots(&self) -> Vec<TrialSlot> {
        let treatments = self.treatments.len().max(1);
        let slots = self.order.iter().enumerate().map(|(place, treatment)| TrialSlot {
            number: place as u32 + 1,
            treatment: *treatment,
            repeat: (place / treatments) as u32 + 1,
        });
        let is_ours = |slot: &TrialSlot| match self.shard {
            // A record may come from anywhere.
            Some(shard) if shard.part > 0 && shard.of > 0 => shard.takes(slot.repeat, self.repeats),
            _ => true,
        };
        slots.filter(is_ours).collect()
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
fn labels(plan: &StudyPlan) -> String {
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
    fn plan(repeats: u32) -> StudyPlan {
        let treatments = ["glibc", "jemalloc"].map(|name| Treatment::plain(name, None)).to_vec();
        let order = (0..repeats).flat_map(|r| if r % 2 == 0 { [0, 1] } else { [1, 0] }).collect();
        StudyPlan { treatments, repeats, order, rounds: 1, ..StudyPlan::default() }
    }

    #[test]
    fn the_parts_together_are_the_whole_and_each_is_balanced() {
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
    fn what_bears_on_a_trial_makes_another_plan_and_words_and_repeats_do_not() {
        let one = plan(3);
        let words = StudyPlan { name: "x".to_owned(), max_slowdown: 0.5, ..plan(6) };
        assert_eq!(one.difference(&words), None);
        let told = StudyPlan { recommend: Some(false), rounds_alike: Some(false), ..plan(3) };
        assert_eq!(one.difference(&told), None);
        let told = |other: &StudyPlan| {
            one.difference(other).map(|d| format!("{}: {}, {}", d.what, d.here, d.there)).unwrap()
        };
        assert_eq!(told(&StudyPlan { settle_s: 2.5, ..plan(3) }), "settle: 0 s, 2.5 s");
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
