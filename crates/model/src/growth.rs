//! Whether what is in use grows, judged from several looks at a process.
//!
//! A trend is found by the test of Mann and Kendall (Mann 1945, Kendall 1975), which asks only how many
//! pairs of looks rise and how many fall, and its rate by Theil and Sen: the median of the slopes of
//! all pairs. Neither is led astray by a single burst.

use crate::bytes::Human;
use crate::duration::HumanSeconds;
use crate::inspection::{Bin, Inspection};
use crate::ledger::Owner;
use crate::stats;
use crate::verdict::{Kind, Verdict};

/// The fewest looks that can show a trend.
pub const FEWEST_LOOKS: usize = 5;
/// A trend is one when chance alone would make it in 1 of 100 cases: the normal quantile.
const SIGNIFICANT: f64 = 2.326;
/// Growth of less than this is noise, in bytes,
const LEAST_BYTES: f64 = 256.0 * 1024.0;
/// and so is less than this part of what there was.
const LEAST_SHARE: f64 = 0.005;
/// A watch without an end keeps so many looks.
const MOST_LOOKS: usize = 80;
/// So many size classes are named.
const MOST_CLASSES: usize = 3;

/// One look, as far as growth is concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// When, in seconds from the first.
    pub t_s: f64,
    /// Which of the programs it is that a process may run one after the other.
    pub image: (u64, u64),
    /// What was in use, in bytes: allocated, managed by a runtime, or mapped by the program itself.
    pub in_use_bytes: u64,
    /// Whether its heap was walked: otherwise what is free in it is not told from what is in use.
    pub is_walked: bool,
    /// The blocks in use, by size.
    pub by_size: Vec<Bin>,
}

impl Look {
    /// What an inspection says about growth.
    pub fn of(t_s: f64, image: (u64, u64), inspection: &Inspection) -> Self {
        let counted = [Owner::Allocated, Owner::Runtime, Owner::AnonymousOther];
        Self {
            t_s,
            image,
            is_walked: !inspection.arenas.is_empty(),
            in_use_bytes: counted.iter().map(|o| inspection.ledger.bytes(*o)).sum(),
            by_size: inspection.allocated_by_size.clone(),
        }
    }
}

/// The looks of a watch that has no end: at most `MOST_LOOKS` of them, equally far apart, and the newest.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// Equally far apart, and the newest.
    looks: Vec<Look>,
    /// How often every other one was let go.
    halvings: u32,
    seen: u64,
    /// Whether the newest is one that is not kept.
    is_passing: bool,
}

impl Watched {
    /// Adds a look. What another program used in the same process before says nothing about this one,
    /// nor does a look that could not see as much.
    pub fn add(&mut self, look: Look) {
        let key = |look: &Look| (look.image, look.is_walked);
        if self.looks.last().is_some_and(|last| key(last) != key(&look)) {
            *self = Self::default();
        }
        if self.is_passing {
            self.looks.pop();
        }
        if self.looks.len() >= MOST_LOOKS {
            let mut place = 0;
            self.looks.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.halvings += 1;
        }
        self.is_passing = !self.seen.is_multiple_of(1 << self.halvings);
        self.seen += 1;
        self.looks.push(look);
    }

    /// How many looks there are, and over how many seconds.
    pub fn span(&self) -> (usize, f64) {
        let time = self.looks.first().zip(self.looks.last()).map(|(a, b)| b.t_s - a.t_s);
        (self.looks.len(), time.unwrap_or(0.0))
    }

    /// The verdict `growing`, when what is in use grew over the whole watch and still does in the newer
    /// half of it: a program that has warmed up has stopped growing.
    pub fn judge(&self) -> Option<Verdict> {
        let verdict = judge(&self.looks)?;
        let (first, last) = (self.looks.first()?, self.looks.last()?);
        let middle = f64::midpoint(first.t_s, last.t_s);
        let newer = &self.looks[self.looks.partition_point(|look| look.t_s < middle)..];
        (newer.len() < FEWEST_LOOKS || judge(newer).is_some()).then_some(verdict)
    }
}

/// The verdict `growing`, when what is in use grew over the looks.
pub fn judge(looks: &[Look]) -> Option<Verdict> {
    let (first, last) = (looks.first()?, looks.last()?);
    let in_use: Vec<(f64, f64)> = looks.iter().map(|l| (l.t_s, l.in_use_bytes as f64)).collect();
    let rate = rising(&in_use)?;
    let time = last.t_s - first.t_s;
    let least = LEAST_BYTES.max(first.in_use_bytes as f64 * LEAST_SHARE);
    if rate * time < least {
        return None;
    }
    let mut because = vec![format!(
        "what is in use grew from {} to {} in {}: {} a minute, in {} looks",
        Human(first.in_use_bytes),
        Human(last.in_use_bytes),
        HumanSeconds(time),
        Human((rate * 60.0) as u64),
        looks.len()
    )];
    because.extend(classes(looks).into_iter().map(|class| {
        format!(
            "blocks of {} to {} bytes: {} more of them, {} a minute",
            class.from,
            class.to - 1,
            class.more,
            Human((class.rate * 60.0) as u64)
        )
    }));
    Some(Verdict { kind: Kind::Growing, because })
}

/// A size class that grows.
struct Class {
    from: u64,
    to: u64,
    more: u64,
    /// Bytes a second.
    rate: f64,
}

/// The size classes that grow, the fastest first.
fn classes(looks: &[Look]) -> Vec<Class> {
    let Some(last) = looks.last() else { return Vec::new() };
    let count = |look: &Look, from| {
        look.by_size.iter().find(|b| b.from == from).map_or((0, 0), |b| (b.count, b.bytes))
    };
    let mut found: Vec<Class> = last
        .by_size
        .iter()
        .filter_map(|bin| {
            let course: Vec<(f64, f64)> =
                looks.iter().map(|l| (l.t_s, count(l, bin.from).1 as f64)).collect();
            let more = bin.count.saturating_sub(count(&looks[0], bin.from).0);
            let rate = rising(&course).filter(|_| more > 0)?;
            Some(Class { from: bin.from, to: bin.to, more, rate })
        })
        .collect();
    found.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    found.truncate(MOST_CLASSES);
    found
}

/// The rate at which a course rises, in its unit per second, if that is no chance.
pub(crate) fn rising(course: &[(f64, f64)]) -> Option<f64> {
    let n = course.len();
    if n < FEWEST_LOOKS {
        return None;
    }
    let mut score = 0.0;
    let mut slopes = Vec::with_capacity(n * (n - 1) / 2);
    for (place, (t0, y0)) in course.iter().enumerate() {
        for (t1, y1) in &course[place + 1..] {
            if y1 != y0 {
                score += (y1 - y0).signum();
            }
            if t1 > t0 {
                slopes.push((y1 - y0) / (t1 - t0));
            }
        }
    }
    let n = n as f64;
    let variance = n * (n - 1.0) * (2.0 * n + 5.0) / 18.0;
    let is_trend = (score - 1.0) / variance.sqrt() >= SIGNIFICANT.min(largest_score(n, variance));
    stats::median(&slopes).filter(|rate| is_trend && *rate > 0.0)
}

/// With few looks, not even one that rises at every step is as rare as that.
fn largest_score(n: f64, variance: f64) -> f64 {
    (n * (n - 1.0) / 2.0 - 1.0) / variance.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn looks(of: impl Fn(u64) -> u64) -> Vec<Look> {
        (0..20)
            .map(|i| {
                let bytes = of(i);
                let bin = Bin { from: 64, to: 128, count: bytes / 100, bytes };
                Look {
                    t_s: i as f64,
                    image: (1, 1),
                    is_walked: true,
                    in_use_bytes: 100 * MIB + bytes,
                    by_size: vec![bin],
                }
            })
            .collect()
    }

    #[test]
    fn what_rises_from_look_to_look_grows_and_its_size_class_is_named() {
        let verdict = judge(&looks(|i| i * MIB)).unwrap();
        assert_eq!(verdict.kind, Kind::Growing);
        assert_eq!(
            verdict.because[0],
            "what is in use grew from 100 MiB to 119 MiB in 19.0 s: 60.0 MiB a minute, in 20 looks"
        );
        assert!(verdict.because[1].starts_with("blocks of 64 to 127 bytes: "), "{verdict:?}");
    }

    #[test]
    fn what_swings_is_level_and_a_burst_is_no_growth() {
        assert_eq!(judge(&looks(|i| (i % 4) * 10 * MIB)), None);
        assert_eq!(judge(&looks(|i| if i == 7 { 500 * MIB } else { 0 })), None);
        assert_eq!(judge(&looks(|i| i * 1024)), None);
        assert_eq!(judge(&looks(|_| 0)[..4]), None);
        assert_eq!(judge(&[]), None);
    }

    #[test]
    fn growth_with_noise_on_it_is_growth() {
        assert!(judge(&looks(|i| i * MIB + (i * 7919 % 3) * MIB)).is_some());
    }

    fn watched(of: impl Fn(u64) -> u64) -> Watched {
        let mut watched = Watched::default();
        for i in 0..1000 {
            watched.add(Look {
                t_s: i as f64,
                image: (1, 1),
                is_walked: true,
                in_use_bytes: of(i),
                by_size: Vec::new(),
            });
        }
        watched
    }

    #[test]
    fn a_watch_keeps_its_first_look_and_not_too_many_others() {
        let watched = watched(|i| i * MIB);
        assert!(watched.looks.len() <= MOST_LOOKS, "{}", watched.looks.len());
        let because = &watched.judge().unwrap().because[0];
        assert!(because.starts_with("what is in use grew from 0 B to 999 MiB in 16 min 39 s: 60"));
    }

    #[test]
    fn a_slow_leak_is_told_from_a_program_that_has_warmed_up() {
        let mut slow = Watched::default();
        for second in 0..36_000_u64 {
            let in_use_bytes = 2048 * MIB + second * MIB / 60;
            slow.add(Look {
                t_s: second as f64,
                image: (1, 1),
                is_walked: true,
                in_use_bytes,
                by_size: Vec::new(),
            });
        }
        assert!(slow.judge().is_some());
    }

    #[test]
    fn another_program_in_the_same_process_begins_anew() {
        let mut watched = watched(|i| i * MIB);
        watched.add(Look {
            t_s: 1000.0,
            image: (2, 2),
            is_walked: true,
            in_use_bytes: 0,
            by_size: Vec::new(),
        });
        assert_eq!((watched.span(), watched.judge()), ((1, 0.0), None));
    }

    #[test]
    fn what_grew_while_it_warmed_up_and_then_stood_still_does_not_grow() {
        assert_eq!(watched(|i| i.min(300) * MIB).judge(), None);
    }
}
