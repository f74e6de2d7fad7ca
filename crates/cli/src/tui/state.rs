//! What the live view shows: a function of what it was fed.

use std::time::Duration;

use lowtide_analysis::diagnose::diagnose;
use lowtide_analysis::growth::{GrowthSample, GrowthTracker};
use lowtide_model::bytes::Resident;
use lowtide_model::inspection::{Inspection, Observation, Unreadable};
use lowtide_model::ledger::{Ledger, Owner};
use lowtide_model::sample::Sample;

use super::history::History;
use crate::watcher::{WatchEvent, between_looks};

/// The owners that the chart follows.
pub(crate) const FOLLOWED: [Owner; 4] =
    [Owner::Allocated, Owner::Reclaimable, Owner::Fragmented, Owner::Runtime];

/// The intervals that can be chosen with a key, in milliseconds.
const INTERVALS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// What is shown in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Panel {
    /// The ledger and the chart.
    Overview,
    /// The arenas of the heap.
    Arenas,
    /// What the keys do.
    Help,
}

/// What can be asked of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    /// Leaves the panel, or the view.
    Back,
    Pause,
    Arenas,
    Help,
    Longer,
    Shorter,
    /// By so many lines.
    Scroll(isize),
    /// By so many pages.
    Page(isize),
    Top,
    Bottom,
}

/// What a key asks of whoever drives the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Quit,
    Interval(Duration),
}

/// What was seen of a process until now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Course {
    /// The last look, its verdict over time.
    pub(crate) latest: Option<Inspection>,
    /// What the first look found.
    pub(crate) first: Option<Ledger>,
    /// The last sample.
    pub(crate) sample: Option<Sample>,
    /// What was resident at the first sample, and at most, in bytes.
    pub(crate) first_rss_bytes: Option<u64>,
    pub(crate) peak_rss_bytes: u64,
    /// RSS over time.
    pub(crate) rss: History<1>,
    /// What the owners in [`FOLLOWED`] had over time.
    pub(crate) owners: History<4>,
    /// Since the watch began, in seconds.
    pub(crate) now_s: f64,
    /// Looks.
    pub(crate) looks: u64,
    /// When the last of them began, in seconds since the watch began.
    pub(crate) looked_s: f64,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct State {
    /// The number of the process.
    pub(crate) pid: u32,
    course: Course,
    /// What is shown while it is paused.
    frozen: Option<Course>,
    growth: GrowthTracker,
    /// What is shown in the middle.
    pub(crate) panel: Panel,
    /// The first line that is shown of a table.
    pub(crate) scroll: usize,
    /// So many lines of it are shown at once.
    pub(crate) page: usize,
    /// Time between two ticks.
    pub(crate) interval: Duration,
    /// When the process ended.
    pub(crate) ended_s: Option<f64>,
    /// What was not permitted at the last look.
    pub(crate) unreadable: Option<Unreadable>,
    /// What went wrong last.
    pub(crate) trouble: Option<String>,
}

impl State {
    /// Of a process of which nothing was seen yet.
    pub(crate) fn new(pid: u32, interval: Duration) -> Self {
        Self {
            pid,
            course: Course::default(),
            frozen: None,
            growth: GrowthTracker::default(),
            panel: Panel::Overview,
            scroll: 0,
            page: 0,
            interval,
            ended_s: None,
            unreadable: None,
            trouble: None,
        }
    }

    /// What is to be shown: what was seen until now, or until it was paused.
    pub(crate) fn course(&self) -> &Course {
        self.frozen.as_ref().unwrap_or(&self.course)
    }

    /// Whether the picture stands still. What happens is still followed, and recorded.
    pub(crate) fn is_paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// How many looks there were, whether or not they are shown.
    pub(crate) fn looks(&self) -> u64 {
        self.course.looks
    }

    /// The last look, whether or not it is shown.
    pub(crate) fn latest(&self) -> Option<&Inspection> {
        self.course.latest.as_ref()
    }

    /// How long one look takes, in seconds.
    pub(crate) fn look_s(&self) -> Option<f64> {
        Some(self.course.latest.as_ref()?.observation.elapsed_s)
    }

    /// From one look to the next, in seconds.
    pub(crate) fn between_looks_s(&self) -> f64 {
        let cpu_s = self.course.latest.as_ref().map_or(0.0, |found| found.observation.cpu_s);
        let cost = Duration::from_secs_f64(cpu_s.max(0.0));
        between_looks(self.interval, cost).as_secs_f64()
    }

    /// Takes in what was seen.
    pub(crate) fn see(&mut self, seen: WatchEvent) {
        match seen {
            WatchEvent::Sample(tick) => self.sample(tick.sample),
            WatchEvent::Observed(t_s, observation) => self.observe(t_s, *observation),
            WatchEvent::Failed(error) => self.trouble = Some(error.to_string()),
            WatchEvent::Ended(t_s) => {
                self.course.now_s = t_s;
                self.ended_s = Some(t_s);
            }
        }
    }

    fn sample(&mut self, sample: Sample) {
        let course = &mut self.course;
        let Resident(rss) = sample.total.rss_bytes;
        course.now_s = sample.t_s;
        course.first_rss_bytes.get_or_insert(rss);
        course.peak_rss_bytes = course.peak_rss_bytes.max(rss);
        course.rss.add(sample.t_s, [rss]);
        course.sample = Some(sample);
    }

    fn observe(&mut self, t_s: f64, observation: Observation) {
        self.unreadable = observation.unreadable;
        let mut found = diagnose(observation);
        // Memory in use is unknown where memory may not be read.
        if self.unreadable.is_none() {
            self.growth.add(GrowthSample::new(t_s, &found.observation));
            if let Some(verdict) = self.growth.detect() {
                found.verdict = verdict;
            }
        }
        self.trouble = None;
        let course = &mut self.course;
        course.owners.add(t_s, FOLLOWED.map(|owner| found.observation.ledger.bytes(owner)));
        course.first.get_or_insert_with(|| found.observation.ledger.clone());
        course.looks += 1;
        course.looked_s = t_s;
        course.latest = Some(found);
    }

    /// Does what a key asks for, or says what it wishes.
    pub(crate) fn press(&mut self, key: Key) -> Option<Wish> {
        match key {
            Key::Quit => return Some(Wish::Quit),
            Key::Back if self.panel == Panel::Overview => return Some(Wish::Quit),
            Key::Back => self.panel = Panel::Overview,
            Key::Pause => {
                self.frozen = if self.is_paused() { None } else { Some(self.course.clone()) };
            }
            Key::Arenas => self.toggle(Panel::Arenas),
            Key::Help => self.toggle(Panel::Help),
            Key::Longer => {
                return self.choose_interval(INTERVALS.into_iter(), |new, now| new > now);
            }
            Key::Shorter => {
                return self.choose_interval(INTERVALS.into_iter().rev(), |new, now| new < now);
            }
            Key::Scroll(lines) => self.scroll_by(lines),
            Key::Page(pages) => self.scroll_by(pages.saturating_mul(self.page.max(1) as isize)),
            Key::Top => self.scroll_by(isize::MIN),
            Key::Bottom => self.scroll_by(isize::MAX),
        }
        None
    }

    fn toggle(&mut self, panel: Panel) {
        self.panel = if self.panel == panel { Panel::Overview } else { panel };
        self.scroll = 0;
    }

    fn scroll_by(&mut self, lines: isize) {
        let arenas =
            self.course().latest.as_ref().map_or(0, |found| found.observation.arenas.len());
        let last = arenas.saturating_sub(self.page.max(1));
        self.scroll = self.scroll.saturating_add_signed(lines).min(last);
    }

    fn choose_interval(
        &mut self,
        mut from: impl Iterator<Item = u64>,
        fits: impl Fn(Duration, Duration) -> bool,
    ) -> Option<Wish> {
        let chosen = from.find(|ms| fits(Duration::from_millis(*ms), self.interval))?;
        self.interval = Duration::from_millis(chosen);
        Some(Wish::Interval(self.interval))
    }
}

impl Course {
    /// By how much an owner's bytes have changed since the first look.
    pub(crate) fn change_of(&self, owner: Owner) -> Option<i64> {
        let (first, latest) = (self.first.as_ref()?, self.latest.as_ref()?);
        (self.looks > 1)
            .then(|| difference(latest.observation.ledger.bytes(owner), first.bytes(owner)))
    }

    /// How old the look is that is shown beside the RSS of now, in seconds, where that is worth a word: over 2 s, and
    /// more than looks lie apart by themselves.
    pub(crate) fn age_s(&self, interval: Duration) -> Option<f64> {
        const LEAST: f64 = 2.0;
        let age = self.now_s - self.looked_s;
        (self.latest.is_some() && age > LEAST.max(1.5 * interval.as_secs_f64())).then_some(age)
    }

    /// What is resident, and by how much that has changed since the first sample.
    pub(crate) fn rss(&self) -> Option<(u64, i64)> {
        let now = self.sample.as_ref()?.total.rss_bytes.0;
        Some((now, difference(now, self.first_rss_bytes?)))
    }
}

fn difference(now: u64, before: u64) -> i64 {
    let size = i64::try_from(now.abs_diff(before)).unwrap_or(i64::MAX);
    if now < before { -size } else { size }
}
