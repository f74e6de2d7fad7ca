//! The state of the live view, from the events of the watcher and the keys.

use std::path::Path;
use std::time::Duration;

use lowtide_analysis::growth::Follower;
use lowtide_model::inspection::{Inspection, Observation, Unreadable};
use lowtide_model::leaks::LeakReport;
use lowtide_model::pins::Pins;
use lowtide_probe::target::TargetError;

use super::history::History;
use super::keys::Key;
use super::policy::PolicyHistory;
use crate::watcher::{WatchEvent, between_inspections};

/// The intervals that can be chosen with a key, in milliseconds.
const INTERVALS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// The panel between head and footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Panel {
    /// The ledger and the chart.
    Overview,
    /// The arenas of the heap.
    Arenas,
    /// Growing blocks in the heap.
    Leaks,
    /// What pins fragmented memory.
    Pins,
    /// The keys.
    Help,
}

/// A request of a key to the loop that drives the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyRequest {
    Quit,
    Interval(Duration),
    /// Start to search for leaks.
    Leaks,
    /// Search for what pins memory.
    Pins,
    /// Search for pointers to growing blocks.
    Seek,
}

/// The state of the live view.
#[derive(Debug)]
pub(crate) struct State {
    /// The PID of the process.
    pub(crate) pid: u32,
    history: History,
    /// The history that is shown while the view is paused.
    frozen: Option<History>,
    follower: Follower,
    /// The panel between head and footer.
    pub(crate) panel: Panel,
    /// The first line of the table that is shown.
    pub(crate) scroll: usize,
    /// Number of lines of the table that are shown at once.
    pub(crate) page: usize,
    /// Time between two ticks.
    pub(crate) interval: Duration,
    /// When the process ended, in seconds since the watch started.
    pub(crate) ended_s: Option<f64>,
    /// The part that the last inspection was not permitted to read.
    pub(crate) unreadable: Option<Unreadable>,
    /// The leaks found so far.
    pub(crate) leaks: Option<LeakReport>,
    /// What pins memory, as it was when its panel was opened.
    pub(crate) pins: Option<Pins>,
    /// The last error.
    pub(crate) trouble: Option<String>,
}

impl State {
    /// Returns the state before the first event.
    pub(crate) fn new(pid: u32, interval: Duration) -> Self {
        Self {
            pid,
            history: History::default(),
            frozen: None,
            follower: Follower::default(),
            panel: Panel::Overview,
            scroll: 0,
            page: 0,
            interval,
            ended_s: None,
            unreadable: None,
            leaks: None,
            pins: None,
            trouble: None,
        }
    }

    /// Prepares to show the acts of a log.
    pub(crate) fn with_log(mut self, log: &Path) -> Self {
        self.history.policy = Some(PolicyHistory::new(self.pid, log));
        self
    }

    /// Returns the history to show: until now, or until the view was paused.
    pub(crate) fn history(&self) -> &History {
        self.frozen.as_ref().unwrap_or(&self.history)
    }

    /// Returns whether the view is paused. Events are still processed and recorded.
    pub(crate) fn is_paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// Returns the number of inspections, including those after a pause.
    pub(crate) fn inspections(&self) -> u64 {
        self.history.inspections
    }

    /// Returns the acts of a policy, including those after a pause; `None` if no log is followed.
    pub(crate) fn policy(&self) -> Option<&PolicyHistory> {
        self.history.policy.as_ref()
    }

    /// Returns the last inspection, even if the view is paused.
    pub(crate) fn latest(&self) -> Option<&Inspection> {
        self.history.latest.as_ref()
    }

    /// Returns the duration of the last inspection, in seconds.
    pub(crate) fn inspection_s(&self) -> Option<f64> {
        Some(self.history.latest.as_ref()?.observation.elapsed_s)
    }

    /// Returns the time between two inspections, in seconds.
    pub(crate) fn between_inspections_s(&self) -> f64 {
        let cpu_s = self.history.latest.as_ref().map_or(0.0, |found| found.observation.cpu_s);
        let cost = Duration::from_secs_f64(cpu_s.max(0.0));
        between_inspections(self.interval, cost).as_secs_f64()
    }

    /// Processes an event of the watcher.
    pub(crate) fn see(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Sample(tick) => self.history.add_sample(tick.sample),
            WatchEvent::Observed(t_s, observation) => self.observe(t_s, *observation),
            WatchEvent::Acted(t_s, act) => {
                if let Some(policy) = &mut self.history.policy {
                    policy.add(t_s, &act);
                }
            }
            WatchEvent::Failed(error) => self.trouble = Some(error.to_string()),
            WatchEvent::Ended(t_s) => {
                self.history.now_s = t_s;
                self.ended_s = Some(t_s);
            }
        }
    }

    /// Processes a report of leaks.
    pub(crate) fn see_leaks(&mut self, found: Result<LeakReport, TargetError>) {
        match found {
            Ok(report) => self.leaks = Some(report),
            Err(error) => self.trouble = Some(format!("the search for leaks stopped: {error}")),
        }
    }

    /// Processes what pins memory.
    pub(crate) fn see_pins(&mut self, found: Result<Pins, TargetError>) {
        match found {
            Ok(pins) => self.pins = Some(pins),
            Err(error) => self.trouble = Some(format!("the blocks cannot be read: {error}")),
        }
    }

    fn observe(&mut self, t_s: f64, observation: Observation) {
        self.unreadable = observation.unreadable;
        let found = self.follower.observe(t_s, observation);
        self.trouble = None;
        self.history.add_inspection(t_s, found);
    }

    /// Carries out the command of a key, or returns a request to the loop.
    pub(crate) fn press(&mut self, key: Key) -> Option<KeyRequest> {
        match key {
            Key::Quit => return Some(KeyRequest::Quit),
            Key::Back if self.panel == Panel::Overview => return Some(KeyRequest::Quit),
            Key::Back => self.panel = Panel::Overview,
            Key::Pause => {
                self.frozen = if self.is_paused() { None } else { Some(self.history.clone()) };
            }
            Key::Arenas => self.toggle(Panel::Arenas),
            Key::Help => self.toggle(Panel::Help),
            Key::Leaks => {
                self.toggle(Panel::Leaks);
                return (self.panel == Panel::Leaks).then_some(KeyRequest::Leaks);
            }
            Key::Pins => {
                self.toggle(Panel::Pins);
                return (self.panel == Panel::Pins).then_some(KeyRequest::Pins);
            }
            Key::Seek => return (self.panel == Panel::Leaks).then_some(KeyRequest::Seek),
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
        /// Maximum number of lines to scroll: more than a report has.
        const MAX_LINES: usize = 1000;
        let latest = self.history().latest.as_ref();
        let all = match self.panel {
            Panel::Leaks | Panel::Pins => MAX_LINES,
            _ => latest.map_or(0, |found| found.observation.arenas.len()),
        };
        let last = all.saturating_sub(self.page.max(1));
        self.scroll = self.scroll.saturating_add_signed(lines).min(last);
    }

    fn choose_interval(
        &mut self,
        mut from: impl Iterator<Item = u64>,
        fits: impl Fn(Duration, Duration) -> bool,
    ) -> Option<KeyRequest> {
        let chosen = from.find(|ms| fits(Duration::from_millis(*ms), self.interval))?;
        self.interval = Duration::from_millis(chosen);
        Some(KeyRequest::Interval(self.interval))
    }
}
